"""Toy models whose answers can be worked out in the head, and NumPy references.

Nothing here calls the code under test, but for `shuffled` in `batch_rows`: the order
within an epoch is the loop's to choose, what it makes of it is not.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from prunetrain.core import loops

MODES = ("xla", "hybrid", "graph")


class Drift(keras.optimizers.Optimizer):
    """Adds 1 to every weight whatever its gradient: only a mask can hold a zero."""

    def __init__(self, **kwargs):
        super().__init__(learning_rate=1.0, name="drift", **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        del gradient, learning_rate
        self.assign_add(variable, tf.ones(variable.shape, variable.dtype))


OPTIMIZERS = {
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
    "nesterov": lambda **kw: keras.optimizers.SGD(
        0.05, momentum=0.9, nesterov=True, **kw
    ),
    "adam": lambda **kw: keras.optimizers.Adam(0.01, **kw),
    "adamw": lambda **kw: keras.optimizers.AdamW(0.01, weight_decay=0.1, **kw),
    "rmsprop": lambda **kw: keras.optimizers.RMSprop(
        0.01, momentum=0.9, centered=True, **kw
    ),
}
MORE_OPTIMIZERS = {
    "amsgrad": lambda **kw: keras.optimizers.Adam(0.01, amsgrad=True, **kw),
    "muon": lambda **kw: keras.optimizers.Muon(0.01, **kw),
    "adafactor": lambda **kw: keras.optimizers.Adafactor(0.01, **kw),
    "lion": lambda **kw: keras.optimizers.Lion(0.01, **kw),
    "nadam": lambda **kw: keras.optimizers.Nadam(0.01, **kw),
    "ftrl": lambda **kw: keras.optimizers.Ftrl(0.1, **kw),
    "adagrad": lambda **kw: keras.optimizers.Adagrad(0.1, **kw),
    "adamax": lambda **kw: keras.optimizers.Adamax(0.01, **kw),
    "adadelta": lambda **kw: keras.optimizers.Adadelta(1.0, **kw),
    "lamb": lambda **kw: keras.optimizers.Lamb(0.01, **kw),
    "drift": lambda **kw: Drift(**kw),
}
VERSIONS = {
    module.__name__: tuple(map(int, module.__version__.split(".")[:2]))
    for module in (keras, tf)
}
if VERSIONS["keras"] < (3, 13):
    # It looks for a path that the variables it is given do not have.
    del MORE_OPTIMIZERS["muon"]


class Repellent(keras.constraints.Constraint):
    """Moves weights off zero."""

    def __call__(self, kernel):
        return tf.abs(kernel) + 1.0


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def total(y, outputs):
    """A loss whose gradient in every output is 1."""
    del y
    return tf.reduce_sum(outputs)


def mlp(sizes=(6, 5, 3), seed=0, dtype=None, name="net", **dense):
    """Dense layers "dense_1", "dense_2", …: ReLU between them, logits at the end."""
    layers = [keras.Input((sizes[0],))]
    for index, size in enumerate(sizes[1:], start=1):
        layers.append(
            keras.layers.Dense(
                size,
                activation="relu" if index < len(sizes) - 1 else None,
                kernel_initializer=keras.initializers.GlorotUniform(seed + index),
                dtype=dtype,
                name=f"dense_{index}",
                **dense,
            )
        )
    return keras.Sequential(layers, name=name)


def linear(*kernels, **dense):
    """Chain of Dense layers without biases that hold just these kernels."""
    kernels = [np.asarray(kernel, np.float32) for kernel in kernels]
    layers = [keras.Input((kernels[0].shape[0],))]
    for index, kernel in enumerate(kernels, start=1):
        layers.append(
            keras.layers.Dense(
                kernel.shape[1], use_bias=False, name=f"dense_{index}", **dense
            )
        )
    model = keras.Sequential(layers, name="net")
    model.set_weights(kernels)
    return model


def column(*weights, **dense):
    """One kernel of one column: outputs are inputs times `weights`."""
    return linear(np.reshape(np.array(weights, np.float32), [-1, 1]), **dense)


def dataset(num_examples=10, num_features=6, num_classes=3, seed=0):
    """Random examples with random labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, num_features)).astype(np.float32)
    return x, rng.integers(num_classes, size=num_examples).astype(np.int32)


