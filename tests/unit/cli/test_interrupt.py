"""An interrupt that a C library has turned into something else is an interrupt all the same."""

from __future__ import annotations

import signal

import pytest

from pipeline import cli
from pipeline.cli import INTERRUPTED, interrupt, main


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupt, "_came", False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Client:
    """As a constructor in C that reads its configuration when the signal comes."""

    def __init__(self, number):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise TypeError("expected configuration property name as type unicode string") from None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_an_interrupt_turned_into_ends_the_command_as_one(monkeypatch, capsys, number):
    def command(*_args, **_more):
        if number == signal.SIGTERM:
            interrupt.stoppable()
        Client(number)

    monkeypatch.setattr(cli.dueline, "main", command)
    assert main(["status"]) == INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_failure_of_its_own_is_told(monkeypatch):
    def command(*_args, **_more):
        raise TypeError("ours")

    monkeypatch.setattr(cli.dueline, "main", command)
    with pytest.raises(TypeError, match="ours"):
        main(["status"])


def test_whoever_sees_to_interrupts_goes_on_doing_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt.remembered()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
