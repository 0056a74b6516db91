"""Commands and their answers, over a store in memory whose owner answers what the test wants."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipeline import JobChange, codec
from pipeline.client import connection as client_connection
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Command, KeyState, Run

ANON = "j" + "0" * 26
DUE = "1800000600000"
DUE_AT = datetime(2027, 1, 15, 8, 10, tzinfo=UTC)


def answering(store: Any, outcome: str, **fields: Any) -> None:
    store.owner = lambda command: {"outcome": outcome, "job_id": command.job_id, **fields}


# -- creating -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["created", "existing", "replaced", "debounced", "rejected"])
def test_the_owner_says_what_became_of_a_job_with_a_key(store: Any, app: Any, outcome: str) -> None:
    answering(store, outcome, detail={"due_at": DUE})
    ref = app.schedule("email.send", {"to": "a@b"}, in_="1h", key="invoice-55", unique="started")
    assert ref == (keyed_id("invoice-55"), outcome, DUE_AT)
    (command,) = store.commands
    assert (command.verb, command.key, command.unique) == ("create", "invoice-55", "started")
    (record,) = store.jobs()
    assert record.key() == b"c/" + command.command_id.encode()
    assert record.partition() == store.layout.home(ref.id)


def test_without_an_answer_in_time_it_is_accepted(store: Any, app: Any) -> None:
    before = time.monotonic()
    ref = app.schedule("h", at="2030-01-31T09:30:00Z", key="k", wait="50ms")
    assert ref == (keyed_id("k"), "accepted", datetime(2030, 1, 31, 9, 30, tzinfo=UTC))
    assert time.monotonic() - before < 5
    assert len(store.jobs()) == 1


def test_who_does_not_wait_reads_nothing(store: Any, app: Any) -> None:
    answering(store, "created")
    opened: list[int] = []
    connect = app._connect

    def counted(settings: Any) -> Any:
        parts = connect(settings)
        open_feed = parts.open_feed
        object.__setattr__(parts, "open_feed", lambda: opened.append(1) or open_feed())
        return parts

    app._connect = counted
    assert app.schedule("h", in_="1s", key="k", wait=0).status == "accepted"
    assert opened == []
    assert app.schedule("h", in_="1s", key="k").status == "created"
    assert app.schedule("h", in_="1s", key="l").status == "created"
    assert opened == [1]


def test_a_word_of_a_later_version_is_an_accepted_job(store: Any, app: Any) -> None:
    answering(store, "parked", detail={"due_at": "soon"})
    assert app.schedule("h", in_="1s", key="k").status == "accepted"


def test_a_refusal_names_the_field(store: Any, app: Any) -> None:
    answering(store, "refused", reason="queue: 'x' is unknown")
    with pytest.raises(InvalidInput) as caught:
        app.schedule("h", in_="1s", key="k")
    assert (caught.value.field, caught.value.problem) == ("queue", "'x' is unknown")


def test_an_unknown_queue_is_told_before_anything_is_stored(store: Any, app: Any) -> None:
    with pytest.raises(InvalidInput, match="dueline topics create --queue mail"):
        app.schedule("h", in_="1s", key="k", queue="mail")
    assert store.jobs() == []


def test_a_create_that_is_not_durable_is_an_error(
    store: Any, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule("h", in_="1s")
    monkeypatch.setattr(client_connection, "DELIVERY_S", 0.01)
    store.appenders[0].silent = True
    with pytest.raises(StoreUnreachable, match="may or may not"):
        app.schedule("h", in_="1s", key="k")
    with pytest.raises(StoreUnreachable, match="may or may not"):
        app.cancel(ANON)
    store.appenders[0].silent = False


def test_each_waiter_gets_its_own_answer(store: Any, app: Any) -> None:
    """Other commands' answers, and rubbish, stand on the same partitions."""

    def owner(command: Command) -> dict[str, Any]:
        store.tell(store.layout.home_of_name(command.key), "other", outcome="rejected")
        junk = command.command_id.encode()
        store._append(store.names.events, store.layout.home_of_name(command.key), junk, b"junk")
        return {"outcome": "created" if command.key.endswith("7") else "existing"}

    store.owner = owner

    async def create() -> list[str]:
        refs = await asyncio.gather(*(app.aschedule("h", in_="1s", key=f"k{n}") for n in range(40)))
        return [ref.status for ref in refs]

    assert asyncio.run(create()) == ["created" if n % 10 == 7 else "existing" for n in range(40)]


def test_many_jobs_with_keys_are_accepted_among_the_others(store: Any, app: Any) -> None:
    jobs = [{"handler": "h", "in_": n, **({"key": f"k{n}"} if n % 2 else {})} for n in range(100)]
    refs = list(app.schedule_many(jobs))
    assert [ref.status for ref in refs] == ["created", "accepted"] * 50
    assert [ref.id for ref in refs[1::2]] == [keyed_id(f"k{n}") for n in range(1, 100, 2)]
    assert [command.key for command in store.commands] == [f"k{n}" for n in range(1, 100, 2)]


# -- changing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("cancelled", "cancelled"), ("stopped", "stopped"), ("fired", "too_late"), ("parked", "unknown")],
)
def test_a_cancel_is_what_the_owner_answers(store: Any, app: Any, answer: str, outcome: str) -> None:
    answering(store, answer)
    assert app.cancel(ANON) == JobChange(id=ANON, outcome=outcome)
    (command,) = store.commands
    assert (command.verb, command.job_id) == ("cancel", ANON)
    (record,) = store.jobs()
    assert record.partition() == store.layout.home(ANON)


