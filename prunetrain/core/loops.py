"""Many steps in one dispatch, with the data on the device or streamed to it.

The batch at step i is a pure function of (seed, i): epoch e visits the examples in the
order of a stateless shuffle seeded by (seed, e); step i takes those at positions i·B to
i·B + B - 1 of the epochs laid end to end. A batch may thus begin in one epoch and end
in the next; every example is visited exactly once per epoch.
"""

import functools

import tensorflow as tf

from prunetrain.core import (
    arrays,
    distributed,
    mask_updates,
    pruned_model,
    steps,
    streams,
    tracing,
)


def make_train_loop(
    pruned,
    optimizer,
    loss_fn,
    x,
    y,
    batch_size,
    seed=0,
    compile="auto",
    mask_interval=1,
    augment=None,
    stream=False,
    mask_update=None,
    strategy=None,
):
    """Builds the compiled training loop over data that stays on the device.

    Args:
        pruned: `PrunedModel`.
        optimizer: any Keras 3 optimizer; it is built here if it is not yet.
        loss_fn: `(y, outputs) -> loss`, a mean or one value per example.
        x: array of examples `[examples, …]`, copied to the device once.
        y: array of labels `[examples, …]`.
        batch_size: examples per step, at most as many as there are.
        seed: integer that the order of the data follows from.
        compile: "xla" (everything), "hybrid" (only the update), "graph" (nothing) or
            "auto" (see `steps.pick_mode`).
        mask_interval: steps between two applications of the masks to the kernels; they
            are always applied before a call returns.
        augment: `(x, seed) -> x`, a random change of a batch that keeps its shape and
            type, traced into the loop; seed is int64 `[2]`, a function of the order's
            seed and the step, for `tf.random.stateless_…`.
        stream: leave x and y on the host and hand them to the device in chunks of some
            steps, made while it works, for data that does not fit it. x and y may then
            be anything with `shape`, `dtype` and `x[rows]`, such as a `np.memmap`. The
            batches are the same.
        mask_update: a `core.mask_updates.MaskUpdate`, which changes the masks at some
            of the steps; `prunetrain.pruning.dynamic` makes them.
        strategy: a synchronous `tf.distribute.Strategy`, under whose scope the model,
            `pruned`, `optimizer` and `mask_update` were made: each of its devices takes
            an equal part of every batch. Use what is returned outside of the scope.

    Returns:
        A `TrainLoop`: call it with `(first_step, num_steps)`, get the mean loss.

    Raises:
        TypeError, ValueError: see `PrunedModel.attach_optimizer`; or an argument is out
            of range.
    """
    kind = StreamedTrainLoop if stream else TrainLoop
    return kind(
        *(pruned, optimizer, loss_fn, x, y, batch_size),
        *(seed, compile, mask_interval, augment, mask_update, strategy),
    )


def make_eval_loop(
    pruned,
    loss_fn,
    x,
    y,
    batch_size=1000,
    compile="auto",
    stream=False,
    correct_fn=None,
    strategy=None,
):
    """Builds the compiled evaluation over data that stays on the device.

    Args:
        pruned: `PrunedModel`.
        loss_fn: as for `make_train_loop`; regularisers are not part of it.
        x, y: arrays of all examples; the last batch may be smaller.
        batch_size: examples per forward pass.
        compile, stream, strategy: as for `make_train_loop`.
        correct_fn: as for `make_eval_step`.

    Returns:
        A function `() -> (loss sum, correct, count)` over all examples, as
        `make_eval_step` gives them for one batch: divide by the count.
    """
    pruned_model.check_pruned(pruned)
    x, y = arrays.on_host(x, y) if stream else arrays.on_device(x, y)
    # XLA compiles the full batch even if there is none: it must fit into the data.
    batch_size = min(batch_size, x.shape[0])
    arrays.check_batch_size(batch_size, x.shape[0])
    steps.check_loss(loss_fn)
    arrays.check_labels(pruned, loss_fn, x, y)
    if correct_fn is None:
        arrays.check_one_label(y)
        correct_fn = steps.count_correct
    mode = steps.pick_mode(compile, pruned.model)
    # Once outside of a trace: what does not fit is told, and what sums begin with.
    first = (tf.convert_to_tensor(array[:1]) for array in (x, y))
    first = steps.evaluate_batch(pruned, loss_fn, correct_fn, *first)
    zeros = [tf.zeros_like(value) for value in first]
    places = distributed.places(strategy, pruned)
    evaluated = places.summed(
        mode, functools.partial(steps.evaluate_batch, pruned, loss_fn, correct_fn)
    )

    def add_batch(sums, x, y):
        batch = evaluated(x, y)
        return tuple(total + value for total, value in zip(sums, batch, strict=True))

    over = _evaluate_streamed if stream else _evaluate_resident
    apply_masks = places.on_each(pruned.apply_masks)
    mode = places.mode(mode)
    return over(apply_masks, add_batch, zeros, x, y, batch_size, mode, places.total)


