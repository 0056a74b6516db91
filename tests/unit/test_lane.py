"""A lane's takeover against damaged records, and outcomes of runs that have no home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.core import keys, offset_metadata
from pipeline.core.acks import AckTracker
from pipeline.core.handler import DeadEnd, Retrying
from pipeline.core.identity import Identity
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState, Failure, Millis, Run, Takeover
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.offset_metadata import Start
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.lane import Delivery, Flight, Lane
from pipeline.past import LEARNT_LIMIT, NOBODY
from pipeline.ports import CommittedOffset, Put
from pipeline.takeover import LaneTakeover

NAMES = Names("t")
LAYOUT = default_layout(queues={"default": 2})
ACKS = NAMES.acks("default")
DESK = Desk(names=NAMES, layout=LAYOUT, queue="default", worker="w")
JOB = anonymous_id(1_000, 1)
START = Ack(
    job_id=JOB, occurrence_id=JOB, run=1, attempt=2, token=9, worker="old", handler="work",
    state=AckState.STARTED, at=1, work_offset=7,
)  # fmt: skip
RUN = Run(
    job_id=JOB, occurrence_id=JOB, due_at=1, run=1, queue="default", handler="work", created_at=1,
    nominal_at=1, idempotency_key=JOB, payload=b"{}",
)  # fmt: skip


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.events.append((action, fields))


def key_of(ack: Ack) -> bytes:
    return keys.started_key(ack.occurrence_id, ack.run, ack.token)


def restored(acks: Sequence[tuple[bytes, Ack]], committed: CommittedOffset | None = None) -> Lane:
    """A lane that found these records on its acks partition, its own takeover record last."""
    cluster = MemoryCluster(MemoryClock().now)
    cluster.create_topic(ACKS, 1)
    appender, lane = MemoryAppender(cluster), Lane(0)
    lane.opened(committed)
    for key, ack in acks:
        appender.append(Put(ACKS, 0, key, codec.ACK.encode(ack)))
    own = Takeover(process="w", transactional_ids=(), generation=1, nonce="0" * 24, at=1)
    appender.append(lane.takeover(own, ACKS))
    assert lane.restore(MemoryReader(cluster).tail(ACKS, 0, 0, 10_000))
    return lane


def took_over(cluster: MemoryCluster, committed: CommittedOffset | None) -> Lane:
    """The lane of the next owner, which goes on from what was committed."""
    lane = Lane(0)
    lane.opened(committed)
    own = Takeover(
        process="w", transactional_ids=(), generation=1, nonce=f"{cluster.partition(ACKS, 0).end}", at=1
    )
    MemoryAppender(cluster).append(lane.takeover(own, ACKS))
    assert lane.restore(MemoryReader(cluster).tail(ACKS, 0, lane.acks_next, 10_000))
    return lane


def readable(lane: Lane) -> offset_metadata.OffsetMetadata:
    committed = lane.committable([])
    return offset_metadata.decode(committed.offset, committed.metadata)


def test_a_start_of_an_earlier_worker_is_learnt() -> None:
    lane = restored([(key_of(START), START)])
    assert readable(lane).started == ((7, offset_metadata.Start(2, 9, "old")),)


@pytest.mark.parametrize(
    "change",
    [
        {"worker": "a;b"},
        {"worker": ""},
        {"token": 0},
        {"token": -1},
        {"attempt": 0},
        {"attempt": -3},
        {"work_offset": -1},
        {"state": AckState.SUCCEEDED},
    ],
    ids=str,
)
def test_a_start_that_no_worker_writes_is_ignored(change: dict[str, Any]) -> None:
    ack = replace(START, **change)
    # An illegal token has no legal key; the record may claim one all the same.
    lane = restored([(key_of(ack) if ack.token > 0 else key_of(START), ack)])
    assert readable(lane).started == ()


@pytest.mark.parametrize(
    "change", [{"token": 10}, {"run": 2}, {"occurrence_id": anonymous_id(1, 2)}], ids=str
)
def test_a_start_under_the_key_of_another_is_ignored(change: dict[str, Any]) -> None:
    assert readable(restored([(key_of(replace(START, **change)), START)])).started == ()


def test_starts_at_offsets_that_never_come_do_not_close_the_window() -> None:
    forged = [
        replace(START, work_offset=(1 << 62) + n, token=(1 << 62) + n, worker="x" * 80)
        for n in range(LEARNT_LIMIT * 2)
    ]
    lane = restored([(key_of(ack), ack) for ack in [*forged, START]])
    assert lane.tracker.room()
    assert readable(lane).started[0] == (7, offset_metadata.Start(2, 9, "old"))


def test_of_many_starts_those_at_the_lowest_offsets_are_kept() -> None:
    many = [replace(START, work_offset=n) for n in range(LEARNT_LIMIT * 2)]
    lane = restored([(key_of(ack), ack) for ack in reversed(many)])
    kept = [offset for offset, _ in readable(lane).started]
    assert kept == list(range(len(kept)))
    assert 400 < len(kept) < LEARNT_LIMIT  # as many as a broker takes, which is more than a window holds


def test_what_finished_takes_no_place_among_the_starts() -> None:
    known = offset_metadata.encode(5, offset_metadata.OffsetMetadata(finished=((7, 8), (10, 1 << 40))))
    acks = [replace(START, work_offset=n) for n in (4, 5, 7, 8, 9, 10, 1 << 40)]
    lane = restored([(key_of(ack), ack) for ack in acks], CommittedOffset(5, known))
    assert [offset for offset, _ in readable(lane).started] == [5, 9]


def test_a_release_that_came_before_its_run_is_known_to_the_next_owner_too() -> None:
    """Its run has not been delivered, so the metadata still shows the start. Without the release whoever reads that
    waits for a holder that lives and holds nothing; and if it is the holder itself, the run spends an attempt."""
    cluster = MemoryCluster(MemoryClock().now)
    cluster.create_topic(ACKS, 1)
    appender, released = MemoryAppender(cluster), replace(START, state=AckState.RELEASED)
    appender.append(Put(ACKS, 0, key_of(START), codec.ACK.encode(START)))
    first = took_over(cluster, None)
    appender.append(Put(ACKS, 0, key_of(START), codec.ACK.encode(released)))
    first.follow(MemoryReader(cluster).tail(ACKS, 0, first.acks_next, 10_000))
    assert readable(first).started == ((7, Start(2, 9, "old")),)
    second = took_over(cluster, first.committable([]))
    assert readable(second).started == ((7, Start(1, 9, NOBODY)),)


# -- a partition that may not be opened


class Listener:
    def assigned(self, partitions: Sequence[int]) -> dict[int, int]:
        return {}

    def revoked(self, partitions: Sequence[int]) -> None: ...

    def lost(self, partitions: Sequence[int]) -> None: ...


def test_metadata_of_another_version_stops_only_its_partition() -> None:
    clock, told = MemoryClock(), Told()
    cluster = MemoryCluster(clock.now)
    for topic in (NAMES.work("default"), ACKS, NAMES.fleet):
        cluster.create_topic(topic, 2)
    log = MemoryGroupLog(cluster, NAMES.work("default"), NAMES.worker_group("default"), Listener(), ["t.w"])
    log.poll(1, 0)
    log.commit([], {1: CommittedOffset(3, "2;whatever")}, log.membership())
    appended: list[Exception | None] = []
    takeover = LaneTakeover(
        log=log, appender=MemoryAppender(cluster), reader=MemoryReader(cluster), desk=DESK, clock=clock,
        random=Random(1), identity=Identity(process="w", host="h", pid=1, version="0", started_at=0),
        events=told, guards=None, heartbeat_timeout_ms=3_000,
        appended=lambda error, _offset, _at: appended.append(error),
    )  # fmt: skip
    lanes = [Lane(0), Lane(1)]
    for _ in range(3):
        takeover.advance(lanes)
    assert [lane.state for lane in lanes] == [PartitionState.RUNNING, PartitionState.CLOSED]
    (stopped,) = [fields for action, fields in told.events if action == "partition_stopped"]
    assert (stopped["queue"], stopped["partition"]) == ("default", 1)
    assert "version '2'" in stopped["reason"]
    assert lanes[1].stuck_since is None


# -- runs without a home


def flight_of(job_id: str) -> Flight:
    delivery = Delivery(offset=7, run=replace(RUN, job_id=job_id), fired_at=1)
    return Flight(lane=Lane(1), delivery=delivery, attempt=1, token=9, started_at=1)


def test_the_dead_letter_of_a_run_without_a_home_goes_to_partition_0() -> None:
    decision = DeadEnd(reason="max_attempts", error=Failure(type="E", message="no"))
    _, letter = DESK.settle(flight_of("nonsense"), decision, 5)
    assert (letter.topic, letter.partition) == (NAMES.dead, 0)
    _, letter = DESK.settle(flight_of(JOB), decision, 5)
    assert letter.partition == LAYOUT.home(JOB)


@pytest.mark.parametrize("error", [None, Failure(type="E", message="no")])
def test_a_retry_that_has_no_home_ends_the_run_as_dead(error: Failure | None) -> None:
    decision = Retrying(at=Millis(9), failures=1, error=error, spends=True)
    ack, letter = DESK.settle(flight_of("nonsense"), decision, 5)
    assert codec.ACK.decode(ack.value or b"").state is AckState.DEAD
    told = codec.DEAD_LETTER.decode(letter.value or b"")
    assert told.reason == "no_home"
    assert "no" in told.detail


def test_a_full_window_forgets_no_start_of_its_holders() -> None:
    """Each of these runs is being executed by somebody: one forgotten would start a second time."""
    full = AckTracker.from_committed(0, "")
    while full.room():
        offset = full.next_offset
        full.deliver(offset)
        full.begin(offset, Start(1, START.token, START.worker))
    lane = restored([], CommittedOffset(*full.committable()))
    assert len(readable(lane).started) == full.in_flight
    lane.deliver(0)
    lane.wait(Delivery(0, RUN, 0))
    assert [delivery.offset for delivery in lane.startable(9)] == [0]  # it replaces one
