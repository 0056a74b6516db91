"""`GroupLog.at_end` over memory and the real broker: when a partition has been read to its end (`--burst`)."""

from __future__ import annotations

from typing import Any


def test_a_partition_is_at_its_end_once_all_of_it_was_delivered(world: Any) -> None:
    log = world.joined(world.log())
    world.append(world.put(0, "a"), world.put(0, "b"))
    world.collect(log, 2)
    world.eventually(lambda: log.at_end() == set(log.positions()), log)


def test_a_record_that_was_delivered_may_have_others_behind_it(world: Any) -> None:
    log = world.joined(world.log())
    world.eventually(lambda: 0 in log.at_end(), log)
    world.append(world.put(0, "a"), world.put(0, "b"))
    world.collect(log, 1)  # not one poll: the end of another partition may take its place in the batch
    assert 0 not in log.at_end()
    world.collect(log, 1)
    world.eventually(lambda: 0 in log.at_end(), log)


def test_h15_markers_at_the_end_are_passed(world: Any) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "k")], world.at(0), log.membership())
    world.abort(log, world.put(1, "aborted"))
    world.eventually(lambda: {0, 1} <= log.at_end(), log)


def test_a_partition_that_is_started_elsewhere_has_its_end_to_find_again(world: Any) -> None:
    log = world.joined(world.log())
    world.append(world.put(0, "a"))
    world.collect(log, 1)
    world.eventually(lambda: 0 in log.at_end(), log)
    log.start(0, 0)
    assert 0 not in log.at_end()
    world.collect(log, 1)
    world.eventually(lambda: 0 in log.at_end(), log)
