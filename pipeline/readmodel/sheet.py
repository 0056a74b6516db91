"""What a batch of records changes: read as if it were written already, and written whole."""

from __future__ import annotations

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.counts import Buckets, Recent, Totals
from pipeline.readmodel.rows import (
    JOB,
    LATE,
    TOTALS,
    Head,
    ended_key,
    head_of,
    listed_key,
    minute_of,
    occurrence_key,
)
from pipeline.readmodel.tale import schedule_of
from pipeline.readmodel.words import Words

_UNSEEN = object()


class Sheet:
    """Used by the thread that folds. However often a job changes within a batch, its places in the lists are changed
    once."""

    def __init__(self, rows: RocksRows) -> None:
        self.rows = rows
        self.words = Words(rows)
        self.totals = Totals(rows)
        self.recent = Recent(rows)
        self._buckets = Buckets(rows)
        self._before: dict[bytes, bytes | None] = {}
        self._jobs: dict[bytes, bytes | None] = {}
        self._puts: dict[bytes, bytes | None] = {}

    # -- reading what it will be --------------------------------------------------------------------------------

    def job(self, id_: bytes) -> bytes | None:
        """The row of a job."""
        try:
            return self._jobs[id_]
        except KeyError:
            row = self._before[id_] = self._jobs[id_] = self.rows.get(JOB + id_)
            return row

    def get(self, key: bytes) -> bytes | None:
        """Any other row."""
        found = self._puts.get(key, _UNSEEN)
        return self.rows.get(key) if found is _UNSEEN else found  # type: ignore[return-value]

    # -- changing -----------------------------------------------------------------------------------------------

    def put_job(self, id_: bytes, row: bytes | None) -> None:
        """The row of a job that was looked at before."""
        self._jobs[id_] = row

    def put(self, key: bytes, value: bytes | None) -> None:
        self._puts[key] = value

    @property
    def changed(self) -> int:
        """How many jobs were looked at."""
        return len(self._jobs)

    def write(self) -> None:
        """All of it, in one batch. If this raises nothing was written, and this sheet is of no use any more."""
        before, puts = self._before, self._puts
        for id_, row in self._jobs.items():
            old = before[id_]
            if row is not old and row != old:
                puts[JOB + id_] = row
                self._list(id_, old, row)
        puts.update(self._buckets.take_rows())
        puts.update(self.recent.take_rows())
        puts.update(self.words.take_new())
        puts[TOTALS] = self.totals.packed()
        self.rows.write(puts)
        self._before, self._jobs, self._puts = {}, {}, {}

    def _list(self, id_: bytes, old: bytes | None, new: bytes | None) -> None:
        """Where a job stands in the lists and the counts."""
        was = None if old is None else head_of(old)
        now = None if new is None else head_of(new)
        if was == now:
            return
        schedule = schedule_of(id_.decode()) if id_.startswith(b"s:") else None
        if was is not None:
            self._remove(id_, was, schedule)
        if now is not None:
            self._add(id_, now, schedule)

    def _remove(self, id_: bytes, head: Head, schedule: str | None) -> None:
        puts = self._puts
        if head.ended_at:
            puts[ended_key(head, id_)] = None
            self.totals.ended -= 1
        if not head.status:
            return
        puts[listed_key(head, id_)] = None
        if schedule is not None:
            puts[occurrence_key(schedule, head.due_at, id_)] = None
        self._count(head, -1)

    def _add(self, id_: bytes, head: Head, schedule: str | None) -> None:
        puts = self._puts
        if head.ended_at:  # also of what nobody knows more of than an ack: it must not stay for ever
            puts[ended_key(head, id_)] = b""
            self.totals.ended += 1
        if not head.status:
            return
        puts[listed_key(head, id_)] = b""
        if schedule is not None:
            puts[occurrence_key(schedule, head.due_at, id_)] = b""
        self._count(head, 1)

    def _count(self, head: Head, number: int) -> None:
        self.totals.add(head.status, head.handler, head.queue, number)
        late = number if head.flags & LATE else 0
        self._buckets.add(minute_of(head.due_at), head.status, number, late)
