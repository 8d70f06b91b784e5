"""Worker of peers.py: JAX, a masked epoch as one jitted `lax.scan`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import serve

SIZES, BATCH_SIZE = (784, 300, 100, 50, 10), 64
LEARNING_RATE, BETA_1, BETA_2, EPSILON = 1.2e-4, 0.9, 0.999, 1e-7


def mlp(x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    parameters, masks = _initial()
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    state = (parameters, zeros(parameters), zeros(parameters), jnp.float32(0))
    key = jax.random.key(0)

    def epoch():
        nonlocal state, key
        key, now = jax.random.split(key)
        state, loss = _epoch(state, masks, now, x, y)
        return float(jax.block_until_ready((state, loss))[1])

    def kernels():
        return [kernel for kernel, _ in state[0]]

    return {"JAX lax.scan, masked": serve.Variant(epoch, kernels)}


def _initial():
    """Glorot-uniform kernels with their smallest magnitudes pruned, and the masks."""
    generator, parameters, masks = np.random.default_rng(0), [], []
    for rows, columns in itertools.pairwise(SIZES):
        limit = np.sqrt(6 / (rows + columns))
        kernel = generator.uniform(-limit, limit, (rows, columns)).astype(np.float32)
        mask = np.abs(kernel) > np.quantile(np.abs(kernel), 1 - serve.DENSITY)
        parameters.append((jnp.asarray(kernel * mask), jnp.zeros(columns)))
        masks.append(jnp.asarray(mask))
    return parameters, masks


@functools.partial(jax.jit, donate_argnums=0)
def _epoch(state, masks, key, x, y):
    num_steps = len(x) // BATCH_SIZE
    order = jax.random.permutation(key, len(x))[: num_steps * BATCH_SIZE]

    def step(state, rows):
        return _step(state, masks, x[rows], y[rows])

    state, losses = jax.lax.scan(step, state, order.reshape(num_steps, BATCH_SIZE))
    return state, losses.mean()


def _step(state, masks, x, y):
    parameters, m, v, count = state
    loss, gradients = jax.value_and_grad(_loss)(parameters, x, y)
    gradients = _masked(gradients, masks)
    count += 1
    rate = LEARNING_RATE * jnp.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
    m = jax.tree.map(lambda m, g: m + (g - m) * (1 - BETA_1), m, gradients)
    v = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - BETA_2), v, gradients)
    parameters = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPSILON), parameters, m, v
    )
    return (_masked(parameters, masks), m, v, count), loss


def _masked(parameters, masks):
    return [
        (jnp.where(mask, kernel, 0), bias)
        for (kernel, bias), mask in zip(parameters, masks, strict=True)
    ]


def _loss(parameters, x, y):
    *hidden, (kernel, bias) = parameters
    for weights, offset in hidden:
        x = jax.nn.relu(x @ weights + offset)
    log_probabilities = jax.nn.log_softmax(x @ kernel + bias)
    return -jnp.take_along_axis(log_probabilities, y[:, None], 1).mean()


if __name__ == "__main__":
    versions = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
    serve.main({"mlp": mlp}, versions)
