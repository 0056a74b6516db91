"""Records on `meta`: two that begin at once are one, and those of long ago are forgotten."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from pipeline.adapters.memory import MemoryReader
from pipeline.core.errors import NotFound, Refused
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.replay.record import Replay, ReplayState
from pipeline.replay.register import KEPT_MS, Register
from tests.unit.replay.test_record import replay


@pytest.fixture
def registers(store: Any) -> tuple[Register, Register]:
    """Of two processes."""
    store.cluster.create_topic(store.names.meta, 1)
    parts = store.connect()

    def made() -> Register:
        return Register(
            topic=store.names.meta,
            reader=MemoryReader(store.cluster),
            appender=parts.appender,
            now=store.clock.now,
        )

    return made(), made()


def fresh(store: Any, **changes: Any) -> Replay:
    now = store.clock.now()
    return replay(id=str(uuid.uuid4()), created_at=now, updated_at=now, **changes)


def test_of_two_that_begin_at_once_the_first_in_the_log_goes_on(
    store: Any, registers: tuple[Register, Register], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = registers
    first, second = fresh(store), fresh(store)
    save = Register.save

    def race(self: Register, mine: Replay) -> None:
        monkeypatch.setattr(Register, "save", save)
        two.begin(second, force=False)
        self.save(mine)

    monkeypatch.setattr(Register, "save", race)
    with pytest.raises(Refused, match=second.id):
        one.begin(first, force=False)
    states = {each.id: each.state for each in two.all()}
    assert states == {second.id: ReplayState.RUNNING, first.id: ReplayState.CANCELLED}


def test_one_that_is_forced_begins_beside_another(store: Any, registers: tuple[Register, Register]) -> None:
    one, two = registers
    one.begin(fresh(store), force=False)
    with pytest.raises(Refused, match="is under way"):
        two.begin(fresh(store), force=False)
    two.begin(fresh(store), force=True)
    assert len(one.all()) == 2


def test_one_that_ended_stands_in_nobodys_way_and_is_forgotten_in_the_end(
    store: Any, registers: tuple[Register, Register]
) -> None:
    one, two = registers
    old = one.begin(fresh(store), force=False)
    one.save(replace(old, state=ReplayState.FINISHED))
    one.ask_cancel(old.id, "ada")
    left = two.begin(fresh(store, runner=""), force=False)
    store.clock.advance(KEPT_MS + 1)
    assert KEPT_MS <= WORK_RETENTION_MS, "what it emitted is still known"
    new = two.begin(fresh(store), force=True)
    assert [each.id for each in one.all()] == [left.id, new.id], "one that is not finished is kept"
    with pytest.raises(NotFound, match="is known"):
        one.get(old.id)


def test_a_request_to_cancel_is_taken_back(store: Any, registers: tuple[Register, Register]) -> None:
    one, two = registers
    mine = one.begin(fresh(store), force=False)
    assert not one.cancelling(mine.id)
    two.ask_cancel(mine.id, "ada")
    assert one.cancelling(mine.id)
    one.take_back_cancel(mine.id)
    one.take_back_cancel(mine.id)
    assert not two.cancelling(mine.id)
