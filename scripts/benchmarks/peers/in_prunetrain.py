"""Worker of peers.py: `make_train_loop`, an epoch in one dispatch."""

import keras
import serve
import tensorflow as tf

import prunetrain as pt
from prunetrain.models import MODELS


def mlp(x, y):
    variant = _variant("mlp_300_100_50", 1.2e-4, x, y, 64, masked=True)
    return {"prunetrain, masked": variant}


def conv_2(x, y):
    return {
        "prunetrain, masked": _variant("conv2", 2e-4, x, y, 60, masked=True),
        "prunetrain, dense": _variant("conv2", 2e-4, x, y, 60, masked=False),
    }


def _variant(model, learning_rate, x, y, batch_size, masked):
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(MODELS[model](x.shape[1:], 10))
    if masked:
        pt.prune(pruned, sparsity=1 - serve.DENSITY)
    else:
        # The same loop without the masking, not merely with masks that keep everything.
        pruned.mask_gradients = list
        pruned.apply_masks = lambda: None
    optimizer = keras.optimizers.Adam(learning_rate)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = pt.make_train_loop(pruned, optimizer, loss_fn, x, y, batch_size)
    num_steps, step = len(x) // batch_size, 0

    def epoch():
        nonlocal step
        loss = loop(step, num_steps).numpy()
        step += num_steps
        return float(loss)

    def kernels():
        return [kernel.numpy() for kernel in pruned.kernels]

    return serve.Variant(epoch, kernels if masked else None)


if __name__ == "__main__":
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    serve.main({"mlp": mlp, "conv2": conv_2}, versions)
