"""What was buried before it could run: jobs and occurrences that their owner put on `dead` and on no work topic.

Nobody could read them, or no broker would have taken them: an unknown queue, an absurd due time, a forged record. They
were due and never ran. Owners put their letters on partition 0 (`emission.bury`); a requeue marks them as dealt with,
on the partition of its home.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.ids import due_in
from pipeline.core.job import EARLIEST, LATEST, DeadLetter, Run
from pipeline.ports import Record
from pipeline.survey.ground import Ground
from pipeline.survey.hashes import Sieve
from pipeline.survey.heads import NOBODYS, Head, sight_of
from pipeline.survey.seen import Seen, State
from pipeline.survey.spill import Row, Spill
from pipeline.survey.window import Filter, Window

LETTERS = 0
"""The partition of `dead` on which owners put theirs."""
_JOBS = (*keys.ANONYMOUS, keys.KEYED)
"""How the record keys begin of what was to fire, if nobody can read more of it; a command was no job yet."""
_FORGED = "forged"
_LOOKED_AT = 8_192
"""Bytes of a letter within which the topic stands that it came from."""


@dataclass(slots=True)
class Graves:
    """What the survey of work topics has to know of the buried. The first two are as many as there are of them, which
    is rarely more than a few."""

    dues: dict[bytes, int] = field(default_factory=dict)
    """Of what was buried and run again by hand: when it was due, epoch ms. No first run says so."""
    retries: dict[bytes, int] = field(default_factory=dict)
    """Further runs that were buried, by occurrence: it does not wait for that run any more."""
    _first: Sieve = field(default_factory=Sieve)

    def may_hold(self, occurrence: bytes) -> bool:
        """Whether a letter of a first run may name it. It may have fired all the same: a late copy of a job is buried
        too, and so is a record that was forged in its name."""
        return bool(self._first) and occurrence in self._first

    def note(self, occurrence: bytes) -> None:
        self._first.add(hash(occurrence))


def read_buried(ground: Ground, window: Window, wanted: Filter, graves: Graves) -> Iterator[Seen]:
    """The wanted occurrences of the window that were buried and not run again since, as DEAD; those that fired too are
    among them. What else is to be known goes to `graves`. When a job is due tells nothing of when it is buried, so all
    letters of owners are read."""
    scan, dead = ground.scan, ground.names.dead
    span = scan.span(dead, LETTERS)
    with Spill(span.end - span.start) as spill:
        any_letter = False
        for batch in scan.batches(dead, LETTERS, span.start, span.end):
            rows = [row for record in batch if (row := _row(ground, record)) is not None]
            any_letter |= any(row[1] is not None for row in rows)
            spill.add(rows)
        for number in range(1, scan.partitions(dead) if any_letter else 0):
            span = scan.span(dead, number)
            for batch in scan.batches(dead, number, span.start, span.end):
                spill.add([_mark(record) for record in batch if record.value() is None])
        for group in spill.groups():
            yield from _fold(group, window, wanted, graves)


def _mark(record: Record) -> Row:
    return record.key() or b"", None


def _row(ground: Ground, record: Record) -> Row | None:
    """(occurrence, or the place of what nobody could read; the run, 0 if nobody knows it, or None: it was run again by
    hand; due; what is to be known of it). None: it is of no concern."""
    value = record.value()
    if value is None:
        return _mark(record)
    topic = ground.names.jobs.encode()
    if value.find(b"%c%b" % (len(topic) << 1, topic), 0, _LOOKED_AT) < 0:
        return None
    try:
        letter = codec.DEAD_LETTER.decode(value)
    except Undecodable:
        ground.is_newer(codec.DEAD_LETTER, value, ground.names.dead)
        return None
    record_key = letter.record_key or b""
    if letter.source_topic != ground.names.jobs:
        return None
    if letter.run is not None:
        forged_retry = letter.run.run > 1 and (
            letter.reason == _FORGED or not record_key.startswith(keys.RETRY)
        )
        return None if forged_retry else (letter.run.occurrence_id.encode(), *_of_run(letter, letter.run))
    if not record_key.startswith(_JOBS):
        return None
    return record.key() or b"", 0, _due_of(record_key, letter), NOBODYS, "", len(letter.value or b"")


def _of_run(letter: DeadLetter, run: Run) -> tuple[int, int, Head, str, int]:
    due_at = run.due_at if EARLIEST <= run.due_at <= LATEST else letter.at
    return run.run, due_at, sight_of(run).head, run.job_id, len(run.payload)


def _due_of(record_key: bytes, letter: DeadLetter) -> int:
    """Of a record that nobody can read: what the id in its key says, else when it was buried."""
    if record_key.startswith(keys.ANONYMOUS):
        with suppress(Undecodable):
            return due_in(record_key[2:])
    return letter.at


def _fold(rows: list[Row], window: Window, wanted: Filter, graves: Graves) -> Iterator[Seen]:
    """A letter stands there again if its owner's index was made anew; the last word counts."""
    letters: dict[bytes, Row] = {}
    again: set[bytes] = set()
    for row in rows:
        if row[1] is None:
            again.add(row[0])
        elif row[1] > 1:
            graves.retries[row[0]] = row[1]
        else:
            letters[row[0]] = row
    for occurrence, (_, _, due_at, head, job_id, size) in letters.items():
        if occurrence in again:
            graves.dues[occurrence] = due_at
            continue
        handler, queue, schedule_id, key, labels = head
        if due_at not in window or wanted.queue not in (None, queue):
            continue
        if wanted.wants(State.DEAD) and wanted.matches_head(handler, schedule_id, key, labels):
            graves.note(occurrence)
            yield Seen(
                occurrence.decode("utf-8", "replace"), job_id, handler, queue, schedule_id, key, labels, due_at,
                due_at, None, 0, State.DEAD, -1, -1, size,
            )  # fmt: skip
