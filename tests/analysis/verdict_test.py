"""The verdict: synthetic runs whose outcome is known, worked out by hand."""

import dataclasses
import math
import statistics

import pytest

from prunetrain.analysis import levels, table, verdict
from prunetrain.runs import results
from tests import tiny

DENSE = [0.980, 0.982, 0.981]
# Published tables of Student's t, two-sided 95 %.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045}


def rows(round, accuracies, branch="ticket", step=1000):
    return [
        tiny.row(
            **{"replicate": replicate, "branch": branch, "round": round},
            **{"sparsity": 1 - 0.5**round, "best_step": step},
            test_accuracy=accuracy,
        )
        for replicate, accuracy in enumerate(accuracies)
    ]


def better(by, accuracies=DENSE):
    return [accuracy + by for accuracy in accuracies]


@pytest.mark.parametrize(("degrees", "expected"), T.items())
def test_t_is_that_of_the_tables(degrees, expected):
    assert verdict.t_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_an_interval_is_the_mean_and_t_times_the_standard_error():
    gap = verdict.interval([1.0, 2.0, 3.0])
    half = 4.30265 / 3**0.5
    assert (gap.mean, gap.replicates, gap.sign) == (2, 3, 0)
    assert (gap.low, gap.high) == pytest.approx((2 - half, 2 + half), abs=1e-4)
    assert verdict.interval([2.0, 2.0, 2.0]) == verdict.Gap(2, 2, 2, 3)
    assert verdict.interval([2.0, 2.1, 2.0]).sign == 1
    assert verdict.interval([-2.0, -2.1, -2.0]).sign == -1
    assert verdict.interval([2.0]) == verdict.Gap(2, None, None, 1)
    assert verdict.interval([]) is None


def test_the_ticket_is_better():
    found = verdict.of(
        [
            *rows(0, DENSE, step=2000),
            *rows(1, better(0.003), step=1500),
            *rows(2, [0.983, 0.9845, 0.9845], step=1000),
            *rows(3, better(-0.01), step=3000),
            *rows(2, better(-0.002), "reinit"),
            *rows(2, better(-0.004), "reinit_2"),
        ]
    )
    level = found.level
    assert found.outcome == "winning ticket"
    assert (level.round, level.remaining) == (2, 0.25)
    assert level.ticket == pytest.approx(0.984)
    assert level.dense == pytest.approx(0.981)
    gaps = [0.003, 0.0025, 0.0035]
    half = 4.30265 * statistics.stdev(gaps) / 3**0.5
    assert level.gap.mean == pytest.approx(0.003)
    assert level.gap.low == pytest.approx(0.003 - half, abs=1e-7)
    # Of both draws together.
    assert level.controls["reinit"].mean == pytest.approx(0.006)
    assert level.controls["reinit"].replicates == 3
    assert (level.steps, level.dense_steps) == (1000, 2000)
    headline, speed, against, method = found.lines
    assert "at 25 % of the weights (round 2)" in headline
    assert "98.40 %, dense 98.10 %: +0.30 points [+0.18, +0.42], 3" in headline
    assert "0.50 times as many" in speed
    assert "Against reinit at 25 %" in against
    assert "+0.60 points" in against
    assert "the ticket is better" in against
    assert "sparsest of 3" in method


def test_the_ticket_is_as_good_at_every_level():
    found = verdict.of([*rows(0, DENSE), *rows(1, DENSE), *rows(2, DENSE)])
    assert (found.outcome, found.level.round) == ("winning ticket", 2)
    assert found.level.gap == verdict.Gap(0, 0, 0, 3)
    assert found.lines[0].startswith("Winning ticket by its mean")
    assert "neither better nor worse than dense is shown" in found.lines[0]


def test_an_advantage_within_the_noise_is_not_called_better():
    found = verdict.of([*rows(0, DENSE), *rows(1, [0.99, 0.982, 0.978])])
    assert found.outcome == "winning ticket"
    assert found.level.gap.low < 0 < found.level.gap.mean
    assert "neither better nor worse than dense is shown" in found.lines[0]


def test_the_ticket_is_worse():
    found = verdict.of(
        [*rows(0, DENSE), *rows(1, better(-0.001)), *rows(2, better(-0.003))]
    )
    assert (found.outcome, found.level.round) == ("no winning ticket", 1)
    assert found.lines[0].startswith("No winning ticket found")
    assert "-0.10 points" in found.lines[0]


@pytest.mark.parametrize("count", [1, 2])
def test_few_replicates_are_too_few_to_say(count):
    dense, ticket = DENSE[:count], better(0.01)[:count]
    found = verdict.of([*rows(0, dense), *rows(1, ticket), *rows(1, dense, "reinit")])
    assert found.outcome == "too few replicates"
    assert found.lines[0].startswith(f"Too few replicates to say ({count}; it takes 3")
    assert "winning" not in " ".join(found.lines).lower()
    assert "better" not in " ".join(found.lines)


