"""The pool of processes: real children, no store. Whatever a handler does there concerns its own call alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sides import Quiet

from pipeline.adapters.executors import HandlerExecutor
from pipeline.adapters.pool_wire import raised_error, raised_head
from pipeline.adapters.process_pool import BUILT_IN, ProcessDied
from pipeline.core.errors import InvalidInput, InvalidSchedule, Refused
from pipeline.core.handler import (
    Cancel,
    Dead,
    Fenced,
    InvalidPayload,
    RemoteError,
    Retry,
    Snooze,
    Stopped,
    TimedOut,
    failure_of,
)
from pipeline.core.job import Run
from pipeline.core.jobref import JobRef
from pipeline.ports import Call, Done, Task

WAIT_S = 40.0
T0 = 1_800_000_000_000

pytestmark = pytest.mark.timeout(120)


class Listening(Quiet):
    """Keeps what the handler said, and refuses some of it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []
        self.note = ""

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        self.said.append(dict(request))
        return JobRef("j1", "created", datetime(2030, 1, 1, tzinfo=UTC))

    def produce(self, topic: str, value: Any, key: Any, headers: Any, partition: Any) -> None:
        if topic == "missing":
            raise InvalidInput("topic", "'missing' does not exist")
        if topic == "late":
            raise Refused("produce: the attempt has come to an end")
        self.said.append((topic, value, key, headers, partition))

    def progress(self, fraction: float | None, note: str) -> None:
        self.said.append((fraction, note))
        self.note = note

    def log(self, line: str) -> None:
        self.said.append(line)


class Bench:
    """A pool, and the calls made to it."""

    def __init__(self, target: str | None, size: int = 1) -> None:
        self.executor = HandlerExecutor(size, target)
        self.sides: dict[int, Listening] = {}
        self.done: dict[int, Done] = {}

    def start(self, handler: str, payload: bytes = b"{}", timeout_ms: int | None = None) -> int:
        ticket = len(self.sides) + 1
        side = self.sides[ticket] = Listening()
        run = Run(
            job_id="j", occurrence_id="j", due_at=T0, run=1, queue="default", handler=handler, created_at=T0,
            nominal_at=T0, idempotency_key="j", payload=payload,
        )  # fmt: skip
        task = Task(run, 1, 1 << 62, T0, side)
        self.executor.submit(Call(ticket, lambda: None, False, timeout_ms, task))
        return ticket

    def wait(self, ticket: int) -> Done:
        deadline = time.monotonic() + WAIT_S
        while ticket not in self.done:
            assert time.monotonic() < deadline
            self.done |= {done.ticket: done for done in self.executor.completed()}
            time.sleep(0.002)
        return self.done[ticket]

    def call(self, handler: str, payload: bytes = b"{}", timeout_ms: int | None = None) -> Done:
        return self.wait(self.start(handler, payload, timeout_ms))

    def pid(self) -> int:
        return int(self.call("echo").value["pid"])


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    """One pool for all tests: each must leave it whole."""
    bench = Bench("pool_app:app")
    yield bench
    assert bench.executor.close(30_000)


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(Path(__file__).parent))
    yield
    patch.undo()


@pytest.fixture
def pool(shared: Bench) -> Iterator[Bench]:
    yield shared
    assert shared.call("echo", b'{"n": 1}').value["payload"] == {"n": 1}, "the pool has not recovered"


# -- what works -----------------------------------------------------------------------------------------------


def test_a_process_is_kept_for_the_next_call(pool: Bench) -> None:
    done = pool.call("echo", b'{"a": [1, null]}')
    assert done.error is None
    assert done.value["payload"] == {"a": [1, None]}
    assert done.value["token"] == str(1 << 62)
    assert done.value["pid"] not in (os.getpid(), None)
    assert 0 < done.began <= done.ended <= time.monotonic()
    assert pool.pid() == done.value["pid"]


def test_a_coroutine_function_is_run_there_too(pool: Bench) -> None:
    assert pool.call("later").value == "awaited"


def test_payloads_of_nearly_2_mib_go_through(pool: Bench) -> None:
    assert pool.call("size", b'{"text": "%s"}' % (b"x" * 1_890_000)).value == 1_890_000


