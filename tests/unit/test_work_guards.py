"""A group of workers that was deleted or expired is noticed before anything of it runs again (H20)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from unit.shop import NAMES, Shop, steps, wait_out

from pipeline import codec
from pipeline.core.errors import Refused, RetryStep, StoreUnreachable
from pipeline.core.job import GroupGuard
from pipeline.core.states import PartitionState
from pipeline.guard import WorkGuards

GROUP = NAMES.worker_group("default")


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.cluster.create_topic(NAMES.meta, 1)
    made.guards = guards(lambda: written(made))
    return made


def guards(read: object, topic_id: str = "T") -> WorkGuards:
    return WorkGuards(names=NAMES, group=GROUP, topic_id=topic_id, read=read)  # type: ignore[arg-type]


def written(shop: Shop) -> Mapping[int, GroupGuard]:
    log = shop.cluster.partition(NAMES.meta, 0)
    found = {record.key(): record.value() for record in log.read(0, log.end + 1)[0]}
    return {
        int(key.rpartition(b"/")[2]): codec.GROUP_GUARD.decode(value or b"") for key, value in found.items()
    }


def test_the_guard_is_written_with_the_first_acks_of_an_assignment_h20(shop: Shop) -> None:
    worker = shop.worker("a")
    steps(worker)
    assert written(shop) == {}
    for _ in range(2):
        shop.fire()
        steps(worker)
    log = shop.cluster.partition(NAMES.meta, 0)
    assert len(log.read(0, log.end + 1)[0]) == 1
    assert written(shop) == {0: GroupGuard(generation=shop.logs["a"].membership().generation, topic_id="T")}


def test_a_successor_of_the_same_group_goes_on_h20(shop: Shop) -> None:
    shop.fire()
    first = shop.worker("a")
    steps(first)
    first.leave(0)
    first.close()
    shop.fire()
    wait_out(shop, shop.worker("b"), 1_000)
    assert len(shop.terminal()) == 2
    assert written(shop)[0].generation > 1


def test_offsets_that_are_gone_are_refused_naming_the_command_that_helps_h20(shop: Shop) -> None:
    shop.fire()
    shop.guards = guards(lambda: {0: GroupGuard(generation=1, topic_id="T")})
    with pytest.raises(
        Refused, match=r"no offset for partition 0.*deleted or expired.*`dueline era bump`"
    ) as found:
        steps(shop.worker("a"))
    assert found.value.exit_code == 4
    assert shop.seen == []


def test_a_lower_generation_than_recorded_is_refused_h20(shop: Shop) -> None:
    shop.fire()
    first = shop.worker("a")
    steps(first)
    first.leave(0)
    first.close()
    shop.guards = guards(lambda: {0: GroupGuard(generation=1_000, topic_id="T")})
    shop.fire()
    with pytest.raises(Refused, match="owned in generation 1000"):
        steps(shop.worker("b"))
    assert len(shop.seen) == 1


def test_a_member_that_the_group_has_lost_waits_for_the_word_of_it_h20(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.fire()
    first = shop.worker("a")
    steps(first)
    first.leave(0)
    first.close()
    found = {0: GroupGuard(generation=1_000, topic_id="T")}
    shop.guards = guards(lambda: found)
    second = shop.worker("b")

    def stale(*_: object) -> None:
        raise RetryStep("stale generation")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(shop.logs["b"], "commit", stale)
        steps(second)
    assert PartitionState.RUNNING not in second.states.values()
    found.clear()
    steps(second)
    assert set(second.states.values()) == {PartitionState.RUNNING}


def test_the_guards_of_a_topic_made_anew_say_nothing_h20(shop: Shop) -> None:
    shop.fire()
    shop.guards = guards(lambda: {0: GroupGuard(generation=1_000, topic_id="another")})
    steps(shop.worker("a"))
    assert len(shop.terminal()) == 1


def test_guards_that_cannot_be_read_are_asked_for_again_h20(shop: Shop) -> None:
    answers = [StoreUnreachable("gone"), StoreUnreachable("gone")]

    def read() -> Mapping[int, GroupGuard]:
        if answers:
            raise answers.pop()
        return {}

    shop.guards = guards(read)
    shop.fire()
    steps(shop.worker("a"), 12)
    assert len(shop.terminal()) == 1
