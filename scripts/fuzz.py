"""Reads mutated files of every kind: nothing but clean errors may come of it.

    python scripts/fuzz.py --inputs=10000 --seed=0

Valid files are flipped, cut, doubled and spliced, and numbers in them set to extremes;
then the package's own readers take them, in this process, without TensorFlow. Each must
accept the file or raise InputError that names it, within `SECONDS`; the process may map
`MEMORY` more than it had at the start (which Linux sees to). Exit code 1 if not.
"""

import argparse
import collections
import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from prunetrain import instability  # noqa: E402
from prunetrain import main as cli  # noqa: E402
from prunetrain.analysis import levels, table  # noqa: E402
from prunetrain.config import Config  # noqa: E402
from prunetrain.data import idx, npz  # noqa: E402
from prunetrain.errors import InputError  # noqa: E402
from prunetrain.runs import barriers, results, workdir  # noqa: E402

SECONDS = 5
MEMORY = 2**28
SETTINGS = Config(controls="reinit").as_dict()
KEY = 1, "ticket", 0
TOKENS = (
    *(b"", b"-1", b"0", b"1e999", b"nan", b"null", b"true", b"9" * 30, b"9" * 5000),
    *(b"[" * 3000, b'{"a":' * 3000, b"\xff", b"\0", b'"', b"../x", b"\n", b"-0.0"),
    *("٣".encode(), "\ufeff".encode(), b"(" * 300, b"x" * 200_000),
)  # fmt: skip
EXTREMES = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


class Hang(BaseException):
    """What no handler of errors may catch."""


# Mutations: bytes -> bytes


def flip(content, rng):
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def truncate(content, rng):
    return content[: rng.randrange(len(content) + 1)]


def insert(content, rng):
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.randbytes(rng.choice((1, 2, 4, 64))) + content[at:]


def duplicate(content, rng):
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:end] * rng.choice((1, 1, 50)) + content[end:]


def splice(content, rng):
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[end:] + content[:start]


def set_extreme(content, rng):
    """A number of 1 to 8 bytes, most often within the header."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    value = rng.choice(EXTREMES) % 2 ** (8 * width)
    at = rng.randrange(min(len(content), rng.choice((24, 10**9))) + 1)
    return content[:at] + value.to_bytes(width, order) + content[at + width :]


def set_token(content, rng):
    """One of the words or numbers in a text."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((0, 1, 3, 10)))
    return content[:start] + rng.choice(TOKENS) + content[end:]


MUTATIONS = (flip, truncate, insert, duplicate, splice, set_extreme, set_token)


def mutated(content, rng):
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(MUTATIONS)(content, rng)
    return content


def mutated_inside_gzip(content, rng):
    """The packed file, or what is in it, which then has a right check sum."""
    if rng.random() < 0.5:
        return mutated(content, rng)
    bomb = bytes(2**22) if rng.random() < 0.05 else b""
    return gzip.compress(mutated(gzip.decompress(content), rng) + bomb, 1)


