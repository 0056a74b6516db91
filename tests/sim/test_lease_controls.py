"""Negative controls of the lease simulation: rules left out one at a time. Each must be caught within a few seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sim.lease_script import failure, script
from sim.lease_wire import LeaseLog

from pipeline import ledger, liveness
from pipeline.core.acks import AckTracker
from pipeline.core.errors import OutcomeUnknown, RetryStep
from pipeline.lane import Flight, Lane
from pipeline.leases import Leases
from pipeline.worker import Worker

SEEDS = 300
Mutation = Callable[[pytest.MonkeyPatch], None]


def silence_counts_while_cut_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(liveness._Ear, "deaf_ms", lambda self, now: 0)


def offers_not_pinned(patch: pytest.MonkeyPatch) -> None:
    """The next owner begins to read the acks partition where this one stands."""
    patch.setattr(Lane, "acks_floor", property(lambda self: self.acks_next))


def own_runs_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """What runs here from an earlier assignment is started again."""
    patch.setattr(Lane, "adopt", lambda self, hold, flight: self.let_go(hold))


def released_not_honoured(patch: pytest.MonkeyPatch) -> None:
    plain = Lane._news

    def news(self: Lane, head: bytes, key: bytes, record: Any) -> bool:
        return head != b"s/" and plain(self, head, key, record)

    patch.setattr(Lane, "_news", news)


def holds_not_carried_on(patch: pytest.MonkeyPatch) -> None:
    """Whose attempts are waited for does not travel in the offset metadata."""
    plain = AckTracker.committable

    def committable(self: AckTracker, finishing: Iterable[int] = (), acks_offset: int | None = None) -> Any:
        nodes, recovered = list(self._in_order()), self._recovered
        starts = [node.start for node in nodes]
        self._recovered = {}
        for node in nodes:
            node.start = node.start if node.begun else None
        try:
            return plain(self, finishing, acks_offset)
        finally:
            self._recovered = recovered
            for node, start in zip(nodes, starts, strict=True):
                node.start = start

    patch.setattr(AckTracker, "committable", committable)


def leases_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Whatever an earlier owner started is started again, as if it were gone with its partition."""
    patch.setattr("pipeline.leases.Leases._over", lambda self, hold: True)


def unknown_outcome_ignored(patch: pytest.MonkeyPatch) -> None:
    """An unknown outcome is taken for an abort: the same acks are sent again."""
    plain = LeaseLog.commit

    def commit(self: LeaseLog, *args: Any) -> None:
        try:
            plain(self, *args)
        except OutcomeUnknown as unknown:
            raise RetryStep(str(unknown)) from unknown

    patch.setattr(LeaseLog, "commit", commit)


def acks_under_way_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A partition is parted with while a transaction of it is under way: what that may commit is given back too."""
    patch.setattr(Worker, "_settle_acks", lambda self: None)


def covered_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """After an unknown outcome a tracker is asked for offsets as they finished, not as they stand in the log."""
    patch.setattr(ledger, "sorted", lambda offsets: sorted(offsets, reverse=True), raising=False)


def starts_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever replaces a stale holder's attempt begins as soon as its own start is durable."""

    def read_back(self: Leases, taken: Any) -> list[Flight]:
        flights, self._restarts = [flight for flight, _, _ in self._restarts if not flight.orphan], []
        for flight in flights:
            flight.lane.replaced(flight, self._me)
        return flights

    patch.setattr(Leases, "_read_back", read_back)


def acks_of_a_lost_group_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Finished is what the group says, and nothing else."""
    patch.setattr(Lane, "was_acked", lambda self, offset, run: False)


BESIDE = "begins beside"
CONTROLS: list[tuple[Mutation, str, int]] = [
    (silence_counts_while_cut_off, BESIDE, 44),
    (offers_not_pinned, f"no rest|had won|although stopped|{BESIDE}", 56),
    (own_runs_not_adopted, f"had won|{BESIDE}", 8),
    (released_not_honoured, "no rest|left in", 1),
    (holds_not_carried_on, BESIDE, 4),
    (leases_not_waited_for, BESIDE, 1),
    (unknown_outcome_ignored, "ended twice", 5),
    (acks_under_way_not_waited_for, "given back although", 0),
    (covered_out_of_order, "passes|calls|lost|no rest", 20),
    (starts_not_read_back, "had won|superseded", 272),
    (acks_of_a_lost_group_not_asked, "begins after", 0),
]
"""And what it must be caught by, in which seed at first as this is written: the search begins there."""


@pytest.mark.parametrize(
    ("control", "caught", "first"), [pytest.param(*each, id=each[0].__name__) for each in CONTROLS]
)
def test_a_rule_left_out_is_caught(
    control: Mutation, caught: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(monkeypatch)
    for seed in range(first, first + SEEDS):
        found = failure(script(seed), seed)
        if found is not None and re.search(caught, found):
            return
    pytest.fail(f"{SEEDS} seeds from {first} show nothing wrong")
