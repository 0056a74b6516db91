"""The hold that a restore leaves: nothing is settled while it stands, and the era it began goes into incarnations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import StoreUnreachable
from pipeline.core.ids import incarnation
from pipeline.core.site import Site, Standing
from pipeline.hold import ASK_MS, Gate
from tests.unit.owner import LAYOUT, NAMES
from tests.unit.test_dispatcher import House, Told, steps

HOLD = Hold(id="b1", state=HoldState.RESTORING, at=1, era=2)


class Meta:
    """What `meta` says, and how often it was asked."""

    def __init__(self) -> None:
        self.standing: Standing | Exception = Standing(1, None)
        self.asked = 0

    def __call__(self) -> Standing:
        self.asked += 1
        if isinstance(self.standing, Exception):
            raise self.standing
        return self.standing


def site_of(read: Callable[[], Standing] | None) -> Site:
    return Site(
        names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=1, read_standing=read
    )


@pytest.fixture
def meta() -> Meta:
    return Meta()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def gate(meta: Meta, told: Told) -> Gate:
    return Gate(site_of(meta), told)


def test_without_a_hold_meta_is_asked_at_takeovers_only(gate: Gate, meta: Meta) -> None:
    gate.look(0)
    assert not any(gate.held(at) for at in range(0, 100_000, 500))
    assert meta.asked == 1


def test_a_hold_is_asked_for_once_a_second_until_it_is_gone(gate: Gate, meta: Meta, told: Told) -> None:
    meta.standing = Standing(2, HOLD)
    gate.look(0)
    assert [gate.held(at) for at in (0, ASK_MS - 1, ASK_MS, ASK_MS + 1)] == [True] * 4
    assert meta.asked == 2
    meta.standing = Standing(2, None)
    assert gate.held(2 * ASK_MS - 1)
    assert not gate.held(2 * ASK_MS)
    assert [action for action, _ in told.lines] == ["dispatch_held", "dispatch_released"]


def test_each_change_is_told_once(gate: Gate, meta: Meta, told: Told) -> None:
    meta.standing = Standing(2, HOLD)
    gate.look(0)
    gate.look(1)
    meta.standing = Standing(2, Hold(id="b1", state=HoldState.HELD, at=1, era=2))
    gate.look(2)
    assert [fields["state"] for _, fields in told.lines] == ["restoring", "held"]


def test_a_hold_stands_while_nobody_can_read_whether_it_does(gate: Gate, meta: Meta, told: Told) -> None:
    meta.standing = Standing(2, HOLD)
    gate.look(0)
    meta.standing = StoreUnreachable("gone")
    assert gate.held(ASK_MS)
    assert told.lines[-1][0] == "hold_unknown"
    with pytest.raises(StoreUnreachable):
        gate.look(0)


def test_the_era_goes_to_the_site(meta: Meta, told: Told) -> None:
    site = site_of(meta)
    assert site.incarnation(7) == 7
    meta.standing = Standing(3, None)
    Gate(site, told).look(0)
    assert site.incarnation(7) == incarnation(3, 7) == (2 << 40) + 7


def test_a_site_that_reads_nothing_is_never_held(told: Told) -> None:
    gate = Gate(site_of(None), told)
    gate.look(0)
    assert not gate.held(0)


# -- of a dispatcher ----------------------------------------------------------------------------------------


@pytest.fixture
def house(meta: Meta) -> House:
    house = House()
    house.standing = meta
    return house


def test_a_held_dispatcher_owns_and_reads_and_fires_nothing(house: House, meta: Meta) -> None:
    meta.standing = Standing(2, HOLD)
    dispatcher = house.dispatcher("a")
    house.job()
    steps(dispatcher, 20)
    assert {str(state) for state in dispatcher.states.values()} == {"PartitionState.RUNNING"}
    assert house.fired() == []
    assert dispatcher.step(0) > 0, "it does not spin"
    meta.standing = Standing(2, None)
    house.clock.advance(ASK_MS)
    steps(dispatcher, 5)
    assert len(house.fired()) == 1


def test_who_takes_over_asks_after_its_record_is_in_the_log(house: House, meta: Meta) -> None:
    """A hold that is written just before that is seen: asked earlier it would not be."""
    committed = house.cluster.hook

    def hook(stage: str, id_: str) -> None:
        if stage == "committed":
            meta.standing = Standing(2, HOLD)
        committed(stage, id_)

    house.cluster.hook = hook
    house.job()
    steps(house.dispatcher("a"), 20)
    assert house.fired() == []


def test_a_takeover_whose_hold_nobody_can_read_is_made_again(house: House, meta: Meta) -> None:
    meta.standing = StoreUnreachable("gone")
    dispatcher = house.dispatcher("a")
    house.job()
    steps(dispatcher, 10)
    assert house.fired() == []
    assert "takeover_refused" in [action for action, _ in house.told.lines]
    meta.standing = Standing(1, None)
    steps(dispatcher, 20)
    assert len(house.fired()) == 1
