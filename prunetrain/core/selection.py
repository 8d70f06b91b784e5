"""Which variables are prunable.

A rule is a function from a built Keras model to one `Choice` per weight of the model.
The rules here look at variables only, never at layer types, so any layer works:
a variable is a kernel if it is trainable, has rank 2 or more, and is named so
(`kernel`, `recurrent_kernel`, `depthwise_kernel`, …). Dense, convolutions (also
transposed, depthwise, separable), EinsumDense, attention projections and recurrent
layers name theirs that way. Biases and normalisation parameters never qualify, whatever
their rank. Other matrices (`embeddings`, a custom layer's `w`) qualify when an
`include` pattern names them.
"""

import dataclasses
import re

import keras

_NEVER = ("bias", "gamma", "beta", "scale", "moving_mean", "moving_variance")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One weight of a model: prunable or not, and why."""

    variable: keras.Variable
    prunable: bool
    reason: str


def kernels(include=None, exclude=None):
    """Rule that selects the kernels of a model.

    Args:
        include: regular expression or sequence of them, searched for in the variables'
            paths. If given, only what matches is prunable; matrices that are not
            kernels by name (embeddings, custom weights) come in this way. To have
            embeddings besides the kernels: `include=["kernel", "embeddings"]`.
        exclude: likewise; what matches is not prunable.

    Returns:
        A function from a built Keras model to a list of `Choice`, one per weight.

    Raises:
        ValueError: (when the rule is applied) a pattern is no regular expression or
            matches nothing that could be pruned.
    """
    include, exclude = _compile(include, "include"), _compile(exclude, "exclude")

    def rule(model):
        variables = model.weights
        natures = [_nature(variable) for variable in variables]
        eligible = [
            v.path
            for v, nature in zip(variables, natures, strict=True)
            if nature == "kernel" or (include and nature.startswith("matrix"))
        ]
        _check_matches(include, "include", eligible)
        _check_matches(exclude, "exclude", eligible)
        return [
            Choice(variable, *_decide(variable.path, nature, include, exclude))
            for variable, nature in zip(variables, natures, strict=True)
        ]

    return rule


def _nature(variable):
    """What a variable is, in the words of the summary's last column."""
    if not variable.trainable:
        return "not trainable"
    if any(variable.name.endswith(name) for name in _NEVER):
        return f"{variable.name}: biases and normalisation are never pruned"
    if len(variable.shape) < 2:
        return "vector"
    if variable.name.endswith("kernel"):
        return "kernel"
    return f"matrix named {variable.name!r}, not a kernel: name it in `include`"


def _decide(path, nature, include, exclude):
    if nature != "kernel" and not nature.startswith("matrix"):
        return False, nature
    if include:
        if not any(pattern.search(path) for pattern in include):
            return False, "matches no `include` pattern"
    elif nature != "kernel":
        return False, nature
    for pattern in exclude:
        if pattern.search(path):
            return False, f"excluded by {pattern.pattern!r}"
    return True, "kernel" if nature == "kernel" else "included"


def _compile(patterns, argument):
    if patterns is None:
        return []
    if isinstance(patterns, (str, re.Pattern)):
        patterns = [patterns]
    return [compile_pattern(pattern, argument) for pattern in patterns]


def compile_pattern(pattern, argument):
    """`re.compile` with an error that names the argument."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`{argument}` must hold regular expressions on variable paths ({error}). "
            f"Received: {argument}={pattern!r}."
        ) from None


def _check_matches(patterns, argument, paths):
    for pattern in patterns:
        if not any(pattern.search(path) for path in paths):
            raise no_match(pattern.pattern, argument, paths)


def no_match(pattern, argument, paths):
    """The error for a pattern that selects nothing, with the paths there are."""
    return ValueError(
        f"`{argument}` must match at least one prunable variable. Received: "
        f"{argument}={pattern!r}, which matches none of: {', '.join(paths) or '(none)'}"
    )
