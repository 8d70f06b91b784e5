"""The displays, with clocks and consoles of the tests' own."""

import inspect
import io

import pytest
import rich.console

from prunetrain import lab
from prunetrain.runs import progress
from tests import tiny

EVALUATION = lab.Evaluation(step=20, loss=0.25, accuracy=0.5)
START = {"replicate": 0, "branch": "ticket", "round": 3, "kept": 0.512}
LABEL = "replicate 0  round  3 ticket  51.20% of weights"


def row_of(**start):
    """The row of a training that began so."""
    start = {**START, **start}
    place = start["replicate"], start["branch"], start["round"]
    return tiny.row(*place, sparsity=1 - start["kept"])


class Watched:
    """A `Plain` display whose clock stands where it is put, and the lines it wrote."""

    def __init__(self, num_steps=100, seconds=10):
        self.now, self.lines = 0.0, []
        self.display = progress.Plain(
            seconds, clock=lambda: self.now, write=self._write
        )
        self.display.expect(num_steps)

    def _write(self, text, flush):
        assert flush
        self.lines.append(text)

    def begin(self, last_step=50, **changes):
        self.display.begin(**{**START, **changes})
        self.display.advance(changes.get("replicate", 0), 0, 0, last_step)

    def at(self, now, step, num_steps=10, replicate=0):
        """At that time `step` is evaluated; returns the line written, if there is."""
        self.now = now
        self.display.advance(replicate, step, num_steps)
        before = len(self.lines)
        self.display.evaluated(replicate, EVALUATION, 0.5)
        return "".join(self.lines[before:])


# Plain lines


def test_a_line_tells_training_step_numbers_speed_and_time_left():
    watched = Watched(num_steps=100)
    watched.begin()
    # Speed counts from the end of the first dispatch, at 5 s, which compiles.
    assert watched.at(5, 10) == ""
    # 10 steps in 5 s since then, 80 to go.
    assert watched.at(10, 20) == (
        f"{LABEL}  step 20/50  val loss 0.2500 accuracy 50.00%  2 steps/s  0:40 left"
    )


def test_lines_come_every_so_many_seconds_and_not_sooner():
    watched = Watched(num_steps=1000)
    watched.begin()
    wrote = [bool(watched.at(second, second)) for second in range(1, 32)]
    assert [second for second, line in enumerate(wrote, 1) if line] == [10, 20, 30]


def test_speed_is_not_guessed_from_the_first_dispatch_alone():
    watched = Watched()
    watched.begin()
    line = watched.at(60, 10)
    assert line.endswith("accuracy 50.00%")


def test_speed_goes_on_over_trainings():
    watched = Watched(num_steps=100)
    watched.begin()
    watched.at(5, 10)
    watched.at(6, 50, num_steps=40)
    watched.begin(round=4)
    # 45 steps in 10 s, 45 to go.
    line = watched.at(15, 5, num_steps=5)
    assert line == ""
    watched.now = 16
    watched.display.evaluated(0, EVALUATION, None)
    assert watched.lines[-1].endswith("  4 steps/s  0:11 left")


@pytest.mark.parametrize(
    ("steps_left", "text"),
    [(1, "0:01"), (59, "0:59"), (60, "1:00"), (3599, "59:59"), (3723, "1:02:03")],
)
def test_time_left_is_told_in_hours_minutes_and_seconds(steps_left, text):
    watched = Watched(num_steps=20 + steps_left)
    watched.begin()
    watched.at(0, 10)
    assert watched.at(10, 20).endswith(f"  1 steps/s  {text} left")


def test_a_finished_training_leaves_a_line_with_its_outcome():
    watched = Watched()
    watched.begin()
    watched.display.finish(row_of())
    assert watched.lines == [
        f"{LABEL}  best step     40  val 75.00%  test 50.00%     1.5 s"
    ]


def test_the_last_line_of_a_run_tells_no_time_left():
    watched = Watched(num_steps=20)
    watched.begin()
    watched.at(1, 10)
    watched.at(2, 20)
    watched.display.finish(row_of())
    assert watched.lines[-1].endswith("1.5 s")


def test_what_is_closed_leaves_its_text_and_is_not_counted_any_more():
    watched = Watched(num_steps=1000)
    watched.begin()
    watched.display.begin(1, "k=4", 0, 1.0)
    watched.display.close(1, "a barrier of 0.1")
    assert watched.lines == ["a barrier of 0.1"]
    assert "more running" not in watched.at(20, 5)


def test_messages_are_written_as_they_are():
    watched = Watched()
    watched.display.say("No further round: …")
    assert watched.lines == ["No further round: …"]


