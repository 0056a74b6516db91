"""What a batch of records changes: read as if it were written already, and written whole."""

from __future__ import annotations

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.body import open_run
from pipeline.readmodel.counts import Buckets, Recent, Totals
from pipeline.readmodel.rows import (
    JOB,
    LATE,
    QUEUED,
    TOTALS,
    Head,
    Standing,
    ended_key,
    head_of,
    minute_of,
    occurrence_key,
    open_key,
    open_row,
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
        was, now = _listed(old), _listed(new)
        if was == now:
            return
        schedule = schedule_of(id_.decode()) if id_.startswith(b"s:") else None
        if was is not None:
            self._remove(id_, was[0], schedule)
        if now is not None:
            self._add(id_, now[0], schedule)
        self._stand(id_, was, now)

    def _remove(self, id_: bytes, head: Head, schedule: str | None) -> None:
        puts = self._puts
        if head.ended_at:
            puts[ended_key(head, id_)] = None
            self.totals.ended -= 1
        if not head.status:
            return
        for place in self.totals.shelves.change(head, id_, -1):
            puts[place] = None
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
        for place in self.totals.shelves.change(head, id_, 1):
            puts[place] = b""
        if schedule is not None:
            puts[occurrence_key(schedule, head.due_at, id_)] = b""
        self._count(head, 1)

    def _stand(self, id_: bytes, was: _Listed | None, now: _Listed | None) -> None:
        """The run that has not ended. Most stand where they stood, and have been started."""
        left, taken = _place(was), _place(now)
        if left is not None and left != taken:
            self._puts[left] = None
        if now is not None and now[1] is not None and taken is not None and left != taken:
            self._puts[taken] = open_row(now[1].since, id_)
        for listed, number in ((was, -1), (now, 1)):
            if listed is not None and listed[1] is not None and listed[0].status == QUEUED:
                self.totals.waiting[listed[0].queue] += number

    def _count(self, head: Head, number: int) -> None:
        late = number if head.flags & LATE else 0
        self._buckets.add(minute_of(head.due_at), head.status, number, late)


_Listed = tuple[Head, Standing | None]
"""What of a row decides where it is listed, and where its run stands that has not ended."""


def _listed(row: bytes | None) -> _Listed | None:
    if row is None:
        return None
    head = head_of(row)
    return head, open_run(row, head)


def _place(listed: _Listed | None) -> bytes | None:
    if listed is None or listed[1] is None:
        return None
    return open_key(listed[0].queue, listed[1].partition, listed[1].offset)
