"""Files on record: whole, and known again when they are read."""

import subprocess

import pytest

from prunetrain import errors
from prunetrain.runs import files
from tests import toys


def refused(folder, name="a.txt"):
    """Whether reading is refused, with file, remedies and where the record is."""
    try:
        files.read(folder, name)
    except errors.InputError as error:
        fragments = (folder / name, "Restore it", "--workdir", folder / files.SUMS)
        assert all(str(fragment) in str(error) for fragment in fragments)
        return True
    return False


def test_content_comes_back_and_sha256sum_agrees(tmp_path):
    (tmp_path / "inner").mkdir()
    files.write(tmp_path, "a.txt", "grün")
    files.write(tmp_path, "inner/b", b"\0\xff")
    assert files.read(tmp_path, "a.txt").decode() == "grün"
    assert files.read(tmp_path, "inner/b") == b"\0\xff"
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["b"]
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", files.SUMS],
        cwd=tmp_path,
        check=True,
    )


def test_every_flipped_byte_of_a_file_is_noticed(tmp_path):
    files.write(tmp_path, "a.txt", "what was written")
    whole = (tmp_path / "a.txt").read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        (tmp_path / "a.txt").write_bytes(changed)
        assert refused(tmp_path)
    for changed in (b"", whole[:-1], whole + b"\n"):
        (tmp_path / "a.txt").write_bytes(changed)
        assert refused(tmp_path)
    (tmp_path / "a.txt").write_bytes(whole)
    assert not refused(tmp_path)


def test_a_flipped_byte_of_the_record_never_makes_damage_pass(tmp_path):
    files.write(tmp_path, "a.txt", "old")
    (tmp_path / "a.txt").write_text("odd")
    whole = (tmp_path / files.SUMS).read_bytes()
    for at in range(64):
        changed = bytearray(whole)
        # Another digit, so that the line remains one.
        changed[at] = ord("0") if changed[at] != ord("0") else ord("1")
        (tmp_path / files.SUMS).write_bytes(changed)
        assert refused(tmp_path)


def test_a_change_that_is_meant_is_taken_once_its_lines_are_removed(tmp_path):
    files.write(tmp_path, "a.txt", "old")
    files.write(tmp_path, "b.txt", "old")
    (tmp_path / "a.txt").write_text("new")
    assert refused(tmp_path)
    lines = (tmp_path / files.SUMS).read_text().splitlines(keepends=True)
    (tmp_path / files.SUMS).write_text("".join(x for x in lines if "a.txt" not in x))
    assert files.read(tmp_path, "a.txt") == b"new"
    (tmp_path / "b.txt").write_text("new")
    assert refused(tmp_path, "b.txt")


def test_a_file_that_was_never_recorded_is_taken_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_text("of an older release")
    assert not refused(tmp_path)


def test_the_sum_is_on_record_before_the_file_has_the_content(tmp_path, monkeypatch):
    replace, seen = files.os.replace, []

    def watch(beside, file):
        seen.append(files.digest([beside.read_bytes()]))
        assert files.known(tmp_path)["a.txt"][-1] == seen[-1]
        # A process that dies here leaves the old content.
        assert not file.exists() or not refused(tmp_path)
        replace(beside, file)

    monkeypatch.setattr(files.os, "replace", watch)
    for content in ("one", "two"):
        files.write(tmp_path, "a.txt", content)
    (tmp_path / "beside").write_text("three")
    files.move(tmp_path / "beside", tmp_path, "a.txt")
    assert files.read(tmp_path, "a.txt") == b"three"
    assert len(set(seen)) == 3


def test_a_line_that_was_cut_off_hides_only_itself(tmp_path):
    files.record(tmp_path, "a", "1" * 64)
    whole = (tmp_path / files.SUMS).read_bytes()
    for length in range(len(whole)):
        (tmp_path / files.SUMS).write_bytes(whole[:length])
        files.record(tmp_path, "b", "2" * 64)
        assert files.known(tmp_path) == {"b": ["2" * 64]}


def test_the_record_is_compacted_to_what_is_there(tmp_path):
    for name, content in (("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("b", "1")):
        files.record(tmp_path, name, content * 64)
    files.compact(tmp_path, {"a": "2" * 64, "c": "3" * 64})
    assert files.known(tmp_path) == {
        **{"a": ["2" * 64], "b": ["1" * 64, "2" * 64], "c": ["3" * 64]}
    }


@pytest.mark.parametrize("size", [0, 1, files._BLOCK, files._BLOCK + 1])
def test_a_large_file_is_moved_with_the_sum_of_all_of_it(size, tmp_path):
    (tmp_path / "beside").write_bytes(bytes(size))
    files.move(tmp_path / "beside", tmp_path, "a.txt")
    assert files.read(tmp_path, "a.txt") == bytes(size)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with toys.raises(errors.InputError, str(tmp_path / "a.txt"), "missing or damaged"):
        files.read(tmp_path, "a.txt")
