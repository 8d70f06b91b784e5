# Sourced by quickstart and test: makes .venv if there is none and installs prunetrain
# with an extra into it; does nothing when nothing has changed. Sets root and python.
#   PYTHON=…   the Python that makes the environment (default: python3)
# use_lowest takes .venv-lowest, with the lowest versions that setup.cfg declares.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
constraints=()

use_lowest() {
  venv=$root/.venv-lowest
  python=$venv/bin/python
  PYTHON=${PYTHON:-python$(sed -n 's/^python_requires = >=\([0-9.]*\).*/\1/p' "$root/setup.cfg")}
  mkdir -p "$venv"
  sed -n '/^install_requires/,/^$/s/^ *\(.*\) >= \(.*\)/\1==\2/p' "$root/setup.cfg" \
    > "$venv/constraints.txt"
  constraints=(--constraint "$venv/constraints.txt")
}

install_with() {
  local extra=$1 stamp=$venv/.installed-$1 log=$venv/install.log
  if [ -x "$python" ] && [ -f "$stamp" ] \
      && [ "$stamp" -nt "$root/setup.cfg" ] && [ "$stamp" -nt "$root/pyproject.toml" ]
  then
    return
  fi
  if [ ! -x "$python" ]; then
    echo "Making $venv"
    "${PYTHON:-python3}" -m venv "$venv" || {
      echo "Could not make a virtual environment with ${PYTHON:-python3}: install Python" \
        "3.10 to 3.13 with its venv module, or name one with PYTHON=…" >&2
      exit 1
    }
  fi
  echo "Installing prunetrain[$extra] into $venv (once; a few minutes, log: $log)"
  if ! "$python" -m pip install --disable-pip-version-check -e "$root[$extra]" \
      ${constraints[@]+"${constraints[@]}"} > "$log" 2>&1
  then
    tail -n 20 "$log" >&2
    echo "The installation failed; the whole log is $log" >&2
    exit 1
  fi
  touch "$stamp"
}
