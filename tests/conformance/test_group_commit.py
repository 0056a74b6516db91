"""The committing half of the `GroupLog` port, over memory and the real broker, and faults of each."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline.adapters.kafka_log import KafkaGroupLog, parse_group_metadata
from pipeline.adapters.memory import CommitFault, MemoryGroupLog
from pipeline.core.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PoisonRecord,
    RebuildClients,
    RebuildPartition,
    RetryStep,
)
from pipeline.ports import CommittedOffset


def keys(records: Any) -> list[bytes]:
    return [r.key() for r in records]


# -- committing ---------------------------------------------------------------------------------------------


def test_a_commit_is_atomic_over_topics_and_offsets(world: Any) -> None:
    log = world.joined(world.log())
    puts = [world.put(0, "k", None), world.put(1, "w", topic=world.other), world.put(2, "j")]
    log.commit(puts, {0: CommittedOffset(0, "meta"), 2: CommittedOffset(7)}, log.membership())
    world.holds([None], 0)
    world.holds([b"v"], 1, world.other)
    world.holds([b"v"], 2)
    assert log.committed([0, 1, 2], 5_000) == {0: CommittedOffset(0, "meta"), 1: None, 2: CommittedOffset(7)}


def test_consecutive_commits_on_a_ring_of_ids(world: Any) -> None:
    log = world.joined(world.log(ids=("a", "b", "c")))
    assert len(log.transactional_ids) == 3
    for n in range(7):
        log.commit([world.put(0, f"k{n}", b"%d" % n)], {0: CommittedOffset(n)}, log.membership())
    world.holds([b"%d" % n for n in range(7)], 0)
    assert log.committed([0], 5_000) == {0: CommittedOffset(6)}


def test_a_commit_of_offsets_alone(world: Any) -> None:
    log = world.joined(world.log())
    log.commit([], {1: CommittedOffset(3, "x" * 3_500)}, log.membership())
    assert log.committed([1], 5_000) == {1: CommittedOffset(3, "x" * 3_500)}


def test_committed_survives_the_member(world: Any) -> None:
    log = world.joined(world.log())
    log.commit([], {1: CommittedOffset(3, "m")}, log.membership())
    log.close()
    world.opened.remove(log)
    assert world.joined(world.log()).committed([1], 5_000) == {1: CommittedOffset(3, "m")}


@pytest.mark.parametrize(
    "offsets", [{}, {0: CommittedOffset(-1001)}, {0: CommittedOffset(1), 1: CommittedOffset(-1)}]
)
def test_h4_a_commit_without_a_real_offset_is_refused(
    world: Any, offsets: dict[int, CommittedOffset]
) -> None:
    """The client would report success, send no offsets, and commit unfenced (H4)."""
    log = world.joined(world.log())
    with pytest.raises(ValueError, match="real offset"):
        log.commit([world.put(0, "k")], offsets, log.membership())
    assert world.values(0) == []


def test_offsets_of_a_partition_not_owned_are_refused(world: Any) -> None:
    log = world.joined(world.log())
    with pytest.raises(ValueError, match="not in"):
        log.commit([], world.at(99), log.membership())


def test_h2_a_stale_generation_is_refused_and_leaves_nothing(world: Any, listener: Any) -> None:
    a = world.joined(world.log())
    stale = a.membership()
    b = world.log(listener(), ids=("b",))
    world.shared(a, b)
    kept = min(a.membership().owned)
    with pytest.raises(RetryStep):
        a.commit([world.put(kept, "stale")], world.at(kept), stale)
    assert world.values(kept) == []
    a.commit([world.put(kept, "fresh", b"fresh")], world.at(kept), a.membership())
    world.holds([b"fresh"], kept)


def test_the_membership_of_a_member_that_left_is_refused(world: Any) -> None:
    a = world.joined(world.log())
    gone = a.membership()
    a.close()
    world.opened.remove(a)
    b = world.joined(world.log(ids=("b",)))
    with pytest.raises(RetryStep):
        b.commit([world.put(0, "k")], world.at(0), gone)
    assert world.values(0) == []


def test_a_record_that_no_broker_takes_is_poison_and_the_rest_is_aborted(world: Any) -> None:
    log = world.joined(world.log())
    world.abort(log, world.put(0, "good"))
    assert world.values(0) == []
    log.commit([world.put(0, "good", b"good")], world.at(0), log.membership())
    world.holds([b"good"], 0)


def test_a_partition_that_does_not_exist_is_poison(world: Any) -> None:
    log = world.joined(world.log())
    with pytest.raises(PoisonRecord):
        log.commit([world.put(0, "k"), world.put(77, "k")], world.at(0), log.membership())
    log.commit([world.put(0, "k", b"good")], world.at(0), log.membership())
    world.holds([b"good"], 0)


def test_a_newer_producer_with_the_same_id_fences_the_older(world: Any, listener: Any) -> None:
    a = world.joined(world.log())
    b = world.log(listener({}))
    with pytest.raises(RebuildClients):
        a.commit([world.put(0, "k")], world.at(0), a.membership())
    assert world.values(0) == []
    world.shared(a, b)
    mine = min(b.membership().owned)
    b.commit([world.put(mine, "k")], world.at(mine), b.membership())
    world.holds([b"v"], mine)


def test_fence_ends_another_id(world: Any, listener: Any) -> None:
    a = world.joined(world.log())
    b = world.log(listener({}), ids=("b",))
    b.fence(a.transactional_ids[0])
    with pytest.raises(RebuildClients):
        a.commit([world.put(0, "k")], world.at(0), a.membership())


def test_fence_of_an_id_nobody_uses_does_nothing(world: Any) -> None:
    log = world.joined(world.log())
    log.fence(f"{world.prefix}.nobody")
    log.commit([world.put(0, "k")], world.at(0), log.membership())


def test_our_own_id_is_never_fenced(world: Any) -> None:
    log = world.log()
    with pytest.raises(ValueError, match="our own"):
        log.fence(log.transactional_ids[0])


# -- what only the real client can show ---------------------------------------------------------------------


def test_a_static_member_is_refused(kafka: Any, listener: Any) -> None:
    with pytest.raises(InvalidInput, match=r"group\.instance\.id"):
        KafkaGroupLog(
            kafka.bootstrap, kafka.topic, "g", listener(), ["x"], 6_000, {"group.instance.id": "me"}
        )


def test_an_unknown_topic_is_named(kafka: Any, listener: Any) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        KafkaGroupLog(kafka.bootstrap, f"{kafka.prefix}.nowhere", "g", listener(), ["x"], 6_000, {})


def test_h18_an_open_transaction_hides_what_follows_until_it_is_fenced(kafka: Any) -> None:
    """And its pending offsets are not stable: a new owner must not go on from below them."""
    log = kafka.joined(kafka.log())
    frozen = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{kafka.prefix}.frozen"})
    frozen.init_transactions(10)
    frozen.begin_transaction()
    frozen.produce(kafka.topic, b"open", b"k", 0)
    frozen.flush(10)
    place = TopicPartition(kafka.topic, 0, 5)
    frozen.send_offsets_to_transaction([place], log.membership().opaque, 10)
    kafka.append(kafka.put(0, "behind"))
    assert log.poll(10, 300) == []
    assert log.committed([0, 1], 2_000) == {1: None}
    log.fence(f"{kafka.prefix}.frozen")
    assert keys(kafka.collect(log, 1)) == [b"behind"]
    assert log.committed([0], 5_000) == {0: None}
    with contextlib.suppress(KafkaException):
        frozen.close()


@pytest.mark.parametrize(
    "opaque",
    [
        b"",
        b"CGMDv2:",
        b"CGMDv1:\x01\x00\x00\x00group\0member\0\x01",
        b"CGMDv2:\x01\x00\x00\x00group\0member\0\x00instance\0",
        b"CGMDv2:\x01\x00\x00\x00group\0member\0\x01more\0",
    ],
)
def test_group_metadata_of_another_form_is_refused(opaque: bytes) -> None:
    with pytest.raises(RetryStep):
        parse_group_metadata(opaque)


def test_a_position_deleted_under_the_reader_needs_new_clients(kafka: Any, listener: Any) -> None:
    log = kafka.joined(kafka.log())
    log.pause([0])
    kafka.append(*(kafka.put(0, f"k{n}") for n in range(3)))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([TopicPartition(kafka.topic, 0, 2)])[TopicPartition(kafka.topic, 0, 2)].result(10)
    log._consumer.resume([TopicPartition(kafka.topic, 0)])
    with pytest.raises(RebuildPartition, match="partition 0"):
        kafka.eventually(lambda: False, log)
    log.start(0, -1)
    with pytest.raises(RebuildClients, match="cannot be started again"):
        log.poll(10, 50)
    log.close()
    kafka.opened.remove(log)
    assert keys(kafka.collect(again := kafka.log(listener({0: -1})), 1)) == [b"k2"]
    assert again.positions()[0] == 3


# -- faults that only memory can produce at will ------------------------------------------------------------


def test_memory_open_transaction_hides_what_follows(memory: Any) -> None:
    """The same as above, by the hook that freezes a commit between its stages."""
    a = memory.joined(memory.log())
    seen: list[Any] = []

    def frozen(stage: str, transactional_id: str) -> None:
        if stage == "commit":
            memory.append(memory.put(0, "behind"))
            seen.append((a.poll(10, 0), memory.values(0), a.committed([0], 10)))

    memory.cluster.hook = frozen
    a.commit([memory.put(0, "k")], memory.at(0), a.membership())
    assert seen == [([], [], {})]
    assert memory.values(0) == [b"v", b"v"]
    assert a.committed([0], 10) == {0: CommittedOffset(0)}


def test_memory_commit_after_the_partition_moved_is_accepted_once_its_offsets_were(memory: Any) -> None:
    """F2: frozen between send_offsets and commit, expired, thawed: only the takeover record helps."""
    a = memory.joined(memory.log())
    memory.cluster.hook = lambda stage, id_: a.expire() if stage == "commit" else None
    a.commit([memory.put(0, "late")], memory.at(0), a.membership())
    assert memory.values(0) == [b"v"]


def test_memory_frozen_before_its_offsets_is_refused(memory: Any, listener: Any) -> None:
    one = listener()
    a = memory.joined(memory.log(one))
    memory.cluster.hook = lambda stage, id_: a.expire() if stage == "offsets" else None
    with pytest.raises(RetryStep):
        a.commit([memory.put(0, "late")], memory.at(0), a.membership())
    assert memory.values(0) == []
    with pytest.raises(RetryStep):
        a.membership()
    memory.joined(a)
    assert [what for what, _ in one.told] == ["assigned", "lost", "assigned"]


def test_memory_timed_out_transaction_is_fatal(memory: Any) -> None:
    a = memory.joined(memory.log())
    memory.cluster.hook = lambda stage, id_: memory.cluster.time_out(id_) if stage == "commit" else None
    with pytest.raises(RebuildClients):
        a.commit([memory.put(0, "late")], memory.at(0), a.membership())
    assert memory.values(0) == []


@pytest.mark.parametrize(
    ("fault", "error", "stored"),
    [
        (CommitFault.REFUSED, RetryStep, []),
        (CommitFault.UNKNOWN_ABORTED, OutcomeUnknown, []),
        (CommitFault.UNKNOWN_COMMITTED, OutcomeUnknown, [b"v"]),
    ],
)
def test_memory_commit_faults(
    memory: Any, fault: CommitFault, error: type[Exception], stored: list[bytes]
) -> None:
    a = memory.joined(memory.log())
    assert isinstance(a, MemoryGroupLog)
    a.faults.append(fault)
    with pytest.raises(error):
        a.commit([memory.put(0, "k")], memory.at(0), a.membership())
    assert memory.values(0) == stored
    a.commit([memory.put(1, "k")], memory.at(1), a.membership())
    assert memory.values(1) == [b"v"]


def test_memory_compaction_keeps_the_last_of_each_key_and_the_offsets(memory: Any) -> None:
    memory.append(
        memory.put(0, "a"), memory.put(0, "b"), memory.put(0, "a", b"new"), memory.put(0, "b", None)
    )
    memory.abort(memory.joined(memory.log()), memory.put(0, "a", b"aborted"))
    partition = memory.cluster.partition(memory.topic, 0)
    partition.compact()
    assert [(r.offset(), r.value()) for r in memory.reader().read(memory.topic, 0)] == [
        (2, b"new"),
        (3, None),
    ]
    partition.compact(drop_tombstones=True)
    assert memory.values(0) == [b"new"]
    assert partition.end == 6