def batch_rows(num_examples, batch_size, first_step, num_steps, seed=0):
    """The examples of each step, from the epochs' orders laid end to end."""
    start, end = first_step * batch_size, (first_step + num_steps) * batch_size
    epochs = range(start // num_examples, -(-end // num_examples))
    order = np.concatenate(
        [loops.shuffled(num_examples, seed, epoch).numpy() for epoch in epochs]
    )
    start -= epochs[0] * num_examples
    return order[start : start + num_steps * batch_size].reshape(num_steps, batch_size)


def values(variables):
    """Copies of the variables' values as arrays."""
    # Copied: what numpy() returns may share the variable's memory.
    return [variable.numpy().copy() for variable in variables]


def bits(*groups):
    """The bytes of all variables, to compare states to the bit."""
    return [value.tobytes() for group in groups for value in values(group)]


def random_masks(pruned, keep=0.5, seed=0):
    """One random boolean mask per kernel, keeping about the fraction `keep`."""
    rng = np.random.default_rng(seed)
    return [rng.random(kernel.shape) < keep for kernel in pruned.kernels]


@contextlib.contextmanager
def raises(kind, *fragments):
    """`pytest.raises`, and every fragment stands in the message."""
    with pytest.raises(kind) as caught:
        yield
    for fragment in fragments:
        assert fragment in str(caught.value)


def lowest_removed(scores, masks, num_remove):
    """Reference of the selection: a stable sort of all live scores in one pool."""
    pool = np.concatenate([np.ravel(score) for score in scores])
    live = np.concatenate([np.ravel(mask) for mask in masks])
    positions = np.flatnonzero(live)
    # Adding +0.0 turns -0.0 into +0.0; the two must tie.
    order = np.argsort(pool[positions].astype(np.float64) + 0.0, kind="stable")
    left = live.copy()
    left[positions[order[:num_remove]]] = False
    parts = np.split(left, np.cumsum([np.size(mask) for mask in masks])[:-1])
    return [
        part.reshape(np.shape(mask)) for part, mask in zip(parts, masks, strict=True)
    ]


class MaskedAdam:
    """Masked Adam on a multilayer perceptron, in NumPy and float64 only.

    Adam as Keras defines it (Kingma & Ba 2015, the form before section 2.1 with
    "epsilon hat"); softmax cross-entropy averaged over the batch.

    Args:
        weights: kernel, bias, kernel, bias, … of the dense layers.
    """

    def __init__(self, weights, learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
        self.weights = [np.array(w, np.float64) for w in weights]
        self.masks = [np.ones(w.shape, bool) for w in self.weights]
        self._first = [np.zeros_like(w) for w in self.weights]
        self._second = [np.zeros_like(w) for w in self.weights]
        self._rates = learning_rate, beta_1, beta_2, epsilon
        self.iterations = 0

    def step(self, x, y):
        """One step on a batch; returns the loss before the update."""
        loss, gradients = self.gradients(x, y)
        self.apply(gradients)
        return loss

    def apply(self, gradients):
        """One update by gradients of all weights, pruned or not."""
        learning_rate, beta_1, beta_2, epsilon = self._rates
        self.iterations += 1
        alpha = learning_rate * np.sqrt(1 - beta_2**self.iterations)
        alpha /= 1 - beta_1**self.iterations
        for weight, mask, gradient, first, second in zip(
            self.weights, self.masks, gradients, self._first, self._second, strict=True
        ):
            gradient = gradient * mask
            first += (1 - beta_1) * (gradient - first)
            second += (1 - beta_2) * (gradient**2 - second)
            weight -= alpha * first / (np.sqrt(second) + epsilon)
            weight *= mask

    def prune(self, rate):
        """Each kernel loses `rate` of what remains, the smallest first."""
        for index in range(0, len(self.weights), 2):
            mask = self.masks[index]
            (mask,) = lowest_removed(
                [np.abs(self.weights[index])], [mask], int(rate * mask.sum() + 0.5)
            )
            self.set_mask(index, mask)

    def set_mask(self, index, mask):
        """A new mask for that weight, and zeros where it prunes."""
        self.masks[index] = mask
        for array in (self.weights, self._first, self._second):
            array[index] *= mask

    def gradients(self, x, y):
        """Loss of a batch, and its gradients for all weights, pruned or not."""
        x = np.asarray(x, np.float64)
        kernels, biases = self.weights[::2], self.weights[1::2]
        inputs, outputs = [], x
        for kernel, bias in zip(kernels, biases, strict=True):
            inputs.append(np.maximum(outputs, 0) if inputs else outputs)
            outputs = inputs[-1] @ kernel + bias
        exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
        probabilities = exponentials / exponentials.sum(1, keepdims=True)
        examples = np.arange(len(y))
        loss = -np.mean(np.log(probabilities[examples, y]))
        delta = probabilities
        delta[examples, y] -= 1
        delta /= len(y)
        gradients = []
        for kernel, values_in in zip(reversed(kernels), reversed(inputs), strict=True):
            gradients = [values_in.T @ delta, delta.sum(0), *gradients]
            delta = (delta @ kernel.T) * (values_in > 0)
        return loss, gradients
