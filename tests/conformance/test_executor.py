"""The `Executor` port over threads, one event loop, and inline. Processes: tests/unit/adapters/test_process_pool.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.adapters import loop_pool
from pipeline.adapters.executors import HandlerExecutor, InlineExecutor
from pipeline.core.handler import Stopped, TimedOut
from pipeline.ports import Call, Done, Executor

WAIT_MS = 30_000


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


def test_threads_that_wait_are_all_woken_for_calls_that_come_together() -> None:
    executor = HandlerExecutor(4)
    for _ in range(50):
        together = threading.Barrier(4)
        for ticket in range(4):
            executor.submit(Call(ticket, partial(together.wait, WAIT_MS / 1000), False))
        assert all(done.error is None for done in collect(executor, 4).values())
    assert executor.close(WAIT_MS)


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


# -- waiting their turn -----------------------------------------------------------------------------------------


class Gate:
    """A handler, plain or asynchronous, that waits until it is opened."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.began = threading.Semaphore(0)
        self._open = threading.Event()

    def call(self, ticket: int, timeout_ms: int | None = None) -> Call:
        return Call(
            ticket, self._wait_async if self.asynchronous else self._wait, self.asynchronous, timeout_ms
        )

    def _wait(self) -> str:
        self.began.release()
        self._open.wait(3 * WAIT_MS / 1000)
        return "late"

    async def _wait_async(self) -> str:
        self.began.release()
        while not self._open.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # it ignores being cancelled
                await asyncio.sleep(0.01)
        return "late"

    def open(self) -> None:
        self._open.set()


