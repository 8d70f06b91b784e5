"""The experiment: iterative pruning with rewinding, and its controls.

Frankle & Carbin 2019 ("The Lottery Ticket Hypothesis", section 2): train, prune,
rewind, repeat. `find_tickets` is the procedure; `training` has one training of it,
`lab.Lab` what lives on the device.
"""

import dataclasses
import pathlib

import numpy as np

from prunetrain import config as config_lib
from prunetrain import lab as labs
from prunetrain import training
from prunetrain.errors import InputError, RunError
from prunetrain.runs import progress as displays
from prunetrain.runs import workdir as workdirs
from prunetrain.runs import workers

_SEED_PURPOSES = ("weights", "data_order", "reinit", "criterion")


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run leaves: the folder, and a `Row` per training in order."""

    workdir: pathlib.Path
    rows: list


def run(config, workdir=None, progress=None, start=None):
    """Runs an experiment, or goes on with one that was interrupted.

    Makes TensorFlow's ops deterministic in this process: the same settings give the
    same bits. A training whose row is in the folder's results.csv is not repeated; one
    that was interrupted goes on from its last checkpoint.
    With `config.parallel_replicates` above 1 the trainings run in worker processes,
    which start afresh: they do not know what a script has registered or set in Keras.

    Args:
        config: `Config`.
        workdir: folder for the files, or an open `WorkDirectory`; None takes
            `config.workdir`, and if that is empty a new one.
        progress: display (see `runs.progress`); None picks one for the console.
        start: called before TensorFlow is loaded in this process, if it is.

    Returns:
        `Results`.

    Raises:
        InputError: the settings, the data or the folder do not fit.
        RunError: the training diverged, or a worker process failed.
    """
    directory = workdir
    if not isinstance(directory, workdirs.WorkDirectory):
        directory = open_directory(config, workdir)
    display = progress or displays.for_console()
    plans = [
        list(unfinished(config, replicate, directory))
        for replicate in range(config.replicates)
    ]
    if not any(plans):
        display.say(f"{directory.path}: every round is finished, nothing to train")
        return Results(directory.path, directory.rows)
    display.expect(
        sum(
            config.last_step(stage[0]) - reached(config, replicate, *stage, directory)
            for replicate, plan in enumerate(plans)
            for stage in plan
        )
    )
    replicates = [replicate for replicate, plan in enumerate(plans) if plan]
    # Before TensorFlow: what is wrong with the data is told at once.
    dataset = labs.open_data(config)
    with display:
        if config.parallel_replicates > 1:
            find_side_by_side(config, replicates, directory, display)
        else:
            if start:
                start()
            lab = labs.open_lab(config, directory, dataset)
            find_one_by_one(lab, config, replicates, directory, display)
    directory.tidy_metrics()
    return Results(directory.path, directory.rows)


def open_directory(config, path=None):
    """The `WorkDirectory` of a run: `path`, or `config.workdir`, or a new one."""
    return workdirs.WorkDirectory(
        path or config.workdir,
        config.as_dict(),
        config_lib.free_settings(),
        config_lib.Config().as_dict(),
    )


def find_one_by_one(lab, config, replicates, directory, display):
    """`find_tickets` for several replicates, in this process.

    Raises:
        RunError: trainings diverged; the other replicates have gone on to their end.
    """
    failures = []
    for replicate in replicates:
        try:
            find_tickets(lab, config, replicate, directory, display)
        except training.DivergedError as error:
            failures.append((replicate, str(error)))
            display.fail(*failures[-1])
    _check_failures(failures, directory)


def find_side_by_side(config, replicates, directory, display):
    """`find_tickets` for several replicates, in worker processes.

    This process alone writes the files that the replicates share, and the screen.

    Raises:
        RunError: workers failed; the others have gone on to their end.
    """
    failures = workers.run(
        "prunetrain.worker",
        (config.as_dict(), directory),
        {replicate: directory.log(replicate) for replicate in replicates},
        config.parallel_replicates,
        {"directory": directory, "display": display},
        on_failure=display.fail,
    )
    _check_failures(failures, directory)


def _check_failures(failures, directory):
    """Raises RunError if there are any, `(replicate, why)` each."""
    if failures:
        told = "; ".join(f"replicate {who} failed: {why}" for who, why in failures)
        raise RunError(
            f"{told}. What is finished is kept in {directory.path}; repeat the command "
            "on it to train the rest"
        )


def find_tickets(lab, config, replicate, directory, display):
    """Train, evaluate, prune, rewind, repeat, for one replicate.

    What is still to be trained is looked up anew after each training, since whether
    there is a next round depends on what the last one left to prune.
    """
    lab.loop.seed.assign(seed_for(config, "data_order", replicate))
    progress = resumed(lab, config, replicate, directory, display)
    if not progress and directory.row((replicate, "ticket", 0)):
        start(lab, config, directory, (replicate, "ticket", 0))
        lab.train_to_rewind_point()
    for round, branch in unfinished(config, replicate, directory):
        key = replicate, branch, round
        if not progress:
            start(lab, config, directory, key)
            progress = training.Progress(first_step(config, round, branch))
        log = training.Log(directory, display, key, lab.pruned, progress)
        saves = training.Saves(lab, directory, key, progress)
        try:
            best, last = training.train(lab, progress, log, saves, round)
        except training.DivergedError as error:
            raise diverged(lab, config, directory, key, progress, error) from error
        if branch == "ticket" and round < config.rounds:
            masks, problem = lab.next_masks(
                seed_for(config, "criterion", replicate, round),
                seed_for(config, "weights", replicate),
            )
            if problem:
                display.say(f"No round after {round}: {problem}")
                directory.end_at(replicate, round, problem)
            else:
                paths = [kernel.path for kernel in lab.pruned.kernels]
                directory.save_masks(replicate, round + 1, paths, masks)
        directory.save_weights(lab.pruned.model, replicate, branch, round)
        log.finish(best, last, *lab.test_at(best, last))
        progress = None


def start(lab, config, directory, key):
    """Brings the lab to where a training starts from."""
    replicate, branch, round = key
    if round:
        set_ticket(lab, replicate, round, directory)
    else:
        lab.make_dense()
    if branch == "reinit":
        lab.draw_weights(seed_for(config, "reinit", replicate, round), fresh=True)
    elif round:
        lab.rewind.restore()
    else:
        lab.draw_weights(seed_for(config, "weights", replicate))


def diverged(lab, config, directory, key, progress, error):
    """`DivergedError` that names the first number that was not finite, and where.

    The steps since the last checkpoint are gone through again to find it.
    """
    replicate, branch, round = key
    position = directory.position(key)
    if position:
        directory.restore(key, lab.state)
    else:
        start(lab, config, directory, key)
    first = reached(config, replicate, round, branch, directory)
    found = lab.loop.first_nonfinite(first, progress.step - first)
    what = "{1} is not finite at step {0:,}".format(*found) if found else str(error)
    kept = f"; the checkpoint of step {first:,} is kept" if position else ""
    return training.DivergedError(
        f"the training diverged: {what} (branch {branch}, round {round}{kept}). In "
        "another --workdir, try a lower --learning_rate or "
        "--optimizer_args=global_clipnorm=1.0"
    )


def set_ticket(lab, replicate, round, directory):
    """Puts a round's masks on the model, or says which of them does not fit."""
    masks = directory.load_masks(replicate, round)
    try:
        lab.pruned.set_masks(masks)
    except ValueError as error:
        raise InputError(
            f"the ticket of replicate {replicate}, round {round} in {directory.path} "
            f"does not fit: {error}. Restore it, or start again in another --workdir"
        ) from error


