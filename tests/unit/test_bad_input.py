"""What a foreign record must not do to the partition it stands on (H27): the smallest cases; all others stand in
`integration/test_foreign_producers.py`."""

from __future__ import annotations

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Event
from pipeline.core.token import LAST_RUN
from pipeline.emission import BURIED, LONGEST_KEY
from pipeline.ports import Put
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner, run_of

ID = anonymous_id(NOW, 7)
WORK = NAMES.work("default")


@pytest.fixture
def owner() -> Owner:
    return Owner(LAYOUT.home(ID))


def fired(puts: list[Put]) -> int:
    return sum(put.topic == WORK for put in puts)


PUTS = {
    "pending": [keys.job_key(ID), keys.changed_key(ID)],
    "to come": [keys.changed_key(ID), keys.job_key(ID)],
    "again": [keys.changed_key(ID), keys.changed_key(ID)],
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("order", PUTS)
def test_h27_a_changed_job_that_no_owner_wrote_fires_once(owner: Owner, order: str, at_once: bool) -> None:
    count = 0
    for key in PUTS[order]:
        owner.read(key, codec.RUN.encode(run_of(ID, due_at=NOW)))
        count += 0 if at_once else fired(owner.commit(NOW).puts)
    count += fired(owner.commit(NOW).puts)
    assert count == 1
    assert owner.index.entries(owner.number, None, 10) == []


def test_a_change_read_back_after_a_rebuild_is_the_job(owner: Owner) -> None:
    """What an owner writes: the tombstone of `j/` stands before `a/`, or is compacted away."""
    owner.read(keys.changed_key(ID), codec.RUN.encode(run_of(ID, due_at=NOW)))
    assert fired(owner.commit(NOW).puts) == 1
    again = Owner(owner.number)
    again.read(keys.job_key(ID), codec.RUN.encode(run_of(ID, due_at=NOW)))
    again.read(keys.job_key(ID), None, headers=[("end", b"changed")])
    again.read(keys.changed_key(ID), codec.RUN.encode(run_of(ID, due_at=NOW)))
    again.read(keys.changed_key(ID), codec.RUN.encode(run_of(ID, due_at=NOW + 1)))
    assert fired(again.commit(NOW + 1).puts) == 1


def test_a_foreign_tombstone_of_what_its_creator_put_does_not_end_a_changed_job(owner: Owner) -> None:
    owner.read(keys.job_key(ID), None)
    owner.read(keys.changed_key(ID), codec.RUN.encode(run_of(ID, due_at=NOW)))
    assert fired(owner.commit(NOW).puts) == 1


@pytest.mark.parametrize(("after", "fires"), [(LAST_RUN - 1, True), (LAST_RUN, False)])
def test_a_run_that_can_have_no_token_is_not_emitted(owner: Owner, after: int, fires: bool) -> None:
    key = keys.retry_key(ID, after)
    owner.read(key, codec.RUN.encode(run_of(ID, run=after + 1, due_at=NOW)))
    puts = owner.commit(NOW).puts
    assert fired(puts) == fires
    letters = [codec.DEAD_LETTER.decode(put.value or b"") for put in puts if put.topic == NAMES.dead]
    assert [letter.reason for letter in letters] == ([] if fires else ["token_exhausted"])


@pytest.mark.parametrize(("seen", "outcome"), [(LAST_RUN - 1, "requeued"), (LAST_RUN, "refused")])
def test_a_requeue_beyond_the_last_run_is_refused_and_changes_nothing(
    owner: Owner, seen: int, outcome: str
) -> None:
    stop = keys.stopped_key(ID)
    owner.read(stop, codec.EVENT.encode(Event(id=ID, kind="stopped", at=NOW)))
    assert owner.command("requeue", job_id=ID, handler="h", seen_run=seen).outcome == outcome
    assert (owner.index.entry(owner.number, stop) is None) == (outcome == "requeued")


def test_texts_that_would_not_fit_beside_a_payload_are_refused(owner: Owner) -> None:
    answer = owner.command("create", handler="h", labels={"a": "x" * 160_001})
    assert (answer.outcome, (answer.reason or "")[:6]) == ("refused", "labels")


def test_a_dead_letter_of_what_compression_hid_is_cut_to_what_its_topic_takes(owner: Owner) -> None:
    key = keys.job_key(ID)
    owner.read(key, bytes(2 * BURIED))
    dead, tombstone = owner.settle(key).puts
    letter = codec.DEAD_LETTER.decode(dead.value or b"")
    assert (len(letter.value or b""), letter.reason) == (BURIED, "undecodable")
    assert letter.detail.endswith(f"; of {2 * BURIED} bytes the first {BURIED}")
    assert (tombstone.key, tombstone.value) == (key, None)


def test_a_record_key_too_long_for_a_tombstone_is_buried_and_forgotten(owner: Owner) -> None:
    key = b"z" * (LONGEST_KEY + 1)
    owner.read(key, b"x")
    (dead,) = owner.settle(key).puts
    letter = codec.DEAD_LETTER.decode(dead.value or b"")
    assert (letter.record_key, letter.value) == (key[:-1], b"x")
    assert owner.index.entries(owner.number, None, 10) == []
