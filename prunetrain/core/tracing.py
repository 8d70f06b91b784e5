"""TensorFlow's warnings of frequent tracing, where each trace is meant."""


def unwarned(function):
    """The `tf.function`, no longer warned of when it is traced often.

    TensorFlow counts by the code: the sixth loop that a process builds, or the sixth
    shape that is pruned, would be taken for a mistake.
    """
    function._omit_frequent_tracing_warning = True
    return function
