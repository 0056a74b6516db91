"""The `GroupLog` port over memory and the real broker: what DESIGN §5 takes for granted."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.core.errors import (
    RebuildPartition,
    RetryStep,
)
from pipeline.ports import Put


def keys(records: Any) -> list[bytes]:
    return [r.key() for r in records]


# -- reading ------------------------------------------------------------------------------------------------


def test_records_come_in_order_with_everything_they_carry(world: Any) -> None:
    log = world.joined(world.log())
    headers = [("end", b"fired"), ("run", b"\0\xff")]
    world.append(Put(world.topic, 1, b"k1", b"v1", headers), world.put(1, "k2"), world.put(1, "k3"))
    records = world.collect(log, 3)
    first = records[0]
    assert keys(records) == [b"k1", b"k2", b"k3"]
    assert [r.offset() for r in records] == [0, 1, 2]
    assert (first.topic(), first.partition(), first.value()) == (world.topic, 1, b"v1")
    assert list(first.headers()) == headers
    kind, at = first.timestamp()
    assert kind == 2
    assert at > 1_600_000_000_000


def test_tombstones_are_delivered(world: Any) -> None:
    """They are falsy: one `if record` in the way and a job fires twice."""
    log = world.joined(world.log())
    world.append(world.put(0, "k"), world.put(0, "k", None))
    records = world.collect(log, 2)
    assert [r.value() for r in records] == [b"v", None]
    assert not records[1]


def test_the_limit_is_kept_and_nothing_is_lost_to_it(world: Any) -> None:
    log = world.joined(world.log())
    world.append(*(world.put(n % 4, f"k{n}") for n in range(40)))
    seen: list[bytes] = []
    while len(seen) < 40:
        batch = log.poll(3, 50)
        assert len(batch) <= 3
        seen += keys(batch)
    assert sorted(seen) == sorted(b"k%d" % n for n in range(40))


def test_h15_positions_pass_the_markers_at_the_end(world: Any) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "k")], world.at(0), log.membership())
    world.eventually(lambda: log.positions()[0] == 2, log)


def test_h15_positions_pass_an_aborted_tail(world: Any) -> None:
    log = world.joined(world.log())
    world.abort(log, world.put(0, "aborted"))
    world.eventually(lambda: log.positions()[0] == 2, log)


def test_pause_and_resume(world: Any) -> None:
    log = world.joined(world.log())
    log.pause([0])
    world.append(world.put(0, "paused"), world.put(1, "flowing"))
    assert keys(world.collect(log, 1)) == [b"flowing"]
    assert keys(log.poll(10, 200)) == []
    log.resume([0], {})
    assert keys(world.collect(log, 1)) == [b"paused"]


def test_resume_at_an_earlier_position_delivers_again(world: Any) -> None:
    log = world.joined(world.log())
    world.append(*(world.put(0, f"k{n}") for n in range(3)))
    world.collect(log, 3)
    log.pause([0])
    log.resume([0], {0: 1})
    assert keys(world.collect(log, 2)) == [b"k1", b"k2"]


def test_nothing_comes_before_the_start_and_all_after_it(world: Any, listener: Any) -> None:
    """With a tail of markers, and one partition started at once beside the paused ones."""
    log = world.log(listener({3: 0}))
    world.joined(log)
    world.append(*(world.put(p, f"k{p}.{n}") for p in range(4) for n in range(3)))
    log.commit([world.put(0, "k0.3")], world.at(0), log.membership())
    assert keys(world.collect(log, 3)) == [b"k3.0", b"k3.1", b"k3.2"]
    world.eventually(lambda: log.positions() == {3: 3}, log)
    log.start(0, 1)
    assert keys(world.collect(log, 3)) == [b"k0.1", b"k0.2", b"k0.3"]
    world.eventually(lambda: log.positions() == {3: 3, 0: 5}, log)
    log.start(1, -1)
    log.start(2, 3)
    assert keys(world.collect(log, 3)) == [b"k1.0", b"k1.1", b"k1.2"]
    world.eventually(lambda: log.positions() == {3: 3, 0: 5, 1: 3, 2: 3}, log)
    assert log.poll(10, 100) == []


def test_start_can_go_back(world: Any) -> None:
    log = world.joined(world.log())
    world.append(*(world.put(0, f"k{n}") for n in range(3)))
    world.collect(log, 3)
    world.eventually(lambda: log.positions()[0] == 3, log)
    log.start(0, 0)
    assert keys(world.collect(log, 3)) == [b"k0", b"k1", b"k2"]


@pytest.mark.parametrize("answered", [True, False])
def test_h13_a_position_that_the_log_does_not_hold(world: Any, listener: Any, answered: bool) -> None:
    """Whether it was the listener's answer or a `start`; the partition can then be started at another one."""
    world.append(world.put(0, "k0"), world.put(1, "k1"))
    log = world.log(listener({0: 100, 1: 0} if answered else {1: 0}))
    delivered: list[bytes] = []

    def go_on() -> None:
        while True:
            delivered.extend(keys(log.poll(10, 50)))
            if not answered and world.owned(log):
                log.start(0, 100)

    with pytest.raises(RebuildPartition) as raised:
        go_on()
    assert raised.value.partition == 0
    assert 0 not in log.positions()
    log.start(0, 0)
    delivered += keys(world.collect(log, 2 - len(delivered)))
    assert sorted(delivered) == [b"k0", b"k1"]


