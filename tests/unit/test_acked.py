"""What was acked does not run again, though the group of its workers has forgotten it (DESIGN §2, promise 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.shop import Shop, steps, wait_out
from unit.test_lane import JOB, RUN, START, key_of, readable, restored
from unit.test_leases import holding

from pipeline.acked import AckedRuns
from pipeline.core import keys
from pipeline.core.handler import Dead, Retry
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState
from pipeline.ports import CommittedOffset

ENDED = replace(START, state=AckState.SUCCEEDED)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def lose_group(shop: Shop) -> None:
    """Deleted, or expired: its offsets and generations are gone."""
    shop.cluster._groups.clear()


def ended(offset: int, **changes: Any) -> tuple[bytes, Ack]:
    id_ = anonymous_id(1_000, 100 + offset)
    ack = replace(ENDED, **({"job_id": id_, "occurrence_id": id_, "work_offset": offset} | changes))
    return keys.terminal_key(ack.occurrence_id, ack.run, ack.attempt), ack


def delivered(lane: Any, ack: Ack) -> bool:
    """Whether its run is to be run again, when it is delivered."""
    assert lane.deliver(ack.work_offset)
    return not lane.was_acked(
        ack.work_offset, replace(RUN, job_id=ack.job_id, occurrence_id=ack.occurrence_id)
    )


def test_after_the_loss_of_a_group_what_was_acked_does_not_run_again(shop: Shop) -> None:
    runs = [shop.fire() for _ in range(5)]
    shop.answers.extend([{"n": 1}, Retry(after="1h"), Dead("hopeless"), None, ValueError("again")])
    first = shop.worker("a")
    steps(first)
    first.leave(0)
    first.close()
    assert len(shop.terminal()) == len(runs) == len(shop.seen)
    lose_group(shop)
    later = shop.fire()
    wait_out(shop, shop.worker("b"))
    assert [ctx.occurrence_id for ctx in shop.seen[len(runs) :]] == [later.occurrence_id]
    committed = shop.logs["b"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == len(runs) + 1


def test_what_was_started_and_not_acked_runs_again_with_a_larger_token(shop: Shop) -> None:
    shop.fire()
    steps(shop.worker("a"))
    shop.logs["a"].close()
    open_run = shop.fire()
    holding(shop, "dead")
    shop.logs["dead"].close()
    lose_group(shop)
    heir = shop.worker("b")
    heir._starts._era = 2  # `dueline era bump`
    wait_out(shop, heir)
    tokens = [ack.token for ack in shop.started() if ack.occurrence_id == open_run.occurrence_id]
    assert len(tokens) == 2
    assert tokens[1] > tokens[0]
    assert len(shop.started()) == 3


def test_a_process_that_leaves_halfway_through_leaves_the_rest_to_be_learnt(shop: Shop) -> None:
    """Its commits say how far the work topic was read, and nothing of what only the acks call finished."""
    lane = restored([ended(offset) for offset in range(3)])
    assert [delivered(lane, ended(0)[1])] == [False]
    committed = lane.committable([])
    assert committed.offset == 1
    assert readable(lane).acks_offset == 0
    heir = restored([ended(offset) for offset in range(3)], CommittedOffset(*committed))
    assert [delivered(heir, ended(offset)[1]) for offset in (1, 2)] == [False, False]
    assert readable(heir).acks_offset > 0, "all that was learnt has come"
    assert heir.committable([]).offset == 3


def test_offsets_set_back_by_hand_bring_nothing_back(shop: Shop) -> None:
    lane = restored([ended(offset) for offset in range(5)], CommittedOffset(3))
    assert [delivered(lane, ended(offset)[1]) for offset in (3, 4)] == [False, False]


def test_a_work_topic_that_was_made_anew_loses_no_run() -> None:
    """Its offsets begin at 0 again, and the acks are those of another time."""
    lane = restored([ended(0), ended(1)])
    other = ended(0, job_id=JOB, occurrence_id=JOB)[1]
    assert delivered(lane, other)


def test_a_further_run_of_an_acked_occurrence_is_another_one() -> None:
    lane = restored([ended(0)])
    lane.deliver(0)
    assert not lane.was_acked(0, replace(RUN, occurrence_id=ended(0)[1].occurrence_id, run=2))


def test_a_start_whose_run_was_acked_holds_nothing() -> None:
    key, ack = ended(7)
    start = replace(ack, state=AckState.STARTED)
    assert readable(restored([(key_of(start), start), (key, ack)])).started == ()


def test_an_ack_under_the_key_of_another_is_none() -> None:
    _, ack = ended(0)
    lane = restored([(keys.terminal_key(JOB, 1, 1), ack)])
    assert delivered(lane, ack)


def test_a_group_that_remembers_asks_nobody() -> None:
    """Its offset covers all acks: reading them would only take time and memory."""
    first = restored([ended(offset) for offset in range(3)])
    for offset in range(3):
        delivered(first, ended(offset)[1])
    lane = restored([ended(offset) for offset in range(5)], CommittedOffset(*first.committable([])))
    assert len(lane.acked) == 0


def test_eight_bytes_a_run() -> None:
    acked = AckedRuns()
    for offset in range(10_000):
        acked.learn(ended(offset)[1])
    acked.seal()
    assert acked._marks.itemsize * len(acked) == 80_000
    runs = [replace(RUN, occurrence_id=ended(offset)[1].occurrence_id) for offset in (0, 9_999)]
    assert [acked.took(0, runs[0]), acked.took(9_999, runs[1])] == [True, True]
    assert len(acked) == 0