def test_what_a_handler_hands_on_reaches_its_side(pool: Bench) -> None:
    ticket = pool.start("outputs")
    done = pool.wait(ticket)
    assert done.value == ["j1", "created", "2030-01-01T00:00:00+00:00", "False"]
    line, progress, request, record = pool.sides[ticket].said
    assert line == "WARNING line 1"
    assert progress == (0.25, "quarter")
    assert request == {
        "handler": "next", "payload": {"n": 1}, "at": "2030-01-01T00:00:00+00:00", "timeout": 5.0,
    }  # fmt: skip
    assert record == ("out", b"\xff" * 1_500_000, b"k", {"h": b"\x00"}, None)


def test_a_refusal_arrives_as_what_it_is(pool: Bench) -> None:
    payload, naive, missing, late = pool.call("refused").value
    assert payload.startswith("InvalidInput payload: is not JSON")
    assert naive.startswith("InvalidInput at: 2030-01-01 00:00:00 is naive")
    assert missing == "InvalidInput topic: 'missing' does not exist"
    assert late == "Refused produce: the attempt has come to an end"


def test_a_failure_arrives_with_type_message_and_trace(pool: Bench) -> None:
    error = pool.call("raise").error
    assert error is not None
    failure = failure_of(error)
    assert (failure.type, failure.message) == ("ZeroDivisionError", "nothing to share")
    assert "in fail" in (failure.trace or "")


def test_verbs_arrive_as_such(pool: Bench) -> None:
    def verb(word: str) -> BaseException | None:
        return pool.call("verb", b'{"verb": "%s"}' % word.encode()).error

    retry, returned, snooze, cancel, dead = map(verb, ("retry", "returned", "snooze", "cancel", "dead"))
    assert isinstance(retry, Retry)
    assert retry.after_ms == 90_000
    assert failure_of(retry).type == "ValueError"
    assert isinstance(returned, Retry)
    assert returned.after_ms == 60_000
    assert isinstance(snooze, Snooze)
    assert snooze.for_ms == 3_600_000
    assert isinstance(cancel, Cancel)
    assert cancel.reason == "nothing left"
    assert isinstance(dead, Dead)
    assert dead.reason == "never"
    assert failure_of(dead).message == "the cause"


@pytest.mark.parametrize("error", [InvalidPayload("no"), Fenced("late"), Dead("x"), ValueError("v")])
def test_a_verdict_survives_the_wire(error: Exception) -> None:
    again = raised_error(raised_head(error))
    assert type(again) is (RemoteError if isinstance(error, ValueError) else type(error))
    assert str(again) == str(error)
    assert failure_of(again).type == type(error).__name__


def test_a_payload_that_is_no_json_is_told_as_such(pool: Bench) -> None:
    assert isinstance(pool.call("echo", b"\xff").error, InvalidPayload)


def test_a_handler_that_the_process_does_not_know_fails_with_its_name(pool: Bench) -> None:
    assert "'nobody'" in str(pool.call("nobody").error)


def test_a_withdrawn_call_never_begins(pool: Bench, eventually: Callable[..., None]) -> None:
    never = pool.start("never")
    eventually(lambda: pool.sides[never].note, timeout=WAIT_S)
    queued, withdrawn = pool.start("echo"), pool.start("echo")
    assert pool.executor.withdraw([withdrawn, never]) == {withdrawn}
    pool.executor.stop([never])
    assert isinstance(pool.wait(never).error, Stopped)
    assert pool.wait(queued).error is None
    assert withdrawn not in pool.done


def test_without_a_target_calls_are_refused() -> None:
    bench = Bench(None)
    assert isinstance(bench.call("echo").error, Refused)
    bench.executor.close(1_000)


def test_an_application_that_does_not_load_fails_the_call_and_names_the_module() -> None:
    bench = Bench("no_such_module_of_ours:app")
    error = bench.call("echo").error
    assert isinstance(error, ProcessDied)
    assert "no_such_module_of_ours" in str(error)
    bench.executor.close(1_000)


# -- bad handlers ---------------------------------------------------------------------------------------------


def test_an_exit_fails_its_call_alone_and_names_the_code(pool: Bench) -> None:
    error = pool.call("exit", b'{"code": 7}').error
    assert isinstance(error, ProcessDied)
    assert "exit code 7" in str(error)


def test_a_segfault_fails_its_call_alone_and_names_the_signal(pool: Bench) -> None:
    error = pool.call("segfault").error
    assert isinstance(error, ProcessDied)
    assert "SIGSEGV" in str(error)


def test_a_process_that_the_system_kills_while_it_waits_costs_no_call(
    pool: Bench, eventually: Callable[..., None], ended: Callable[[int], bool]
) -> None:
    victim = pool.pid()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: ended(victim))
    assert pool.pid() != victim


