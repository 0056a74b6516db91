"""Calls in a thread of their own."""

from __future__ import annotations

import threading

import pytest

from pipeline.adapters.aside import Apart


def test_a_call_goes_on_while_its_caller_does_and_its_end_can_be_waited_for() -> None:
    go, seen = threading.Event(), []

    def call() -> None:
        go.wait(10)
        seen.append(threading.current_thread())

    apart = Apart(call)
    assert not apart.done()
    assert not apart.wait(0)
    go.set()
    apart.result()
    assert apart.done()
    assert seen != [threading.current_thread()]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_it_raises_is_raised_by_its_result_and_again(error: BaseException) -> None:
    def call() -> None:
        raise error

    apart = Apart(call)
    for _ in range(2):
        with pytest.raises(type(error)):
            apart.result()


def test_its_thread_keeps_no_process_from_ending() -> None:
    go, threads = threading.Event(), []

    def call() -> None:
        threads.append(threading.current_thread())
        go.wait(10)

    apart = Apart(call)
    while not threads:
        apart.wait(0.01)
    assert threads[0].daemon
    go.set()
    apart.result()
