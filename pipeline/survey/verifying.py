"""The promises of a window, looked at from outside: what the topics say is joined by occurrence and judged.

Tombstones that say "fired" are read before the work topics: what they speak of stands there by then. The rest of the
order is that of `reading`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.ids import keyed_id
from pipeline.core.keys import ANONYMOUS, KEYED
from pipeline.ports import Record
from pipeline.survey.ground import Ground, Part
from pipeline.survey.marks import TERMINAL, Marks, token_of
from pipeline.survey.promises import Fact, Finding, Kind, judge
from pipeline.survey.reading import SLACK_MS, acks_of, parts, read_progress, rows_of
from pipeline.survey.spill import Row, Spill
from pipeline.survey.window import Filter, Window
from pipeline.view import END, WORK, headers_of
from pipeline.view import OCCURRENCE as OF
from pipeline.view import RUN as WHICH

TOLD = 20
"""Findings of a kind that are named; all are counted."""


@dataclass(slots=True)
class Verdict:
    """What was looked at and what is wrong with it."""

    occurrences: int = 0
    runs: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    first: dict[Kind, list[Finding]] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        told = self.first.setdefault(finding.kind, [])
        if len(told) < TOLD:
            told.append(finding)


def verify_promises(ground: Ground, window: Window) -> Verdict:
    """Look at every occurrence that was due in the window."""
    verdict = Verdict()
    with Spill(_expected(ground, window)) as spill:
        for rows in _facts(ground, window):
            spill.add(rows)
        for group in spill.groups():
            judged, findings = judge(group, window)
            verdict.occurrences += judged.occurrences
            verdict.runs += judged.runs
            for finding in findings:
                verdict.add(finding)
    return verdict


def _expected(ground: Ground, window: Window) -> int:
    """About how many rows there will be."""
    names, every = ground.names, parts(ground, Filter())
    topics = [(names.jobs, home) for home in range(ground.layout.partitions)]
    topics += [(topic(queue), number) for queue, number in every for topic in (names.work, names.acks)]
    spans = (ground.scan.span(topic, number, window.from_ms) for topic, number in topics)
    return sum(span.end - span.start for span in spans)


def _facts(ground: Ground, window: Window) -> Iterator[list[Row]]:
    for home in range(ground.layout.partitions):
        yield from _fired(ground, home, window)
    for part in parts(ground, Filter()):
        yield from _of_part(ground, part, window)
    yield from _letters(ground, window)


def _fired(ground: Ground, home: int, window: Window) -> Iterator[list[Row]]:
    """What this home says has fired, run 1."""
    topic = ground.names.jobs
    span = ground.scan.span(topic, home, window.from_ms)
    for batch in ground.scan.batches(topic, home, span.start, span.end):
        rows: list[Row] = []
        for record in batch:
            key, value = record.key() or b"", record.value()
            if (key[:2] in ANONYMOUS and value is None) or key[:2] == KEYED:
                occurrence, place = _said_to_have_fired(key, value, dict(headers_of(record)))
                if occurrence and place:
                    rows.append(
                        (occurrence, Fact.FIRED, record.timestamp()[1], place.decode("utf-8", "replace"))
                    )
        yield rows


def _said_to_have_fired(
    key: bytes, value: bytes | None, headers: Mapping[str, bytes | None]
) -> tuple[bytes, bytes]:
    """The occurrence of which this record tells that run 1 was emitted, and where to; empty: it tells nothing of it.
    A tombstone says so, and of a keyed job the state that follows the firing."""
    if headers.get(WHICH) != b"1" or (value is None and headers.get(END) != b"fired"):
        return b"", b""
    place = headers.get(WORK) or b""
    if key[:2] in ANONYMOUS:
        return key[2:], place
    if value is None:
        return headers.get(OF) or b"", place
    try:
        state = codec.KEY_STATE.decode(value)
        return f"{keyed_id(key[2:].decode())}.{state.incarnation}".encode(), place
    except (Undecodable, UnicodeDecodeError):
        return b"", b""


def _of_part(ground: Ground, part: Part, window: Window) -> Iterator[list[Row]]:
    """The runs of a work partition, and their terminal acks."""
    work, where = ground.names.work(part.queue), f"{part.queue}/{part.partition}"
    progress = read_progress(ground, part)
    ground.scan.decided(work, part.partition)
    span = ground.scan.span(work, part.partition, window.from_ms - SLACK_MS)
    if span.start >= span.end:
        return
    with Marks(span) as marks:
        for batch in acks_of(ground, part, window):
            marks.learn(batch, progress.metadata.acks_offset)
            yield [row for record in batch if (row := _acked(record, where)) is not None]
        for rows in rows_of(ground, part, span, marks, progress):
            yield [
                (occurrence, Fact.RUN, run, at, due_at, nominal_at, state, where, offset)
                for occurrence, _, run, offset, at, due_at, nominal_at, state, _, _ in rows
                if due_at < window.to_ms or nominal_at < window.to_ms
            ]


def _acked(record: Record, where: str) -> Row | None:
    key, value = record.key() or b"", record.value()
    token = token_of(value) if key[:2] == TERMINAL and value is not None else None
    if token is None:
        return None
    occurrence, run, _ = key[2:].rsplit(b"/", 2)
    return occurrence, Fact.ACK, int(run), token, where


def _letters(ground: Ground, window: Window) -> Iterator[list[Row]]:
    """Dead letters; those of what nobody could read are filed under no occurrence, and excuse none."""
    topic = ground.names.dead
    for number in range(ground.scan.partitions(topic)):
        span = ground.scan.span(topic, number, window.from_ms)
        for batch in ground.scan.batches(topic, number, span.start, span.end):
            yield [(r.key() or b"", Fact.LETTER, r.timestamp()[1]) for r in batch if r.value() is not None]
