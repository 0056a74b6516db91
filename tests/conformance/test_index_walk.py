"""A random walk over the `Index` port, against plain dicts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.adapters import rocks_index
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.ids import anonymous_id
from pipeline.core.job import EARLIEST
from pipeline.core.keys import job_key
from pipeline.ports import Action, Delta, Entry, Index, Position

pytestmark = pytest.mark.timeout(180)  # a database is opened hundreds of times

POSITION = Position("cluster", "topic", "layout", 7, 1, 1_700_000_000_000)
KEYS = st.sampled_from(
    [*(b"k/%d" % n for n in range(4)), *(job_key(anonymous_id(n, n)) for n in range(0, 12, 2))]
)
"""Of both kinds: `j/` keys whose rows say themselves where they stand, if they fire at the instant in their id."""
TIMES = st.integers(0, 12)


class IndexMachine(RuleBasedStateMachine):
    """Any sequence of deltas, scans, reopenings and wipes leaves what a dict would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[bytes, Entry] = {}
        self.index = self.open()
        self.offset = 0

    def open(self) -> Index:
        raise NotImplementedError

    @rule(changes=st.lists(st.tuples(KEYS, st.none() | TIMES, st.booleans()), max_size=4))
    def change(self, changes: list[tuple[bytes, int | None, bool]]) -> None:
        delta = Delta()
        for key, time, held in changes:
            old = self.model.get(key)
            if time is None:
                if old is not None:
                    delta.remove(old)
                    del self.model[key]
                continue
            self.offset += 1
            action = Action.HOLD if held else Action.FIRE
            offset = (
                -1 if self.offset % 3 == 0 else self.offset
            )  # our own writes have none before they come back
            new = self.model[key] = Entry(key, time, offset, action, b"v%d" % self.offset)
            delta.put(new, old)
        delta.position = POSITION._replace(offset=self.offset)
        self.index.apply(0, delta)

    @rule(
        until=TIMES, limit=st.integers(1, 4), keep=st.integers(0, 3), new=st.none() | st.tuples(KEYS, TIMES)
    )
    def dispatch(self, until: int, limit: int, keep: int, new: tuple[bytes, int] | None) -> None:
        due = self.index.due(0, until, limit)
        assert due == self.due(until)[:limit]
        delta = Delta()
        for old in due[keep:]:
            delta.remove(old)
            del self.model[old.record_key]
        if new is not None and new[0] not in {e.record_key for e in due}:
            added = Entry(new[0], new[1], 0, Action.FIRE, b"new")
            delta.put(added, self.model.get(new[0]))
            self.model[new[0]] = added
        self.index.apply(0, delta)

    @rule(since=TIMES, until=TIMES, limit=st.integers(1, 4), settled=st.booleans())
    def dispatch_behind_a_backlog(self, since: int, until: int, limit: int, settled: bool) -> None:
        due = self.index.due(0, until, limit, since=since)
        assert due == [entry for entry in self.due(until) if entry.fire_at >= since][:limit]
        delta = Delta()
        for old in due if settled else ():
            delta.remove(old)
            del self.model[old.record_key]
        self.index.apply(0, delta)

    @rule()
    def wipe(self) -> None:
        self.index.wipe(0)
        self.model.clear()

    def due(self, until: int) -> list[Entry]:
        live = (e for e in self.model.values() if e.action != Action.HOLD and e.fire_at <= until)
        return sorted(live, key=lambda e: (e.fire_at, e.record_key))

    @invariant()
    def same(self) -> None:
        assert self.index.entries(0, None, 99) == sorted(self.model.values())

    @invariant()
    def pages_add_up(self) -> None:
        page = self.index.entries(0, None, 2)
        rest = self.index.entries(0, page[-1].record_key, 99) if page else []
        assert page + rest == sorted(self.model.values())

    @invariant()
    def counted(self) -> None:
        assert self.index.size(0) == len(self.model)
        assert self.index.overdue(0, 5, 99) == len(self.due(5))
        assert self.index.overdue(0, 5, 1) == min(len(self.due(5)), 1)

    @invariant()
    def next_is_the_earliest(self) -> None:
        due = self.due(99)
        assert self.index.next_due(0) == (due[0].fire_at if due else None)

    def teardown(self) -> None:
        self.index.close()


class MemoryMachine(IndexMachine):
    def open(self) -> Index:
        return MemoryIndex()


class RocksMachine(IndexMachine):
    def open(self) -> Index:
        self.directory = tempfile.TemporaryDirectory()
        rocks_index.SWEEP = 3
        rocks_index.BULK = 2
        rocks_index.TIMES = 6  # what is owed at once and what has a time are both walked
        return RocksIndex(Path(self.directory.name))

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = RocksIndex(Path(self.directory.name))

    def teardown(self) -> None:
        super().teardown()
        rocks_index.SWEEP, rocks_index.BULK, rocks_index.TIMES = 20_000, 256, EARLIEST + 1
        self.directory.cleanup()


TestMemoryIndex = MemoryMachine.TestCase
TestMemoryIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestRocksIndex = RocksMachine.TestCase
TestRocksIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
