"""What this process has parted with: outcomes that it offers and attempts that it gives back, until the log has them.

It outlives a rebuild of the clients. An offer that is forgotten on its way is an outcome lost, and its run would be
started again although no process died (DESIGN §2, promise 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pipeline.offers import OfferId
from pipeline.ports import Appender, Put


class Outbox:
    """Used by the worker's thread only. `len` = attempts whose records are on their way."""

    def __init__(self, appender: Appender) -> None:
        """`appender` outlives a rebuild too: its reports come to this object."""
        self._appender = appender
        self._sending: dict[OfferId, set[int]] = {}
        """Records of an attempt that the log does not have yet, by their number."""
        self._parted: dict[OfferId, tuple[int, int | None]] = {}
        """Attempts of ours, with their partition and where the log says so, None as long as it does not: who reads
        further than that needs no reminder."""
        self._again: list[tuple[Put, Callable[[Exception | None, int, int], None]]] = []

    def __len__(self) -> int:
        return len(self._sending)

    def __contains__(self, attempt: OfferId) -> bool:
        """Whether we have parted with it, and only the log can tell the rest."""
        return attempt in self._parted

    def send(self, attempt: OfferId, partition: int, puts: Sequence[Put]) -> None:
        """Append these; again until the log has each of them. An outcome that was offered, taken back with its
        partition and lost with that may be offered again while the first offer is on its way: the last one counts."""
        self._parted[attempt] = (partition, None)
        missing = self._sending[attempt] = set(range(len(puts)))
        for number, put in enumerate(puts):
            self._appender.append(put, partial(self._reported, attempt, missing, put, number))

    def _reported(
        self,
        attempt: OfferId,
        missing: set[int],
        put: Put,
        number: int,
        error: Exception | None,
        offset: int,
        _at: int,
    ) -> None:
        if error is not None:
            self._again.append((put, partial(self._reported, attempt, missing, put, number)))
            return
        missing.discard(number)
        if not missing and self._sending.get(attempt) is missing:
            del self._sending[attempt]
            # A record that was stored at the first try, whose answer was lost, may have no known place.
            self._parted[attempt] = (self._parted[attempt][0], offset if offset >= 0 else None)

    def send_again(self) -> None:
        """What the log did not take. Not from within the report that said so, which may come at once."""
        again, self._again = self._again, []
        for put, done in again:
            self._appender.append(put, done)

    def forget(self, read: Mapping[int, int]) -> None:
        """`read` = up to where the acks partitions that are ours have been read. One that is not ours will be read anew
        if it ever is."""
        self._parted = {
            attempt: (partition, at)
            for attempt, (partition, at) in self._parted.items()
            if at is None or read.get(partition, at + 1) <= at
        }

    def flush(self, timeout_ms: int) -> None:
        """Wait for the log to have all of it; what it refused once is sent once more. StoreUnreachable."""
        self._appender.flush(timeout_ms)
        if self._again:
            self.send_again()
            self._appender.flush(timeout_ms)
