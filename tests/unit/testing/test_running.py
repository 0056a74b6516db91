"""One job through the real executor, as users test their handlers."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline import Cancel, Dead, Dueline, InvalidInput, Retry, RetryPolicy, Snooze
from pipeline.testing import FakeClock, ProducedRecord, run_job

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app() -> Dueline:
    app = Dueline(connect=_refuse)

    @app.job("echo", aliases=["parrot"])
    def echo(ctx: Any, payload: Any) -> Any:
        return payload

    return app


def _refuse(_settings: object) -> Any:
    raise AssertionError("a test kit connects to nothing")


def answering(app: Dueline, answer: Any, **options: Any) -> None:
    """A handler `h` that raises or returns `answer`."""

    @app.job("h", **options)
    def handler(ctx: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_plain_handler_runs_on_a_thread(app: Dueline) -> None:
    @app.job("where")
    def where(ctx: Any) -> str:
        return threading.current_thread().name

    outcome = run_job(app, "where")
    assert outcome.status == "succeeded"
    assert outcome.result not in (None, threading.current_thread().name)
    assert (outcome.error, outcome.reason, outcome.retry_at) == (None, None, None)


def test_a_coroutine_runs_on_a_loop(app: Dueline) -> None:
    @app.job("loop")
    async def loop(ctx: Any, n: int) -> int:
        await asyncio.sleep(0)
        return n

    assert run_job(app, "loop", {"n": 7}).result == 7


def test_the_payload_and_the_result_go_through_json(app: Dueline) -> None:
    assert run_job(app, "parrot", {"a": (1, 2)}).result == {"a": [1, 2]}
    with pytest.raises(InvalidInput, match=r"^payload: is not JSON"):
        run_job(app, "echo", {"a": {1, 2}})


def test_the_context_is_what_the_test_says(app: Dueline) -> None:
    seen: list[Any] = []
    app.job("look")(lambda ctx: seen.append((ctx, ctx.cancelled)))
    run_job(app, "look", attempt=2, failures=3, stopped=True, key="k", idempotency_key="i", labels={"a": "b"},
            queue="mail", in_="10m")  # fmt: skip
    ((ctx, cancelled),) = seen
    assert (ctx.handler, ctx.attempt, ctx.run, cancelled) == ("look", 2, 4, True)
    assert (ctx.key, ctx.idempotency_key, ctx.labels, ctx.queue) == ("k", "i", {"a": "b"}, "mail")
    assert ctx.due_at == ctx.nominal_at == ctx.fired_at == NOW + timedelta(minutes=10)
    run_job(app, "look", in_=0)
    assert seen[1][0].due_at == NOW
    assert seen[1][0].token < ctx.token


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (Cancel("paid"), "cancelled", "paid"),
        (Dead("no address"), "dead", "dead_by_handler"),
        (ValueError("no route"), "retrying", None),
        (Retry(after="1m"), "retrying", None),
        (Snooze(for_="1m"), "retrying", None),
    ],
    ids=repr,
)
def test_verbs_and_errors_are_decided_as_by_a_worker(
    app: Dueline, answer: Exception, status: str, reason: str | None
) -> None:
    answering(app, answer, retry=RetryPolicy(base="60s"))
    outcome = run_job(app, "h")
    assert (outcome.status, outcome.reason, outcome.error) == (status, reason, answer)
    assert outcome.retry_at == (NOW + timedelta(minutes=1) if status == "retrying" else None)


def test_the_back_off_grows_and_attempts_are_limited(app: Dueline) -> None:
    answering(app, ValueError("no"), max_attempts=3)
    waits = [run_job(app, "h", failures=n).retry_at for n in range(2)]
    assert waits == [NOW + timedelta(seconds=1), NOW + timedelta(seconds=2)]
    assert run_job(app, "h", failures=2).reason == "max_attempts"
    assert run_job(app, "h", max_attempts=1).reason == "max_attempts"


def test_a_payload_that_does_not_fit_is_dead_at_once(app: Dueline) -> None:
    @app.job("strict")
    def strict(ctx: Any, to: str) -> None: ...

    outcome = run_job(app, "strict", {"too": "a@b"})
    assert (outcome.status, outcome.reason) == ("dead", "invalid_payload")
    assert "'to'" in str(outcome.error)


def test_a_job_is_too_late_for_its_max_age(app: Dueline) -> None:
    answering(app, None, max_age="10m")
    clock = FakeClock()
    due = clock.now()
    clock.advance("10m")
    assert run_job(app, "h", at=due, clock=clock).status == "succeeded"
    clock.advance(1)
    assert run_job(app, "h", at=due, clock=clock).reason == "max_age"


def test_what_the_handler_hands_on_is_shown_if_it_succeeded(app: Dueline) -> None:
    fails = False

    @app.job("bill")
    def bill(ctx: Any) -> None:
        ctx.schedule("email.send", {"to": "a@b"}, in_="1h", labels={"x": "y"})
        ctx.schedule("remind", in_="1d", key="invoice-5", queue="slow")
        ctx.produce("ledger", "55", key=b"k", headers={"h": "v"}, partition=3)
        ctx.produce("ledger", None)
        ctx.progress(0.5, "half")
        ctx.logger.warning("sent %s", 1)
        if fails:
            raise Retry

    outcome = run_job(app, "bill")
    mail, reminder = outcome.scheduled
    assert (mail.handler, mail.payload, mail.due_at) == (
        "email.send",
        {"to": "a@b"},
        NOW + timedelta(hours=1),
    )
    assert (mail.labels, mail.queue, mail.key, mail.idempotency_key) == ({"x": "y"}, "default", None, mail.id)
    assert (reminder.handler, reminder.key, reminder.queue) == ("remind", "invoice-5", "slow")
    assert reminder.due_at == NOW + timedelta(days=1)
    assert outcome.produced == [
        ProducedRecord("ledger", b"55", b"k", {"h": b"v"}),
        ProducedRecord("ledger", None, None, {}),
    ]
    assert (outcome.progress, outcome.note, outcome.log) == (0.5, "half", ["WARNING sent 1"])
    fails = True
    outcome = run_job(app, "bill")
    assert (outcome.scheduled, outcome.produced, outcome.progress) == ((), (), 0.5)


def test_a_mistake_of_the_handler_is_its_failure(app: Dueline) -> None:
    app.job("bad")(lambda ctx: ctx.produce("dueline.jobs", b"x"))
    outcome = run_job(app, "bad")
    assert isinstance(outcome.error, InvalidInput)
    assert outcome.status == "retrying"


def test_hooks_hear_of_dead_jobs(app: Dueline) -> None:
    told: list[Any] = []
    app.on_dead(told.append)
    answering(app, ValueError("no"), max_attempts=1, max_age="1h")
    run_job(app, "h", {})
    run_job(app, "h", at=NOW - timedelta(hours=2))
    run_job(app, "echo")
    assert [(job.handler, job.reason, job.error.type) for job in told] == [
        ("h", "max_attempts", "ValueError"),
        ("h", "max_age", "TooOld"),
    ]
    assert [attempt.outcome for attempt in told[0].attempts] == ["dead"]


def test_middleware_is_around_it(app: Dueline) -> None:
    class Closed:
        def before(self, ctx: Any) -> None:
            raise Snooze(for_="1h")

    app.use(Closed())
    assert run_job(app, "echo").retry_at == NOW + timedelta(hours=1)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda app: run_job(app, "unknown"), "handler: no 'unknown' is registered; there are: echo, parrot"),
        (lambda app: run_job(Dueline(), "unknown"), "handler: no 'unknown' is registered; there are: none"),
        (lambda app: run_job(app, "echo", failures=-1), "failures: "),
        (lambda app: run_job(app, "echo", failures=True), "failures: "),
        (lambda app: run_job(app, "echo", at="soon"), "at: "),
        (lambda app: run_job(app, "echo", unique="1h"), "unique: needs a key"),
        (lambda app: run_job(app, "echo", key="k", on_conflict="x"), "on_conflict: "),
        (lambda app: run_job(app, "echo", prority=1), "prority: unknown option"),
    ],
    ids=range(8),
)
def test_what_is_wrong_is_told_by_name(app: Dueline, call: Callable[[Dueline], Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        call(app)
    assert str(raised.value).startswith(field)


def test_an_annotation_that_cannot_be_checked_is_told(app: Dueline) -> None:
    def handler(ctx: Any, payload: threading.Lock) -> None: ...  # type: ignore[valid-type]

    app.job("h")(handler)
    with pytest.raises(InvalidInput, match="nothing can check a payload"):
        run_job(app, "h", {"n": 1})


def test_a_clock_stands_until_it_is_moved() -> None:
    clock = FakeClock("2030-06-01T12:00:00+02:00")
    assert clock.now() == datetime(2030, 6, 1, 10, tzinfo=UTC)
    clock.advance(timedelta(hours=1))
    assert clock.now() == datetime(2030, 6, 1, 11, tzinfo=UTC)
    clock.move_to(NOW)
    assert clock.now() == NOW
    for wrong in (lambda: FakeClock("noon"), lambda: clock.advance("soon"), lambda: clock.move_to("noon")):
        with pytest.raises(InvalidInput):
            wrong()


APP = """
import os, time
from pipeline import Dueline
app = Dueline()

