# Sourced by quickstart and test: makes .venv if there is none and installs prunetrain
# with an extra into it; does nothing when nothing has changed. Sets root and python.
#   PYTHON=…   the Python that makes the environment (default: python3)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python

install_with() {
  local extra=$1 stamp=$root/.venv/.installed-$1 log=$root/.venv/install.log
  if [ -x "$python" ] && [ -f "$stamp" ] \
      && [ "$stamp" -nt "$root/setup.cfg" ] && [ "$stamp" -nt "$root/pyproject.toml" ]
  then
    return
  fi
  if [ ! -x "$python" ]; then
    echo "Making $root/.venv"
    "${PYTHON:-python3}" -m venv "$root/.venv" || {
      echo "Could not make a virtual environment: install Python 3.10 to 3.13 with its" \
        "venv module, or name one with PYTHON=…" >&2
      exit 1
    }
  fi
  echo "Installing prunetrain[$extra] into $root/.venv (once; a few minutes, log: $log)"
  if ! "$python" -m pip install --disable-pip-version-check -e "$root[$extra]" \
      > "$log" 2>&1
  then
    tail -n 20 "$log" >&2
    echo "The installation failed; the whole log is $log" >&2
    exit 1
  fi
  touch "$stamp"
}
