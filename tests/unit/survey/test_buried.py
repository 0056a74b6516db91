"""What was buried before it could run counts as dead, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.job import AckState, DeadLetter, Run
from pipeline.ports import Put
from pipeline.survey import State, spill
from tests.unit.survey.conftest import DUE, Yard
from tests.unit.survey.test_reading import LATER


def bury(yard: Yard, run: Run | None, reason: str = "unknown_queue", **fields: Any) -> None:
    """As `emission.bury` does it."""
    values = {"source_topic": yard.store.names.jobs, "source_partition": 3, "source_offset": 9, **fields}
    if run is not None:
        key = keys.job_key(run.job_id) if run.run == 1 else keys.retry_key(run.occurrence_id, run.run - 1)
        values = {"record_key": key, **values}
    letter = DeadLetter(reason=reason, detail="x", at=yard.store.clock.now(), run=run, **values)
    place = keys.place_key(values["source_topic"], values["source_partition"], values["source_offset"])
    name = place if run is None else run.occurrence_id.encode()
    yard.store.cluster.append(Put(yard.store.names.dead, 0, name, codec.DEAD_LETTER.encode(letter)))


def mark(yard: Yard, run: Run) -> None:
    headers = [("end", b"requeued"), ("run", b"2")]
    yard.store.cluster.append(Put(yard.store.names.dead, 1, run.occurrence_id.encode(), None, headers))


def test_a_job_for_an_unknown_queue_was_due_and_never_ran(yard: Yard) -> None:
    run = yard.run(queue="nowhere", labels={"a": "b"})
    yard.store.clock.advance(-600_000)  # as soon as it was read, long before it was due
    bury(yard, run)
    (seen,) = yard.seen()
    assert (seen.state, seen.due_at, seen.fired_at, seen.run) == (State.DEAD, DUE, None, 0)
    assert (seen.occurrence_id, seen.queue, seen.labels, seen.payload_bytes) == (
        run.job_id,
        "nowhere",
        {"a": "b"},
        7,
    )
    assert yard.seen(LATER) == []
    assert yard.seen(outcomes={State.PENDING}) == []


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"handler": "email.send"}, 1),
        ({"handler": "bill"}, 0),
        ({"queue": "default"}, 0),
        ({"key_prefix": ""}, 0),
    ],
)
def test_a_filter(yard: Yard, wanted: dict[str, Any], count: int) -> None:
    bury(yard, yard.run(queue="nowhere"))
    assert len(yard.seen(**wanted)) == count


def test_an_absurd_due_time_stands_for_when_it_was_buried(yard: Yard) -> None:
    bury(yard, replace(yard.run(), due_at=5), "due_at")
    assert [seen.due_at for seen in yard.seen()] == [DUE]


def test_bytes_that_nobody_can_read_are_of_a_job_if_their_key_says_so(yard: Yard) -> None:
    late = yard.run(after=5_000)
    bury(yard, None, "undecodable", record_key=keys.job_key(late.job_id), value=b"junk")
    bury(yard, None, "undecodable", record_key=b"j/what", value=b"junk", source_offset=10)
    bury(yard, None, "undecodable", record_key=b"k/key", value=b"junk", source_offset=11)
    for offset, key in enumerate((b"c/0", b"o/3", b"s/nightly", b"", None), start=20):
        bury(yard, None, "undecodable", record_key=key, value=b"junk", source_offset=offset)
    assert [(seen.state.value, seen.due_at - DUE) for seen in yard.seen()] == [
        ("dead", 0),
        ("dead", 0),
        ("dead", 5_000),
    ]


def test_letters_of_workers_and_what_is_no_letter_say_nothing(yard: Yard) -> None:
    run = yard.ack(yard.fire(yard.run()), AckState.DEAD)
    bury(yard, run, "max_attempts", source_topic=yard.store.names.work("default"))
    dead, topic = yard.store.names.dead, yard.store.names.jobs
    letter = DeadLetter(
        reason="x",
        detail=topic,
        at=DUE,
        source_topic="other",
        source_partition=0,
        source_offset=0,
        run=yard.run(1),
    )
    for value in (codec.DEAD_LETTER.encode(letter), b"%c%b" % (len(topic) << 1, topic.encode())):
        yard.store.cluster.append(Put(dead, 0, b"x", value))
    assert yard.states() == {run.occurrence_id: "dead"}


def test_one_that_fired_or_is_pending_was_a_late_copy(yard: Yard) -> None:
    fired, pending = yard.run(0), yard.run(1)
    yard.ack(yard.fire(fired), AckState.SUCCEEDED)
    yard.store.put(pending)
    for run in (fired, pending):
        bury(yard, run, "too_old")
    assert yard.states() == {fired.occurrence_id: "succeeded", pending.occurrence_id: "pending"}


def test_a_letter_that_stands_there_twice_counts_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "ROWS", 3)
    for n in range(20):
        bury(yard, yard.run(n % 10))
    assert list(yard.states().values()) == ["dead"] * 10


def test_what_was_requeued_since_is_what_it_became(yard: Yard) -> None:
    waiting, ended = yard.run(0), yard.run(1)
    for run in (waiting, ended):
        bury(yard, run)
    yard.store.clock.advance(LATER.from_ms - DUE + 5_000)
    for run in (waiting, ended):
        mark(yard, run)
        yard.fire(yard.requeued(run), told=False)
    yard.ack(yard.requeued(ended), AckState.SUCCEEDED)
    assert yard.states() == {waiting.occurrence_id: "waiting", ended.occurrence_id: "succeeded"}
    assert yard.states(LATER) == {}


def test_a_further_run_that_was_buried_ends_its_occurrence(yard: Yard) -> None:
    runs = [yard.fire(yard.run(n)) for n in range(4)]
    for run in runs:
        yard.ack(run, AckState.RETRYING)
    bury(yard, yard.again(runs[0]))
    bury(yard, yard.again(yard.again(runs[1])))  # another one than it waits for
    bury(yard, yard.again(runs[2]), "forged")
    bury(yard, yard.again(runs[3]), record_key=b"j/x")
    states = yard.states()
    assert [states[run.occurrence_id] for run in runs] == ["dead", "retrying", "retrying", "retrying"]
    assert set(yard.states(outcomes={State.RETRYING})) == {run.occurrence_id for run in runs[1:]}
