"""Worker of peers.py: PyTorch with `torch.nn.utils.prune`, eager and compiled."""

import itertools
import os
import shutil

import serve
import torch
from torch import nn
from torch.nn.utils import prune

# As TensorFlow and JAX do: first moments of pixels that are seldom lit fade into
# denormal numbers, which are slow. Threads that start later inherit it.
torch.set_flush_denormal(True)


def mlp(x, y):
    def variant(**options):
        return _variant(_mlp, 1.2e-4, x, y, 64, **options)

    variants = {
        "PyTorch, dense, fused Adam": variant(masked=False),
        "PyTorch, prune, default Adam": variant(masked=True, fused=None),
        "PyTorch, prune, fused Adam": variant(masked=True),
    }
    if not _notes():
        name = "PyTorch, prune, fused Adam, torch.compile"
        variants[name] = variant(masked=True, compiled=True)
    return variants


def conv_2(x, y):
    # The strides of channels_last: what PyTorch's convolutions like best on a CPU.
    x = x.transpose(0, 3, 1, 2)
    return {
        f"PyTorch, {'prune' if masked else 'dense'}": _variant(
            _conv2, 2e-4, x, y, 60, masked=masked
        )
        for masked in (False, True)
    }


def _variant(
    factory, learning_rate, x, y, batch_size, masked, fused=True, compiled=False
):
    torch.manual_seed(0)
    model = factory()
    layers = [layer for layer in model if hasattr(layer, "weight")]
    if masked:
        for layer in layers:
            prune.l1_unstructured(layer, "weight", amount=1 - serve.DENSITY)
    model.to(memory_format=torch.channels_last)  # the pruned weights and masks too
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, fused=fused)
    loss_fn = nn.CrossEntropyLoss()

    def forward(x, y):
        return loss_fn(model(x), y)

    forward = torch.compile(forward) if compiled else forward
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    num_steps = len(x) // batch_size

    def epoch():
        total = torch.zeros(())
        for rows in torch.randperm(len(x))[: num_steps * batch_size].split(batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = forward(x[rows], y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total.item() / num_steps

    def kernels():
        # `weight` is of the last forward pass: before the last update.
        return [(layer.weight_orig * layer.weight_mask).detach() for layer in layers]

    return serve.Variant(epoch, kernels if masked else None)


def _mlp():
    sizes = (784, 300, 100, 50)
    hidden = [
        layer
        for rows, columns in itertools.pairwise(sizes)
        for layer in (nn.Linear(rows, columns), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(50, 10))


def _conv2():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16 * 64, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def _notes():
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return []
    return [f"torch.compile left out: it needs a C++ compiler, and {compiler} is none"]


if __name__ == "__main__":
    serve.main({"mlp": mlp, "conv2": conv_2}, {"torch": torch.__version__}, _notes())
