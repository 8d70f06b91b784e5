"""Streamed data: the same batches, bits and sums as arrays on the device, one trace."""

import itertools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import loops, streams
from prunetrain.data import augmentation
from tests import toys

modes = pytest.mark.parametrize("mode", toys.MODES)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6, 6, 2)).astype(np.float32)
Y = RNG.integers(3, size=50).astype(np.int32)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(streams, "_CHUNK_STEPS", 3)


def build(mode, stream, layers=(), x=X, y=Y, **options):
    """A loop over images, its pruned model and its optimizer."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            *(layer() for layer in layers),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2, seed=3),
            keras.layers.Dense(3),
        ]
    )
    pruned, optimizer = pt.PrunedModel(model), keras.optimizers.Adam(0.01)
    loop = pt.make_train_loop(
        *(pruned, optimizer, toys.cross_entropy(), x, y, 7),
        **{"seed": 3, "compile": mode, "stream": stream, **options},
    )
    return loop, pruned, optimizer


def trained(loop, pruned, optimizer, cuts):
    """The bits of the sum of the losses and of all state after steps 0 to the last."""
    total = 0.5
    for first, end in itertools.pairwise(cuts):
        total = loop.add_losses(total, first, end - first)
    assert loop.num_traces == 1
    state = toys.bits(pruned.model.variables, optimizer.variables)
    return [np.float32(total).tobytes(), *state]


AUGMENTS = {"plain": [], "augmented": ["crop", "flip"]}


@modes
@pytest.mark.parametrize("augment", AUGMENTS)
def test_streaming_and_cutting_change_no_bit(mode, augment):
    """Whole, cut, and one step a call; from the device and from the host."""
    augment = augmentation.chained(AUGMENTS[augment])
    results = [
        trained(*build(mode, stream, augment=augment), cuts)
        for stream, cuts in (
            (False, [0, 23]),
            (False, [0, 5, 23]),
            (True, [0, 23]),
            (True, [0, 1, 2, 9, 23]),
            (True, range(24)),
        )
    ]
    assert results == results[:1] * 5


def test_streaming_changes_no_bit_of_a_convolution():
    layers = [lambda: keras.layers.Conv2D(4, 3, activation="relu")]
    results = [
        trained(*build("auto", stream, layers), [0, 6, 20]) for stream in (False, True)
    ]
    assert results[0] == results[1]


@modes
def test_an_augmented_run_that_goes_on_elsewhere_has_the_same_bits(mode):
    """A new process has new loops: the state alone, and the step, say what comes."""
    augment = augmentation.chained(["crop", "flip"])
    whole = trained(*build(mode, True, augment=augment), [0, 20])
    loop, pruned, optimizer = build(mode, True, augment=augment)
    loop(0, 8)
    values = toys.values([*pruned.model.variables, *optimizer.variables])
    loop, pruned, optimizer = build(mode, False, augment=augment)
    for variable, value in zip(
        [*pruned.model.variables, *optimizer.variables], values, strict=True
    ):
        variable.assign(value)
    loop(8, 12)
    assert toys.bits(pruned.model.variables, optimizer.variables) == whole[1:]


def test_the_batch_at_a_step_depends_on_seed_and_step_alone():
    x = np.eye(10, dtype=np.float32)
    pruned = pt.PrunedModel(toys.column(*np.zeros(10)))
    loop = pt.make_train_loop(
        *(pruned, keras.optimizers.SGD(1.0), lambda y, out: -toys.total(y, out)),
        *(x, x[:, 0], 4),
        stream=True,
    )
    (kernel,) = pruned.kernels
    for seed in (1, 2, 1):
        loop.seed.assign(seed)
        for step in (0, 1, 2, 3, 40, 41, 2**40, 2**40 + 1, 3, 2, 17, 0, 0):
            before = kernel.numpy().copy()
            loop(step, 1)
            visits = (kernel.numpy() - before)[:, 0].tolist()
            rows = toys.batch_rows(10, 4, step, 1, seed).ravel()
            assert visits == np.bincount(rows, minlength=10).tolist(), (seed, step)
    assert loop.num_traces == 1


@pytest.mark.parametrize("interval", [1, 4, 10])
def test_masks_are_applied_as_often_as_without_streaming(interval):
    example = np.array([[1.0, 0.0]] * 5, np.float32)
    losses = []
    for stream in (False, True):
        pruned = pt.PrunedModel(toys.column(0.0, 0.0))
        loop = pt.make_train_loop(
            *(pruned, toys.Drift(), toys.total, example, example, 1),
            **{"mask_interval": interval, "stream": stream},
        )
        pruned.set_masks([np.array([[False], [True]])])
        losses.append(float(loop(0, 10)))
        assert pruned.kernels[0].numpy().ravel().tolist() == [0, 10]
    assert losses[0] == losses[1]


@modes
def test_pruned_weights_stay_zero(mode):
    loop, pruned, optimizer = build(mode, True)
    loop(0, 4)
    pt.prune(pruned, rate=0.5)
    for step in range(4, 12):
        loop(step, 1)
        pt.testing.assert_masks_hold(pruned, optimizer)


@modes
@pytest.mark.parametrize("augment", AUGMENTS)
def test_the_first_number_that_is_not_finite_is_found_at_the_same_step(mode, augment):
    found = []
    for stream in (False, True):
        x = X.copy()
        # Visited last in the first epoch, at positions 49 of 50: in step 7.
        x[loops.shuffled(50, 3, 0)[-1]] = np.nan
        options = {"augment": augmentation.chained(AUGMENTS[augment])}
        loop, _, _ = build(mode, stream, x=x, **options)
        found.append(loop.first_nonfinite(0, 10))
        assert build(mode, stream, **options)[0].first_nonfinite(0, 10) is None
    assert found[0] == found[1]
    assert found[0][0] == 8


class Rows:
    """What a stream needs of an array, and no more; remembers what was asked for."""

    def __init__(self, array):
        self.shape, self.dtype, self._array = array.shape, array.dtype, array
        self.largest = 0

    def __getitem__(self, rows):
        taken = self._array[rows]
        self.largest = max(self.largest, len(taken))
        return taken


def test_no_more_than_a_chunk_is_ever_taken_from_the_source(tmp_path):
    np.save(tmp_path / "x.npy", X)
    rows = Rows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    result = trained(*build("graph", True, x=rows), [0, 23])
    assert rows.largest == 21
    assert result == trained(*build("graph", False), [0, 23])


@modes
def test_a_streamed_evaluation_gives_the_same_sums(mode):
    _, pruned, _ = build(mode, False)
    sums = [
        pt.make_eval_loop(
            pruned, toys.cross_entropy(), X, Y, 16, compile=mode, stream=stream
        )
        for stream in (False, True)
    ]
    for _ in range(2):
        first, second = ([v.numpy() for v in evaluate()] for evaluate in sums)
        assert first == second
        assert first[2] == 50
        pt.prune(pruned, rate=0.5)


def test_a_source_that_fails_is_not_skipped():
    class Failing(Rows):
        def __getitem__(self, rows):
            if self.largest == 21 and len(rows) > 1:
                raise OSError("the disk is gone")
            return super().__getitem__(rows)

    loop, _, _ = build("graph", True, x=Failing(X))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            loop(3, 6)


def test_what_cannot_be_streamed_is_refused():
    with toys.raises(TypeError, "`x`", "x[rows]", "list"):
        build("graph", True, x=X.tolist())
    with toys.raises(ValueError, "`y`", "from 0 to 2", "labels from 1 to 3"):
        build("graph", True, y=Y + 1)
    with toys.raises(ValueError, "`x` and `y`", "(50, 6, 6, 2)", "(49,)"):
        build("graph", True, y=Y[1:])


@pytest.mark.parametrize(
    ("augment", "kind", "fragments"),
    [
        ("crop", TypeError, ["`augment`", "'crop'"]),
        (lambda x, seed: x[:, 1:], ValueError, ["`augment`", "(1, 5, 6, 2)"]),
        (lambda x, seed: tf.cast(x, tf.float16), ValueError, ["float16", "float32"]),
    ],
)
def test_an_augmentation_that_does_not_fit_is_refused(augment, kind, fragments):
    with toys.raises(kind, *fragments):
        build("graph", False, augment=augment)


def test_a_chunk_is_some_megabytes_and_at_least_a_step(monkeypatch):
    monkeypatch.undo()
    for shape, expected in (
        ((100, 4), 100),
        ((100, 32, 32, 3), 22),
        ((100, 4000, 4000), 1),
    ):
        x = np.broadcast_to(np.float32(0), shape)
        assert streams.steps_per_chunk(x, 60) == expected


def test_the_memory_of_this_machine_is_known():
    assert 2**28 < streams.device_memory() < 2**50


def test_an_augmentations_seed_is_no_seed_of_an_order():
    seeds = {tuple(loops.augment_seed(s, i).numpy()) for s in (0, 1) for i in range(9)}
    assert len(seeds) == 18
    assert all(first < 0 for first, _ in seeds)


COMPILED = """
import pathlib, sys, keras, numpy as np
import prunetrain as pt
from prunetrain.core import streams
from prunetrain.data import augmentation
from tests import toys

streams._CHUNK_STEPS = 3
x, y = np.ones((50, 4, 4, 1), np.float32), np.arange(50) % 3
model = keras.Sequential(
    [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
)
loop = pt.make_train_loop(
    *(pt.PrunedModel(model), keras.optimizers.Adam(0.01), toys.cross_entropy()),
    *(x, y, 7),
    compile="xla", stream=True, augment=augmentation.chained(["crop", "flip"]),
)
for seed, first, num_steps in ((0, 0, 7), (0, 7, 1), (0, 50, 9), (4, 1, 20)):
    loop.seed.assign(seed)
    loop(first, num_steps)
    print(len(list(pathlib.Path(sys.argv[1]).glob("*.before_optimizations.txt"))))
"""


@pytest.mark.slow
def test_xla_compiles_once_wherever_chunks_begin(tmp_path):
    """H4. XLA dumps every module that it compiles: the steps, and the last masking."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": f"--xla_dump_to={tmp_path}",
    }
    output = subprocess.run(
        [sys.executable, "-c", COMPILED, tmp_path],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert [int(line) for line in output.split()] == [2] * 4
