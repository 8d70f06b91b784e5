"""The experiment: iterative pruning with rewinding, and its controls.

Frankle & Carbin 2019 ("The Lottery Ticket Hypothesis", section 2): train, prune,
rewind, repeat. `find_tickets` is the procedure; `training` has one training of it,
`starts` where it starts from, `lab.Lab` what lives on the device.
"""

import dataclasses
import functools
import pathlib

from prunetrain import lab as labs
from prunetrain import plans, strategies, training
from prunetrain import starts as starts_lib
from prunetrain.config import ConfigError
from prunetrain.errors import InputError, RunError
from prunetrain.runs import events, workers
from prunetrain.runs import progress as displays
from prunetrain.runs import workdir as workdirs


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
        config: `Config`. With strategy="multiworker" each worker calls this.
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
    with strategies.told(config.strategy):
        return _run(config, workdir, progress, start)


def _run(config, workdir, progress, start):
    directory = open_directory(config, workdir)
    follows = strategies.follows(config.strategy)
    display = progress or (displays.Silent() if follows else displays.for_console())
    if config.strategy == strategies.MULTIWORKER:
        # The others wait for this one, even if it finds nothing to train.
        (start or (lambda: strategies.make(config.strategy)))()
    to_come = [
        list(unfinished(config, replicate, directory))
        for replicate in range(config.replicates)
    ]
    if not any(to_come):
        say_finished(config, directory, display)
        return Results(directory.path, directory.rows)
    display.expect(
        sum(
            plans.last_step(config, *stage)
            - reached(config, replicate, *stage, directory)
            for replicate, stages in enumerate(to_come)
            for stage in stages
        )
    )
    replicates = [replicate for replicate, stages in enumerate(to_come) if stages]
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


def say_finished(config, directory, display):
    """Says that there is nothing to train, and which replicates ended early and why."""
    display.say(f"{directory.path}: every round is finished, nothing to train")
    for replicate in range(config.replicates):
        round, why = directory.end(replicate) or (config.rounds, "")
        if round < config.rounds:
            display.say(f"replicate {replicate} has no round after {round}: {why}")


def open_directory(config, path=None):
    """The `WorkDirectory` of a run; see `lab.open_directory`."""
    if config.tensorboard == "on":
        events.check()
    if config.only and not isinstance(path, workdirs.WorkDirectory):
        path = path or config.workdir
        if not path:
            raise ConfigError(
                "only", config.only, "needs a --workdir, which all parts have in common"
            )
        path = workdirs.part(path, config.only)
    return labs.open_directory(config, path)


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
    starts = starts_lib.Starts(lab, config, replicate, directory, display)
    board = None
    if config.tensorboard == "on" and not strategies.follows(config.strategy):
        board = functools.partial(events.Events, directory.path / "tensorboard")
    for round, branch in unfinished(config, replicate, directory):
        key = replicate, branch, round
        progress = resumed(starts, key, directory, display)
        if not progress:
            starts.begin(round, branch)
            progress = training.Progress(plans.first_step(config, round, branch))
        log = training.Log(directory, display, key, lab.pruned, progress, board)
        saves = training.Saves(lab, directory, key, progress)
        try:
            best, last = training.train(lab, progress, log, saves, round, branch)
        except training.DivergedError as error:
            raise diverged(lab, starts, directory, key, progress, error) from error
        test_at_last = lab.evaluate("test", last.step)
        directory.save_weights(lab.pruned.model, replicate, branch, round)
        if lab.mask_update:
            directory.save_masks(replicate, round, *lab.masks_by_path(), branch=branch)
        if branch == "ticket":
            prune(lab, starts, key, directory, display, log, last.step)
        lab.best.restore(masks=bool(lab.mask_update))
        log.finish(best, last, lab.evaluate("test", best.step), test_at_last)


def prune(lab, starts, key, directory, display, log, step):
    """Writes the ticket of the round after a ticket's, or why there is none.

    Also after the last round, so that more can be added. The weights are lost.
    """
    (replicate, _, round), config = key, lab.config
    if config.sparsities and round == config.rounds:
        return
    if config.prune_at == "init":
        starts.draw_initial(("weights", "state"))
    if config.prune_at == "during":
        # The next round goes on from these.
        directory.save_masks(replicate, round + 1, *lab.masks_by_path())
        return
    masks, problem = lab.next_masks(
        starts_lib.seed_for(config, "criterion", replicate, round),
        starts_lib.seed_for(config, "weights", replicate),
        round,
    )
    if problem:
        directory.end_at(replicate, round, problem)
        if round < config.rounds:
            display.say(f"No round after {round}: {problem}")
        return
    paths = [kernel.path for kernel in lab.pruned.kernels]
    directory.save_masks(replicate, round + 1, paths, masks)
    # Pruned at initialisation, the next round's first evaluation says it.
    if config.prune_at == "end":
        log.pruned(*lab.evaluate_under(masks, step))


def diverged(lab, starts, directory, key, progress, error):
    """`DivergedError` that names the first number that was not finite, and where.

    The steps since the last checkpoint are gone through again to find it.
    """
    replicate, branch, round = key
    first = reached(lab.config, replicate, round, branch, directory)
    position = directory.position(key)
    (starts.resume if position else starts.begin)(round, branch)
    found = lab.first_nonfinite(first, progress.step - first)
    what = "{1} is not finite at step {0:,}".format(*found) if found else str(error)
    kept = f"; the checkpoint of step {first:,} is kept" if position else ""
    return training.DivergedError(
        f"the training diverged: {what} (branch {branch}, round {round}{kept}). In "
        "another --workdir, try a lower --learning_rate or "
        "--optimizer_args=global_clipnorm=1.0"
    )


def resumed(starts, key, directory, display):
    """`Progress` of a training that was cut off, whose state the lab then holds.

    None if there is no checkpoint of it.
    """
    replicate, branch, round = key
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
    starts.resume(round, branch)
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
        for branch in plans.branches(config, round):
            is_mine = plans.is_selected(config, replicate, branch)
            if is_mine and not directory.row((replicate, branch, round)):
                yield round, branch


def reached(config, replicate, round, branch, directory):
    """The step that a training goes on from, or starts from if it has no checkpoint."""
    position = directory.position((replicate, branch, round))
    return position["step"] if position else plans.first_step(config, round, branch)