@pytest.mark.parametrize(
    ("start", "label"),
    [
        (
            {"replicate": 0, "branch": "ticket", "round": 0, "kept": 1.0},
            "replicate 0  round  0 ticket 100.00% of weights",
        ),
        (
            {"replicate": 12, "branch": "reinit", "round": 15, "kept": 0.0352},
            "replicate 12  round 15 reinit   3.52% of weights",
        ),
    ],
)
def test_each_phase_has_a_label_of_its_own(start, label):
    watched = Watched()
    watched.begin(**start)
    watched.display.finish(row_of(**start))
    assert watched.lines[0].startswith(f"{label}  ")


def test_replicates_side_by_side_share_a_line_now_and_then_and_the_speed():
    watched = Watched(num_steps=100)
    for replicate in (0, 1):
        watched.begin(replicate=replicate, round=replicate)
    assert watched.at(5, 10) == ""
    # 10 steps in 5 s since then, 80 to go.
    assert watched.at(10, 10, replicate=1) == (
        "replicate 1  round  1 ticket  51.20% of weights  step 10/50  "
        "val loss 0.2500 accuracy 50.00%  1 more running  2 steps/s  0:40 left"
    )
    assert watched.at(11, 20) == ""
    watched.display.finish(row_of(round=0))
    assert watched.lines[-1].startswith("replicate 0  round  0 ticket  51.20%")
    assert "more running" not in watched.at(30, 20, replicate=1)


def test_a_replicate_that_fails_leaves_a_line_and_runs_no_more():
    watched = Watched()
    for replicate in (0, 1):
        watched.begin(replicate=replicate)
    watched.display.fail(1, "killed")
    # Before its first training began.
    watched.display.fail(2, "killed")
    assert watched.lines == [f"replicate {n}  failed: killed" for n in (1, 2)]
    assert "more running" not in watched.at(30, 20)


# The live line


def play(display):
    """A run as the experiment shows it; the display is closed at the end."""
    with display:
        display.expect(100)
        display.begin(**START)
        display.advance(0, 0, 0, 50)
        display.evaluated(0, EVALUATION, None)
        display.advance(0, 20, 20)
        display.evaluated(0, EVALUATION, 0.5)
        display.say("a [message]")
        display.finish(row_of())


def on_terminal(width):
    """What a run shows on a terminal of that width."""
    console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width)
    play(progress.Live(console))
    return console.file.getvalue()


def test_the_live_line_tells_training_step_and_numbers_within_80_columns():
    shown = on_terminal(80)
    for text in ("rep 0 round 3 ticket 51.2%", "20/50", "val loss 0.250 50.0%"):
        assert text in shown


def test_finished_trainings_and_messages_stay_above_the_live_line():
    shown = on_terminal(120)
    assert f"{LABEL}  best step     40  val 75.00%  test 50.00%" in shown
    assert "a [message]" in shown


def test_the_live_line_is_erased_and_the_cursor_shown_when_a_run_ends():
    shown = on_terminal(80)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rindex("\x1b[2K") > shown.rindex("loss 0.250")


def test_the_cursor_is_shown_again_when_a_run_is_interrupted():
    console = rich.console.Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(KeyboardInterrupt), progress.Live(console):
        raise KeyboardInterrupt
    shown = console.file.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_the_live_line_tells_how_many_replicates_run_within_80_columns():
    console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress.Live(console) as display:
        display.expect(100)
        for replicate in (0, 1):
            display.begin(**{**START, "replicate": replicate})
            display.advance(replicate, 0, 0, 50)
        display.advance(1, 20, 20)
        display.evaluated(1, EVALUATION, 0.5)
        display.fail(0, "killed")
        display.finish(row_of(replicate=1))
    shown = console.file.getvalue()
    for text in ("2 replicates", "rep 1 val loss 0.250 50.0%", "0  failed: killed"):
        assert text in shown
    assert "20/50" not in shown


# All displays


def test_the_silent_display_writes_nothing(capsys):
    play(progress.Silent())
    assert capsys.readouterr() == ("", "")


def test_plain_lines_go_to_the_standard_output(capsys):
    play(progress.Plain())
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "a [message]"
    assert out.splitlines()[1].startswith(LABEL)
    assert err == ""


@pytest.mark.parametrize("kind", [progress.Plain, progress.Live])
def test_every_display_answers_to_the_same_calls(kind):
    for name, method in vars(progress.Silent).items():
        if not name.startswith("_"):
            assert inspect.signature(getattr(kind, name)) == inspect.signature(method)


@pytest.mark.parametrize(
    ("variable", "kind"), [("FORCE_COLOR", progress.Live), (None, progress.Plain)]
)
def test_a_terminal_gets_the_live_line_and_a_pipe_plain_lines(
    variable, kind, monkeypatch, capsys
):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    assert type(progress.for_console()) is kind


def test_the_last_line_of_a_training_tells_the_weights_that_it_ends_with():
    watched = Watched()
    watched.begin(kept=1.0)
    watched.display.finish(row_of(kept=0.05))
    assert watched.lines[-1].startswith("replicate 0  round  3 ticket   5.00% of")