def test_without_a_control_nothing_is_said_of_the_weights():
    found = verdict.of([*rows(0, DENSE), *rows(1, better(0.01))])
    assert found.level.controls == {}
    assert any(line.startswith("No control to compare with") for line in found.lines)


def test_a_control_of_other_levels_is_compared_at_the_nearest():
    found = verdict.of(
        [
            *rows(0, DENSE),
            *(row for r in (1, 2, 3, 4) for row in rows(r, better(0.01))),
            *rows(1, better(0.02), "reinit"),
            *rows(3, better(0.01), "reinit"),
        ]
    )
    assert found.level.round == 4
    (against,) = (line for line in found.lines if line.startswith("Against"))
    assert "(round 3) (the nearest that has it): +0.00 points" in against
    assert "no difference shown" in against


@pytest.mark.parametrize(
    "incomplete", [[], rows(0, DENSE), rows(1, DENSE), rows(1, DENSE, "reinit")]
)
def test_without_dense_and_ticket_there_is_nothing_to_compare(incomplete):
    found = verdict.of(incomplete)
    assert (found.outcome, found.level) == ("nothing to compare", None)


@pytest.mark.parametrize("prune_at", ["init", "during"])
def test_an_untrained_dense_network_is_nothing_to_compare_with(prune_at):
    found = verdict.of([*rows(0, DENSE), *rows(1, better(0.01))], prune_at)
    assert found.outcome == "nothing to compare"
    assert f"--prune_at={prune_at}" in found.lines[0]


def test_only_replicates_that_have_both_are_paired():
    found = verdict.of([*rows(0, [0.9, 0.9, 0.9, 0.1]), *rows(1, [0.9, 0.91, 0.92])])
    assert found.level.gap.replicates == 3
    assert found.level.gap.mean == pytest.approx(0.01)
    assert found.level.dense == pytest.approx(0.9)


def test_a_lower_loss_is_better_where_there_is_no_accuracy():
    def losses(round, values):
        return [
            tiny.row(
                **{"replicate": i, "round": round, "sparsity": 1 - 0.5**round},
                **{"val_accuracy": None, "test_accuracy": None, "test_loss": value},
            )
            for i, value in enumerate(values)
        ]

    found = verdict.of([*losses(0, [3.0, 3.0, 3.0]), *losses(1, [2.0, 2.0, 2.5])])
    assert (found.outcome, found.level.measure) == ("winning ticket", "loss")
    assert found.level.gap.mean == pytest.approx(2.5 / 3)
    assert "mean test loss is 2.167, dense 3: +0.8333" in found.lines[0]


def test_a_dense_network_that_never_improves_has_no_ratio_of_steps():
    found = verdict.of([*rows(0, DENSE, step=0), *rows(1, DENSE)])
    assert "before the first step" in found.lines[1]


def test_it_is_printed_at_the_end_of_a_run(tmp_path, capsys):
    written = [*rows(0, DENSE), *rows(1, better(0.01))]
    (tmp_path / "results.csv").write_text(results.as_csv(written))
    table.print_results(tmp_path)
    text = " ".join(capsys.readouterr().out.split())
    assert verdict.of(written).lines[0] in text


def losses(round, values, branch="ticket"):
    return [
        tiny.row(
            **{"replicate": i, "round": round, "branch": branch},
            **{"val_accuracy": None, "test_accuracy": None, "test_loss": value},
        )
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7e308])
def test_a_loss_that_is_not_finite_is_compared_with_nothing(bad):
    dense = losses(0, [1.0, 1.0, 1.0])
    found = verdict.of([*dense, *losses(1, [0.5, bad, 0.5])])
    assert found.outcome == "nothing to compare"
    assert "not finite" in found.lines[0]
    found = verdict.of([*dense, *losses(1, [0.5, 0.5, 0.5]), *losses(2, [bad] * 3)])
    assert (found.outcome, found.level.round) == ("winning ticket", 1)
    control = losses(1, [bad, 1.0, 1.0], "reinit")
    found = verdict.of([*dense, *losses(1, [0.5, 0.5, 0.5]), *control])
    assert found.level.controls == {}
    assert levels.by_level([*dense, *losses(1, [math.inf, -math.inf, bad])])


def test_a_replicate_ahead_of_the_others_decides_nothing():
    ahead = rows(2, DENSE[:1]) + rows(3, better(-0.5)[:1])
    found = verdict.of([*rows(0, DENSE), *rows(1, better(0.01)), *ahead])
    assert (found.outcome, found.level.round) == ("winning ticket", 1)


def test_a_control_with_few_replicates_gives_no_judgement():
    found = verdict.of(
        [*rows(0, DENSE), *rows(1, better(0.01)), *rows(1, DENSE[:1], "reinit")]
    )
    (against,) = (line for line in found.lines if line.startswith("Against"))
    assert against.endswith("+1.00 points, 1 replicate.")


def test_a_level_without_any_weight_can_be_compared():
    emptied = [dataclasses.replace(x, sparsity=1.0) for x in rows(1, better(0.01))]
    found = verdict.of([*rows(0, DENSE), *emptied, *rows(1, DENSE, "reinit")])
    assert found.level.remaining == 0
