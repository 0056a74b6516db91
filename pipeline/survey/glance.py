"""The first look of `verify`: nearly everything is as it should be, and that can be seen by little.

An occurrence that has one first run, whose runs were appended no earlier than they were due, and of each an ack whose
token fits, is ticked off by its hash; so is what its home says has fired. What is left is suspect, and only that is
read once more, with all there is of it, and judged (`verifying`, `promises`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id
from pipeline.core.schedule import Schedule
from pipeline.ports import Record
from pipeline.survey.ground import Ground, Part
from pipeline.survey.hashes import FLAGS, Hashes, Sieve
from pipeline.survey.heads import Sight, due_order, read_due, read_run
from pipeline.survey.marks import LAST_OPEN, STARTED, UNREADABLE, Marks
from pipeline.survey.marks import RUN_AT as ack_run
from pipeline.survey.reading import SLACK_MS, Progress, acks_of, held_by, parts, read_progress
from pipeline.survey.told import told_to_have_fired
from pipeline.survey.unfired import note_schedule, row_of, to_decide
from pipeline.survey.window import Filter, Window

WAITING, OUTSIDE = 1, 2
"""Flags of a run: a worker is still to take it; it is of another window."""
RUN_AT, _RUNS = 2, 15
"""Bits below its number, and the highest that fits."""
_FIRST, _RUN = 1 << RUN_AT, _RUNS << RUN_AT
PUT = 1
"""Flag of a record of a job: it is to run. Without it: there is nothing to run any more."""


@dataclass(slots=True)
class Glance:
    """What was seen: occurrences that are as they should be, their runs, those of them that wait, those that have not
    fired; and the suspects, which are counted nowhere yet."""

    fine: int = 0
    runs: int = 0
    waiting: int = 0
    pending: int = 0
    suspects: Sieve = field(default_factory=Sieve)


class _Books(NamedTuple):
    """By hash: what is pending, what is said to have fired, and first runs."""

    owed: Hashes
    fired: Hashes
    runs: Hashes


def glance(ground: Ground, window: Window) -> Glance:
    """Look at everything that was due in the window. Tombstones are read before the work topics: what they speak of
    stands there by then."""
    seen = Glance()
    with ExitStack() as stack:
        size = _expected(ground, window)
        books = _Books(*(stack.enter_context(Hashes(size)) for _ in _Books._fields))
        for home in range(ground.layout.partitions):
            seen.pending += _at_home(ground, home, window, books)
        for part in parts(ground, Filter()):
            _at_work(ground, part, window, books, seen.suspects)
        _close(books, seen)
    return seen


def _expected(ground: Ground, window: Window) -> int:
    """About how many occurrences there will be."""
    names, every = ground.names, parts(ground, Filter())
    spans = (ground.scan.span(names.work(queue), number, window.from_ms) for queue, number in every)
    return sum(span.end - span.start for span in spans)


# -- what homes say -----------------------------------------------------------------------------------------


def _at_home(ground: Ground, home: int, window: Window, books: _Books) -> int:
    """What is pending here, and what is said to have fired, go to the books. How many instants of schedules nobody has
    decided yet."""
    topic = ground.names.jobs
    span = ground.scan.span(topic, home)
    schedules: dict[str, Schedule] = {}
    owing = _Owing(ground, window)
    for batch in ground.scan.batches(topic, home, span.start, span.end):
        owed: list[int] = []
        fired: list[int] = []
        for record in batch:
            key, value = record.key() or b"", record.value()
            kind = key[:2]
            if kind == keys.SCHEDULE:
                note_schedule(ground, schedules, key, value)
                continue
            said = owing.job(key, value) if kind == keys.JOB else owing.other(key, value)
            if said is not None:
                owed.append(hash(key) & ~FLAGS | said)
            if (value is None or kind == keys.KEYED) and record.timestamp()[1] in window:
                occurrence, place = told_to_have_fired(record, key, value)
                if occurrence and place:
                    fired.append(hash(occurrence) & ~FLAGS)
        books.owed.add(owed)
        books.fired.add(fired)
    return sum(1 for state in schedules.values() for _ in to_decide(state, window, Filter()))


class _Owing:
    """What the records of a home say of whether a job of the window is to run: PUT, or 0: nothing any more; None: it is
    of no concern."""

    def __init__(self, ground: Ground, window: Window) -> None:
        self._ground, self._window = ground, window
        self._first, self._end = (keys.job_key(anonymous_id(at, 0)) for at in (window.from_ms, window.to_ms))
        self._due, self._due_end = due_order(window.from_ms), due_order(window.to_ms)
        self._elsewhere: set[bytes] = set()

    def job(self, key: bytes, value: bytes | None) -> int | None:
        """Of a `j/` record."""
        if value is not None:
            due = read_due(key[2:], value)
            if due is None:
                return self.other(key, value)
            if self._due <= due < self._due_end:
                if not self._first <= key < self._end:
                    self._elsewhere.add(key)
                return PUT
        return 0 if self._first <= key < self._end or key in self._elsewhere else None

    def other(self, key: bytes, value: bytes | None) -> int | None:
        row = row_of(self._ground, key, value, self._window, self._elsewhere)
        return None if row is None else PUT if row[2] is not None else 0


# -- what work topics and acks say --------------------------------------------------------------------------


def _at_work(ground: Ground, part: Part, window: Window, books: _Books, suspects: Sieve) -> None:
    work = ground.names.work(part.queue)
    progress = read_progress(ground, part)
    ground.scan.decided(work, part.partition)
    span = ground.scan.span(work, part.partition, window.from_ms - SLACK_MS)
    if span.start >= span.end:
        return
    with Marks(span, ground) as marks:
        for batch in acks_of(ground, part, window):
            marks.learn(batch, progress.metadata.acks_offset)
        look = _Look(ground, work, window, marks, progress, suspects)
        for batch in ground.scan.batches(work, part.partition, span.start, span.end):
            books.runs.add([found for record in batch if (found := look(record)) is not None])
            books.fired.add(look.promised)
            look.promised = []


class _Look:
    """What a record of a work partition says, as a hash with flags. Suspects are noted."""

    def __init__(
        self, ground: Ground, topic: str, window: Window, marks: Marks, progress: Progress, suspects: Sieve
    ) -> None:
        self._ground, self._topic = ground, topic
        self._window = window
        self._begin, self._end = due_order(window.from_ms), due_order(window.to_ms)
        self._appended = self._order = 0
        """The last LogAppendTime and its `due_order`: many records share one."""
        self._marks, self._progress = marks, progress
        self._held = held_by(progress)
        self._suspects = suspects
        self.promised: list[int] = []
        """Hashes of what a later run speaks of: its first run must be there."""

    def __call__(self, record: Record) -> int | None:
        """None: it is no run that matters to the window."""
        key, value = record.key() or b"", record.value()
        due = None if value is None else read_due(key, value)
        hashed = hash(key) & ~FLAGS
        if due is None:
            sight = self._sight(key, value)
            return None if sight is None else self._any(sight, key, hashed, record)
        if due >= self._end:
            return None
        if due < self._begin:
            return hashed | _FIRST | OUTSIDE
        return self._judged(hashed | _FIRST, 1, due, key, record)

    def _sight(self, key: bytes, value: bytes | None) -> Sight | None:
        sight = None if value is None else read_run(key, value)
        if sight is None and value is not None and self._ground.is_newer(codec.RUN, value, self._topic):
            self._suspects.add(hash(key))
        return sight

    def _any(self, sight: Sight, key: bytes, hashed: int, record: Record) -> int | None:
        """Of a run that is not plain."""
        _, run, due_at, nominal_at, _, _ = sight
        if due_at >= self._window.to_ms and nominal_at >= self._window.to_ms:
            return None
        if run > _RUNS:
            self._suspects.add(hashed)
            return None
        if run == 1 and due_at not in self._window:
            return hashed | _FIRST | OUTSIDE
        if run > 1 and nominal_at in self._window:
            self.promised.append(hashed)
        return self._judged(hashed | run << RUN_AT, run, due_order(due_at), key, record)

    def _judged(self, found: int, run: int, due: int, key: bytes, record: Record) -> int:
        """Of a run that is due in the order of `due`."""
        offset, appended = record.offset() or 0, record.timestamp()[1]
        if appended != self._appended:
            self._appended, self._order = appended, due_order(appended)
        code = self._marks.raw_code(offset, key, run)
        if self._order < due:
            self._suspects.add(found)
        elif code <= LAST_OPEN:
            if self._progress.past(offset):
                self._suspects.add(found)
            elif code != STARTED and (code or offset not in self._held):
                return found | WAITING
        elif code >> ack_run != run and code != UNREADABLE:
            self._suspects.add(found)
        return found


# -- the books ----------------------------------------------------------------------------------------------


def _close(books: _Books, seen: Glance) -> None:
    for group in books.owed.groups():
        seen.pending += sum({each & ~FLAGS: each & PUT for each in group}.values())
    for fired, runs in zip(books.fired.groups(), books.runs.groups(), strict=True):
        for hashed in _unmatched(fired, runs):
            seen.suspects.add(hashed)
    for runs in books.runs.groups():
        _count(runs, seen)


def _unmatched(fired: Sequence[int], runs: Sequence[int]) -> Iterator[int]:
    """Those that fired and have no first run, and those that have a run twice."""
    yield from {*fired} - {each & ~FLAGS for each in runs if each & _RUN == _FIRST}
    once = {each >> RUN_AT for each in runs}
    if len(once) < len(runs):
        yield from (
            each << RUN_AT for each, count in Counter(each >> RUN_AT for each in runs).items() if count > 1
        )


def _count(runs: Sequence[int], seen: Glance) -> None:
    suspects = seen.suspects
    fine = {
        each & ~FLAGS: each
        for each in runs
        if each & _RUN == _FIRST and not each & OUTSIDE and not (suspects and suspects.holds(each))
    }
    seen.fine += len(fine)
    seen.runs += len(fine)
    for each in runs:
        hashed = each & ~FLAGS
        if each & _RUN != _FIRST and hashed in fine:
            seen.runs += 1
            fine[hashed] = max(fine[hashed], each)
    seen.waiting += sum(each & WAITING for each in fine.values())
