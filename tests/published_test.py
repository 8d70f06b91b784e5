"""The published runs in docs/results are those of the flagfiles beside them."""

import dataclasses
import json

import pytest

import prunetrain as pt
from prunetrain import experiment, lab, main
from prunetrain.runs import results, tickets
from tests import tiny

RESULTS = tiny.ROOT / "docs" / "results"
RUNS = sorted(file.parent for file in RESULTS.rglob("results.csv"))
# Replicate and round of the ticket that is kept for it.
AGAIN = 0, 7
# What bits depend on; elsewhere a level may differ by so much in accuracy.
GROUND = ("tensorflow", "keras", "numpy", "machine", "cpu", "compile_mode")
BOUND = 0.005


def config_of(folder):
    return pt.Config(**json.loads((folder / "config.json").read_text()))


def report_of(folder):
    """The report of a run: beside it, or above where several have one."""
    single = folder / "report.html"
    return single if single.exists() else folder.parent / "report.html"


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_published_run_is_whole_and_that_of_its_flagfile(folder):
    config = config_of(folder)
    words = ["prunetrain", f"--flagfile={folder / 'flags.txt'}"]
    assert main.parse(words).as_dict() == config.as_dict()
    rows = {row.key: row for row in results.read_rows(folder)}

    class Finished:
        row = staticmethod(rows.get)
        ends_at = staticmethod(lambda replicate, round: False)

    for replicate in range(config.replicates):
        assert not list(experiment.unfinished(config, replicate, Finished))
    assert report_of(folder).stat().st_size > 10_000


def test_there_are_published_runs_and_the_page_links_them_all():
    page = (RESULTS / "README.md").read_text()
    assert RUNS
    for folder in RUNS:
        report = report_of(folder).relative_to(RESULTS)
        assert f"({report})" in page
        assert f"docs/results/{folder.relative_to(RESULTS)}/flags.txt" in page


@pytest.mark.slow
def test_a_published_level_is_trained_again_to_the_row_that_stands_there(tmp_path):
    folder, (replicate, round) = RESULTS / "lenet_300_100", AGAIN
    published = {row.key: row for row in results.read_rows(folder)}
    key = replicate, "ticket", round
    config = dataclasses.replace(
        config_of(folder), replicates=1, parallel_replicates=1, test_every=0
    )
    directory = experiment.open_directory(config, tmp_path / "run")
    content = (folder / "tickets" / f"replicate0-round{round:02d}.npz").read_bytes()
    directory.save_masks(replicate, round, *zip(*tickets.named(content), strict=True))
    for row in published.values():
        if row.replicate == replicate and row.key != key:
            directory.add_row(row)
    (found,) = (row for row in pt.run(config, directory).rows if row.key == key)
    ours, theirs = (
        dataclasses.asdict(dataclasses.replace(row, train_seconds=0))
        for row in (found, published[key])
    )
    stood = json.loads((folder / "environment.json").read_text())
    now = lab.environment(stood["compile_mode"])
    if all(stood[name] == now[name] for name in GROUND):
        assert ours == theirs
    else:
        names = "weights_remaining", "sparsity"
        assert all(ours[name] == theirs[name] for name in names)
        for name in ("val_accuracy", "test_accuracy", "final_test_accuracy"):
            assert abs(ours[name] - theirs[name]) <= BOUND
