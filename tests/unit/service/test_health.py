"""Alive, and doing its work: two questions with two answers (H26)."""

from __future__ import annotations

import pytest

from pipeline.core.states import PartitionState
from pipeline.service.health import READY_MEMBER_S, READY_RESTORE_S, READY_STEP_S, Health

RUNNING, RESTORING = PartitionState.RUNNING, PartitionState.RESTORING
HANG_S = 30.0
RESTORE_S = READY_RESTORE_S["dispatcher"]


class House:
    def __init__(self, role: str = "dispatcher") -> None:
        self.now = 100.0
        self.stopping = False
        self.health = Health(
            role=role, hang_s=HANG_S, stopping=lambda: self.stopping, monotonic=lambda: self.now
        )

    def live(self, seconds: float, *, member: bool = True, state: PartitionState = RUNNING) -> None:
        """Steps once a second."""
        for _ in range(round(seconds)):
            self.now += 1
            self.health.stepped(self.now)
            self.health.saw("", member=member, states={7: state})


@pytest.fixture
def house() -> House:
    return House()


def test_h26_a_member_whose_partitions_run_is_ready(house: House) -> None:
    house.live(1)
    assert (house.health.unhealthy(), house.health.unready()) == (None, None)


def test_a_process_that_starts_is_healthy_and_not_ready(house: House) -> None:
    assert house.health.unhealthy() is None
    assert house.health.unready() == "starting"


def test_a_loop_that_hangs_is_not_ready_at_once_and_unhealthy_when_the_watchdog_would_end_it(
    house: House,
) -> None:
    house.live(1)
    house.now += READY_STEP_S + 1
    assert house.health.unready() == "no step for 11 s"
    assert house.health.unhealthy() is None
    house.now += HANG_S
    assert house.health.unhealthy() == "no step for 41 s"


def test_h26_a_process_out_of_its_group_for_long_is_not_ready_however_busily_it_steps(house: House) -> None:
    house.live(1)
    house.live(READY_MEMBER_S, member=False)
    assert house.health.unready() is None, "a rebalance passes"
    house.live(1, member=False)
    assert house.health.unready() == "not a member of the group of dispatchers"
    assert house.health.unhealthy() is None
    house.live(1)
    assert house.health.unready() is None


def test_a_process_that_never_joined_is_not_ready(house: House) -> None:
    house.live(1, member=False)
    assert house.health.unready() == "not a member of the group of dispatchers"


def test_a_member_without_partitions_is_ready(house: House) -> None:
    house.health.saw("", member=True, states={})
    assert house.health.unready() is None


@pytest.mark.parametrize("state", [PartitionState.ASSIGNED, RESTORING, PartitionState.CLOSED])
def test_h26_a_partition_that_does_not_come_to_run_makes_it_unready(
    house: House, state: PartitionState
) -> None:
    house.live(1)
    house.live(RESTORE_S, state=state)
    assert house.health.unready() is None, "a rebuild takes its time"
    house.live(2, state=state)
    assert house.health.unready() == "partition jobs/7 not running for 121 s"
    house.live(1)
    assert house.health.unready() is None


def test_a_partition_given_away_while_restoring_is_forgotten(house: House) -> None:
    house.live(RESTORE_S + 2, state=RESTORING)
    house.health.saw("", member=True, states={})
    assert house.health.unready() is None


def test_a_worker_whose_takeover_lasts_is_unready_sooner_than_a_dispatcher_that_rebuilds() -> None:
    house = House("worker")
    house.live(1)
    house.live(READY_RESTORE_S["worker"], state=RESTORING)
    assert house.health.unready() is None
    house.live(2, state=RESTORING)
    assert house.health.unready() == "partition jobs/7 not running for 31 s"


def test_one_queue_of_several_that_does_not_work_is_named(house: House) -> None:
    house.health.saw("mail", member=True, states={0: RUNNING})
    house.health.saw("media", member=False, states={})
    assert house.health.unready() == "not a member of the group of media"


def test_a_process_told_to_stop_is_healthy_and_not_ready(house: House) -> None:
    house.live(1)
    house.stopping = True
    assert house.health.unready() == "stopping"
    assert house.health.unhealthy() is None
