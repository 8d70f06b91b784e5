"""Signals: at once, or noted for the end of what must not be cut off."""

import signal

import pytest

from prunetrain.runs import signals

NUMBERS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def handled():
    before = [signal.getsignal(number) for number in NUMBERS]
    signals.handle(*NUMBERS)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def stopped(number):
    return pytest.raises(signals.Stopped, check=lambda error: error.number == number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_stops_at_once(number):
    with stopped(number):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_deferred_signal_is_noted_and_obeyed_when_asked(number):
    with stopped(number), signals.deferred() as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop
        stop.obey()
        pytest.fail("it goes on")


def test_a_noted_signal_is_obeyed_at_the_end_if_it_was_not_before():
    reached = []
    with stopped(signal.SIGTERM), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        reached.append(True)
    assert reached


def test_a_second_signal_stops_at_once():
    with stopped(signal.SIGINT), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")


def test_what_is_noted_is_forgotten_with_its_part_of_the_run():
    with stopped(signal.SIGTERM), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
    with signals.deferred() as stop:
        assert not stop


def test_an_error_within_is_not_hidden_by_a_signal():
    with pytest.raises(ZeroDivisionError), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        raise ZeroDivisionError