def resumed(lab, config, replicate, directory, display):
    """`Progress` of the training that was cut off, whose state the lab then holds.

    None if there is no checkpoint of it.
    """
    round, branch = next(unfinished(config, replicate, directory))
    key = replicate, branch, round
    position = directory.position(key)
    if not position:
        return None
    try:
        progress = training.Progress.from_dict(position)
    except (LookupError, TypeError) as error:
        raise InputError(
            f"the checkpoint of replicate {replicate} round {round} {branch} in "
            f"{directory.path} is damaged, or of another version of prunetrain "
            f"({error}). Use that version, or start again in another --workdir"
        ) from error
    directory.restore(key, lab.state)
    place = f"replicate {replicate} round {round} {branch} step {progress.step:,}"
    display.say(f"goes on at {place}")
    return progress


def unfinished(config, replicate, directory):
    """Yields `(round, branch)` of the trainings to come, as far as can be told.

    It may have been recorded that a round is the last one: nothing left to prune.
    """
    for round in range(config.rounds + 1):
        if directory.ends_at(replicate, round - 1):
            return
        for branch in ("ticket", *(config.controls if round else ())):
            if not directory.row((replicate, branch, round)):
                yield round, branch


def first_step(config, round, branch):
    """The step that a training starts from: a control starts over, a ticket rewinds."""
    return config.rewind_step if round and branch == "ticket" else 0


def reached(config, replicate, round, branch, directory):
    """The step that a training goes on from, or starts from if it has no checkpoint."""
    position = directory.position((replicate, branch, round))
    return position["step"] if position else first_step(config, round, branch)


def seed_for(config, purpose, replicate, round=0):
    """An independent seed for each purpose, from `config.seed`."""
    entropy = [config.seed, _SEED_PURPOSES.index(purpose), replicate, round]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
