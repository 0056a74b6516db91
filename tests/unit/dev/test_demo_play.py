"""How the demo ends when it is told to."""

from __future__ import annotations

import os
import signal

import pytest

from pipeline.dev.demo.play import orderly_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_once_and_does_not_disturb_the_tidying_up(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    tidied = []

    def play() -> None:
        with orderly_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                for each in before:
                    os.kill(os.getpid(), each)
                tidied.append(number)

    with pytest.raises(KeyboardInterrupt):
        play()
    assert tidied == [number]
    assert {each: signal.getsignal(each) for each in before} == before


def test_without_a_signal_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with orderly_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
