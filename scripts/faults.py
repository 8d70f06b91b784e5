"""Gives a small run one fault after the other: what does it say, and does it go on?

    python scripts/faults.py

A full disk (a small file system of its own, where mounting is allowed, and a limit on
the size of files), a work directory that may not be written or that is removed, at
several moments of a run; every file of an interrupted run damaged in several ways; a
clock that steps back. Each has to end with one line and its exit code, and the next
run, when the cause is gone, with the files of an undisturbed run, to the bit. Exit code
1 if one does not.
"""

import argparse
import atexit
import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import rich.console
import rich.table
import torture

SCRIPT = pathlib.Path(__file__).resolve()
RUN = (
    *("--train_steps=30", "--eval_every=15", "--rounds=1", "--controls=reinit"),
    *("--rewind_step=5", "--checkpoint_every=10", "--compile=graph"),
)
# The second replicate is under way when the first has ended early.
ENDED = (*RUN, "--prune_rate=1e-6", "--replicates=2")
MOMENTS = {
    "at the start": None,
    "third line of metrics": ("add_metrics", 3),
    "second checkpoint": ("save_checkpoint", 2),
    "ticket": ("save_masks", 1),
    "weights": ("save_weights", 1),
    "row": ("add_row", 1),
}
# Undisturbed, or killed before a call.
RUNS = {
    "whole": (RUN, None),
    "whole ended": (ENDED, None),
    "cut": (RUN, ("save_checkpoint", 6)),
    "cut ended": (ENDED, ("save_checkpoint", 5)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression of faults")
    # How this script calls itself.
    parser.add_argument("--strike", nargs=3, help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args()
    if options.strike:
        strike_at(*options.strike, flags)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = list(all_faults(pathlib.Path(folder), options.only))
    rich.console.Console(width=170).print(table(rows))
    sys.exit(not all(row[-1] for row in rows))


def table(rows):
    result = rich.table.Table("fault", "exit", "the line", "then", show_lines=True)
    for fault, code, line, then, holds in rows:
        result.add_row(fault, str(code), line, then if holds else f"FAILS: {then}")
    return result


def all_faults(folder, only):
    """Yields `(fault, exit code, line, what came then, whether it holds)`."""
    for fault, call, arguments in (*stops(folder), *damages(folder)):
        if re.search(only, fault):
            began = time.monotonic()
            row = fault, *call(*arguments)
            seconds = f"{time.monotonic() - began:.0f} s"
            print(
                *row[:2], row[3], "holds" if row[-1] else "FAILS", seconds, flush=True
            )
            yield row


def made(folder, name):
    """The folder of an undisturbed or an interrupted run, made when it is needed."""
    path, (run, cut) = folder / name, RUNS[name]
    if not path.exists():
        code, line = strike(path, run, "kill", cut) if cut else perform(path, run)
        if code != (-signal.SIGKILL if cut else 0):
            raise SystemExit(f"{name}: exit code {code}: {line}")
    return path


# Faults that stop a run


def stops(folder):
    """`(fault, function, arguments)` of what keeps a run from writing."""
    full = list(MOMENTS)
    cases = [("a file-size limit", "limit", 1, full)]
    cases += [("no permission", "forbid", 1, ["at the start", "second checkpoint"])]
    cases += [("removed", "remove", 1, ["third line of metrics", "second checkpoint"])]
    if can_mount(folder):
        cases += [("disk full", "fill", 1, full)]
        cases += [("read-only", "protect", 1, ["at the start", "row", "weights"])]
    else:
        print("mounting is not allowed here: no full disk, no read-only file system")
    for name, kind, code, moments in cases:
        for moment in moments:
            refused = moment == "at the start" and kind in ("forbid", "protect")
            arguments = folder, kind, MOMENTS[moment], 2 if refused else code
            yield f"{name}: {moment}", stop, arguments
    yield "a file in place of the folder", in_the_way, (folder,)
    yield "clock a day back", clock, (folder,)


def stop(folder, kind, moment, expected):
    """Stops a run with a fault, takes the cause away, and lets it go on."""
    with disk(folder, kind in ("fill", "protect")) as path:
        code, line = strike(path, RUN, kind, moment)
        end_of_fault(path)
        told = code == expected and is_one_line(line)
        then, same = goes_on(path, made(folder, "whole"), RUN)
        return code, shown(line, folder), then, told and same


def end_of_fault(path):
    (path.parent / "filler").unlink(missing_ok=True)
    unmount(path)
    for file in (path, *path.rglob("*")) if path.exists() else ():
        file.chmod(0o755)


def in_the_way(folder):
    path = folder / "file"
    path.write_text("")
    code, line = perform(path, RUN)
    path.unlink()
    then, same = goes_on(path, made(folder, "whole"), RUN)
    return code, shown(line, folder), then, code == 2 and is_one_line(line) and same


def clock(folder):
    """Goes on with a run on a clock that has stepped back, and goes on doing so."""
    path = copy(folder, "cut")
    code, line = strike(path, RUN, "clock", None)
    then, same = compared(path, made(folder, "whole"))
    rows = torture.rows(path)
    positive = all(float(row["train_seconds"]) >= 0 for row in rows)
    return code, shown(line, folder), then, same and positive and not code


@contextlib.contextmanager
def disk(folder, small):
    """A folder for a run that is not there yet, on a small file system if need be."""
    root = folder / "disk"
    root.mkdir()
    if small:
        words = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", root]
        subprocess.run(words, check=True)
    try:
        yield root / "run"
    finally:
        unmount(root)
        shutil.rmtree(root)


def can_mount(folder):
    try:
        with disk(folder, True):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


def unmount(path):
    # Not is_mount, which takes the same disk for the same mount.
    mounts = pathlib.Path("/proc/self/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    for _ in [line for line in lines if line.split()[1] == str(path)]:
        subprocess.run(["umount", path], check=True)


def strike(path, run, kind, moment):
    """Runs the command, with a fault before a call of `WorkDirectory`'s methods."""
    method, number = moment or ("__init__", 1)
    return perform(path, run, SCRIPT, "--strike", kind, method, str(number))


def strike_at(kind, method, number, flags):
    """The command line in this process, with a fault when it has come so far."""
    from prunetrain import main as command_line
    from prunetrain.runs import workdir

    path = pathlib.Path(flags[-1].removeprefix("--workdir="))
    whole, left = getattr(workdir.WorkDirectory, method), [int(number)]

    def call(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            STRIKES[kind](path)
        return whole(*arguments, **options)

    setattr(workdir.WorkDirectory, method, call)
    sys.argv = [str(SCRIPT), *flags]
    command_line.console()


def fill(path):
    """Leaves no room on the file system that the folder is on."""
    with contextlib.suppress(OSError), open(path.parent / "filler", "wb") as file:
        while True:
            os.write(file.fileno(), bytes(4096))


def limit(path):
    """No file may grow beyond 100 bytes: neither here nor elsewhere."""
    del path
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def forbid(path):
    """The folder is another user's: root has to become one who may not write."""
    path.mkdir(exist_ok=True)
    path.chmod(0o555)
    path.parent.chmod(0o755)
    for file in path.rglob("*"):
        file.chmod(0o555)
    if not os.getuid():
        path.parent.parent.chmod(0o755)
        os.seteuid(65534)
        # TensorFlow removes files of its own as the process ends.
        atexit.register(os.seteuid, 0)


def protect(path):
    """Read-only from now on, whoever has files open in it."""
    path.mkdir(exist_ok=True)
    for words in (["--bind", path, path], ["-o", "remount,bind,ro", path]):
        subprocess.run(["mount", *words], check=True)


def set_clock(path):
    """From now on each look at the clock finds it an hour earlier."""
    del path
    now = time.time() - 86400

    def back():
        nonlocal now
        now -= 3600
        return now

    time.time = back


def kill(path):
    del path
    os.kill(os.getpid(), signal.SIGKILL)


STRIKES = {
    **{"fill": fill, "limit": limit, "forbid": forbid, "protect": protect},
    **{"remove": shutil.rmtree, "clock": set_clock, "kill": kill},
}


# Damaged files


def flip(place):
    """Damage that changes a bit of the byte at a place (a fraction of the file)."""

    def damage(file):
        content = bytearray(file.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1
        file.write_bytes(content)

    return damage


DAMAGE = {
    **{f"byte flipped at {place:.0%}": flip(place) for place in (0.37, 0.8)},
    "cut in half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "lost": lambda file: file.unlink(),
}


def damages(folder):
    """`(fault, function, arguments)` of a file damaged in an interrupted run."""
    for cut, run, names in (
        ("cut", RUN, sorted(files_of(made(folder, "cut")))),
        ("cut ended", ENDED, ["tickets/replicate0-ends.txt"]),
    ):
        for name in names:
            yield f"damaged: {name}", damaged, (folder, cut, run, name)


def files_of(path):
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    # A checkpoint is guarded as a whole: two of its files will do.
    return {
        name
        for name in found
        if "-resume/" not in name or re.search(r"-resume/2/(state.data|position)", name)
    }


def damaged(folder, cut, run, name):
    """Damages a file in each way: refused until it is restored, or without effect."""
    outcomes, codes, lines, holds = [], [], [], True
    path = copy(folder, cut)
    for damage, act in DAMAGE.items():
        act(path / name)
        code, line = perform(path, run)
        if code:
            outcome = "refused"
            # Without the end of a replicate it is a ticket that is missing.
            named = damage == "lost" or name.split("/")[-1] in line
            holds &= code == 2 and is_one_line(line) and named
            shutil.copy(folder / cut / name, path / name)
        else:
            outcome, same = without_effect(path, folder, cut, name)
            holds, path = holds and same, copy(folder, cut)
        outcomes.append(f"{damage}: {outcome}")
        codes.append(code)
        lines.append(shown(line, folder))
    if any(codes):
        then, same = goes_on(path, made(folder, cut.replace("cut", "whole")), run)
        outcomes, holds = [*outcomes, f"restored: {then}"], holds and same
    codes = "/".join(map(str, dict.fromkeys(codes)))
    return codes, max(lines, key=len), "\n".join(outcomes), holds


def without_effect(path, folder, cut, name):
    """Whether a finished run that was damaged has left what it should have."""
    # Finished weights are not read by the run; their sum tells.
    unread = {pathlib.Path(name).name} if name.endswith(".h5") else set()
    return compared(path, made(folder, cut.replace("cut", "whole")), unread)


def copy(folder, cut):
    path = folder / "copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made(folder, cut), path)
    return path


# Runs and what they leave


def perform(path, run, *script):
    """Runs the command; returns exit code and standard error."""
    program = script or ("-m", "prunetrain.main")
    done = subprocess.run(
        [sys.executable, *map(str, program), *run, f"--workdir={path}"],
        env={**os.environ, "PYTHONPATH": str(torture.ROOT)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr.strip()


def is_one_line(line):
    return line.startswith("prunetrain: ") and "\n" not in line


def shown(line, folder):
    return line.replace(f"{folder}/", "").removeprefix("prunetrain: ")


def goes_on(path, whole, run):
    """Repeats the command; returns what came of it, and whether all is as it was."""
    code, line = perform(path, run)
    if code:
        return f"exit code {code}: {line}", False
    return compared(path, whole)


def compared(path, whole, unread=frozenset()):
    """Whether two runs have left the same, with sums that fit, but for `unread`."""
    different = torture.different(torture.left(whole), torture.left(path)) - unread
    if different:
        return f"differs: {', '.join(sorted(different))}", False
    sums = subprocess.run(
        ["sha256sum", "--check", "--ignore-missing", "--quiet", "SHA256SUMS"],
        cwd=path,
        capture_output=True,
        text=True,
    )
    changed = {line.partition(":")[0] for line in sums.stdout.splitlines()}
    # A file that is not there is not checked.
    there = {file.name for file in path.rglob("*")}
    if {pathlib.Path(name).name for name in changed} != unread & there:
        return f"sums: {sums.stdout}{sums.stderr}", False
    return "same bits", True


if __name__ == "__main__":
    main()
