"""What a handler came to is plain data before the thread that owns the partitions sees it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pipeline.adapters.executors import HandlerExecutor
from pipeline.adapters.settled import settled
from pipeline.core.handler import (
    Cancel,
    Dead,
    DeadEnd,
    Fenced,
    HandlerSpec,
    InvalidPayload,
    Kept,
    Registry,
    RemoteError,
    Retry,
    Retrying,
    Snooze,
    Stopped,
    Succeeded,
    TimedOut,
    decide,
)
from pipeline.core.job import Run
from pipeline.ports import Call, Done

RUN = Run(
    job_id="j", occurrence_id="j", due_at=1, run=1, queue="default", handler="h", created_at=1,
    nominal_at=1, idempotency_key="j", payload=b"{}",
)  # fmt: skip


def spec() -> HandlerSpec:
    registry = Registry()
    registry.add("h", lambda ctx: None)
    found = registry.get("h")
    assert found is not None
    return found


class Lazy(Exception):
    """Its text is made where it is asked for, and that takes its time."""

    def __init__(self) -> None:
        self.asked_on: list[str] = []

    def __str__(self) -> str:
        self.asked_on.append(threading.current_thread().name)
        return "computed"


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise KeyboardInterrupt


def test_a_result_is_its_json() -> None:
    assert settled({"a": 1}, None) == (Kept(b'{"a":1}'), None)
    value, error = settled(object(), None)
    assert error is None
    assert b"result_dropped" in value.data


def test_an_error_is_its_text_and_its_trace() -> None:
    try:
        raise ValueError("no")
    except ValueError as raised:
        value, error = settled(None, raised)
    assert value is None
    assert isinstance(error, RemoteError)
    assert (error.failure.type, error.failure.message) == ("ValueError", "no")
    assert "test_settled" in (error.failure.trace or "")


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(
    "verb",
    [
        Retry("later", after="5s"),
        Snooze(for_="7s"),
        Cancel("paid"),
        Fenced("newer"),
        Dead("no"),
        InvalidPayload("x"),
    ],
    ids=lambda verb: type(verb).__name__,
)
def test_a_verb_stays_what_it_is_whether_it_was_raised_or_returned(verb: Any, raised: bool) -> None:
    value, error = settled(None, verb) if raised else settled(verb, None)
    assert value is None
    assert type(error) is type(verb)
    assert error is not verb


@pytest.mark.parametrize("own", [Stopped("stopped"), TimedOut("late")])
def test_what_the_executor_says_itself_stays(own: BaseException) -> None:
    assert settled(None, own) == (None, own)


def test_whatever_its_objects_do_there_is_an_outcome() -> None:
    for value, error in (
        settled(None, Cancel(Hostile())),  # type: ignore[arg-type]
        settled(Hostile(a=1), None),
        settled(None, Lazy()),
    ):
        assert isinstance(value, Kept) or isinstance(error, BaseException)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_text_of_an_error_is_made_where_the_handler_runs(asynchronous: bool) -> None:
    """It may ask a database. The owner's thread must not."""
    lazy = Lazy()

    def plain() -> None:
        raise lazy

    async def task() -> None:
        await asyncio.sleep(0)
        raise lazy

    executor = HandlerExecutor(1, settle=settled)
    executor.submit(Call(1, task if asynchronous else plain, asynchronous))
    done: list[Done] = []
    deadline = time.monotonic() + 10
    while not done and time.monotonic() < deadline:
        done = executor.completed()
    executor.close(1_000)
    (one,) = done
    asked = list(lazy.asked_on)
    assert asked
    assert threading.current_thread().name not in asked
    decision = decide(spec(), RUN, value=one.value, error=one.error, now=1, random=Mean())
    assert isinstance(decision, Retrying)
    assert decision.error is not None
    assert decision.error.message == "computed"
    assert lazy.asked_on == asked


def test_a_kept_result_is_the_result() -> None:
    assert decide(spec(), RUN, value=Kept(b"7"), now=1, random=Mean()) == Succeeded(result=b"7")


def test_a_dead_one_is_dead() -> None:
    _, error = settled(None, Dead("hopeless"))
    decision = decide(spec(), RUN, error=error, now=1, random=Mean())
    assert isinstance(decision, DeadEnd)
    assert decision.error.message == "hopeless"


class Mean:
    def random(self) -> float:
        return 0.5
