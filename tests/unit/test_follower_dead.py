"""Dead letters as they are listed and requeued: the latest of each job, unless it runs again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AttemptRecord, DeadLetter, Failure, Run
from pipeline.follower import WantedLetters
from pipeline.ports import Put

T0 = 1_800_000_000_000
ALL = WantedLetters()


@pytest.fixture(autouse=True)
def dead_topic(store: Any) -> None:
    store.cluster.create_topic(store.names.dead, 4)


def run_of(n: int = 0, **fields: Any) -> Run:
    id_ = anonymous_id(T0, n)
    values: dict[str, Any] = {
        "job_id": id_,
        "occurrence_id": id_,
        "due_at": T0,
        "run": 1,
        "queue": "default",
        "handler": "h",
        "created_at": T0,
        "nominal_at": T0,
        "idempotency_key": id_,
        "payload": b'{"n":1}',
    }
    return Run(**{**values, **fields})


def letter_of(run: Run | None, **fields: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "reason": "max_attempts",
        "detail": "no",
        "at": T0,
        "source_topic": "unit.work.default",
        "source_partition": 2,
        "source_offset": 7,
        "run": run,
    }
    return DeadLetter(**{**values, **fields})


def bury(store: Any, run: Run | None, *, partition: int = 1, key: bytes | None = None, **fields: Any) -> None:
    letter = letter_of(run, **fields)
    name = run.occurrence_id.encode() if run is not None and key is None else key or b"unit.jobs/1/2"
    store.cluster.append(Put(store.names.dead, partition, name, codec.DEAD_LETTER.encode(letter)))


def mark(store: Any, run: Run, number: int, partition: int = 1) -> None:
    headers = [("end", b"requeued"), ("run", b"%d" % number)]
    store.cluster.append(Put(store.names.dead, partition, run.occurrence_id.encode(), None, headers))


def listed(store: Any, wanted: WantedLetters = ALL) -> list[str | None]:
    return [letter.job for letter in store.follower.letters(wanted)]


def test_a_letter_as_it_is_listed(store: Any) -> None:
    run = run_of()
    attempt = AttemptRecord(
        run=1,
        attempt=2,
        worker="w1",
        token=1 << 62,
        at=T0,
        outcome="dead",
        error=Failure(type="ValueError", message="no"),
    )
    bury(store, run, attempts=(attempt,))
    (letter,) = store.follower.letters(ALL)
    assert letter.view == {
        "id": run.job_id,
        "occurrence_id": run.job_id,
        "handler": "h",
        "queue": "default",
        "reason": "max_attempts",
        "detail": "no",
        "at": "2027-01-15T08:00:00.000Z",
        "run": 1,
        "attempts": [
            {
                "run": 1,
                "attempt": 2,
                "worker": "w1",
                "token": str(1 << 62),
                "at": "2027-01-15T08:00:00.000Z",
                "outcome": "dead",
                "error": {"type": "ValueError", "message": "no", "trace": None},
            }
        ],
        "source": {"topic": "unit.work.default", "partition": 2, "offset": 7},
        "payload_bytes": 7,
    }
    (whole,) = store.follower.letters(ALL, payload=True)
    assert (whole.view["payload"], whole.view["value_base64"]) == ({"n": 1}, None)


def test_they_are_listed_the_latest_first_and_filtered(store: Any) -> None:
    old, other, new = run_of(1), run_of(2, handler="bill"), run_of(3)
    bury(store, old, at=T0)
    bury(store, new, at=T0 + 2_000, partition=0)
    bury(store, other, at=T0 + 1_000, reason="invalid_payload")
    assert listed(store) == [new.job_id, other.job_id, old.job_id]
    assert listed(store, WantedLetters(handler="bill")) == [other.job_id]
    assert listed(store, WantedLetters(reason="invalid_payload")) == [other.job_id]
    assert listed(store, WantedLetters(since=T0 + 2_000)) == [new.job_id]
    assert listed(store, WantedLetters(queue="default")) == [new.job_id, other.job_id, old.job_id]
    assert listed(store, WantedLetters(queue="default", queues=frozenset(["billing"]))) == []
    assert listed(store, WantedLetters(queue="billing")) == []
    assert listed(store, WantedLetters(ids=frozenset([old.job_id, "x"]))) == [old.job_id]


def test_of_several_letters_of_one_job_that_of_the_latest_run_counts(store: Any) -> None:
    run = run_of()
    bury(store, replace(run, run=3), reason="later", at=T0 + 5, partition=0)
    bury(store, run, reason="first", partition=3)
    assert [letter.view["reason"] for letter in store.follower.letters(ALL)] == ["later"]
    assert listed(store, WantedLetters(reason="first")) == []


@pytest.mark.parametrize("marked_on", [0, 3], ids=["read before it", "read after it"])
def test_what_was_requeued_since_is_listed_only_if_it_died_again(store: Any, marked_on: int) -> None:
    run = run_of()
    bury(store, run)
    mark(store, run, 2, partition=marked_on)
    assert listed(store) == []
    bury(store, replace(run, run=2), at=T0 + 1)
    assert listed(store) == [run.job_id]


def test_a_mark_that_names_no_run_hides_nothing(store: Any) -> None:
    run = run_of()
    bury(store, run)
    store.cluster.append(Put(store.names.dead, 1, run.occurrence_id.encode(), None, [("run", b"many")]))
    assert listed(store) == [run.job_id]


def test_what_nobody_can_read_is_listed_once_by_its_place(store: Any) -> None:
    for _ in range(2):  # an index made anew buries it again
        bury(store, None, reason="undecodable", record_key=b"j/x", value=b"\x00\xff")
    store.cluster.append(Put(store.names.dead, 2, b"junk", b"no letter"))
    found = store.follower.letters(ALL, payload=True)
    told = {letter.view["reason"]: letter.view for letter in found}
    assert len(found) == 2
    assert told["undecodable"]["value_base64"] == "AP8="
    assert told["undecodable"]["source"] == {"topic": "unit.work.default", "partition": 2, "offset": 7}
    assert told["unreadable"]["source"] == {"topic": store.names.dead, "partition": 2, "offset": 0}
    assert [letter.job for letter in found] == [None, None]
    assert listed(store, WantedLetters(handler="h")) == []


def test_the_runs_come_with_their_payloads_and_only_those_asked_for(store: Any) -> None:
    runs = [run_of(n, payload=b'{"n":%d}' % n) for n in range(6)]
    for n, run in enumerate(runs):
        bury(store, run, partition=n % 4)
    letters = [letter for letter in store.follower.letters(ALL) if letter.job != runs[3].job_id]
    found = {run.job_id: run.payload for _, run in store.follower.dead_runs(letters)}
    assert found == {run.job_id: run.payload for n, run in enumerate(runs) if n != 3}
