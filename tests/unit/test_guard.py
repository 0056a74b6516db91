"""The group guard: a group that begins its generations anew is noticed (H20)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from unit.test_dispatcher import House, house, steps

from pipeline import codec
from pipeline.core.errors import Refused, RetryStep, StoreUnreachable
from pipeline.core.job import GroupGuard
from pipeline.core.names import Names
from pipeline.core.states import PartitionState
from pipeline.dispatcher import Dispatcher
from pipeline.guard import check_guards, guard_puts

__all__ = ["house"]

NAMES = Names("t")
GROUP = NAMES.dispatcher_group


def check(guards: Mapping[int, GroupGuard], *, generation: int = 5) -> None:
    check_guards(guards, group=GROUP, partitions=[0, 1, 2], generation=generation, topic_id="T")


def guard(generation: int, topic_id: str = "T") -> GroupGuard:
    return GroupGuard(generation=generation, topic_id=topic_id)


def test_a_later_generation_on_record_is_refused_with_the_command_that_helps_h20() -> None:
    with pytest.raises(
        Refused, match=r"generation 5, but partition 1 .* generation 6.*`dueline era bump`"
    ) as found:
        check({0: guard(5), 1: guard(6)})
    assert found.value.exit_code == 4
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "guards",
    [
        {},  # new partitions, or an era was begun
        {0: guard(4), 1: guard(5)},  # a successor; the same owner once more
        {1: guard(99, "another")},  # the topic was made anew
        {7: guard(99)},  # a partition that we do not take over
    ],
)
def test_every_other_guard_lets_the_owner_go_on_h20(guards: Mapping[int, GroupGuard]) -> None:
    check(guards)


def test_the_guards_of_a_takeover_carry_generation_and_topic() -> None:
    first, second = guard_puts(NAMES, group=GROUP, partitions=[3, 11], generation=8, topic_id="T")
    assert (first.topic, first.partition, first.key) == ("t.meta", 0, b"g/t.dispatcher/3")
    assert second.key == b"g/t.dispatcher/11"
    assert codec.GROUP_GUARD.decode(first.value or b"") == guard(8)


# -- the dispatcher ------------------------------------------------------------------------------------------


def guarded(house: House, name: str, read: object) -> Dispatcher:
    dispatcher = house.dispatcher(name)
    dispatcher._site.read_guards = read  # type: ignore[assignment]
    return dispatcher


@pytest.fixture
def store(house: House) -> House:
    house.cluster.create_topic(NAMES.meta, 1)
    return house


def test_the_guards_stand_in_the_takeover_transaction_h20(store: House) -> None:
    owner = guarded(store, "a", dict)
    steps(owner)
    assert set(owner.states.values()) == {PartitionState.RUNNING}
    log = store.cluster.partition(NAMES.meta, 0)
    written = {record.key(): record.value() for record in log.read(0, log.end + 1)[0]}
    assert set(written) == {f"g/{GROUP}/{n}".encode() for n in owner.states}
    generation = store.logs["a"].membership().generation
    assert {codec.GROUP_GUARD.decode(value or b"").generation for value in written.values()} == {generation}


def test_a_group_that_began_anew_fires_nothing_h20(store: House) -> None:
    store.job()
    with pytest.raises(Refused, match="era bump"):
        steps(guarded(store, "a", lambda: {4: guard(1_000, "t")}))
    assert store.fired() == []


def test_a_member_that_has_not_been_told_of_its_loss_is_not_taken_for_a_group_that_began_anew_h20(
    store: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off while it took over, it finds the guards of its successors before it hears that it is no member: only
    the coordinator can tell, and it refuses such a member's offsets."""
    guards = {4: guard(1_000, "t")}
    owner = guarded(store, "a", lambda: guards)

    def stale(*_: Any) -> None:
        raise RetryStep("stale generation")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(store.logs["a"], "commit", stale)
        steps(owner)
    assert set(owner.states.values()) == {PartitionState.ASSIGNED}
    guards.clear()
    steps(owner)
    assert set(owner.states.values()) == {PartitionState.RUNNING}


def test_guards_that_cannot_be_read_now_are_asked_for_again(store: House) -> None:
    answers = [StoreUnreachable("gone"), StoreUnreachable("gone"), {}]

    def read() -> Mapping[int, GroupGuard]:
        answer = answers.pop(0)
        if isinstance(answer, StoreUnreachable):
            raise answer
        return answer

    owner = guarded(store, "a", read)
    steps(owner, 2)
    assert set(owner.states.values()) == {PartitionState.ASSIGNED}
    steps(owner)
    assert set(owner.states.values()) == {PartitionState.RUNNING}
    assert store.told.actions().count("takeover_refused") >= 1
