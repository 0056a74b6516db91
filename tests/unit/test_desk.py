"""What an outcome leaves behind: the attempts of all runs travel with the retries, and the dead letter tells them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.handler import DeadEnd, Retrying
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AttemptRecord, Command, DeadLetter, Failure, Millis, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.desk import CARRIED, TOLD, Desk
from pipeline.lane import Delivery, Flight, Lane
from tests.unit.owner import LAYOUT, Owner
from tests.unit.owner import NAMES as OWNED

NOW = 1_790_000_000_000
ID = anonymous_id(NOW, 7)
NAMES = Names("t")
FIRST = Run(
    job_id=ID, occurrence_id=ID, due_at=NOW, run=1, queue="default", handler="email.send", created_at=NOW,
    nominal_at=NOW, idempotency_key=ID, payload=b"{}",
)  # fmt: skip
REFUSED = Failure(type="SmtpError", message="greylisted", trace="line 1\nline 2")


@pytest.fixture
def desk() -> Desk:
    return Desk(names=NAMES, layout=default_layout(queues={"default": 2}), queue="default", worker="w1")


def flight(run: Run, attempt: int = 1, token: int = 100) -> Flight:
    return Flight(
        lane=Lane(0), delivery=Delivery(5, run, NOW), attempt=attempt, token=token, started_at=NOW + 1
    )


def retried(desk: Desk, of: Flight, error: Failure | None = REFUSED, now: int = NOW + 2) -> Run:
    """The run that follows a failed attempt, or one that asked to be called later."""
    decision = Retrying(at=Millis(now + 1_000), failures=of.run.failures + 1, error=error, spends=True)
    retry = desk.settle(of, decision, now)[-1]
    assert (retry.topic, retry.value is not None) == (NAMES.jobs, True)
    return codec.RUN.decode(retry.value or b"")


def letter(desk: Desk, of: Flight, error: Failure | None = REFUSED) -> DeadLetter:
    puts = desk.settle(of, DeadEnd(reason="max_attempts", error=error), NOW + 9)
    (put,) = (put for put in puts if put.topic == NAMES.dead)
    return codec.DEAD_LETTER.decode(put.value or b"")


def told(records: tuple[AttemptRecord, ...]) -> list[tuple[int, int, str, int, str]]:
    return [(one.run, one.attempt, one.worker, one.token, one.outcome) for one in records]


def test_a_retry_carries_the_attempt_that_failed_without_its_trace(desk: Desk) -> None:
    run = retried(desk, flight(FIRST))
    (record,) = run.history
    error = Failure(type="SmtpError", message="greylisted")
    assert record == AttemptRecord(
        run=1, attempt=1, worker="w1", token=100, at=NOW + 2, outcome="retrying", error=error
    )
    assert replace(run, history=()) == replace(FIRST, run=2, failures=1, due_at=NOW + 1_002)


def test_a_dead_letter_tells_every_attempt_of_every_run_and_the_trace_of_the_last(desk: Desk) -> None:
    second = retried(desk, flight(FIRST))
    third = retried(desk, flight(second, token=200), error=None)
    dead = letter(desk, flight(third, token=300))
    assert told(dead.attempts) == [
        (1, 1, "w1", 100, "retrying"),
        (2, 1, "w1", 200, "retrying"),
        (3, 1, "w1", 300, "dead"),
    ]
    assert [one.error and one.error.trace for one in dead.attempts] == [None, None, REFUSED.trace]
    assert dead.run == replace(third, history=()), "not told twice"


def test_starts_whose_worker_died_are_told_as_lost(desk: Desk) -> None:
    second = retried(desk, flight(FIRST, attempt=3))
    lost = [(1, 1, "", 0, "lost"), (1, 2, "", 0, "lost")]
    assert told(second.history) == [*lost, (1, 3, "w1", 100, "retrying")]
    assert {one.at for one in second.history[:2]} == {NOW + 1}
    dead = letter(desk, flight(second, attempt=2, token=200))
    assert told(dead.attempts)[3:] == [(2, 1, "", 0, "lost"), (2, 2, "w1", 200, "dead")]


def test_a_run_that_comes_back_unstarted_for_the_same_reason_is_told_once(desk: Desk) -> None:
    run, unknown = retried(desk, flight(FIRST)), Failure(type="UnknownHandler", message="no worker knows it")
    for _ in range(3):
        run = retried(desk, flight(run, token=0), error=unknown)
    assert told(run.history) == [(1, 1, "w1", 100, "retrying"), (2, 1, "w1", 0, "retrying")]
    assert run.run == 5
    other = retried(desk, flight(run, token=0), error=REFUSED)
    assert len(other.history) == 3, "another reason is news"
    assert len(retried(desk, flight(other, token=7)).history) == 4, "and so is an attempt"


def test_the_history_stays_small_however_often_a_job_is_retried(desk: Desk) -> None:
    run, loud = FIRST, Failure(type="SmtpError", message="é" * 5_000, trace="x" * 50_000)
    for n in range(1, 101):
        run = retried(desk, flight(run, token=n), error=loud)
    assert len(codec.RUN.encode(run)) - len(codec.RUN.encode(FIRST)) < CARRIED
    runs = [one.run for one in run.history]
    assert runs == [1, *range(runs[1], 101)]
    assert 20 < len(runs) < 30
    dead = letter(desk, flight(run), error=replace(loud, trace="x" * TOLD))
    assert len(codec.DEAD_LETTER.encode(dead)) < TOLD + 2_000
    assert dead.attempts[0].run == 1
    assert dead.attempts[-1].outcome == "dead"


@pytest.fixture
def owner(desk: Desk) -> Owner:
    """Of the job's home, where its second run waits after the first failed."""
    found = Owner(LAYOUT.home(ID))
    found.read(keys.retry_key(ID, 1), codec.RUN.encode(retried(desk, flight(FIRST))))
    return found


def emitted(owner: Owner) -> Run:
    (run,) = (put for put in owner.commit(NOW + 10_000).puts if put.topic == OWNED.work("default"))
    return codec.RUN.decode(run.value or b"")


def test_the_history_is_carried_by_the_run_that_is_emitted_even_if_it_was_rescheduled(owner: Owner) -> None:
    assert owner.command("reschedule", job_id=ID, due_at=NOW + 5_000).outcome == "rescheduled"
    assert told(emitted(owner).history) == [(1, 1, "w1", 100, "retrying")]


def test_a_requeue_begins_a_new_history(owner: Owner) -> None:
    assert emitted(owner).history
    requeue = Command(
        command_id="00000000-0000-4000-8000-000000000001",
        verb="requeue",
        job_id=ID,
        handler="email.send",
        seen_run=2,
    )
    owner.read(keys.command_key(requeue.command_id), codec.COMMAND.encode(requeue))
    again = emitted(owner)
    assert (again.run, again.history) == (3, ())
