"""Several devices: a copy of every variable on each, in step with the others.

A `tf.distribute` strategy makes the copies (variables created under its scope have
one on each of its devices) and adds up what the replicas have found, over devices and
machines. What a replica does is written for one device: within `Replicas.on(index)`
model, optimizer and masks are their copies on that device, plain `tf.Variable`s. So
every optimizer, compile mode and change of the masks is the code that one device runs.

A step: each replica takes its part of the batch and computes gradients; their means
over all replicas go back to each, which all make the same update of their copies.
"""

import contextlib

import tensorflow as tf

from prunetrain.core import pruned_model, steps, tracing


def places(strategy, pruned, optimizer=None, mask_update=None):
    """Where a loop runs: `OneDevice`, or `Replicas` if there is a strategy."""
    if strategy is None:
        return OneDevice()
    return Replicas(strategy, pruned, optimizer, mask_update)


def scope(strategy):
    """The context in which a strategy copies what variables are created."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


class OneDevice:
    """Nothing is copied, nothing is added up."""

    num_replicas = 1
    num_workers = 1

    def mode(self, mode):
        """The compile mode of what goes around the steps, given that of a step."""
        return mode

    def on(self, index):
        """Within it, variables are their copies on a device."""
        del index
        return contextlib.nullcontext()

    def step_function(self, mode, pruned, optimizer, loss_fn, update, once=False):
        """The step `(x, y, *now) -> loss`, as `steps.step_function`."""
        del mode, once
        return steps.step_function(pruned, optimizer, loss_fn, update)

    def compiled_update(self, mode, update):
        return steps.compiled_update(mode, update)

    def on_each(self, function):
        """`function()`, done for the copies on each device."""
        return function

    def on_first(self, function):
        """`function(*tensors)`, whose changes are copied from the first device."""
        return function

    def summed(self, mode, function):
        """`(x, y) -> sums`, of what `function(x, y)` finds in each part of a batch."""
        del mode
        return function

    def total(self, sums):
        """The sums over all workers."""
        return sums

    def sum_now(self, values):
        """The sums over all workers, called eagerly."""
        return values

    def chiefs(self, values):
        """Values as the first worker has them, called eagerly."""
        return values


class Replicas:
    """The copies that a strategy keeps of what a training changes.

    Args:
        strategy: a synchronous `tf.distribute.Strategy`, under whose scope the model,
            its `PrunedModel` and the optimizer's variables were created.
        pruned: `PrunedModel`.
        optimizer: built Keras optimizer; None if nothing is trained.
        mask_update: `MaskUpdate`. Its `variables`, if any, are a list that it reads
            them from.

    Attributes: num_replicas, and num_workers, over which they are spread.

    Raises:
        ValueError: something was not created under the strategy's scope.
    """

    def __init__(self, strategy, pruned, optimizer=None, mask_update=None):
        self._strategy, self._pruned = strategy, pruned
        self._devices = strategy.extended.worker_devices
        self.num_replicas = strategy.num_replicas_in_sync
        self.num_workers = self.num_replicas // len(self._devices)
        resolver = strategy.cluster_resolver
        self._worker = resolver.task_id if self.num_workers > 1 else 0
        self._variables = list(pruned.model.variables)
        if optimizer is not None:
            self._variables += optimizer.variables
            for one in (optimizer, pruned_model.inner(optimizer)):
                # Within `on` it has to do with one device only.
                one._distribution_strategy = tf.distribute.get_strategy()
        # Eagerly, devices that wait for each other would come one after the other.
        self._sum_now = tracing.unwarned(tf.function(self.total))
        self._lists = [] if mask_update is None else [mask_update.variables]
        self._check_variables()

    def _check_variables(self):
        if not all(isinstance(held, list) or not held for held in self._lists):
            raise ValueError(
                "`mask_update.variables` must be a list, from which it reads them, for "
                "a strategy of several devices. Received: "
                f"{type(self._lists[0]).__name__}"
            )
        for variable in self._held():
            if not isinstance(variable, tf.distribute.DistributedValues):
                raise ValueError(
                    "model, PrunedModel, optimizer and what changes the masks must be "
                    "created under the scope of the `strategy`. Received: a variable "
                    f"{variable.name!r} that was not"
                )

    def mode(self, mode):
        """Only what one device does is compiled; several are no one XLA program."""
        del mode
        return "graph"

    def compiled_update(self, mode, update):
        """As it is: `step_function` compiles it for each device."""
        del mode
        return update

    @contextlib.contextmanager
    def on(self, index):
        """Within it, variables are their copies on a device, which ops are placed on.

        Args:
            index: among the devices of this worker.
        """
        variables, pruned = self._variables, self._pruned
        whole = [v.value for v in variables], pruned._masks, [*map(list, self._lists)]
        self._put(*(self._copies(part, index) for part in whole))
        try:
            with tf.device(self._devices[index]):
                yield
        finally:
            self._put(*whole)

    def _put(self, values, masks, lists):
        for variable, value in zip(self._variables, values, strict=True):
            variable._value = value
        self._pruned._masks = tuple(masks)
        for held, values in zip(self._lists, lists, strict=True):
            if held:
                held[:] = values

    def _copies(self, variables, index):
        if isinstance(variables, (list, tuple)):
            return [self._copies(variable, index) for variable in variables]
        return self._strategy.experimental_local_results(variables)[index]

    def on_each(self, function):
        """`function()`, done for the copies on each device."""

        def do():
            for index in range(len(self._devices)):
                with self.on(index):
                    function()

        return _as_it_is(do)

    def on_first(self, function):
        """`function(*tensors)` on the first device, whose copies all others become.

        So it is computed once; other machines compute it from the same numbers.
        """
        function = tracing.unwarned(tf.function(function))

        def do(*tensors):
            with self.on(0):
                function(*tensors)
            self._copy_first()

        return _as_it_is(do)

    def _copy_first(self):
        """What the first device has becomes what all devices of this worker have."""
        for variable in self._held():
            first, *others = self._strategy.experimental_local_results(variable)
            for other in others:
                other.assign(first)

    def _held(self):
        lists = [variable for variables in self._lists for variable in variables]
        return [*(v.value for v in self._variables), *self._pruned.masks, *lists]

    def step_function(self, mode, pruned, optimizer, loss_fn, update, once=False):
        """The step `(x, y, *now) -> loss`, to be traced by the caller.

        Args:
            mode: compile mode of what each device does.
            pruned, optimizer, update: as for `steps.step_function`.
            loss_fn: a mean over the examples, or one value for each; a sum if its
                `reduction` says so.
            once: make the update on the first device, for the others to copy.
        """
        steps.check_loss(loss_fn)
        loss_fn = self._of_part(loss_fn)
        averages, seeds = _averages(pruned.model), _seeds(pruned.model)

        def gradients_of(index):
            shift = self._worker * len(self._devices) + index

            def gradients(x, y):
                with _shifted(seeds, shift):
                    loss, gradients = steps.compute_gradients(
                        pruned, optimizer, loss_fn, x, y
                    )
                # What looks up rows of a matrix has gradients of these rows only.
                found = [
                    None if g is None else tf.convert_to_tensor(g) for g in gradients
                ]
                return [loss, *(v.value for v in averages)], found

            return gradients

        def update_with(numbers, gradients, *now):
            for variable, number in zip(averages, numbers, strict=True):
                variable.assign(number)
            update(gradients, *now)

        compute = self._for_each_device(mode, gradients_of)
        change = self._for_each_device(
            "xla" if mode == "hybrid" else mode, lambda index: update_with
        )

        def step(x, y, *now):
            parts = zip(self._parts(x), self._parts(y), strict=True)
            found = [compute(index, *part) for index, part in enumerate(parts)]
            means = self._reduced(tf.distribute.ReduceOp.MEAN, found)
            for index, ((_, *numbers), gradients) in enumerate(means):
                if not (once and index):
                    change(index, numbers, gradients, *now)
            if once:
                self._copy_first()
            return means[0][0][0]

        return _as_it_is(step)

    def _of_part(self, loss_fn):
        """A loss whose mean over the parts is that of the whole, though it is a sum."""
        if getattr(loss_fn, "reduction", None) != "sum":
            return loss_fn
        return lambda y, outputs: loss_fn(y, outputs) * self.num_replicas

    def _for_each_device(self, mode, make):
        """`(index, *arguments) -> result` of a program for each device."""
        programs = [
            tracing.unwarned(steps.compiled(mode, make(index)))
            for index in range(len(self._devices))
        ]

        def run(index, *arguments):
            with self.on(index):
                # On this device, as XLA needs them.
                arguments = tf.nest.map_structure(_identity, arguments)
                return programs[index](*arguments)

        return run

    def _parts(self, batch):
        """The rows that each device of this worker takes."""
        first = self._worker * len(self._devices)
        count = batch.shape[0]
        ends = [count * n // self.num_replicas for n in range(self.num_replicas + 1)]
        return [
            batch[ends[first + index] : ends[first + index + 1]]
            for index in range(len(self._devices))
        ]

    def _reduced(self, operation, values):
        """What all replicas' values come to, for each device of this worker.

        Args:
            operation: `tf.distribute.ReduceOp`.
            values: for each device the same structure of tensors and None.
        """
        flat = [tf.nest.flatten(value) for value in values]
        reduced = [list(value) for value in flat]
        kinds = {}
        for index, value in enumerate(flat[0]):
            if value is not None:
                kinds.setdefault(value.dtype, []).append(index)
        # All of a kind as one vector: what it costs to send one is mostly the same.
        for indices in kinds.values():
            packed = iter(
                [
                    self._placed(_packed, index, [value[i] for i in indices])
                    for index, value in enumerate(flat)
                ]
            )
            each = self._strategy.experimental_distribute_values_from_function(
                lambda context, packed=packed: next(packed)
            )
            each = self._strategy.extended.reduce_to(operation, each, each)
            shapes = [flat[0][i].shape for i in indices]
            results = self._strategy.experimental_local_results(each)
            for index, vector in enumerate(results):
                found = self._placed(_unpacked, index, vector, shapes)
                for i, value in zip(indices, found, strict=True):
                    reduced[index][i] = value
        return [
            tf.nest.pack_sequence_as(value, found)
            for value, found in zip(values, reduced, strict=True)
        ]

    def _placed(self, function, index, *arguments):
        # A strategy sends a value from where it finds it.
        with tf.device(self._devices[index]):
            return function(*arguments)

    def summed(self, mode, function):
        """`(x, y) -> sums`, of what `function(x, y)` finds in each part of a batch.

        Parts are those of this worker; see `total`.
        """
        compute = self._for_each_device(mode, lambda index: function)

        def sums(x, y):
            parts = zip(self._parts(x), self._parts(y), strict=True)
            found = [
                compute(index, *part)
                for index, part in enumerate(parts)
                if part[1].shape[0]
            ]
            if not found:
                # Fewer examples than replicas: only what shapes the sums have counts.
                one = compute(0, x[:1], y[:1])
                return tuple(tf.zeros_like(value) for value in one)
            return tuple(tf.add_n(list(values)) for values in zip(*found, strict=True))

        return _as_it_is(sums)

    def total(self, sums):
        """The sums over all workers."""
        if self.num_workers == 1:
            return sums
        zeros = [tuple(tf.zeros_like(value) for value in sums)]
        values = [tuple(sums), *zeros * (len(self._devices) - 1)]
        return self._reduced(tf.distribute.ReduceOp.SUM, values)[0]

    def sum_now(self, values):
        """The sums over all workers, called eagerly; they wait for each other here."""
        if self.num_workers == 1:
            return values
        # Of a number that is no tensor, each value would be traced.
        return self._sum_now(tuple(map(tf.convert_to_tensor, values)))

    def chiefs(self, values):
        """Values as the first worker has them, called eagerly."""
        if self.num_workers == 1:
            return values
        mine = [tf.convert_to_tensor(value) for value in values]
        sent = [tf.cast(x, tf.int32) if x.dtype == tf.bool else x for x in mine]
        sent = sent if self._worker == 0 else [tf.zeros_like(x) for x in sent]
        received = self.sum_now(sent)
        return [tf.cast(x, y.dtype) for x, y in zip(received, mine, strict=True)]


def _as_it_is(function):
    # What it calls is a program of its own, and converted there.
    return tf.autograph.experimental.do_not_convert(function)


def _identity(value):
    return None if value is None else tf.identity(value)


def _packed(values):
    return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def _unpacked(vector, shapes):
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _averages(model):
    """State that layers gather from the examples they see, such as batch norm's."""
    found = [
        variable
        for layer in model._flatten_layers()
        if layer.trainable
        for variable in layer._non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating
    ]
    return list({id(variable): variable for variable in found}.values())


def _seeds(model):
    """The states of random number generators, which are no weights."""
    weights = {id(variable) for variable in model.weights}
    return [
        variable
        for variable in model.variables
        if id(variable) not in weights and not tf.as_dtype(variable.dtype).is_floating
    ]


@contextlib.contextmanager
def _shifted(seeds, shift):
    """Within it, seeds are other ones than on the first replica (for a shift of 0)."""
    # The first number is the seed, the second counts the calls.
    shifted = seeds if shift else []
    for variable in shifted:
        variable.assign(variable + tf.constant([shift, 0], variable.dtype))
    yield
    for variable in shifted:
        variable.assign(variable - tf.constant([shift, 0], variable.dtype))
