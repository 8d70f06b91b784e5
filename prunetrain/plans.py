"""What a run trains, in which order, from which step to which: functions of `Config`.

A training is told by its round and its branch, the ticket or a control.
"""

from prunetrain import rewinding
from prunetrain.pruning import controls


def branches(config, round):
    """What is trained in a round, in this order: the ticket, then its controls."""
    wanted = not config.control_rounds or round in config.control_rounds
    return "ticket", *(controls.draws(config.controls) if round and wanted else ())


def is_selected(config, replicate, branch):
    """Whether `--only` leaves this to the present process."""
    replicates, only = config.part()
    return replicate in replicates and only in ("", branch)


def control(config, branch):
    """The function of a branch's control and its draw; `(None, 1)` for the ticket."""
    if branch == "ticket":
        return None, 1
    name, draw = controls.draws(config.controls)[branch]
    return controls.CONTROLS[name], draw


def sources(config, branch="ticket"):
    """Where each part of a training's start comes from (see `rewinding`)."""
    ticket, (function, _) = rewinding.sources(config.rewind), control(config, branch)
    if not function or not function.rewind:
        return ticket
    # The ticket's data, but from step 0, where such a control starts.
    order = "init" if ticket["data"] == "rewind" else ticket["data"]
    return {**rewinding.of_preset(function.rewind), "data": order}


def needs_ends(config):
    """Whether rounds start from what the ticket before them has left."""
    return "end" in sources(config).values()


def first_step(config, round, branch="ticket"):
    """The step at which a training starts."""
    anew = not round or rewinding.starts_anew(sources(config, branch))
    return 0 if anew else config.rewind_step


def last_step(config, round, branch="ticket"):
    """The step at which a training ends: where it starts, if nothing is trained."""
    function, _ = control(config, branch)
    if round:
        trained = not function or function.trained
    else:
        trained = not config.starts_trained and config.prune_at == "end"
    return config.train_steps if trained else first_step(config, round, branch)


def data_place(config, round, branch="ticket"):
    """How many steps into the order of the data a training starts."""
    source = sources(config, branch)["data"] if round else "init"
    if source == "end":
        steps_of_round = config.train_steps - first_step(config, round)
        return last_step(config, 0) + (round - 1) * steps_of_round
    return config.rewind_step if source == "rewind" else 0