def test_an_owner_that_does_not_answer_leaves_it_unknown(app: Any) -> None:
    assert app.cancel(ANON, wait="20ms").outcome == "unknown"
    assert app.cancel(ANON, wait=0).outcome == "unknown"
    assert asyncio.run(app.acancel(ANON, wait="20ms")).outcome == "unknown"


def run_of(store: Any, app: Any) -> Run:
    app.schedule("h", {"n": 1}, in_="1s", labels={"a": "1"}, serial="s", timeout="2s", idempotency_key="i")
    (run,) = store.runs()
    return run


@pytest.mark.parametrize(
    ("end", "outcome"), [("fired", "too_late"), ("cancelled", "cancelled"), ("dead", "too_late")]
)
def test_what_the_owner_has_forgotten_is_looked_for_in_the_log(
    store: Any, app: Any, end: str, outcome: str
) -> None:
    run = run_of(store, app)
    answering(store, "not_found")
    if end == "fired":
        store.fire(run)
    else:
        store.end(run, end)
    assert app.cancel(run.job_id).outcome == outcome
    assert app.reschedule(run.job_id, in_="1s").outcome == outcome
    assert asyncio.run(app.acancel(run.job_id)).outcome == outcome


def test_cancelled_is_never_said_of_a_job_that_fired(store: Any, app: Any) -> None:
    """A handler may cancel its own job, and a retry may be dropped: neither is a job that did not fire."""
    run = run_of(store, app)
    answering(store, "not_found")
    store.fire(run)
    store.ack(run, AckState.CANCELLED)
    assert app.cancel(run.job_id).outcome == "too_late"
    store.end(run, "cancelled")
    assert app.cancel(run.job_id).outcome == "stopped"


def test_a_job_that_is_nowhere_is_not_found(store: Any, app: Any) -> None:
    answering(store, "not_found")
    assert app.cancel(ANON).outcome == "not_found"
    assert app.update(ANON, {}).outcome == "not_found"


def test_a_job_that_its_owner_has_not_read_is_unknown(store: Any, app: Any) -> None:
    run = run_of(store, app)
    answering(store, "not_found")
    assert app.cancel(run.job_id).outcome == "unknown"


def test_a_reschedule_names_an_instant(store: Any, app: Any) -> None:
    answering(store, "rescheduled", detail={"due_at": DUE})
    told = JobChange(id=ANON, outcome="rescheduled", due_at=DUE_AT)
    assert app.reschedule(ANON, at=DUE_AT) == told
    assert app.reschedule(ANON, in_="10m") == told
    assert asyncio.run(app.areschedule(ANON, at="2027-01-15T08:10:00Z")) == told
    assert [(c.verb, c.due_at) for c in store.commands] == [("reschedule", int(DUE))] * 3
    for wrong in ({}, {"at": DUE_AT, "in_": 1}, {"at": "soon"}, {"in_": "1"}, {"in_": 1, "wait": "x"}):
        with pytest.raises(InvalidInput):
            app.reschedule(ANON, **wrong)
    assert len(store.commands) == 3


def test_an_update_carries_the_payload(store: Any, app: Any) -> None:
    answering(store, "updated")
    assert app.update(ANON, {"n": 2}).outcome == "updated"
    (command,) = store.commands
    assert (command.verb, command.payload) == ("update", b'{"n":2}')
    with pytest.raises(InvalidInput, match="payload"):
        app.update(ANON, [])


def test_a_requeue_carries_the_whole_run_and_the_highest_that_was_seen(store: Any, app: Any) -> None:
    run = run_of(store, app)
    store.fire(run)
    store.ack(run, AckState.DEAD)
    answering(store, "requeued", run=2, detail={"due_at": DUE})
    assert app.requeue(run.job_id) == JobChange(id=run.job_id, outcome="requeued", due_at=DUE_AT, run=2)
    (command,) = store.commands
    assert (command.verb, command.job_id, command.seen_run) == ("requeue", run.job_id, 1)
    for name in ("handler", "queue", "payload", "idempotency_key", "timeout_ms", "serial", "labels"):
        assert getattr(command, name) == getattr(run, name), name


def test_a_requeue_of_a_keyed_job_names_its_occurrence_and_its_key(store: Any, app: Any) -> None:
    id_ = keyed_id("k")
    run = replace(run_of(store, app), job_id=id_, occurrence_id=f"{id_}.7", key="k")
    fired = KeyState(incarnation=7, phase="pending", highest_run=0, unique="finished", changed_at=0, run=run)
    store._append(store.names.jobs, store.layout.home(id_), b"k/k", codec.KEY_STATE.encode(fired))
    answering(store, "pending")
    assert app.requeue(id_) == JobChange(id=id_, outcome="pending")
    (command,) = store.commands
    assert (command.job_id, command.key, command.seen_run) == (f"{id_}.7", "k", None)
    assert {r.partition() for r in store.jobs() if r.key()[:2] == b"c/"} == {store.layout.home(id_)}


def test_a_requeue_of_nothing_is_not_found(store: Any, app: Any) -> None:
    assert app.requeue(ANON) == JobChange(id=ANON, outcome="not_found")
    assert store.commands == []


def test_a_keyed_job_is_asked_for_at_the_home_of_its_key(store: Any, app: Any) -> None:
    answering(store, "cancelled")
    for id_ in (keyed_id("invoice-55"), f"{keyed_id('invoice-55')}.17"):
        assert app.cancel(id_) == JobChange(id=id_, outcome="cancelled")
    assert {record.partition() for record in store.jobs()} == {store.layout.home_of_name("invoice-55")}


def test_an_unreadable_due_time_is_none(store: Any, app: Any) -> None:
    for due_at in ("soon", "9" * 30, "9" * 16, ""):
        answering(store, "rescheduled", detail={"due_at": due_at})
        assert app.reschedule(ANON, in_=1).due_at is None