def mutated_inside_zip(content, rng):
    """The archive, or one of its members, which then has a right check sum."""
    if rng.random() < 0.3:
        return mutated(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = rng.choice(list(members))
    members[chosen] = mutated(members[chosen], rng)
    packed, kind = io.BytesIO(), rng.choice((0, 0, 0, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(packed, "w", kind) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
        if rng.random() < 0.05:
            archive.writestr("bomb.npy", bytes(2**22))
    return packed.getvalue()


# Readers: what is read, and how


class Run:
    """A work directory with a training finished, one under way, and a ticket."""

    def __init__(self, folder):
        self.whole, self.path = folder / "whole", folder / "run"
        directory = workdir.WorkDirectory(self.whole, SETTINGS)
        directory.record_environment({"compile_mode": "xla", "threads": 2})
        for round in range(12):
            directory.add_row(_row(round))
            directory.add_metrics(replicate=0, branch="ticket", round=round, loss=0.5)
        masks = [np.arange(300).reshape(20, 15) % 3 > 0, np.arange(7) > 2]
        directory.save_masks(0, 1, ["a/kernel", "b/kernel"], masks)
        directory.end_at(0, 1, "nothing to prune")
        line = dict(zip(("replicate", "branch", "round"), KEY, strict=True), loss=0.25)
        for step in (10, 20):
            position = {"step": step, "best": None, "metrics": [line] * 3}
            directory.save_checkpoint(KEY, _State(), position)

    def open_with_sums(self, content):
        """Opens a copy whose own SHA256SUMS holds `content`."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.whole, self.path)
        (self.path / "SHA256SUMS").write_bytes(content)
        return workdir.WorkDirectory(self.path, SETTINGS)

    def file(self, name, folder=None):
        (file,) = sorted((folder or self.whole).rglob(name))[-1:]
        return file

    def open(self, name, content, sums=False):
        """Opens a copy of the directory in which one file holds `content`."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.whole, self.path)
        # Else what is changed would be refused unread.
        (self.path / "SHA256SUMS").unlink()
        file = self.file(name, self.path)
        file.write_bytes(content)
        if sums:
            write_sums(file.parent)
        return workdir.WorkDirectory(self.path, SETTINGS)


def write_sums(folder):
    """SHA256SUMS of a checkpoint that was tampered with."""
    (folder / "SHA256SUMS").unlink()
    sums = {x.name: hashlib.sha256(x.read_bytes()) for x in sorted(folder.iterdir())}
    lines = [f"{digest.hexdigest()}  {name}\n" for name, digest in sums.items()]
    (folder / "SHA256SUMS").write_text("".join(lines))


class _State:
    def write(self, prefix):
        pathlib.Path(f"{prefix}.index").write_bytes(b"state")


def _row(round):
    values = (100, 0.5, 40, 0.5, 0.75, 0.25, 0.5, 1.5, 0.625, 0.7, 0.375, 0.4)
    return results.Row(0, "ticket", round, *values)


def _pair(step):
    return barriers.Row(0, 0, step, (0.5, 0.75, 0.25), (0.125, 0.25, 0.0))


def _dataset(images):
    """Bytes of an .npz file with training and test data."""
    labels, packed = np.arange(20) % 3, io.BytesIO()
    parts = {"x_train": images, "y_train": labels}
    parts |= {"x_test": images[:6], "y_test": labels[:6].astype(np.float32)}
    np.savez_compressed(packed, **parts)
    return packed.getvalue()


def readers(folder):
    """`{name: (valid content, mutate, read)}`; `read` takes the mutated content."""
    run = Run(folder)
    images = np.arange(20 * 6 * 6, dtype=np.uint8).reshape(20, 6, 6)
    plain = b"\0\0\x08\3" + struct.pack(">3I", *images.shape) + images.tobytes()

    def read_idx(name):
        def read(content):
            (folder / name).write_bytes(content)
            return idx.read_idx(folder / name, 3)

        return read

    def read_npz(content):
        (folder / "data.npz").write_bytes(content)
        return npz.read_npz(folder / "data.npz")

    def read_flags(content):
        (folder / "some.flags").write_bytes(content)
        return cli.parse(["prunetrain", f"--flagfile={folder / 'some.flags'}"])

    def read_barriers(content):
        (folder / barriers.NAME).write_bytes(content)
        rows = barriers.read_rows(folder)
        return rows and instability.table(rows)

    def read_results(content):
        rows = run.open("results.csv", content).rows
        return table.table(levels.by_level(rows))

    found = {
        "IDX": (plain, mutated, read_idx("images")),
        "IDX, gzip": (gzip.compress(plain), mutated_inside_gzip, read_idx("images.gz")),
        "dataset .npz": (_dataset(images), mutated_inside_zip, read_npz),
        "ticket": (
            run.file("*.npz").read_bytes(),
            mutated_inside_zip,
            lambda content: run.open("*.npz", content).load_masks(0, 1),
        ),
        "SHA256SUMS of the run": (
            (run.whole / "SHA256SUMS").read_bytes(),
            mutated,
            lambda content: run.open_with_sums(content).load_masks(0, 1),
        ),
        "results.csv": (run.file("results.csv").read_bytes(), mutated, read_results),
        barriers.NAME: (
            barriers.as_csv(_pair(step) for step in range(12)).encode(),
            mutated,
            read_barriers,
        ),
        "flagfile": (
            run.file("flags.txt").read_bytes() + b"# a note\n--flagfile=other.flags\n",
            mutated,
            read_flags,
        ),
    }
    (folder / "other.flags").write_text("--workdir=somewhere\n")
    for name, use in {
        "config.json": lambda directory: directory.path,
        "environment.json": workdir.WorkDirectory.environment,
        "metrics.jsonl": lambda directory: directory.rows,
        "position.json": lambda directory: directory.position(KEY),
        "SHA256SUMS": lambda directory: directory.position(KEY),
        "*-ends.txt": lambda directory: directory.ends_at(0, 1),
    }.items():
        # Sums that are right, or the position would never be read.
        forged = name == "position.json"
        found[name] = (
            run.file(name).read_bytes(),
            mutated,
            lambda content, name=name, use=use, forged=forged: use(
                run.open(name, content, forged)
            ),
        )
    return found


# The run


@dataclasses.dataclass
class Slowest:
    """The input that took longest, in seconds."""

    seconds: float = 0.0
    reader: str = ""


def outcome(read, content, folder):
    """ "accepted", "refused", or what is wrong."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        read(content)
        return "accepted"
    except InputError as error:
        # A setting is named by its flag, everything else by its file.
        named = hasattr(error, "field") or str(folder) in str(error)
        named = named or "see --help" in str(error).lower()
        return "refused" if named else f"no file is named: {error}"
    except Hang:
        return "a hang"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fuzz(folder, inputs, seed):
    """Prints the table; returns whether anything but clean errors came out."""
    kinds, rng = readers(folder), random.Random(seed)
    for name, (content, _, read) in kinds.items():
        assert outcome(read, content, folder) == "accepted", name
    before, slowest = limit_memory(), Slowest()
    counts = {name: collections.Counter() for name in kinds}
    for number in range(inputs):
        name = list(kinds)[number % len(kinds)]
        content, mutate, read = kinds[name]
        content = mutate(content, rng)
        began = time.perf_counter()
        told = outcome(read, content, folder)
        slowest = max(
            slowest, Slowest(time.perf_counter() - began, name), key=lambda x: x.seconds
        )
        if told not in ("accepted", "refused"):
            print(f"{name}, input {number} of seed {seed}: {told}", flush=True)
            told = "crashes"
        counts[name][told] += 1
    return report(counts, slowest, peak_memory() - before)


def report(counts, slowest, memory):
    columns = ("refused", "accepted", "crashes")
    total = sum(counts.values(), collections.Counter())
    print(f"{'reader':<18}{'inputs':>8}" + "".join(f"{x:>10}" for x in columns))
    for name, count in {**counts, "all": total}.items():
        numbers = "".join(f"{count[x]:>10,}" for x in columns)
        print(f"{name:<18}{count.total():>8,}{numbers}")
    print(
        f"slowest {slowest.seconds:.2f} s ({slowest.reader}); peak memory "
        f"{memory / 2**20:.0f} MiB above the start's, {MEMORY / 2**20:.0f} allowed"
    )
    return total["crashes"] > 0


def limit_memory():
    """From now on a large allocation fails; returns the peak of memory so far."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return peak_memory()


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def hang(*_):
    raise Hang


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, hang)
    warnings.simplefilter("ignore")
    # What is read is not to survive a power cut.
    os.fsync = lambda descriptor: None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        crashed = fuzz(pathlib.Path(folder), options.inputs, options.seed)
    assert "tensorflow" not in sys.modules
    sys.exit(crashed)


if __name__ == "__main__":
    main()
