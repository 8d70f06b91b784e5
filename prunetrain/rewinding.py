"""What a round starts from: a source for each part of the state.

Parts:
    weights   the trainable variables
    slots     what the optimizer has gathered: moments, averages, accumulators
    schedule  its count of steps, which the learning rate follows, and the rate
    state     batch-norm statistics, the seeds of dropout
    data      the place in the order of the data

Sources:
    init      as at step 0 of round 0
    rewind    as at --rewind_step of round 0
    end       as the ticket of the round before left it
    fresh     drawn anew in each round; slots and schedule then begin at zero, the data
              at the begin of another order

A round's steps are counted from --rewind_step, whatever comes from where, so that
presets train equally long; from 0 if the schedule begins anew (init, fresh).

`lr_rewind` is that of Renda, Frankle & Carbin 2020 ("Comparing Rewinding and
Fine-tuning in Neural Network Pruning", section 3), whose code restores the last
checkpoint whole, momentum included, and sets back only the step. Where each training
has a new optimizer, as in open_lth, it is `lr_rewind,slots=init`. Adam corrects its
moments by the same count of steps: kept moments under a count near 0 make its first
steps up to six times smaller, fresh ones under a large count up to three times larger.
"""

from prunetrain.registry import nearest

PARTS = ("weights", "slots", "schedule", "state", "data")
SOURCES = ("init", "rewind", "end", "fresh")
PRESETS = {
    "late": "all as at --rewind_step of round 0",
    "lottery": "all as at step 0 of round 0",
    "lr_rewind": "the learning rate and the data as at --rewind_step of round 0, the "
    "rest as the last round left it",
    "finetune": "all as the last round left it; the learning rate goes on from there",
    "reinit": "fresh random weights in each round, all else at its begin",
}
_CHANGES = {
    "late": {},
    "lottery": dict.fromkeys(PARTS, "init"),
    "lr_rewind": dict.fromkeys(("weights", "slots", "state"), "end"),
    "finetune": dict.fromkeys(PARTS, "end"),
    "reinit": {**dict.fromkeys(PARTS, "fresh"), "data": "init"},
}


def of_preset(name):
    """Dict from part to source."""
    return {**dict.fromkeys(PARTS, "rewind"), **_CHANGES[name]}


def sources(items):
    """The source of each part.

    Args:
        items: sequence of texts: a preset, then any number of part=source.

    Returns:
        Dict from part to source.

    Raises:
        ValueError: they are something else; the message says what they must be.
    """
    preset, *changes = items or ("",)
    if preset not in PRESETS:
        raise ValueError(
            f"must begin with one of {', '.join(PRESETS)}{nearest(preset, PRESETS)}"
        )
    pairs = [change.partition("=")[::2] for change in changes]
    parts = [part for part, _ in pairs]
    known = all(part in PARTS and source in SOURCES for part, source in pairs)
    if not known or len(set(parts)) < len(parts):
        raise ValueError(
            "must be PRESET,part=source,… with each part once: parts are "
            f"{', '.join(PARTS)}, sources {', '.join(SOURCES)}; for example "
            "late,slots=init"
        )
    return {**of_preset(preset), **dict(pairs)}


def starts_anew(found):
    """Whether a training with these sources counts its steps from 0."""
    return found["schedule"] in ("init", "fresh")
