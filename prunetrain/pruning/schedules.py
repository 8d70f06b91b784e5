"""How sparse at which step of a training, and how much of it moves.

A schedule is made by a function `(final, begin_step, end_step, **arguments)` and is a
function `step -> sparsity`: `final` is the sparsity from `end_step` on, a fraction in
[0, 1); steps are whole numbers. `step` is an integer tensor and the sparsity one of
float64; nothing else happens in between, so that a compiled loop can ask. To add one,
write it here and register it.
"""

import math

from prunetrain.lazy import tf
from prunetrain.registry import Registry

SCHEDULES = Registry("sparsity_schedule")


@SCHEDULES.register("constant")
def constant(final, begin_step=0, end_step=0):
    """The final sparsity at every step."""
    del begin_step, end_step
    return lambda step: tf.fill(tf.shape(step), tf.constant(final, tf.float64))


@SCHEDULES.register("linear")
def linear(final, begin_step, end_step, initial=0.0):
    """In a straight line from the initial sparsity (0) at begin_step to the final."""
    return _approaching(final, begin_step, end_step, initial, power=1)


@SCHEDULES.register("cubic")
def cubic(final, begin_step, end_step, initial=0.0):
    """From the initial sparsity (0), fast first (Zhu & Gupta 2017, equation 1).

    s_f + (s_i - s_f) (1 - (t - t_0) / (n Δt))³, where t_0 is begin_step and
    t_0 + n Δt is end_step.
    """
    return _approaching(final, begin_step, end_step, initial, power=3)


def cosine_drop(initial, end_step):
    """The fraction of the live weights that moves (Evci et al. 2020, equation 1).

    Half a cosine, initial/2 · (1 + cos(π step / end_step)), down to nothing. It is none
    of SCHEDULES, whose functions tell a sparsity.

    Returns:
        `step -> fraction`.
    """

    def drop(step):
        angle = math.pi * _passed(step, 0, end_step)
        return initial / 2 * (1 + tf.cos(angle))

    return drop


def _approaching(final, begin_step, end_step, initial, power):
    """What is missing to `final` shrinks as a power of the time that is left."""
    if not begin_step < end_step:
        raise ValueError(
            "`end_step` must be later than `begin_step`. "
            f"Received: begin_step={begin_step}, end_step={end_step}"
        )

    def sparsity(step):
        left = 1 - _passed(step, begin_step, end_step)
        # A product, since a power may be rounded otherwise in another compile mode.
        return final + (initial - final) * math.prod([left] * power)

    return sparsity


def _passed(step, begin_step, end_step):
    """How much of the time has passed: 0 before `begin_step`, 1 after `end_step`."""
    passed = tf.cast(step - begin_step, tf.float64) / (end_step - begin_step)
    return tf.clip_by_value(passed, 0.0, 1.0)
