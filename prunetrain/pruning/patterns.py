"""What is removed together.

A pattern is a function `scores -> scores` on one kernel's scores, which gives weights
that live and die together the same score. To add one, write it here and register it.
"""

from prunetrain.registry import Registry

PATTERNS = Registry("pattern")


@PATTERNS.register("element")
def element(scores):
    """Single weights, each for itself (unstructured)."""
    return scores
