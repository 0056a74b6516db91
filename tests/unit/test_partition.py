"""What folding decides for every kind of record, and what settling an entry appends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core import keys
from pipeline.core.errors import StopPartition
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Event, Highest, Run, Takeover
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.fold import CREATION_LIMIT_MS
from pipeline.partition import Partition
from pipeline.ports import Action, Put
from tests.unit.owner import LAYOUT, NAMES, NOW, SITE, Owner, run_of


@pytest.fixture
def job_id() -> str:
    return anonymous_id(NOW + 5_000, 42)


@pytest.fixture
def owner(job_id: str) -> Owner:
    return Owner(LAYOUT.home(job_id))


def value_of(run: Run) -> bytes:
    return codec.RUN.encode(run)


# -- jobs ---------------------------------------------------------------------------------------------------


def test_a_job_waits_for_its_due_time_and_is_fired_as_the_bytes_it_came_as(owner: Owner, job_id: str) -> None:
    key, value = keys.job_key(job_id), value_of(run_of(job_id))
    base = owner.read(key, value)
    assert owner.entry(key).fire_at == NOW + 5_000
    emission = owner.settle(key)
    work = LAYOUT.work_partition("default", job_id)
    assert emission.puts == [
        Put("t.work.default", work, job_id.encode(), value),
        Put(
            "t.jobs",
            owner.number,
            key,
            None,
            [
                ("end", b"fired"),
                ("base", b"%d" % base),
                ("run", b"1"),
                ("work", b"default/%d" % work),
            ],
        ),
    ]
    assert owner.index.entry(owner.number, key) is None


def test_a_serial_group_decides_the_work_partition(owner: Owner, job_id: str) -> None:
    key = keys.job_key(job_id)
    owner.read(key, value_of(run_of(job_id, serial="customer-7")))
    work = LAYOUT.work_partition("default", "customer-7")
    assert owner.entry(key).detail == f"default/{work}"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": 2}, "forged"),
        ({"occurrence_id": "other"}, "forged"),
        ({"due_at": 12}, "due_at"),
        ({"due_at": 9_999_999_999_999}, "due_at"),
        ({"queue": "nowhere"}, "unknown_queue"),
        ({"handler": "rm -rf"}, "handler"),
        ({"queue": "q" * 70_000}, "queue"),
        ({"created_at": NOW - CREATION_LIMIT_MS - 1}, "too_old"),
    ],
)
def test_a_job_that_can_never_be_right_ends_as_dead_with_its_payload(
    owner: Owner, job_id: str, changes: dict[str, Any], reason: str
) -> None:
    key, run = keys.job_key(job_id), run_of(job_id, **changes)
    base = owner.read(key, value_of(run))
    assert owner.entry(key).fire_at == base
    dead, tombstone = owner.settle(key).puts
    letter = codec.DEAD_LETTER.decode(dead.value or b"")
    assert (dead.topic, letter.reason, letter.run, letter.source_offset) == ("t.dead", reason, run, base)
    assert (tombstone.key, tombstone.value) == (key, None)


def test_a_queue_that_was_made_later_is_looked_for_before_a_job_is_buried(owner: Owner, job_id: str) -> None:
    asked: list[int] = []

    def read_layout() -> Any:
        asked.append(1)
        return replace(LAYOUT, queues={"default": 12, "mail": 3})

    late = Owner(owner.number, replace(SITE, read_layout=read_layout))
    late.read(keys.job_key(job_id), value_of(run_of(job_id, queue="mail")))
    assert late.entry(keys.job_key(job_id)).action == Action.FIRE
    late.read(keys.job_key(job_id), value_of(run_of(job_id, queue="nowhere")))
    assert late.entry(keys.job_key(job_id)).detail == "unknown_queue: nowhere"
    assert len(asked) == 1


def test_a_schema_announced_later_stops_the_partition_too(owner: Owner, job_id: str) -> None:
    site = replace(SITE, read_layout=lambda: replace(LAYOUT, fingerprints=("0" * 16,)))
    with pytest.raises(StopPartition):
        Owner(owner.number, site).read(keys.job_key(job_id), b"\xc3\x01" + bytes(8))


def test_a_header_that_the_client_cannot_decode_is_no_header(owner: Owner, job_id: str) -> None:
    class Torn(MemoryRecord):
        def headers(self) -> Any:
            raise SystemError("returned a result with an exception set")

    value = value_of(run_of(job_id, created_at=NOW - CREATION_LIMIT_MS - 1))
    record = Torn(Put(NAMES.jobs, owner.number, keys.job_key(job_id), value), 0, NOW, None)
    owner.partition.ingest([record], 1, NOW)
    assert owner.entry(keys.job_key(job_id)).detail.startswith("too_old")


def test_h27_bytes_that_nobody_can_read_are_kept_under_their_place(owner: Owner, job_id: str) -> None:
    key = keys.job_key(job_id)
    base = owner.read(key, b"\xc3\x01garbage")
    dead, tombstone = owner.settle(key).puts
    letter = codec.DEAD_LETTER.decode(dead.value or b"")
    assert dead.key == keys.place_key("t.jobs", owner.number, base)
    assert (letter.value, letter.record_key, letter.run) == (b"\xc3\x01garbage", key, None)
    assert tombstone.headers is not None
    assert ("end", b"dead") in tombstone.headers


@pytest.mark.parametrize("key", [b"nonsense", b"j/short", b"\xff\xfe", b"", b"r/x/01"])
def test_a_key_of_no_known_form_is_quarantined(owner: Owner, key: bytes) -> None:
    owner.read(key, b"x")
    assert owner.entry(key).action == Action.DEAD


def test_h27_a_schema_that_was_announced_but_is_unknown_stops_the_partition(
    owner: Owner, job_id: str
) -> None:
    strange = b"\xc3\x01" + bytes(range(8)) + b"rest"
    fingerprint = f"{int.from_bytes(bytes(range(8)), 'little'):016x}"
    site = replace(SITE, layout=replace(LAYOUT, fingerprints=(fingerprint,)))
    with pytest.raises(StopPartition, match=fingerprint):
        Owner(owner.number, site).read(keys.job_key(job_id), strange)
    owner.read(keys.job_key(job_id), strange)
    assert owner.entry(keys.job_key(job_id)).detail.startswith("unknown_schema")


def test_a_record_at_the_wrong_partition_is_moved_home_and_remembered(owner: Owner, job_id: str) -> None:
    key, value = keys.job_key(job_id), value_of(run_of(job_id))
    stray = Owner((owner.number + 1) % LAYOUT.partitions)
    stray.read(key, value)
    moved, tombstone = stray.settle(key).puts
    assert (moved.topic, moved.partition, moved.key, moved.value) == ("t.jobs", owner.number, key, value)
    assert tombstone.partition == stray.number
    assert stray.index.ended(stray.number, job_id.encode(), NOW) == b"moved"


def test_a_moved_record_may_be_older_than_the_creation_limit(owner: Owner, job_id: str) -> None:
    key, late = keys.job_key(job_id), NOW + CREATION_LIMIT_MS + 1
    owner.read(key, value_of(run_of(job_id)), at=late, headers=[("moved", b"3")])
    assert owner.entry(key).action == Action.FIRE


def test_h9_a_copy_that_comes_after_its_job_ended_is_dropped_and_told(owner: Owner, job_id: str) -> None:
    key, value = keys.job_key(job_id), value_of(run_of(job_id))
    owner.read(key, value)
    owner.settle(key)
    owner.read(key, None)
    owner.read(key, value)
    assert owner.entry(key).action == Action.DROP
    event, tombstone = owner.settle(key).puts
    told = codec.EVENT.decode(event.value or b"")
    assert (event.topic, told.kind, told.reason) == ("t.events", "dropped", "duplicate")
    work = f"default/{LAYOUT.work_partition('default', job_id)}".encode()
    assert (tombstone.value, tombstone.headers) == (
        None,
        [("end", b"fired"), ("base", b"2"), ("work", work)],
    )
    assert isinstance(told, Event)


def test_a_copy_while_the_job_waits_changes_only_the_base(owner: Owner, job_id: str) -> None:
    key, value = keys.job_key(job_id), value_of(run_of(job_id))
    owner.read(key, value)
    second = owner.read(key, value)
    assert [e.offset for e in owner.index.due(owner.number, NOW + 5_000, 10)] == [second]


def test_h8_reading_back_the_own_tombstone_changes_nothing(owner: Owner, job_id: str) -> None:
    key = keys.job_key(job_id)
    owner.read(key, value_of(run_of(job_id)))
    owner.settle(key)
    before = owner.index.entries(owner.number, None, 10)
    owner.read(key, None)
    assert owner.index.entries(owner.number, None, 10) == before == []


def test_h11_a_schedule_that_nobody_can_read_is_buried(owner: Owner) -> None:
    key = keys.schedule_key("nightly")
    owner.read(key, b"anything")
    assert owner.entry(key).action == Action.DEAD


# -- retries ------------------------------------------------------------------------------------------------


def test_h11_a_retry_is_emitted_as_the_next_run_and_the_highest_run_remembered(
    owner: Owner, job_id: str
) -> None:
    key, run = keys.retry_key(job_id, 1), run_of(job_id, run=2, due_at=NOW + 9_000, failures=1)
    owner.read(key, value_of(run))
    work, highest, tombstone = owner.settle(key).puts
    assert codec.RUN.decode(work.value or b"") == run
    assert highest.key == keys.highest_key(job_id)
    assert codec.HIGHEST.decode(highest.value or b"").run == 2
    assert tombstone.headers is not None
    assert ("run", b"2") in tombstone.headers


def test_a_retry_of_a_run_that_is_no_longer_the_highest_is_superseded(owner: Owner, job_id: str) -> None:
    known = Highest(run=3, queue="default", work_partition=0)
    owner.read(keys.highest_key(job_id), codec.HIGHEST.encode(known))
    key = keys.retry_key(job_id, 2)
    owner.read(key, value_of(run_of(job_id, run=3)))
    assert owner.entry(key).detail == "superseded"
    assert [put.topic for put in owner.settle(key).puts] == ["t.events", "t.jobs"]


def test_two_retries_in_one_batch_cannot_both_be_emitted(owner: Owner, job_id: str) -> None:
    first, second = keys.retry_key(job_id, 1), keys.retry_key(job_id, 2)
    owner.read(second, value_of(run_of(job_id, run=3, due_at=NOW)))
    owner.read(first, value_of(run_of(job_id, run=2, due_at=NOW + 1)))
    entries = owner.index.due(owner.number, NOW + 10, 10)
    emission = owner.partition.emit(entries, NOW)
    assert [put.topic for put in emission.puts if put.topic != "t.jobs"] == ["t.work.default", "t.events"]


def test_a_retry_that_does_not_fit_its_key_is_forged(owner: Owner, job_id: str) -> None:
    key = keys.retry_key(job_id, 1)
    owner.read(key, value_of(run_of(job_id, run=7)))
    assert owner.entry(key).detail.startswith("forged")


# -- taking over --------------------------------------------------------------------------------------------


def takeover(nonce: str) -> Takeover:
    return Takeover(process="p", transactional_ids=("id-1",), generation=3, nonce=nonce, at=NOW)


def test_h1_only_the_own_takeover_record_makes_a_partition_run(owner: Owner, job_id: str) -> None:
    owner.read(keys.job_key(job_id), value_of(run_of(job_id, due_at=NOW)))
    put = owner.partition.takeover(takeover("mine"))
    owner.partition.asked(0)
    owner.read(put.key, codec.TAKEOVER.encode(takeover("another's")))
    assert owner.partition.state is PartitionState.RESTORING
    assert owner.partition.due(NOW, 10, 1 << 20) == []
    assert owner.partition.earlier_ids() == ("id-1",)
    owner.read(put.key, put.value)
    assert owner.partition.state is PartitionState.RUNNING
    assert len(owner.partition.due(NOW, 10, 1 << 20)) == 1


def test_h16_after_an_unknown_outcome_the_old_record_does_not_count(owner: Owner) -> None:
    put = owner.partition.takeover(takeover("mine"))
    owner.partition.asked(0)
    owner.partition.take_over_anew()
    owner.partition.takeover(takeover("again"))
    owner.partition.asked(0)
    owner.read(put.key, put.value)
    assert owner.partition.state is PartitionState.RESTORING


@pytest.mark.parametrize(
    ("site", "later"),
    [
        (replace(SITE, cluster_id="other"), 0),
        (replace(SITE, topic_id="created anew"), 0),
        (replace(SITE, layout=replace(LAYOUT, bucket_width_ms=1_000)), 0),
        (SITE, SITE.stale_after_ms),
    ],
    ids=["cluster", "topic", "layout", "stale"],
)
def test_h12_h13_an_index_of_another_log_or_time_is_wiped(
    owner: Owner, job_id: str, site: Site, later: int
) -> None:
    owner.read(keys.job_key(job_id), value_of(run_of(job_id)))
    again = Partition(owner.number, site=site, index=owner.index)
    assert again.open(NOW + later) == 0
    assert owner.index.entries(owner.number, None, 10) == []


def test_an_index_that_fits_goes_on_where_it_stood(owner: Owner, job_id: str) -> None:
    owner.read(keys.job_key(job_id), value_of(run_of(job_id)))
    again = Partition(owner.number, site=SITE, index=owner.index)
    assert again.open(NOW + SITE.stale_after_ms - 1) == 1


def test_h33_records_delivered_again_are_not_folded_again(owner: Owner, job_id: str) -> None:
    key = keys.job_key(job_id)
    owner.read(key, value_of(run_of(job_id)))
    owner.settle(key)
    record = MemoryRecord(Put(NAMES.jobs, owner.number, key, value_of(run_of(job_id))), 0, NOW, None)
    owner.partition.ingest([record], 1, NOW)
    assert owner.index.entries(owner.number, None, 10) == []