@pytest.fixture(params=[False, True], ids=["plain", "asynchronous"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(loop_pool, "GRACE_S", 0.2)
    built = Gate(request.param)
    yield built
    built.open()


def fill(executor: HandlerExecutor, gate: Gate, *tickets: int, timeout_ms: int | None = None) -> None:
    for ticket in tickets:
        executor.submit(gate.call(ticket, timeout_ms))
    for _ in tickets:
        assert gate.began.acquire(timeout=WAIT_MS / 1000)


def test_what_waits_can_be_withdrawn_and_what_has_begun_cannot(threads: HandlerExecutor, gate: Gate) -> None:
    fill(threads, gate, 1, 2)
    for ticket in (3, 4, 5):
        threads.submit(Call(ticket, asynchronous if gate.asynchronous else plain, gate.asynchronous))
    assert threads.withdraw([1, 3, 5, 99]) == {3, 5}
    gate.open()
    assert set(collect(threads, 3)) == {1, 2, 4}
    assert threads.completed() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_either_begins_or_is_withdrawn(threads: HandlerExecutor, is_async: bool) -> None:
    ran: list[int] = []

    def note(ticket: int) -> None:
        ran.append(ticket)

    async def note_async(ticket: int) -> None:
        ran.append(ticket)

    withdrawn: set[int] = set()
    for start in range(0, 4_000, 40):
        for ticket in range(start, start + 40):
            threads.submit(Call(ticket, partial(note_async if is_async else note, ticket), is_async))
        withdrawn |= threads.withdraw(range(start, start + 40, 2))
    done = collect(threads, 4_000 - len(withdrawn))
    assert sorted([*ran, *withdrawn]) == list(range(4_000))
    assert done.keys() == set(ran)


def test_calls_begin_in_order() -> None:
    began: list[int] = []
    executor = HandlerExecutor(1)
    for ticket in range(500):
        executor.submit(Call(ticket, partial(began.append, ticket), False))
    collect(executor, 500)
    assert began == list(range(500))
    assert executor.close(WAIT_MS)


def test_a_slow_call_delays_none_of_those_behind_it(threads: HandlerExecutor) -> None:
    slow = Gate(False)
    fill(threads, slow, 1)
    for round_ in range(200):
        threads.submit(Call(10 + round_, plain, False))
        collect(threads, 1)
    slow.open()


def test_every_call_of_many_bursts_is_done(threads: HandlerExecutor) -> None:
    for size in (1, 2, 3, 50, 1, 7) * 100:
        for ticket in range(size):
            threads.submit(Call(ticket, plain, False))
        assert collect(threads, size).keys() == set(range(size))


# -- time-outs and stops ------------------------------------------------------------------------------------------


def test_a_call_whose_time_is_over_is_told_once_and_its_place_is_free(
    threads: HandlerExecutor, gate: Gate, eventually: Callable[..., None]
) -> None:
    fill(threads, gate, 1, 2, timeout_ms=50)
    late = collect_raw(threads, 2)
    assert all(isinstance(done.error, TimedOut) for done in late)
    assert all(0.05 <= done.ended - done.began < 5 for done in late)
    assert threads.abandoned == 2
    both = threading.Barrier(2)
    for ticket in (3, 4):  # as many at once as before
        threads.submit(Call(ticket, partial(both.wait, WAIT_MS / 1000), False))
    assert {done.error for done in collect_raw(threads, 2)} == {None}
    gate.open()
    eventually(lambda: threads.abandoned == 0)
    assert threads.completed() == []


def test_threads_given_up_are_replaced_as_often_as_there_are_places(eventually: Callable[..., None]) -> None:
    executor, gate = HandlerExecutor(2), Gate(False)
    for tickets in ((1, 2), (3, 4)):
        fill(executor, gate, *tickets, timeout_ms=20)
        collect(executor, 2)
    assert executor.abandoned == 4
    executor.submit(Call(5, plain, False))
    time.sleep(0.05)
    assert executor.completed() == []  # no place is left
    gate.open()
    assert collect(executor, 1).keys() == {5}
    eventually(lambda: executor.abandoned == 0)
    assert threading.active_count() < 50
    assert executor.close(WAIT_MS)


def test_a_cancelled_coroutine_may_clean_up_before_it_is_told(threads: HandlerExecutor) -> None:
    cleaned = []

    async def careful() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            cleaned.append(True)

    threads.submit(Call(1, careful, True, 20))
    assert isinstance(collect(threads, 1)[1].error, TimedOut)
    assert cleaned == [True]


def test_a_call_within_its_time_keeps_its_result(threads: HandlerExecutor) -> None:
    threads.submit(Call(1, plain, False, WAIT_MS))
    threads.submit(Call(2, asynchronous, True, WAIT_MS))
    assert {done.value for done in collect(threads, 2).values()} == {"plain", "asynchronous"}


def test_a_stopped_coroutine_is_cancelled(threads: HandlerExecutor) -> None:
    began = threading.Event()

    async def endless() -> None:
        began.set()
        await asyncio.sleep(3600)

    threads.submit(Call(1, endless, True))
    assert began.wait(WAIT_MS / 1000)
    threads.stop([1])
    assert isinstance(collect(threads, 1)[1].error, Stopped)


def test_a_stop_right_after_submit_ends_the_coroutine_too(threads: HandlerExecutor) -> None:
    for ticket in range(200):
        threads.submit(Call(ticket, partial(asyncio.sleep, 3600), True))
        threads.stop([ticket])
    assert {type(done.error) for done in collect(threads, 200).values()} == {Stopped}


def test_a_call_that_is_stopped_before_its_turn_never_begins(threads: HandlerExecutor, gate: Gate) -> None:
    fill(threads, gate, 1, 2)
    threads.submit(gate.call(3))
    threads.stop([3])
    assert isinstance(collect(threads, 1)[3].error, Stopped)
    gate.open()
    assert collect(threads, 2).keys() == {1, 2}
    assert not gate.began.acquire(blocking=False)


def test_a_task_cancelled_before_its_first_step_is_heard_of() -> None:
    executor, blocking, release = HandlerExecutor(3), threading.Event(), threading.Event()

    async def block() -> None:
        blocking.set()
        release.wait(WAIT_MS / 1000)

    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    executor.submit(Call(1, block, True))
    assert blocking.wait(WAIT_MS / 1000)
    executor.submit(Call(2, cancel_all, True))
    executor.submit(Call(3, partial(asyncio.sleep, 3600), True))  # both become tasks at the same moment
    release.set()
    assert isinstance(collect(executor, 3)[3].error, asyncio.CancelledError)
    assert executor.close(WAIT_MS)


def test_a_thread_pool_keeps_no_process_from_ending(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import threading\n"
        "from pipeline.adapters.executors import HandlerExecutor\n"
        "from pipeline.ports import Call\n"
        "began = threading.Event()\n"
        "executor = HandlerExecutor(2)\n"
        "executor.submit(Call(1, lambda: (began.set(), threading.Event().wait()), False))\n"
        "began.wait(10)\n"
    )
    assert subprocess.run([sys.executable, str(script)], timeout=30, check=False).returncode == 0


# -- bad handlers -------------------------------------------------------------------------------------------------


class Odd(BaseException):
    """No Exception."""


def test_a_base_exception_is_a_result(threads: HandlerExecutor) -> None:
    def odd() -> None:
        raise Odd

    async def odd_async() -> None:
        raise Odd

    threads.submit(Call(1, odd, False))
    threads.submit(Call(2, odd_async, True))
    assert {type(done.error) for done in collect(threads, 2).values()} == {Odd}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_forks_answers_once_and_its_copy_ends(
    threads: HandlerExecutor, is_async: bool, eventually: Callable[..., None]
) -> None:
    def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of newer Pythons, that forking with threads is unwise: it is
            return os.fork()

    async def fork_async() -> int:
        return fork()

    threads.submit(Call(1, fork_async if is_async else fork, is_async))
    child = collect(threads, 1)[1].value
    assert child > 0
    eventually(lambda: os.waitpid(child, os.WNOHANG)[0] == child)


def test_a_handler_that_leaks_threads_harms_no_other(threads: HandlerExecutor) -> None:
    release = threading.Event()

    def leak() -> None:
        for _ in range(50):
            threading.Thread(target=release.wait, daemon=True).start()

    threads.submit(Call(1, leak, False))
    threads.submit(Call(2, plain, False))
    assert {done.error for done in collect(threads, 2).values()} == {None}
    release.set()


def test_a_handler_that_keeps_the_gil_only_takes_time(threads: HandlerExecutor) -> None:
    threads.submit(Call(1, partial(sum, range(20_000_000)), False))
    threads.submit(Call(2, plain, False))
    threads.submit(Call(3, asynchronous, True))
    assert {done.error for done in collect(threads, 3).values()} == {None}


def test_a_coroutine_that_blocks_the_loop_is_told_as_overdue(
    threads: HandlerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_pool, "GRACE_S", 0.1)
    release = threading.Event()

    async def block() -> None:
        release.wait(WAIT_MS / 1000)

    threads.submit(Call(1, block, True, 50))
    assert isinstance(collect(threads, 1)[1].error, TimedOut)
    release.set()
    threads.submit(Call(2, asynchronous, True))
    assert collect(threads, 1)[2].value == "asynchronous"


def test_a_hanging_helper_thread_of_a_coroutine_is_left_behind() -> None:
    executor, release = HandlerExecutor(1), threading.Event()
    executor.submit(Call(1, partial(asyncio.to_thread, release.wait, WAIT_MS / 1000), True, 50))
    collect(executor, 1)
    assert not executor.close(50)
    release.set()


# -- what it costs --------------------------------------------------------------------------------------------------


def test_a_burst_of_short_calls_costs_less_than_in_a_pool_for_general_use() -> None:
    """A comparison on this machine, in this moment: by a factor, where the aim is several."""
    ours, theirs = HandlerExecutor(32), ThreadPoolExecutor(32)

    def our_burst() -> None:
        for ticket in range(2_000):
            ours.submit(Call(ticket, plain, False))
        collect(ours, 2_000)

    def their_burst() -> None:
        for future in [theirs.submit(plain) for _ in range(2_000)]:
            future.result()

    assert min(timed(our_burst) for _ in range(5)) < min(timed(their_burst) for _ in range(5))
    assert ours.close(WAIT_MS)
    theirs.shutdown()


def timed(function: Callable[[], None]) -> float:
    began = time.process_time()  # of all threads: whatever else the machine does
    function()
    return time.process_time() - began


def collect_raw(executor: Executor, count: int) -> list[Done]:
    done: list[Done] = []
    deadline = time.monotonic() + WAIT_MS / 1000
    while len(done) < count:
        assert time.monotonic() < deadline
        done += executor.completed()
        time.sleep(0.001)
    return done
