"""`dueline job list`, read from the topics of a store in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.core import keys
from pipeline.core.job import AckState, AttemptRecord, Failure, Run
from pipeline.ports import CommittedOffset, Put
from tests.unit.cli.test_cron import STATE, put
from tests.unit.test_follower import retry_of, run_of
from tests.unit.test_follower_keyed import ID, KEY, fire_keyed, state
from tests.unit.test_follower_keyed import run_of as keyed_run_of


def rows(dueline: Any, *words: str) -> list[Any]:
    listed: list[Any] = dueline("job", "list", *words, "--json").lines("job_list")
    return listed


def fired(store: Any, n: int, queue: str) -> Run:
    run = run_of(n, queue=queue)
    store.put(run)
    store.fire(run)
    return run


def test_a_job_that_has_fired_is_listed_until_it_has_ended(dueline: Any, store: Any) -> None:
    store.add_queues({"mail": 1, "sms": 1})
    over, waits, runs = (fired(store, n, queue) for n, queue in enumerate(("mail", "mail", "sms")))
    store.ack(runs, AckState.STARTED, work_offset=0)
    topic = store.names.work("mail")
    store.cluster.group(store.names.worker_group("mail"), topic).committed[0] = CommittedOffset(1)
    listed = rows(dueline)
    assert [(row["id"], row["status"]) for row in listed] == [
        (waits.job_id, "queued"),
        (runs.job_id, "running"),
    ]
    assert over.job_id not in {row["id"] for row in listed}
    assert [row["id"] for row in rows(dueline, "--queue", "sms")] == [runs.job_id]
    assert [row["id"] for row in rows(dueline, "--status", "queued", "--status", "pending")] == [waits.job_id]
    assert (
        dueline("job", "list", "--status", "pending", "--status", "retrying").err
        == "dueline: no job matches\n"
    )


def test_a_list_for_people_says_what_its_columns_are(dueline: Any, store: Any) -> None:
    run = keyed_run_of(7)
    state(store, 7, run)
    assert dueline("job", "list").out.splitlines() == [
        "ID                           STATUS   DUE_AT                    QUEUE    HANDLER     KEY",
        f"{ID}  pending  2027-01-15T08:01:00.000Z  default  email.send  {KEY}",
    ]


def test_what_is_listed_can_be_asked_for(dueline: Any, store: Any) -> None:
    """Also once there is a newer incarnation of the key."""
    state(store, 7, keyed_run_of(7))
    fire_keyed(store, keyed_run_of(7))
    state(store, 9, keyed_run_of(9))
    listed = [(row["id"], row["status"]) for row in rows(dueline, "--key", KEY)]
    assert listed == [(ID, "pending"), (f"{ID}.7", "queued")]
    for id_, status in listed:
        assert dueline("job", "get", id_, "--json").json("job_get")["status"] == status
    assert f"occurrence   {ID}.9\n" in dueline("job", "get", ID).out
    assert rows(dueline, "--key", "other") == []


def test_the_next_instant_of_a_schedule_is_listed_as_a_server_does(dueline: Any, store: Any) -> None:
    put(store, STATE)
    (row,) = rows(dueline, "--schedule", "daily")
    assert (row["status"], row["schedule"], row["handler"]) == ("pending", "daily", "report")
    assert dueline("job", "get", row["id"], "--json").json("job_get")["due_at"] == row["due_at"]
    assert rows(dueline, "--schedule", "weekly") == []
    key = keys.schedule_key("daily")
    store.cluster.append(Put(store.names.jobs, store.layout.home_of_name("daily"), key, None))
    assert rows(dueline) == []


def test_an_instant_that_no_id_can_name_is_passed_over(dueline: Any, store: Any) -> None:
    put(store, replace(STATE, next_nominal=-5))
    assert rows(dueline) == []


def test_what_a_retry_waits_after_is_told(dueline: Any, store: Any) -> None:
    run = run_of()
    failed = Failure(type="ValueError", message="no\nway")
    attempt = AttemptRecord(run=1, attempt=1, worker="w1", token=1, at=1, outcome="retrying", error=failed)
    retry = retry_of(run, run.due_at + 5_000)
    store.put(replace(retry, history=(attempt,)))
    (row,) = rows(dueline)
    assert (row["status"], row["run"], row["error"]) == ("retrying", 2, "ValueError: no")


def test_part_of_an_id_a_handler_or_a_key_finds_a_job(dueline: Any, store: Any) -> None:
    one, two = run_of(1, handler="bill.make"), run_of(2, handler="mail.send")
    state(store, 7, keyed_run_of(7, handler="x"))
    for run in (one, two):
        store.put(run)
    for text, found in (("bill", one.job_id), (two.job_id[-9:], two.job_id), (KEY[2:], ID)):
        assert [row["id"] for row in rows(dueline, "--text", text)] == [found]


def test_the_latest_come_first_if_that_is_asked_for(dueline: Any, store: Any) -> None:
    runs = [run_of(n, due_at=run_of().due_at + 60_000 * n) for n in range(12)]
    for run in runs:
        store.put(run)
    backwards = [run.job_id for run in reversed(runs)]
    assert [row["id"] for row in rows(dueline, "--order", "-due")] == backwards
    assert [row["id"] for row in rows(dueline, "--order", "-due", "--limit", "3")] == backwards[:3]


def test_many_jobs_are_written_as_they_come(
    dueline: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cli.output.FIRST_ROWS", 2)
    for n in range(5):
        store.put(run_of(n, handler="h" * (n + 1)))
    header, *lines = dueline("job", "list").out.splitlines()
    assert sorted(line.split()[-1] for line in lines) == ["h", "hh", "hhh", "hhhh", "hhhhh"]
    assert {line.index("pending") for line in lines} == {header.index("STATUS")}
