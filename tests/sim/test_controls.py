"""Negative controls: rules of the protocol left out one at a time. A simulation that does not catch each of them
within a few seeds would not catch the mistake either (DESIGN §5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from sim.script import crew, failure, script
from sim.world import FaultyLog, World

from pipeline import choice, commands, fold
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.choice import Choice
from pipeline.core.errors import OutcomeUnknown, RetryStep
from pipeline.core.states import PartitionState
from pipeline.dispatcher import Dispatcher
from pipeline.emission import Emission
from pipeline.partition import Partition
from pipeline.ports import Action, CommittedOffset, Entry, Membership, Put

SEEDS = 150
Mutation = Callable[[pytest.MonkeyPatch], None]


def no_barrier(patch: pytest.MonkeyPatch) -> None:
    """Fire as soon as the takeover record is committed, not once it has come back."""

    def asked(self: Partition, monotonic: int) -> None:
        self.state = self.state.advance(PartitionState.RESTORING).advance(PartitionState.RUNNING)

    patch.setattr(Partition, "asked", asked)


def own_writes_not_applied(patch: pytest.MonkeyPatch) -> None:
    """Wait for the log to bring back what was committed."""
    patch.setattr(Partition, "applied", lambda self, emission: None)


def apply_before_commit(patch: pytest.MonkeyPatch) -> None:
    plain, follow = Partition.emit, Partition.applied

    def emit(self: Partition, entries: Any, now: int) -> Emission:
        emission = plain(self, entries, now)
        follow(self, emission)
        return emission

    patch.setattr(Partition, "emit", emit)
    patch.setattr(Partition, "applied", lambda self, emission: None)


def echo_folded_again(patch: pytest.MonkeyPatch) -> None:
    """An own put that comes back after it was fired comes alive again."""

    def applied(self: Partition, emission: Emission) -> None:
        self._index.apply(self.number, emission.view.delta)

    patch.setattr(Partition, "applied", applied)


class LateMetadata(FaultyLog):
    """The group metadata is taken when the offsets are sent, by when the client may have joined anew (H2)."""

    def _append(
        self, id_: str, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        log, send = self, self._cluster.send_offsets

        def send_offsets(id_: str, epoch: int, group: Any, offsets: Any, identity: Any) -> None:
            if log._member not in group.members:
                log._member = group.join()
            send(id_, epoch, group, offsets, (log._member, group.generation))

        self._cluster.send_offsets = send_offsets  # type: ignore[method-assign]
        try:
            super()._append(id_, puts, offsets, membership)
        finally:
            self._cluster.send_offsets = send  # type: ignore[method-assign]


def late_metadata(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "log_class", LateMetadata)


def unknown_outcome_ignored(patch: pytest.MonkeyPatch) -> None:
    """An unknown outcome is taken for an abort: the same jobs are chosen again."""
    plain = Dispatcher._commit

    def commit(self: Dispatcher, *args: Any, **more: Any) -> None:
        try:
            plain(self, *args, **more)
        except OutcomeUnknown as unknown:
            raise RetryStep(str(unknown)) from unknown

    patch.setattr(Dispatcher, "_commit", commit)


def commands_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Commands are filed by their id, not by their place in the log."""
    plain = fold.owed

    def owed(key: bytes, offset: int, action: int, value: bytes, detail: str = "") -> Entry:
        entry = plain(key, offset, action, value, detail)
        return entry._replace(fire_at=0) if action == Action.COMMAND else entry

    patch.setattr(fold, "owed", owed)


def fired_memory_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryIndex, "ended", lambda self, partition, id_, log_time: None)


def lanes_apart(patch: pytest.MonkeyPatch) -> None:
    """A partition is chosen twice, and its two lists do not see each other."""
    plain = Choice.next

    def next_(self: Choice, *args: Any) -> choice.Chosen:
        halves = [((p, entries[:1]), (p, entries[1:])) for p, entries in plain(self, *args)]
        return [(p, entries) for p, entries in chain.from_iterable(halves) if entries]

    patch.setattr(Choice, "next", next_)


def settled_although_changed(patch: pytest.MonkeyPatch) -> None:
    """An entry is settled as it was chosen, whatever a command before it in the batch has made of it."""
    patch.setattr("pipeline.view.View.current", lambda self, entry: True)


def limits_ignored(patch: pytest.MonkeyPatch) -> None:
    """Commands of who is limited to some queues are executed like all others, as by an owner that knows no limits."""
    plain = commands.bare
    patch.setattr(commands, "bare", lambda command: replace(plain(command), detail={}))


DOUBLED, TWICE, ANYTHING = "doubled", "executed twice|was executed after|doubled", ""
CONTROLS: list[tuple[Mutation, str]] = [
    (no_barrier, DOUBLED),
    (own_writes_not_applied, TWICE),
    (apply_before_commit, ANYTHING),
    (echo_folded_again, DOUBLED),
    (late_metadata, TWICE),
    (unknown_outcome_ignored, TWICE),
    (commands_out_of_order, "was executed after"),
    (fired_memory_off, TWICE),
    (lanes_apart, ANYTHING),
    (settled_although_changed, "fired Run"),
    (limits_ignored, "limited, and"),
]
"""And what it must be caught by."""


@pytest.mark.parametrize(
    ("control", "caught"), [pytest.param(*each, id=each[0].__name__) for each in CONTROLS]
)
def test_a_rule_left_out_is_caught(control: Mutation, caught: str, monkeypatch: pytest.MonkeyPatch) -> None:
    control(monkeypatch)
    for seed in range(SEEDS):
        dispatchers, workers = crew(seed)
        found = None if workers else failure(script(seed), dispatchers, 0)
        if found is not None and re.search(caught, found):
            return
    pytest.fail(f"{SEEDS} seeds show nothing wrong")
