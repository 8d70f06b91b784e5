"""Tickets: what comes back, and that a file is believed nothing."""

import io
import tracemalloc
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays

from prunetrain.runs import tickets

MASKS = [np.arange(600).reshape(30, 20) % 3 > 0, np.arange(7) > 2]
WHOLE = tickets.to_bytes(["a/kernel", "b/kernel"], MASKS)


def members(content=WHOLE):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, kind=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", kind) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def with_header(text, body=b"", version=(1, 0)):
    """An .npy file of any header."""
    text = text.encode().ljust(118) + b"\n"
    return np.lib.format.magic(*version) + len(text).to_bytes(2, "little") + text + body


def with_member(name, part):
    return packed({**members(), name: part})


@hypothesis.given(
    strategies.lists(
        arrays.arrays(bool, arrays.array_shapes(min_side=0, max_dims=4, max_side=9)),
        max_size=3,
    )
)
def test_masks_of_any_shape_come_back_to_the_bit(masks):
    paths = [f"layer_{index}/kernel" for index in range(len(masks))]
    found = tickets.from_bytes(tickets.to_bytes(paths, masks))
    assert [x.shape for x in found] == [x.shape for x in masks]
    for mask, expected in zip(found, masks, strict=True):
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, expected)


def test_numpy_reads_a_ticket_too():
    with np.load(io.BytesIO(WHOLE)) as file:
        assert file["paths"].tolist() == ["a/kernel", "b/kernel"]
        assert file["shape_0"].tolist() == [30, 20]
        bits = np.unpackbits(file["bits_0"])[:600].astype(bool)
    np.testing.assert_array_equal(bits.reshape(30, 20), MASKS[0])


U1, BITS = "'descr': '|u1', ", bytes(75)
DAMAGE = {
    "empty": (b"", "no .npz file"),
    "an array": (npy(np.zeros(3)), "no .npz file"),
    "something in front": (b"GIF8" + WHOLE, "no .npz file"),
    "cut": (WHOLE[:-30], "BadZipFile"),
    "a flipped bit": (WHOLE.replace(b"a\0\0\0/", b"b\0\0\0/"), "BadZipFile"),
    "compressed": (packed(members(), zipfile.ZIP_DEFLATED), "compressed"),
    "no paths": (packed({"bits_0.npy": npy(np.zeros(1, "u1"))}), "names no kernels"),
    "paths as numbers": (with_member("paths.npy", npy(np.arange(2))), "no kernels"),
    "more paths": (with_member("paths.npy", npy(np.array(["a"] * 3))), "of mask 2"),
    "fewer paths": (with_member("paths.npy", npy(np.array(["a"]))), "bits_1, shape_1"),
    "a stranger": (with_member("../x.npy", npy(np.arange(2))), "it holds ../x besides"),
    "objects": (
        with_member("paths.npy", npy(np.array([{}, {}], object))),
        "an array of object",
    ),
    "floats": (with_member("bits_0.npy", npy(np.zeros(75))), "array of float64"),
    "bits of another type": (
        with_member("bits_0.npy", npy(np.zeros(75, "u2"))),
        "lacks",
    ),
    "bits in two dimensions": (
        with_member("bits_0.npy", npy(np.zeros((75, 1), "u1"))),
        "the shape (75, 1)",
    ),
    "a later version": (
        with_member("bits_0.npy", with_header("{}", version=(2, 0))),
        "another version",
    ),
    "bits beyond all memory": (
        with_member(
            "bits_0.npy",
            with_header(
                f"{{{U1}'fortran_order': False, 'shape': (1{'0' * 15},)}}", BITS
            ),
        ),
        "announces 1000000000000000 × uint8: 75 bytes",
    ),
    "fewer bits than announced": (
        with_member(
            "bits_0.npy",
            with_header(f"{{{U1}'fortran_order': False, 'shape': (76,)}}", BITS),
        ),
        "announces 76 × uint8: 75 bytes",
    ),
    "a negative count": (
        with_member(
            "bits_0.npy",
            with_header(f"{{{U1}'fortran_order': False, 'shape': (-1,)}}", BITS),
        ),
        "announces -1",
    ),
    "a header that is code": (
        with_member("bits_0.npy", with_header("__import__('os').abort()")),
        "malformed node",
    ),
    "a shape of more": (
        with_member("shape_0.npy", npy(np.array([31, 20]))),
        "mask 0 has 75 bytes for the shape (31, 20)",
    ),
    "a shape of less": (
        with_member("shape_0.npy", npy(np.array([3, 20]))),
        "mask 0 has 75 bytes",
    ),
    "a negative shape": (
        with_member("shape_0.npy", npy(np.array([-30, -20]))),
        "the shape (-30, -20)",
    ),
    "a shape that wraps around": (
        with_member("shape_0.npy", npy(np.array([2**62, 4, 600]))),
        "mask 0 has 75 bytes",
    ),
    "a shape beyond all memory": (
        with_member("shape_0.npy", npy(np.array([2**62]))),
        "mask 0 has 75 bytes",
    ),
    "a shape of floats": (with_member("shape_0.npy", npy(np.ones(2))), "float64"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_no_whole_ticket_is_refused_with_the_reason(case):
    content, reason = DAMAGE[case]
    with pytest.raises(ValueError) as caught:
        tickets.from_bytes(content)
    assert reason in str(caught.value)


def test_two_members_of_one_name_are_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        content = io.BytesIO(WHOLE)
        with zipfile.ZipFile(content, "a") as archive:
            archive.writestr("bits_0.npy", npy(np.zeros(75, "u1")))
    with pytest.raises(ValueError, match="the same name"):
        tickets.from_bytes(content.getvalue())


def test_every_cut_is_noticed():
    for length in range(len(WHOLE)):
        with pytest.raises(ValueError):
            tickets.from_bytes(WHOLE[:length])


@hypothesis.given(
    strategies.integers(0, len(WHOLE) - 1), strategies.binary(min_size=1, max_size=8)
)
def test_bytes_written_anywhere_are_refused_or_change_no_mask(at, written):
    content = WHOLE[:at] + written + WHOLE[at + len(written) :]
    try:
        found = tickets.from_bytes(content)
    except ValueError:
        return
    # The archive keeps names and sizes twice, and dates that nobody reads.
    for mask, expected in zip(found, MASKS, strict=True):
        np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_bomb_is_not_unpacked(kind):
    part = with_header(f"{{{U1}'fortran_order': False, 'shape': (67108864,)}}")
    bomb = packed({**members(), "bits_0.npy": part + bytes(2**26)}, kind)
    if kind == zipfile.ZIP_STORED:
        # The size is that of a bomb, and what would be unpacked is not there.
        bomb = bomb[:1000] + bomb[-3000:]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            tickets.from_bytes(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_reading_takes_a_byte_a_weight_and_little_more():
    content = tickets.to_bytes(["k"], [np.ones((2000, 1000), bool)])
    tracemalloc.start()
    try:
        tickets.from_bytes(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2e6 < peak < 2e6 * 1.5