def test_sys_exit_is_a_result(pool: Bench) -> None:
    before = pool.pid()
    error = pool.call("sys-exit").error
    assert error is not None
    assert failure_of(error).type == "SystemExit"
    assert pool.pid() == before


def test_a_handler_whose_time_is_over_is_killed(pool: Bench, ended: Callable[[int], bool]) -> None:
    pid = pool.pid()
    done = pool.call("never", timeout_ms=300)
    assert isinstance(done.error, TimedOut)
    assert 0.3 <= done.ended - done.began < 30
    assert ended(pid)


def test_a_stopped_handler_is_killed_with_its_own_children(
    pool: Bench, ended: Callable[[int], bool], eventually: Callable[..., None]
) -> None:
    ticket = pool.start("family")
    eventually(lambda: pool.sides[ticket].note, timeout=WAIT_S)
    pool.executor.stop([ticket])
    assert isinstance(pool.wait(ticket).error, Stopped)
    eventually(lambda: ended(int(pool.sides[ticket].note)))


def test_a_handler_that_forks_answers_once(pool: Bench) -> None:
    assert pool.call("fork").value == "parent"
    assert pool.call("fork").value == "parent"


def test_a_process_with_too_many_leaked_threads_is_replaced(pool: Bench) -> None:
    before = pool.call("threads", b'{"count": 10}').value
    assert pool.call("threads", b'{"count": 150}').value == before
    assert pool.pid() != before


def test_binary_output_stays_out_of_the_answer(pool: Bench) -> None:
    done = pool.call("binary")
    assert (done.value, done.error) == (None, None)


def test_a_handler_that_closes_every_file_fails_alone(pool: Bench) -> None:
    assert isinstance(pool.call("close-all").error, ProcessDied)


@pytest.mark.parametrize(("handler", "why"), [("unserialisable", "not JSON"), ("huge", "bytes of JSON")])
def test_a_result_that_cannot_be_kept_is_replaced_by_why(pool: Bench, handler: str, why: str) -> None:
    done = pool.call(handler)
    assert done.error is None
    assert why in done.value["result_dropped"]


def test_closing_kills_what_runs_and_leaves_no_process(
    ended: Callable[[int], bool], eventually: Callable[..., None]
) -> None:
    bench = Bench("pool_app:app", 2)
    idle = bench.pid()
    running = [bench.start("never"), bench.start("never")]
    eventually(lambda: all(bench.sides[ticket].note for ticket in running), timeout=WAIT_S)
    assert not bench.executor.close(50)
    for pid in (idle, *(int(bench.sides[ticket].note) for ticket in running)):
        assert ended(pid)


def test_an_invalid_schedule_stays_one_on_the_wire() -> None:
    from pipeline.adapters.pool_wire import refusal_error, refusal_head

    again = refusal_error(refusal_head(InvalidSchedule("cron", "is none")))
    assert isinstance(again, InvalidSchedule)
    assert str(again) == "cron: is none"


def test_a_process_that_waits_is_left_to_end_by_itself(tmp_path: Path) -> None:
    bench, trace = Bench("pool_app:app"), tmp_path / "trace"
    assert bench.call("at-exit", b'{"path": "%s"}' % bytes(trace)).error is None
    assert bench.executor.close(30_000)
    assert trace.read_text() == "left"


def test_without_an_application_only_the_built_in_handlers_are_known() -> None:
    bench = Bench(BUILT_IN)
    assert "--app" in str(bench.call("echo").error)
    assert isinstance(bench.call("http", b'"x"').error, Dead), "it is known, and refuses what is no URL"
    bench.executor.close(1_000)


PARENT = """
import sys, time
sys.path[:0] = {paths!r}
from test_process_pool import Bench
bench = Bench("pool_app:app", 2)
ticket = bench.start("never")
while not bench.sides[ticket].note:
    time.sleep(0.01)
print(bench.pid(), bench.sides[ticket].note, flush=True)
time.sleep(600)
"""


def test_the_processes_of_a_worker_that_is_killed_end_too(
    tmp_path: Path, ended: Callable[[int], bool], eventually: Callable[..., None]
) -> None:
    here = Path(__file__)
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(paths=[str(here.parent), str(here.parents[2])]))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            idle, busy = map(int, parent.stdout.readline().split())
        finally:
            parent.kill()
    eventually(lambda: ended(idle), timeout=WAIT_S)
    eventually(lambda: ended(busy), timeout=WAIT_S)
