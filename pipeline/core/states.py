"""Life of one owned partition of the jobs topic, from assignment to loss (DESIGN §5)."""

from __future__ import annotations

from enum import Enum


class PartitionState(Enum):
    """Where this process stands with a partition it was assigned.

    ```
               takeover record            takeover record
    assigned     committed                   read back
    --------> ASSIGNED -------> RESTORING ---------------> RUNNING
                 ^                  |                         |
                 +---- (new nonce) -+---- unknown outcome ----+
    any of them -- revoked, lost, stopped --> CLOSED
    ```

    Only RUNNING fires. CLOSED is final: the next assignment begins a new life.
    """

    ASSIGNED = "assigned"
    """Ours by the coordinator's word; earlier owners may still commit."""
    RESTORING = "restoring"
    """The takeover record is in the log; folding up to it."""
    RUNNING = "running"
    """The fold is complete: due jobs may be fired."""
    CLOSED = "closed"
    """Not ours any more: nothing may be written for it."""

    @property
    def successors(self) -> frozenset[PartitionState]:
        """The states that may follow this one."""
        return _SUCCESSORS[self]

    def advance(self, to: PartitionState) -> PartitionState:
        """`to`, if it may follow; ValueError otherwise."""
        if to not in self.successors:
            raise ValueError(f"a partition cannot go from {self.name} to {to.name}")
        return to


_SUCCESSORS = {
    PartitionState.ASSIGNED: frozenset({PartitionState.RESTORING, PartitionState.CLOSED}),
    PartitionState.RESTORING: frozenset(
        {PartitionState.RUNNING, PartitionState.ASSIGNED, PartitionState.CLOSED}
    ),
    PartitionState.RUNNING: frozenset({PartitionState.ASSIGNED, PartitionState.CLOSED}),
    PartitionState.CLOSED: frozenset({PartitionState.CLOSED}),
}
