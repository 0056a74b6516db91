"""The `Executor` port over threads and inline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.adapters.executors import HandlerExecutor, InlineExecutor
from pipeline.ports import Call, Done, Executor

WAIT_MS = 10_000


@pytest.fixture(params=["inline", "threads"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    built: Executor = InlineExecutor() if request.param == "inline" else HandlerExecutor(2)
    yield built
    built.close(WAIT_MS)


@pytest.fixture
def threads() -> Iterator[HandlerExecutor]:
    built = HandlerExecutor(2)
    yield built
    built.close(WAIT_MS)


def collect(executor: Executor, count: int) -> dict[int, Done]:
    done: dict[int, Done] = {}
    deadline = time.monotonic() + WAIT_MS / 1000
    while len(done) < count:
        assert time.monotonic() < deadline
        done |= {d.ticket: d._replace(began=0.0, ended=0.0) for d in executor.completed()}
        time.sleep(0.001)
    return done


def plain() -> str:
    return "plain"


async def asynchronous() -> str:
    await asyncio.sleep(0)
    return "asynchronous"


def leave() -> None:
    raise SystemExit(3)


async def interrupt() -> None:
    raise KeyboardInterrupt


def test_both_kinds_of_handler_return_their_value(executor: Executor) -> None:
    executor.submit(Call(1, plain, False))
    executor.submit(Call(2, asynchronous, True))
    assert collect(executor, 2) == {1: Done(1, "plain", None), 2: Done(2, "asynchronous", None)}


@pytest.mark.parametrize(
    ("function", "is_async", "kind"), [(leave, False, SystemExit), (interrupt, True, KeyboardInterrupt)]
)
def test_a_handler_that_wants_to_end_the_process_only_fails(
    executor: Executor, function: Callable[[], Any], is_async: bool, kind: type[BaseException]
) -> None:
    executor.submit(Call(1, function, is_async))
    assert isinstance(collect(executor, 1)[1].error, kind)
    executor.submit(Call(2, asynchronous, True))
    executor.submit(Call(3, plain, False))
    assert len(collect(executor, 2)) == 2


def test_nothing_is_completed_twice(executor: Executor) -> None:
    executor.submit(Call(1, plain, False))
    collect(executor, 1)
    assert executor.completed() == []


def test_a_held_inline_executor_runs_nothing_until_released() -> None:
    executor = InlineExecutor()
    executor.hold = True
    executor.submit(Call(1, plain, False))
    assert executor.completed() == []
    executor.hold = False
    assert [d.ticket for d in executor.completed()] == [1]


def test_calls_run_at_once_up_to_the_concurrency(threads: HandlerExecutor) -> None:
    together = threading.Barrier(2)
    for ticket in (1, 2):
        threads.submit(Call(ticket, lambda: together.wait(WAIT_MS / 1000), False))
    assert all(d.error is None for d in collect(threads, 2).values())


def test_asynchronous_calls_are_bounded(threads: HandlerExecutor) -> None:
    running, most, together = 0, 0, asyncio.Barrier(2)

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await together.wait()
        running -= 1

    for ticket in range(10):
        threads.submit(Call(ticket, count, True))
    collect(threads, 10)
    assert most == 2


def test_close_leaves_an_endless_handler_behind() -> None:
    executor, release = HandlerExecutor(1), threading.Event()
    executor.submit(Call(1, release.wait, False))
    executor.submit(Call(2, lambda: asyncio.sleep(3600), True))
    executor.close(50)
    release.set()
    cancelled = [d for d in executor.completed() if d.ticket == 2]
    assert all(isinstance(d.error, asyncio.CancelledError) for d in cancelled)


def test_a_task_that_wants_to_end_the_process_does_not_end_the_loop(threads: HandlerExecutor) -> None:
    async def leaving() -> None:
        raise SystemExit(3)

    async def parent() -> None:
        await asyncio.create_task(leaving())

    async def stop() -> None:
        asyncio.get_running_loop().stop()

    threads.submit(Call(1, parent, True))
    assert isinstance(collect(threads, 1)[1].error, SystemExit)
    threads.submit(Call(2, stop, True))
    threads.submit(Call(3, asynchronous, True))
    assert collect(threads, 2)[3].value == "asynchronous"