@app.job("where", pool="process", timeout="200ms")
def where(ctx, seconds=0):
    time.sleep(seconds)
    ctx.schedule("next", in_="1h")
    return os.getpid()
"""


def test_a_handler_for_processes_runs_in_one_if_it_is_known_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_processes.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    app = importlib.import_module("of_processes").app
    assert run_job(app, "where").result == os.getpid()
    outcome = run_job(app, "where", target="of_processes:app", timeout="30s")
    assert outcome.result not in (None, os.getpid())
    assert [job.handler for job in outcome.scheduled] == ["next"]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_handler_that_takes_too_long_has_failed(app: Dueline, asynchronous: bool) -> None:
    end = threading.Event()

    def plain(ctx: Any) -> None:
        end.wait(30)

    async def waits(ctx: Any) -> None:
        await asyncio.Event().wait()

    app.job("slow", timeout="20ms")(waits if asynchronous else plain)
    outcome = run_job(app, "slow")
    end.set()
    assert (outcome.status, type(outcome.error).__name__) == ("retrying", "TimedOut")


def test_the_kit_loads_neither_kafka_nor_a_database() -> None:
    text = "import sys, pipeline.testing.running, pipeline.testing.recorded as r, pipeline.testing.plugin;"
    text += "print(*(m for m in ('confluent_kafka', 'rocksdict') if m in sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "\n"


def test_an_occurrence_of_a_schedule_is_what_its_handler_is_told(app: Dueline) -> None:
    @app.job("report", max_age="2h")
    def report(ctx: Any) -> list[str]:
        return [ctx.schedule_id, ctx.nominal_at.isoformat(), ctx.last_success_at.isoformat()]

    told: dict[str, Any] = {"schedule_id": "daily", "last_success_at": NOW - timedelta(days=1)}
    midnight = NOW - timedelta(hours=1)
    outcome = run_job(app, "report", nominal_at=midnight, **told)
    assert outcome.result == ["daily", "2029-12-31T23:00:00+00:00", "2029-12-31T00:00:00+00:00"]
    assert run_job(app, "report", nominal_at=NOW - timedelta(hours=3), **told).reason == "max_age"
    assert run_job(app, "echo", {"a": 1}).result == {"a": 1}


@pytest.mark.parametrize("option", ["nominal_at", "last_success_at"])
@pytest.mark.parametrize("value", ["2030-01-01", datetime(2030, 1, 1), 5])  # noqa: DTZ001
def test_an_instant_that_is_none_is_refused_by_name(app: Dueline, option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidInput, match=rf"^{option}: "):
        run_job(app, "echo", **options)