def _evaluate_resident(apply_masks, add_batch, zeros, x, y, batch_size, mode, total):
    num_full, rest = divmod(x.shape[0], batch_size)

    def evaluate():
        apply_masks()
        sums = tuple(zeros)
        for index in tf.range(num_full):
            start = index * batch_size
            sums = add_batch(
                sums, _rows(x, start, batch_size), _rows(y, start, batch_size)
            )
        if rest:
            sums = add_batch(sums, x[-rest:], y[-rest:])
        return total(sums)

    return _compiled(mode, evaluate)


def _evaluate_streamed(apply_masks, add_batch, zeros, x, y, batch_size, mode, total):
    add_batch, total = _compiled(mode, add_batch), _compiled(mode, total)
    num_batches = -(-x.shape[0] // batch_size)

    def rows(index):
        return slice(index * batch_size, (index + 1) * batch_size)

    def evaluate():
        apply_masks()
        sums = tuple(zeros)
        for batch in streams.chunks(x, y, rows, last=num_batches):
            sums = add_batch(sums, *batch)
        return total(sums)

    return evaluate


class TrainLoop:
    """Callable `(first_step, num_steps) -> mean loss`; see `make_train_loop`.

    Attributes:
        mode: "xla", "hybrid" or "graph", as picked.
        seed: int64 `tf.Variable`; assign to it to draw another order of the data
            without a retrace.
        places: `distributed.OneDevice`, or `distributed.Replicas` of a strategy.
    """

    def __init__(
        self,
        pruned,
        optimizer,
        loss_fn,
        x,
        y,
        batch_size,
        seed,
        compile,
        mask_interval,
        augment,
        mask_update,
        strategy=None,
    ):
        pruned_model.check_pruned(pruned)
        self.mode = steps.pick_mode(compile, pruned.model)
        # Before tracing: a tf.function may not create the optimizer's variables.
        with distributed.scope(strategy):
            pruned.attach_optimizer(optimizer)
        self._pruned, self._optimizer = pruned, optimizer
        self._x, self._y = self._placed(x, y)
        self._num_examples = self._x.shape[0]
        arrays.check_batch_size(batch_size, self._num_examples)
        steps.check_loss(loss_fn)
        arrays.check_labels(pruned, loss_fn, self._x, self._y)
        arrays.check_augment(augment, self._x)
        self._batch_size, self._augment = batch_size, augment
        self._loss_fn, self._mask_interval = loss_fn, mask_interval
        mask_updates.check(mask_update, mask_interval)
        self._mask_update = mask_update
        self.places = distributed.places(strategy, pruned, optimizer, mask_update)
        self._loop_mode = self.places.mode(self.mode)
        _check_parts(batch_size, self.places.num_replicas)
        update = mask_updates.make_update(mask_update, pruned, optimizer, mask_interval)
        self._step = self._step_with(self.places.compiled_update(self.mode, update))
        if mask_update is not None and mask_update.replaces_update:
            self._due_step = self._step_with(
                mask_updates.make_replacement(mask_update, optimizer), once=True
            )
        elif mask_update is not None:
            self._change = self.places.on_first(
                lambda step, seed: mask_update.change(None, step, seed)
            )
        self._hold_masks = self.places.on_each(
            lambda: steps.hold_masks(pruned, optimizer)
        )
        self._build(seed)

    def _step_with(self, update, once=False):
        return self.places.step_function(
            *(self.mode, self._pruned, self._optimizer, self._loss_fn, update, once)
        )

    def _placed(self, x, y):
        return arrays.on_device(x, y)

    def _build(self, seed):
        self.seed = tf.Variable(seed, dtype=tf.int64, trainable=False)
        # The shuffles of the epoch in hand and of the next one, end to end, and which
        # (seed, epoch) they belong to. A cache: it never changes what a step sees.
        self._order = tf.Variable(
            tf.zeros([2 * self._num_examples], tf.int32), trainable=False
        )
        # Epoch -2: neither epoch 0 nor the one before it, so the first call shuffles.
        self._order_key = tf.Variable(tf.constant([0, -2], tf.int64), trainable=False)
        self._run = _compiled(self._loop_mode, self._run_steps)

    @property
    def num_traces(self):
        """How often the loop has been traced: 1 after any number of calls."""
        return self._run.experimental_get_tracing_count()

    def __call__(self, first_step, num_steps):
        """Runs steps `first_step` to `first_step + num_steps - 1` in one dispatch.

        Returns:
            Their mean loss, a float32 scalar on the device.

        Raises:
            ValueError: `first_step` or `num_steps` is no whole number, or too small.
        """
        total = self.add_losses(0.0, first_step, num_steps)
        return total / tf.cast(num_steps, tf.float32)

    def add_losses(self, total, first_step, num_steps):
        """Runs the steps that a call runs; adds their losses to `total`, one by one.

        However the steps are cut into dispatches, the sum has the same bits.

        Returns:
            The sum, a float32 scalar on the device.

        Raises:
            ValueError: as for a call.
        """
        for name, value, low in (
            ("first_step", first_step, 0),
            ("num_steps", num_steps, 1),
        ):
            if not tf.is_tensor(value):
                steps.check_whole(name, value, low)
            elif not value.dtype.is_integer:
                raise ValueError(f"`{name}` must be an integer. Received: {value}")
        return self._advance(first_step, num_steps, tf.cast(total, tf.float32))

    def _advance(self, first_step, num_steps, total):
        # As tensors: a Python number would retrace at every new value.
        numbers = (tf.cast(number, tf.int64) for number in (first_step, num_steps))
        return self._run(*numbers, total)

    def _run_steps(self, first_step, num_steps, total):
        step, end = first_step, first_step + num_steps
        while step < end:
            epoch = step * self._batch_size // self._num_examples
            self._shuffle(epoch)
            start = epoch * self._num_examples
            # The first step of the next epoch: ceil((epoch + 1) · examples / B).
            turn = -(-(start + self._num_examples) // self._batch_size)
            place = step * self._batch_size - start
            _, step, total = self._repeat(
                self._batch, self.seed, place, step, tf.minimum(end, turn), total
            )
        self._hold_masks()
        return total

    def batches(self, count):
        """Yields the batches `(x, y)` of steps 0 to count - 1, not augmented."""
        rows = streams.visits(shuffled, self._num_examples, int(self.seed))
        for step in range(count):
            chosen = rows(step * self._batch_size, self._batch_size)
            yield self._taken(self._x, chosen), self._taken(self._y, chosen)

    def _taken(self, data, rows):
        return tf.gather(data, rows)

    def _repeat(self, take, seed, place, step, end, total):
        """Steps `step` to `end - 1`, with the batches that `take(place)` finds."""
        if self._mask_update is None:
            return self._repeat_step(take, seed, place, step, end, total)
        # Loops around and beside the loop, not a choice at each step, and even those of
        # one turn: XLA would copy every variable that a branch may change.
        while step < end:
            due = self._mask_update.next_due(step)
            after = tf.minimum(end - 1, due) + 1
            if self._mask_update.replaces_update:
                place, step, total = self._repeat_step(
                    take, seed, place, step, tf.minimum(end, due), total
                )
                while step < after:
                    batch = self._prepared(*take(place), seed, step)
                    total += self._due_step(*batch, step, tf.identity(seed))
                    place += self._batch_size
                    step += 1
            else:
                place, step, total = self._repeat_step(
                    take, seed, place, step, after, total
                )
                while due < step:
                    self._change(due, tf.identity(seed))
                    due = step
        return place, step, total

    def _repeat_step(self, take, seed, place, step, end, total):
        while step < end:
            total += self._step(*self._prepared(*take(place), seed, step))
            place += self._batch_size
            step += 1
        return place, step, total

    def first_nonfinite(self, first_step, num_steps):
        """Repeats steps, checking every number, to tell where a training diverged.

        Slower than a call, and traced anew: what is checked stays out of the loop that
        trains.

        Returns:
            `(step, name)`: how many steps had been made when the loss, a gradient or a
            variable, as `name` tells, was not finite for the first time. None if all
            were.
        """
        either = mask_updates.make_either(
            self._mask_update, self._pruned, self._optimizer, self._mask_interval
        )
        checked_step, names = steps.checked_step_function(
            *(self._pruned, self._optimizer, self._loss_fn, either),
            () if self._mask_update is None else self._mask_update.variables,
        )
        # Several devices would have to be asked about each of the numbers.
        with self.places.on(0):
            step, index = self._search(checked_step, first_step, first_step + num_steps)
        return None if index < 0 else (int(step), names[int(index)])

    def _search(self, checked_step, first_step, end):
        def find(step, end):
            index = tf.constant(-1)
            while index < 0 and step < end:
                epoch = step * self._batch_size // self._num_examples
                self._shuffle(epoch)
                start = epoch * self._num_examples
                batch = self._batch(step * self._batch_size - start)
                batch = self._prepared(*batch, self.seed, step)
                index = checked_step(*batch, step, tf.identity(self.seed))
                step += 1
            return step, index

        numbers = (tf.cast(number, tf.int64) for number in (first_step, end))
        return _compiled(self.mode, find)(*numbers)

    def _prepared(self, x, y, seed, step):
        """The batch as the step is given it."""
        if self._augment is not None:
            x = self._augment(x, augment_seed(seed, step))
        return x, y

    def _batch(self, position):
        rows = _rows(self._order, tf.cast(position, tf.int32), self._batch_size)
        return tf.gather(self._x, rows), tf.gather(self._y, rows)

    def _shuffle(self, epoch):
        """Makes `_order` hold the shuffles of `epoch` and the one after."""
        seed, cached = self._order_key[0], self._order_key[1]
        current = tf.equal(seed, self.seed)
        if not (current and tf.equal(cached, epoch)):
            if current and tf.equal(cached + 1, epoch):
                first = self._order[self._num_examples :]
            else:
                first = shuffled(self._num_examples, self.seed, epoch)
            second = shuffled(self._num_examples, self.seed, epoch + 1)
            self._order.assign(tf.concat([first, second], 0))
            self._order_key.assign(tf.stack([self.seed, epoch]))


class StreamedTrainLoop(TrainLoop):
    """A `TrainLoop` whose data stays on the host; a dispatch for each chunk of steps.

    Chunk c is what steps c·K to c·K + K - 1 take, wherever a call begins or ends. The
    present one stays on the device; the next are made while it is used.
    """

    def _placed(self, x, y):
        return arrays.on_host(x, y)

    def _taken(self, data, rows):
        return tf.convert_to_tensor(data[rows])

    def _build(self, seed):
        # It is read here for every call: on a GPU that would wait for the last one.
        with tf.device("CPU:0"):
            self.seed = tf.Variable(seed, dtype=tf.int64, trainable=False)
        self._num_steps = streams.steps_per_chunk(self._x, self._batch_size)
        self._stream = self._place = self._chunk = None
        self._run = _compiled(self._loop_mode, self._run_chunk)
        self._hold = _compiled(self._loop_mode, self._hold_masks)

    def _advance(self, first_step, num_steps, total):
        seed, step = int(self.seed), int(first_step)
        end = step + int(num_steps)
        while step < end:
            index = step // self._num_steps
            pause = min(end, (index + 1) * self._num_steps)
            place = step % self._num_steps * self._batch_size
            numbers = (tf.constant(n, tf.int64) for n in (seed, place, step, pause))
            total = self._run(*self._chunk_at(seed, index), *numbers, total)
            step = pause
        self._hold()
        return total

    def _run_chunk(self, x, y, seed, place, step, end, total):
        def take(place):
            # `place` runs along: XLA compiles anew for each value of an argument that
            # a slice begins at, unless the loop changes it.
            start = tf.cast(place, tf.int32)
            return (_rows(data, start, self._batch_size) for data in (x, y))

        return self._repeat(take, seed, place, step, end, total)[-1]

    def _search(self, checked_step, first_step, end):
        def check(x, y, seed, step):
            return checked_step(*self._prepared(x, y, seed, step), step, seed)

        check, seed = _compiled(self.mode, check), int(self.seed)
        step, index = first_step, -1
        while index < 0 and step < end:
            chunk = self._chunk_at(seed, step // self._num_steps)
            place = step % self._num_steps * self._batch_size
            batch = (data[place : place + self._batch_size] for data in chunk)
            index = check(*batch, *(tf.constant(n, tf.int64) for n in (seed, step)))
            step += 1
        return step, index

    def _chunk_at(self, seed, index):
        if self._place != (seed, index):
            if self._place != (seed, index - 1):
                self._stream = self._chunks_from(seed, index)
            self._place = None  # in case the stream fails
            self._chunk = next(self._stream)
            self._place = seed, index
        return self._chunk

    def _chunks_from(self, seed, index):
        count = self._num_steps * self._batch_size
        rows = streams.visits(shuffled, self._num_examples, seed)
        return streams.chunks(
            self._x, self._y, lambda chunk: rows(chunk * count, count), index
        )


def _check_parts(batch_size, num_replicas):
    if batch_size % num_replicas:
        raise ValueError(
            f"`batch_size` must be a multiple of the strategy's {num_replicas} "
            f"replicas, which take equal parts. Received: batch_size={batch_size}"
        )


def augment_seed(seed, step):
    """The seed of a step's augmentation, int64 `[2]`: no seed of an epoch's order."""
    return tf.stack([-1 - tf.cast(seed, tf.int64), tf.cast(step, tf.int64)])


def shuffled(num_examples, seed, epoch):
    """The order in which `epoch` visits the examples: int32 `[num_examples]`.

    A pure function of its arguments, with the same result in every compile mode.
    """
    keys = tf.random.stateless_uniform(
        [num_examples],
        seed=tf.stack([tf.cast(seed, tf.int64), tf.cast(epoch, tf.int64)]),
        minval=None,
        maxval=None,
        dtype=tf.int32,
        alg="philox",  # fixed, since "auto_select" depends on the device
    )
    return tf.argsort(keys, stable=True)


def _compiled(mode, function):
    return tracing.unwarned(steps.compiled(mode, function))


def _rows(tensor, start, count):
    """`count` rows from `start`, with a static shape (XLA needs it)."""
    rest = tensor.shape[1:]
    start = tf.concat([[start], tf.zeros([len(rest)], tf.int32)], 0)
    return tf.slice(tensor, start, [count, *rest])