# -- the group ----------------------------------------------------------------------------------------------


def test_h3_no_membership_before_the_first_join(world: Any) -> None:
    """The metadata of that moment would be accepted unfenced (H3)."""
    log = world.log()
    if isinstance(log, KafkaGroupLog):
        with pytest.raises(RetryStep):
            log.membership()
    world.joined(log)
    membership = log.membership()
    assert membership.generation >= 1
    assert membership.member_id
    assert membership.owned == {0, 1, 2, 3}


def test_a_second_member_takes_half_and_leaves_the_rest_undisturbed(world: Any, listener: Any) -> None:
    one, two = listener(), listener({})
    a = world.joined(world.log(one))
    world.append(*(world.put(p, f"before{p}") for p in range(4)))
    world.collect(a, 4)
    b = world.log(two, ids=("b",))
    assert world.shared(a, b) == []
    (_, revoked), (_, assigned) = one.told[1], two.told[-1]
    assert one.told == [("assigned", (0, 1, 2, 3)), ("revoked", revoked)]
    assert revoked == assigned
    kept = a.membership().owned
    assert kept == {0, 1, 2, 3} - set(revoked)
    world.append(*(world.put(p, f"after{p}") for p in range(4)))
    assert sorted(keys(world.collect(a, 2))) == sorted(b"after%d" % p for p in kept)
    assert b.poll(10, 100) == []
    for partition in revoked:
        b.start(partition, 1)
    assert sorted(keys(world.collect(b, 2))) == sorted(b"after%d" % p for p in revoked)


def test_h33_a_partition_that_was_given_up_is_not_delivered_nor_started(world: Any, listener: Any) -> None:
    a = world.joined(world.log())
    b = world.log(listener({}), ids=("b",))
    world.shared(a, b)
    gone = min(b.membership().owned)
    a.start(gone, 0)
    world.append(world.put(gone, "k"))
    assert a.poll(10, 200) == []
    assert gone not in a.positions()


def test_leaving_politely_hands_over_at_once(world: Any, listener: Any) -> None:
    """Whoever closes is not told what it knows; the other gets it without waiting for a session to end."""
    one, two = listener(), listener()
    a = world.joined(world.log(one))
    b = world.log(two, ids=("b",))
    world.shared(a, b)
    told = list(one.told)
    a.close()
    world.opened.remove(a)
    world.joined(b)
    assert one.told == told
    assert all(what == "assigned" for what, _ in two.told)


def test_an_error_of_the_listener_is_raised_by_poll(world: Any, listener: Any) -> None:
    failing = listener()
    failing.error = ValueError("a bug in the owner")
    with pytest.raises(ValueError, match="a bug in the owner"):
        world.eventually(lambda: False, world.log(failing))
