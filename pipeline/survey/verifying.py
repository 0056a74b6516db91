"""The promises of a window, looked at from outside: what the topics say is joined by occurrence and judged.

Nearly all is ticked off at a first look (`glance`); all there is of the suspects is read once more. Tombstones that say
"fired" are read before the work topics: what they speak of stands there by then. The rest of the order is that of
`reading`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pipeline.core.keys import ANONYMOUS
from pipeline.ports import Record
from pipeline.survey.glance import glance
from pipeline.survey.ground import Ground, Part
from pipeline.survey.hashes import Sieve
from pipeline.survey.marks import TERMINAL, Marks, token_of
from pipeline.survey.promises import NONE, Fact, Finding, Judged, Kind, judge
from pipeline.survey.reading import SLACK_MS, acks_of, parts, read_progress, rows_of
from pipeline.survey.spill import Row, Spill
from pipeline.survey.told import told_to_have_fired
from pipeline.survey.window import Filter, Window

TOLD = 20
"""Findings of a kind that are named; all are counted."""


@dataclass(slots=True)
class Verdict:
    """What was looked at and what is wrong with it."""

    pending: int = 0
    """Occurrences that have not fired."""
    judged: Judged = NONE
    """Those that have, their runs, and so on."""
    counts: Counter[Kind] = field(default_factory=Counter)
    first: dict[Kind, list[Finding]] = field(default_factory=dict)

    def take(self, judged: Judged) -> None:
        self.judged = Judged(*map(sum, zip(self.judged, judged, strict=True)))

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        told = self.first.setdefault(finding.kind, [])
        if len(told) < TOLD:
            told.append(finding)


def verify_promises(ground: Ground, window: Window, restored_at: int | None = None) -> Verdict:
    """Look at every occurrence that was due in the window. `restored_at`: `Origin.restored_at`."""
    seen = glance(ground, window)
    verdict = Verdict(pending=seen.pending, judged=Judged(seen.fine, seen.runs, waiting=seen.waiting))
    if not seen.suspects:
        return verdict
    once_more = replace(ground, newer=Counter())  # what cannot be read was counted
    with Spill(_expected(ground, window)) as spill:
        for rows in _facts(once_more, window, seen.suspects):
            spill.add(rows)
        for group in spill.groups():
            judged, findings = judge(group, window, restored_at)
            verdict.take(judged)
            for finding in findings:
                verdict.add(finding)
    return verdict


def _expected(ground: Ground, window: Window) -> int:
    """About how many rows there can be."""
    names, every = ground.names, parts(ground, Filter())
    topics = [(names.jobs, home) for home in range(ground.layout.partitions)]
    topics += [(topic(queue), number) for queue, number in every for topic in (names.work, names.acks)]
    spans = (ground.scan.span(topic, number, window.from_ms) for topic, number in topics)
    return sum(span.end - span.start for span in spans)


def _facts(ground: Ground, window: Window, suspects: Sieve) -> Iterator[list[Row]]:
    """All that is known of the suspects, and of some that have a hash like theirs."""
    for home in range(ground.layout.partitions):
        yield from _fired(ground, home, window, suspects)
    for part in parts(ground, Filter()):
        yield from _of_part(ground, part, window, suspects)
    yield from _letters(ground, window, suspects)


def _fired(ground: Ground, home: int, window: Window, suspects: Sieve) -> Iterator[list[Row]]:
    """What this home says has fired, run 1."""
    topic = ground.names.jobs
    span = ground.scan.span(topic, home, window.from_ms)
    for batch in ground.scan.batches(topic, home, span.start, span.end):
        told = (
            (record, told_to_have_fired(record, record.key() or b"", record.value()))
            for record in batch
            if (record.key() or b"")[:2] not in ANONYMOUS or (record.key() or b"")[2:] in suspects
        )
        yield [
            (occurrence, Fact.FIRED, record.timestamp()[1], place.decode("utf-8", "replace"))
            for record, (occurrence, place) in told
            if occurrence and occurrence in suspects
        ]


def _of_part(ground: Ground, part: Part, window: Window, suspects: Sieve) -> Iterator[list[Row]]:
    """The runs of a work partition, and their terminal acks."""
    work, where = ground.names.work(part.queue), f"{part.queue}/{part.partition}"
    progress = read_progress(ground, part)
    ground.scan.decided(work, part.partition)
    span = ground.scan.span(work, part.partition, window.from_ms - SLACK_MS)
    if span.start >= span.end:
        return
    with Marks(span, ground) as marks:
        for batch in acks_of(ground, part, window):
            mine = [record for record in batch if _occurrence_of(record.key() or b"") in suspects]
            marks.learn(mine, progress.metadata.acks_offset)
            yield [row for record in mine if (row := _acked(record, where)) is not None]
        for rows in rows_of(ground, part, span, marks, progress, only=suspects):
            yield [
                (occurrence, Fact.RUN, run, at, due_at, nominal_at, state, where, offset)
                for occurrence, _, run, offset, at, due_at, nominal_at, state, _, _ in rows
                if due_at < window.to_ms or nominal_at < window.to_ms
            ]


def _occurrence_of(key: bytes) -> bytes:
    """Of the key of an ack that speaks of a run."""
    return key[2:].rsplit(b"/", 2)[0]


def _acked(record: Record, where: str) -> Row | None:
    key, value = record.key() or b"", record.value()
    occurrence, _, run = key[2:].rpartition(b"/")[0].rpartition(b"/")
    if value is None or key[:2] != TERMINAL or not run.isdigit():
        return None
    token = token_of(value)
    return None if token is None else (occurrence, Fact.ACK, int(run), token, where)


def _letters(ground: Ground, window: Window, suspects: Sieve) -> Iterator[list[Row]]:
    """Dead letters; those of what nobody could read are filed under no occurrence, and excuse none."""
    topic = ground.names.dead
    for number in range(ground.scan.partitions(topic)):
        span = ground.scan.span(topic, number, window.from_ms)
        for batch in ground.scan.batches(topic, number, span.start, span.end):
            letters = ((record.key() or b"", record) for record in batch if record.value() is not None)
            yield [(key, Fact.LETTER, record.timestamp()[1]) for key, record in letters if key in suspects]
