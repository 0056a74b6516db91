"""What fired: the runs of a work partition beside their acks, folded to one `Seen` for each occurrence.

The order of reading is what makes the answer true on a running system. First what the group has committed, and where
the work partition ends; then the acks, once no transaction hides any that belong to that offset; then the runs. So a
run below the offset whose ack is not there has none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from pipeline import codec
from pipeline.core import offset_metadata
from pipeline.core.errors import StopPartition, Undecodable
from pipeline.core.job import Run
from pipeline.core.offset_metadata import OffsetMetadata
from pipeline.core.token import LAST_RUN
from pipeline.past import NOBODY
from pipeline.ports import Record, Span
from pipeline.survey.buried import Graves, read_buried
from pipeline.survey.ground import Ground, Part
from pipeline.survey.hashes import Sieve
from pipeline.survey.heads import NOBODYS, UNKNOWN, plain_run, read_run
from pipeline.survey.marks import CODE, ENDED, STARTED, Marks
from pipeline.survey.seen import Seen, State
from pipeline.survey.spill import Row, Spill
from pipeline.survey.unfired import unfired
from pipeline.survey.window import Filter, Window

SLACK_MS = 60_000
"""So long before the window reading begins: nothing fires before it is due, but two brokers stamp its records."""
OCCURRENCE, JOB, RUN, OFFSET, AT, DUE, NOMINAL, STATE, BYTES, HEAD = range(10)
"""Places in a row: one work record, with how its run stands."""
_STATE_AT = Seen._fields.index("state")
NEWER = LAST_RUN + 1
"""Stands for the number of a run that is of a newer version."""
SAYS_DUE = (1, NEWER)
"""Runs whose own due time is that of their occurrence, as far as anybody here can tell."""


class Emitted(NamedTuple):
    """A run on a work topic, its offset and its LogAppendTime in ms."""

    run: Run
    offset: int
    at: int


class Progress(NamedTuple):
    """What the group of a work partition has committed."""

    mark: int
    metadata: OffsetMetadata

    def past(self, offset: int) -> bool:
        """Whether the group will not look at this offset again."""
        if offset < self.mark:
            return True
        runs = self.metadata.finished
        at = bisect_right(runs, offset, key=itemgetter(0))
        return at > 0 and offset <= runs[at - 1][1]


def parts(ground: Ground, wanted: Filter) -> list[Part]:
    """Every work partition that may hold what is wanted, in a fixed order."""
    queues = ground.layout.queues
    return [
        Part(queue, number)
        for queue in sorted(queues)
        if wanted.queue in (None, queue)
        for number in range(queues[queue])
    ]


def survey(ground: Ground, window: Window, wanted: Filter) -> Iterator[Seen]:
    """Every wanted occurrence of the window, each once, in no particular order.

    What has not fired is looked for first and told last: what fires meanwhile stands behind the ends that the work
    partitions had before, and is told as what it became.
    """
    every = parts(ground, wanted)
    ends = {part: ground.scan.span(ground.names.work(part.queue), part.partition).end for part in every}
    graves = Graves()
    with Spill(_size_of_jobs(ground)) as waiting:
        for seen in chain(unfired(ground, window, wanted), read_buried(ground, window, wanted, graves)):
            waiting.add([_packed(seen)])
        for part in every:
            for seen in survey_part(ground, part, window, wanted, graves):
                occurrence = seen.occurrence_id.encode()
                if seen.offset >= ends[part] or graves.may_hold(occurrence):
                    waiting.add([(occurrence, None)])
                yield seen
        for group in waiting.groups():
            yield from _left(group)


def _left(rows: Sequence[Row]) -> Iterator[Seen]:
    """What has not fired of the occurrences in these rows. One that is pending and buried too has a late copy, or was
    buried after it was looked at."""
    fired = {row[OCCURRENCE] for row in rows if row[1] is None}
    unfired = [row for row in rows if row[1] is not None and row[OCCURRENCE] not in fired]
    pending = {row[OCCURRENCE] for row in unfired if row[_STATE_AT] == State.PENDING}
    for row in unfired:
        if row[_STATE_AT] != State.DEAD or row[OCCURRENCE] not in pending:
            yield _unpacked(row)


def _packed(seen: Seen) -> Row:
    """With plain values only, which spill."""
    return seen.occurrence_id.encode(), *seen[1:_STATE_AT], seen.state.value, *seen[_STATE_AT + 1 :]


def _unpacked(row: Row) -> Seen:
    own = row[1:_STATE_AT], (State(row[_STATE_AT]),), row[_STATE_AT + 1 :]
    return Seen._make((row[OCCURRENCE].decode(), *chain.from_iterable(own)))


def _size_of_jobs(ground: Ground) -> int:
    homes = range(ground.layout.partitions)
    spans = (ground.scan.span(ground.names.jobs, home) for home in homes)
    return sum(span.end - span.low for span in spans)


def survey_part(
    ground: Ground, part: Part, window: Window, wanted: Filter, graves: Graves | None = None
) -> Iterator[Seen]:
    """The wanted occurrences of the window whose runs stand on this work partition; `graves` = what is known of those
    that were buried."""
    graves = graves or Graves()
    work = ground.names.work(part.queue)
    progress = read_progress(ground, part)
    span = ground.scan.span(work, part.partition, window.from_ms - SLACK_MS)
    if span.start >= span.end:
        return
    unwanted, lacking = _unwanted(wanted), Sieve()
    with Marks(span, ground) as marks, Spill(span.end - span.start) as spill:
        for batch in acks_of(ground, part, window):
            marks.learn(batch, progress.metadata.acks_offset)
        for rows in rows_of(ground, part, span, marks, progress, unwanted):
            spill.add(_meant(rows, window, wanted))
            for row in rows if unwanted else ():
                if row[NOMINAL] == UNKNOWN:
                    lacking.add(hash(row[OCCURRENCE]))
        if lacking:
            once_more = replace(ground, newer=Counter())  # what cannot be read was counted
            for rows in rows_of(once_more, part, span, marks, progress, only=lacking):
                spill.add(_meant(rows, window, wanted))
        for group in spill.groups():
            yield from _fold(group, part, window, wanted, graves)


def _unwanted(wanted: Filter) -> Set[int]:
    """Codes of ends that are not wanted: a first run that came to one need not be read, unless all are counted. If a
    later run follows it, its nominal time says when the occurrence was due, or its first run is asked for after all."""
    return {code for code, state in ENDED.items() if not wanted.wants(state)}


def _meant(rows: list[Row], window: Window, wanted: Filter) -> list[Row]:
    """Those that can be of an occurrence that is wanted. Later runs are due later than their occurrence was, and the
    first one, which says when that was, may be due later than its nominal time."""
    begin, end = window.from_ms, window.to_ms
    found = [
        row
        for row in rows
        if row[NOMINAL] < end and (row[RUN] > 1 or row[NOMINAL] >= begin or begin <= row[DUE] < end)
    ]
    if wanted.any_head:
        return found
    matches = wanted.matches_head
    return [row for row in found if row[RUN] == NEWER or matches(row[HEAD][0], *row[HEAD][2:])]


def read_progress(ground: Ground, part: Part) -> Progress:
    """Where the group of workers stands; a text beside the offset that this version cannot read tells nothing."""
    queue, number = part
    group, work = ground.names.worker_group(queue), ground.names.work(queue)
    found = ground.scan.committed(group, work, ground.layout.queues[queue]).get(number)
    if found is None:
        return Progress(0, OffsetMetadata())
    with suppress(StopPartition):
        return Progress(found.offset, offset_metadata.decode(found.offset, found.metadata))
    return Progress(found.offset, OffsetMetadata())


def acks_of(ground: Ground, part: Part, window: Window) -> Iterator[Sequence[Record]]:
    """The records of the acks partition that may speak of runs of the window."""
    scan, topic, number = ground.scan, ground.names.acks(part.queue), part.partition
    scan.decided(topic, number)
    span = scan.span(topic, number, window.from_ms - SLACK_MS)
    return scan.batches(topic, number, span.start, span.end)


def rows_of(
    ground: Ground,
    part: Part,
    span: Span,
    marks: Marks,
    progress: Progress,
    unwanted: Set[int] = frozenset(),
    only: Sieve | None = None,
) -> Iterator[list[Row]]:
    """The runs of the span, in order, as rows to be folded; without first runs that came to an `unwanted` end, of
    which not even the bytes are looked at. With `only`, of these occurrences."""
    held = held_by(progress)
    ended, code_of = ENDED, marks.raw_code
    work = ground.names.work(part.queue)
    for batch in ground.scan.batches(work, part.partition, span.start, span.end):
        rows: list[Row] = []
        for record in batch:
            key, offset = record.key() or b"", record.offset() or 0
            if only is not None and key not in only:
                continue
            code = code_of(offset, key) & CODE
            if code and code in unwanted:
                continue
            value = record.value()
            if value is None:
                continue
            sight = plain_run(key, value) or read_run(key, value)
            if sight is None:
                if ground.is_newer(codec.RUN, value, work):
                    rows.append(_newer(record, key, offset))
                continue
            job, run, due_at, nominal_at, size, head = sight
            if run != 1:
                code = code_of(offset, key, run) & CODE
            state = ended.get(code) or _open_state(
                progress, offset, started=code == STARTED or (not code and offset in held)
            )
            at = record.timestamp()[1]
            rows.append((key, job, run, offset, at, due_at, nominal_at, state.value, size, head))
        yield rows


def held_by(progress: Progress) -> Set[int]:
    """Offsets of runs that the metadata says were started, and not given back."""
    return {offset for offset, start in progress.metadata.started if start.worker != NOBODY}


def _newer(record: Record, key: bytes, offset: int) -> Row:
    """The row of a run that is of a newer version: it outranks those that can be read."""
    at = record.timestamp()[1]
    return (
        key,
        key,
        NEWER,
        offset,
        at,
        at,
        UNKNOWN,
        State.UNREADABLE.value,
        len(record.value() or b""),
        NOBODYS,
    )


def _open_state(progress: Progress, offset: int, *, started: bool) -> State:
    """Of a run without a terminal ack."""
    if progress.past(offset):
        return State.UNACKED
    return State.RUNNING if started else State.WAITING


def _fold(rows: Sequence[Row], part: Part, window: Window, wanted: Filter, graves: Graves) -> Iterator[Seen]:
    """One for each occurrence among the rows, if it is of the window and wanted."""
    latest = {row[OCCURRENCE]: row for row in rows}
    firsts = {} if len(latest) == len(rows) else _of_several(rows, latest)
    states = {state.value: state for state in State if wanted.wants(state)}
    begin, end = window.from_ms, window.to_ms
    for occurrence, row in latest.items():
        first = firsts.get(occurrence, row)
        due_at = first[DUE] if first[RUN] in SAYS_DUE else graves.dues.get(occurrence) or first[NOMINAL]
        state = states.get(row[STATE])
        if state is State.RETRYING and graves.retries.get(occurrence) == row[RUN] + 1:
            state = states.get(State.DEAD.value)
        if row[RUN] == NEWER:
            row = (*row[:HEAD], first[HEAD])
            if not wanted.any_head and not wanted.matches_head(first[HEAD][0], *first[HEAD][2:]):
                continue
        if state is not None and begin <= due_at < end:
            yield _seen(row, first, due_at, state, part)


def _of_several(rows: Sequence[Row], latest: dict[bytes, Row]) -> dict[bytes, Row]:
    """The first runs of occurrences that have several records; `latest` is made to hold their highest ones."""
    firsts: dict[bytes, Row] = {}
    for row in rows:
        occurrence = row[OCCURRENCE]
        if latest[occurrence] is row and occurrence not in firsts:
            continue  # the only one
        if row[RUN] < firsts.setdefault(occurrence, row)[RUN]:
            firsts[occurrence] = row
        if row[RUN] > latest[occurrence][RUN]:
            latest[occurrence] = row
    return firsts


def _seen(row: Row, first: Row, due_at: int, state: State, part: Part) -> Seen:
    occurrence, job, run, offset, _, _, _, _, size, (handler, queue, schedule_id, key, labels) = row
    id_ = occurrence.decode()
    job_id = id_ if job is occurrence else job.decode()
    return tuple.__new__(
        Seen,
        (
            id_, job_id, handler, queue, schedule_id, key, labels, due_at, first[NOMINAL], first[AT], run, state,
            part.partition, offset, size, "", 1,
        ),
    )  # fmt: skip


def runs_at(ground: Ground, part: Part, offsets: array[int]) -> Iterator[Emitted]:
    """The runs at these offsets (ascending), payloads and all, in one reading of what lies between the first and the
    last. What is not there any more, or unreadable, is left out."""
    if not offsets:
        return
    wanted, at = offsets, 0
    topic = ground.names.work(part.queue)
    for batch in ground.scan.batches(topic, part.partition, offsets[0], offsets[-1] + 1):
        for record in batch:
            offset = record.offset() or 0
            while at < len(wanted) and wanted[at] < offset:
                at += 1
            if at < len(wanted) and wanted[at] == offset and (run := _decoded(record.value())) is not None:
                yield Emitted(run, offset, record.timestamp()[1])


def _decoded(value: bytes | None) -> Run | None:
    with suppress(Undecodable):
        return None if value is None else codec.RUN.decode(value)
    return None
