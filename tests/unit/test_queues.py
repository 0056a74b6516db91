"""A queue that is paused or purged: what its workers start, end and tell (docs/queues.md)."""

from __future__ import annotations

from typing import Any

import pytest
from unit.shop import LAYOUT, NAMES, Shop, steps, wait_out

from pipeline import codec
from pipeline.adapters.memory import MemoryClock, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.core import offset_metadata, queues
from pipeline.core.errors import StoreUnreachable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, Run
from pipeline.core.keys import queue_key
from pipeline.core.offset_metadata import OffsetMetadata, Start
from pipeline.core.queues import Gate, Pause, Purge, QueueState
from pipeline.core.states import PartitionState
from pipeline.lane import Delivery, Flight, Lane
from pipeline.ports import CommittedOffset, Put
from pipeline.queues import QueueWatch, Waiting, ends_of, open_runs, read_states, waiting
from pipeline.worker import Worker

PAUSE = Pause(by="ann@h1", at=7, reason="the mail server is down")


class Desk:
    """What an operator does to the queue of a shop."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.state: QueueState | None = None
        shop.cluster.create_topic(NAMES.meta, 1)

    def write(self, value: bytes) -> None:
        self.shop.client.append(Put(NAMES.meta, 0, queue_key("default"), value))

    def _now(self, state: QueueState | None) -> None:
        assert state is not None
        self.state = state
        self.write(codec.EVENT.encode(queues.to_event(state)))

    def pause(self) -> None:
        self._now(queues.paused(self.state, "default", PAUSE))

    def resume(self) -> None:
        self._now(queues.resumed(self.state, "default", "bob@h2", 9))

    def purge(self, *ends: int) -> None:
        purge = Purge(id="p1", by="bob@h2", at=9, topic_id="", ends=ends)
        self._now(queues.purged(self.state, "default", purge))


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def desk(shop: Shop) -> Desk:
    return Desk(shop)


def begin(shop: Shop, name: str = "w", **limits: int) -> Worker:
    worker = shop.worker(name, **limits)
    steps(worker)
    return worker


def states(shop: Shop) -> list[AckState]:
    return [ack.state for ack in shop.terminal()]


def committed(shop: Shop) -> CommittedOffset:
    return shop.cluster.group(NAMES.worker_group("default"), NAMES.work("default")).committed[0]


# -- paused -------------------------------------------------------------------------------------------------


def test_nothing_starts_while_paused_what_runs_finishes_and_it_goes_on_when_resumed(
    shop: Shop, desk: Desk
) -> None:
    worker = begin(shop)
    shop.executors["w"].hold_begun = True
    shop.fire()
    steps(worker)
    desk.pause()
    wait_out(shop, worker, 1_000)
    for _ in range(3):
        shop.fire()
    wait_out(shop, worker, 2_000)
    assert (len(shop.started()), shop.terminal()) == (1, [])
    shop.executors["w"].hold_begun = False
    wait_out(shop, worker, 2_000)
    assert (len(shop.started()), states(shop)) == (1, [AckState.SUCCEEDED])
    assert not worker.busy
    desk.resume()
    wait_out(shop, worker, 1_000)
    assert states(shop) == [AckState.SUCCEEDED] * 4
    assert [line for line in shop.told.lines if line.startswith("queue")] == ["queue_paused", "queue_open"]


def test_a_worker_that_begins_under_a_pause_starts_nothing(shop: Shop, desk: Desk) -> None:
    desk.pause()
    shop.fire()
    worker = begin(shop)
    wait_out(shop, worker)
    assert shop.started() == []
    assert worker.idle, "a burst is over though something waits"
    assert worker.step(0) == 100, "and nobody looks for it a hundred times a second"


def test_one_that_has_not_read_it_yet_starts_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    read, down = MemoryReader.partitions, [True]

    def failing(self: MemoryReader, topic: str) -> int:
        if topic == NAMES.meta and down[0]:
            raise StoreUnreachable("no broker answered for 8 s")
        return read(self, topic)

    monkeypatch.setattr(MemoryReader, "partitions", failing)
    shop.fire()
    worker = begin(shop)
    wait_out(shop, worker, 1_000)
    assert shop.started() == []
    assert "queues_unknown" in shop.told.lines
    down[0] = False
    wait_out(shop, worker, 1_000)
    assert states(shop) == [AckState.SUCCEEDED]


def test_one_that_cannot_read_on_goes_by_what_it_knew(
    shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = begin(shop)
    tail = MemoryReader.tail

    def failing(self: MemoryReader, topic: str, *more: Any) -> Any:
        if topic == NAMES.meta:
            raise StoreUnreachable("no broker answered for 8 s")
        return tail(self, topic, *more)

    monkeypatch.setattr(MemoryReader, "tail", failing)
    shop.fire()
    wait_out(shop, worker, 1_000)
    assert states(shop) == [AckState.SUCCEEDED]


def test_what_nobody_can_read_may_be_a_pause_and_is_mended_by_the_next_word(shop: Shop, desk: Desk) -> None:
    worker = begin(shop)
    desk.write(b"\xc3\x01nonsense")
    wait_out(shop, worker, 1_000)
    shop.fire()
    wait_out(shop, worker, 1_000)
    assert (shop.started(), shop.told.lines.count("queue_paused")) == ([], 1)
    desk.state = queues.unreadable("default")
    desk.resume()
    wait_out(shop, worker, 1_000)
    assert states(shop) == [AckState.SUCCEEDED]


def test_a_run_whose_handler_nobody_knows_does_not_die_of_a_pause(shop: Shop, desk: Desk) -> None:
    desk.pause()
    shop.fire(handler="later")
    worker = begin(shop, unknown_handler_ms=1_000)
    wait_out(shop, worker)
    assert (worker.parked, shop.dead()) == (1, [])
    desk.resume()
    wait_out(shop, worker, 1_000)
    assert len(shop.dead()) == 1


def test_a_stale_holder_s_run_waits_for_the_end_of_the_pause(shop: Shop, desk: Desk) -> None:
    old = begin(shop, "old")
    shop.executors["old"].hold_begun = True
    shop.fire()
    steps(old)
    desk.pause()
    shop.logs["old"].expire()  # it was killed
    worker = begin(shop)
    wait_out(shop, worker, 20_000)
    assert (len(shop.started()), worker.step(0)) == (1, 100)
    desk.purge(9, 0)
    wait_out(shop, worker, 1_000)
    assert (shop.terminal(), worker.step(0)) == ([], 100)
    desk.resume()
    wait_out(shop, worker, 1_000)
    assert [ack.attempt for ack in shop.started()] == [1, 2]
    assert states(shop) == [AckState.SUCCEEDED]


# -- purged -------------------------------------------------------------------------------------------------


def test_what_waits_ends_as_cancelled_and_nothing_that_came_after(shop: Shop, desk: Desk) -> None:
    desk.pause()
    gone = [shop.fire() for _ in range(3)] + [shop.fire(key="invoice-55", serial="s"), shop.fire(serial="s")]
    shop.fire()
    worker = begin(shop)
    desk.purge(5, 0)
    wait_out(shop, worker, 2_000)
    ended = [(ack.occurrence_id, ack.state, ack.attempt) for ack in shop.terminal()]
    assert ended == [(run.occurrence_id, AckState.CANCELLED, 1) for run in gone]
    assert {ack.error.message for ack in shop.terminal() if ack.error} == {"purge p1 of the queue by bob@h2"}
    assert (shop.started(), committed(shop).offset) == ([], 5)
    done = [codec.EVENT.decode(value) for value in shop._values(NAMES.jobs, b"d/")]
    assert [(event.occurrence_id, event.outcome) for event in done] == [(gone[3].occurrence_id, "cancelled")]
    desk.resume()
    wait_out(shop, worker, 1_000)
    assert states(shop)[5:] == [AckState.SUCCEEDED]


def test_what_runs_is_not_purged_and_holds_back_nobody(shop: Shop, desk: Desk) -> None:
    """Not even where all places are taken, and its serial group is busy."""
    worker = begin(shop, concurrency=1)
    shop.executors["w"].hold_begun = True
    runs = [shop.fire(serial="s") for _ in range(4)]
    steps(worker)
    desk.purge(4, 0)
    wait_out(shop, worker, 2_000)
    assert [ack.occurrence_id for ack in shop.terminal()] == [run.occurrence_id for run in runs[1:]]
    shop.executors["w"].hold_begun = False
    wait_out(shop, worker, 1_000)
    assert states(shop) == [AckState.CANCELLED] * 3 + [AckState.SUCCEEDED]
    assert committed(shop).offset == 4


def test_what_was_started_and_lost_its_worker_is_not_purged(shop: Shop, desk: Desk) -> None:
    old = begin(shop, "old")
    shop.executors["old"].hold_begun = True
    shop.fire()
    steps(old)
    shop.fire()
    desk.purge(2, 0)
    shop.logs["old"].expire()
    worker = begin(shop)
    wait_out(shop, worker, 20_000)
    assert sorted(states(shop)) == [AckState.CANCELLED, AckState.SUCCEEDED]
    assert [ack.attempt for ack in shop.terminal() if ack.state is AckState.SUCCEEDED] == [2]


def test_the_next_owner_goes_on_with_it(shop: Shop, desk: Desk) -> None:
    for _ in range(3):
        shop.fire()
    desk.purge(3, 0)
    worker = begin(shop)
    assert states(shop) == [AckState.CANCELLED] * 3
    shop.fire()
    wait_out(shop, worker, 1_000)
    worker.leave(0)
    worker.close()
    begin(shop, "after")
    assert states(shop) == [AckState.CANCELLED] * 3 + [AckState.SUCCEEDED]


def test_parked_and_unreadable_runs_are_ended_too(shop: Shop, desk: Desk) -> None:
    desk.pause()
    shop.client.append(Put(NAMES.work("default"), 0, b"x", b"nonsense"))
    shop.fire(handler="later")
    worker = begin(shop)
    assert worker.parked == 1
    desk.purge(2, 0)
    wait_out(shop, worker, 2_000)
    assert (states(shop), worker.parked) == ([AckState.CANCELLED], 0)
    assert [letter.reason for letter in shop.dead()] == ["undecodable"], "nothing is lost without a word"
    assert committed(shop).offset == 2


def test_a_large_queue_is_purged_piece_by_piece(shop: Shop, desk: Desk) -> None:
    """The first run is under way, so all of it stands in the metadata of the offset."""
    worker = begin(shop, concurrency=1)
    shop.executors["w"].hold_begun = True
    for _ in range(700):
        shop.fire()
    steps(worker)
    desk.purge(600, 0)
    shop.clock.advance(500)
    steps(worker, 2)
    assert 0 < len(shop.terminal()) < 599
    wait_out(shop, worker)
    assert states(shop) == [AckState.CANCELLED] * 599
    assert 2 < shop.told.lines.count("purged") < 20
    assert (committed(shop).offset, len(committed(shop).metadata) < 100) == (0, True)


def test_pieces_between_runs_that_were_started_fit_the_metadata_too() -> None:
    lane = Lane(0, Gate(ends=(10_000,)))
    lane.opened(None)
    lane.state = lane.state.advance(PartitionState.RUNNING)
    offset = 0
    while lane.tracker.room() > 100:
        for started in (True, False):
            assert lane.deliver(offset)
            if started:
                lane.tracker.begin(offset, Start(1, 9, "w"))
            else:
                lane.wait(delivery(offset))
            offset += 1
    taken = lane.purged()
    assert 0 < len(taken) < offset // 2
    for each in taken:
        lane.flights[each.offset] = Flight(lane=lane, delivery=each, attempt=1, token=0, started_at=0)
    assert lane.purged() == [], "not before those have committed"
    ending = [each.offset for each in taken]
    assert len(lane.committable(ending).metadata) <= 3_500
    lane.finished(ending)
    assert [each.offset for each in lane.waiting][:1] == [ending[-1] + 2]


def delivery(offset: int) -> Delivery:
    id_ = anonymous_id(1_000, offset)
    run = Run(
        job_id=id_, occurrence_id=id_, due_at=1, run=1, queue="default", handler="work", created_at=1,
        nominal_at=1, idempotency_key=id_, payload=b"{}",
    )  # fmt: skip
    return Delivery(offset, run, 1)


# -- what is read -------------------------------------------------------------------------------------------


def test_a_gate_that_is_asked_for_later_knows_what_was_read(shop: Shop, desk: Desk) -> None:
    desk.pause()
    watch = QueueWatch(reader=MemoryReader(shop.cluster), meta=NAMES.meta, clock=shop.clock, events=shop.told)
    first = watch.gate("other", "")
    assert first.closed
    watch.look()
    assert not first.closed
    assert watch.gate("default", "").closed
    assert not watch.gate("third", "").closed


def test_states_are_read_by_queue(shop: Shop, desk: Desk) -> None:
    reader = MemoryReader(shop.cluster)
    assert read_states(reader, "nowhere") == {}
    desk.pause()
    desk.purge(1, 0)
    assert read_states(reader, NAMES.meta) == {"default": desk.state}
    desk.write(b"nonsense")
    assert read_states(reader, NAMES.meta) == {"default": queues.unreadable("default")}


def emitted(cluster: MemoryCluster, clock: MemoryClock, count: int) -> None:
    for _ in range(count):
        cluster.append(Put(NAMES.work("default"), 0, b"k", b"v"))
        clock.advance(10)


def test_what_waits_is_counted_without_what_has_finished_or_was_started() -> None:
    clock = MemoryClock(1_000)
    cluster = MemoryCluster(clock.now)
    cluster.create_topic(NAMES.work("default"), 2)
    cluster.create_topic(NAMES.acks("default"), 2)
    scan, count = MemoryScan(cluster), LAYOUT.queues["default"]
    assert waiting(scan, NAMES, "default", count) == Waiting()
    emitted(cluster, clock, 10)
    assert waiting(scan, NAMES, "default", count) == Waiting(count=10, oldest=1_000)
    assert ends_of(scan, NAMES.work("default"), count) == (10, 0)
    assert ends_of(scan, NAMES.work("default"), count, before=1_035) == (4, 0)
    assert waiting(scan, NAMES, "default", count, (4, 0)) == Waiting(count=4, oldest=1_000)
    known = OffsetMetadata(acks_offset=1, finished=((5, 6),), started=((3, Start(1, 9, "w")),))
    group = cluster.group(NAMES.worker_group("default"), NAMES.work("default"))
    group.committed[0] = CommittedOffset(3, offset_metadata.encode(3, known))
    assert waiting(scan, NAMES, "default", count) == Waiting(count=4, oldest=1_040)
    left = [(record.offset(), started) for record, started in open_runs(scan, NAMES, "default", count)]
    assert left == [(3, True), *((offset, False) for offset in (4, 7, 8, 9))]
    group.committed[0] = CommittedOffset(3, "of a later version")
    assert waiting(scan, NAMES, "default", count) == Waiting(count=7, oldest=1_030)


def test_what_was_started_since_the_last_commit_does_not_wait(shop: Shop) -> None:
    worker, scan = begin(shop, concurrency=1), MemoryScan(shop.cluster)
    shop.executors["w"].hold_begun = True
    for _ in range(3):
        shop.fire()
    shop.client.append(Put(NAMES.acks("default"), 0, b"s/x/1/1", b"nonsense"))
    steps(worker)
    assert waiting(scan, NAMES, "default", LAYOUT.queues["default"]).count == 2
    worker.leave(0)
    assert waiting(scan, NAMES, "default", LAYOUT.queues["default"]).count == 3, "it was given back"
