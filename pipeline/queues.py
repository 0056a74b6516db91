"""What is said of queues on `meta`: followed by workers, read by whoever shows it, and what waits in a queue
(docs/queues.md).

A worker that has not read it yet starts nothing; one that cannot read on goes by what it knew. It looks twice a second,
so a pause holds everywhere within that time and the time it takes to be written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline import codec
from pipeline.core import offset_metadata
from pipeline.core.errors import NotFound, StopPartition, StoreUnreachable, Undecodable
from pipeline.core.job import AckState
from pipeline.core.keys import QUEUE, queue_key
from pipeline.core.names import Names
from pipeline.core.offset_metadata import OffsetMetadata
from pipeline.core.queues import Gate, QueueState, of_event, unreadable
from pipeline.ports import Clock, CommittedOffset, Events, Reader, Record, Scan

LOOK_MS = 500
AT_ONCE = 1_000
"""Records of `meta` taken in at one look."""


class QueueWatch:
    """Follows what is said of the queues of one process. Used by the workers' thread only."""

    def __init__(self, *, reader: Reader, meta: str, clock: Clock, events: Events) -> None:
        self._reader = reader
        self._meta = meta
        self._clock = clock
        self._events = events
        self._gates: dict[bytes, tuple[Gate, str]] = {}
        """By record key, with the id of the work topic."""
        self._values: dict[bytes, bytes] = {}
        self._next: int | None = None
        """Where on `meta` to read on; None: it has not been read at all."""
        self._look_at = 0

    def gate(self, queue: str, topic_id: str) -> Gate:
        """That of the lanes of this queue, kept up to date by `look`; closed until the first."""
        gate, key = Gate(closed=True), queue_key(queue)
        self._gates[key] = (gate, topic_id)
        if self._next is not None:
            self._follow(key, gate, topic_id)
        return gate

    def look(self) -> None:
        """See what is new, at most twice a second. Does not raise."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_MS
        try:
            fresh = self._news()
        except (StoreUnreachable, NotFound) as problem:
            self._events.on("queues_unknown", reason=str(problem))
            return
        for key, (gate, topic_id) in self._gates.items():
            if fresh is None or key in fresh:
                self._follow(key, gate, topic_id)

    def _news(self) -> set[bytes] | None:
        """The keys that were written; None: this was the first look."""
        if self._next is None:
            there = self._reader.partitions(self._meta)
            records = list(self._reader.read(self._meta, 0)) if there else []
            self._take(records)
            if there:
                self._next = self._next or 0
            return None
        return self._take(self._reader.tail(self._meta, 0, self._next, AT_ONCE))

    def _take(self, records: Sequence[Record]) -> set[bytes]:
        found = set()
        for record in records:
            key, value = record.key() or b"", record.value()
            self._next = (record.offset() or 0) + 1
            if key.startswith(QUEUE):
                self._values[key] = value or b""
                found.add(key)
        return found

    def _follow(self, key: bytes, gate: Gate, topic_id: str) -> None:
        queue, closed = key.removeprefix(QUEUE).decode(), gate.closed
        state = _state(queue, self._values.get(key))
        gate.follow(state, topic_id)
        if gate.closed and state is not None and state.pause is not None:
            self._events.on("queue_paused", queue=queue, by=state.pause.by, reason=state.pause.reason)
        elif closed and not gate.closed and state is not None:
            self._events.on("queue_open", queue=queue)


def _state(queue: str, value: bytes | None) -> QueueState | None:
    try:
        return of_event(codec.EVENT.decode(value)) if value else None
    except Undecodable:
        return unreadable(queue)


def read_states(reader: Reader, meta: str) -> dict[str, QueueState]:
    """What is said of each queue of which anything was ever said. StoreUnreachable."""
    values = {}
    if reader.partitions(meta):
        values = {
            record.key() or b"": record.value()
            for record in reader.read(meta, 0)
            if (record.key() or b"").startswith(QUEUE)
        }
    return states_of(values)


def states_of(values: Mapping[bytes, bytes | None]) -> dict[str, QueueState]:
    """By queue, of the records under these keys; those of other keys are passed over."""
    queues = {
        key.removeprefix(QUEUE).decode("utf-8", "replace"): value
        for key, value in values.items()
        if key.startswith(QUEUE)
    }
    found = {queue: _state(queue, value) for queue, value in queues.items()}
    return {queue: state for queue, state in found.items() if state is not None}


# -- what waits ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Runs that were emitted and that nobody has started, as the group's offset and the acks tell. `oldest` = when the
    first of them was emitted (LogAppendTime, epoch ms)."""

    count: int = 0
    oldest: int | None = None


def ends_of(scan: Scan, topic: str, partitions: int, before: int | None = None) -> tuple[int, ...]:
    """Up to where each partition holds what was emitted by now, or before that time (epoch ms). StoreUnreachable."""
    spans = [scan.span(topic, number, before) for number in range(partitions)]
    return tuple(span.end if before is None else span.start for span in spans)


def waiting(
    scan: Scan, names: Names, queue: str, partitions: int, ends: Sequence[int] | None = None
) -> Waiting:
    """What waits in a queue, below `ends` if they are given. Reads all of it. StoreUnreachable."""
    count, oldest = 0, []
    for begun, batch in _from_group(scan, names, queue, partitions, ends):
        there = begun.left(batch)
        if there:
            oldest.append(there[0].timestamp()[1])
        count += len(there)
    return Waiting(count=count, oldest=min(oldest, default=None))


def oldest_unended(scan: Scan, names: Names, queue: str, partitions: int) -> int | None:
    """When the oldest run of a queue was emitted that has not ended, started or not (LogAppendTime, epoch ms), as the
    group's offset tells; None: all have. Reads no further than that. StoreUnreachable."""
    topic = names.work(queue)
    committed = scan.committed(names.worker_group(queue), topic, partitions)
    times = (
        _first_unended(scan, topic, number, committed.get(number, CommittedOffset(0)))
        for number in range(partitions)
    )
    return min((at for at in times if at is not None), default=None)


def _first_unended(scan: Scan, topic: str, number: int, at: CommittedOffset) -> int | None:
    low, _, end = scan.span(topic, number)
    begun = _Begun(at)
    batches = scan.batches(topic, number, max(low, at.offset), end)
    there = (record for batch in batches for record in batch)
    first = next((record for record in there if not begun.has_ended(record.offset() or 0)), None)
    return None if first is None else first.timestamp()[1]


def open_runs(scan: Scan, names: Names, queue: str, partitions: int) -> Iterator[tuple[Record, bool]]:
    """The runs of a queue that have not ended, and of each whether a worker has started it, as the group's offset and
    the acks tell. Reads all of them. StoreUnreachable."""
    for begun, batch in _from_group(scan, names, queue, partitions):
        for record in batch:
            offset = record.offset() or 0
            if not begun.has_ended(offset):
                yield record, begun.is_started(offset)


def _from_group(
    scan: Scan, names: Names, queue: str, partitions: int, ends: Sequence[int] | None = None
) -> Iterator[tuple[_Begun, Sequence[Record]]]:
    """What stands in a queue from the group's offsets on, below `ends` if they are given, with what the acks tell."""
    topic = names.work(queue)
    committed = scan.committed(names.worker_group(queue), topic, partitions)
    for number in range(partitions):
        low, _, end = scan.span(topic, number)
        if ends is not None:
            end = min(end, ends[number])
        at = committed.get(number, CommittedOffset(0))
        start = max(low, at.offset)
        if start >= end:
            continue
        begun = _Begun(at)
        begun.read_on(scan, names.acks(queue), number)
        for batch in scan.batches(topic, number, start, end):
            yield begun, batch


class _Begun:
    """Which runs of a partition have finished or were started, as its committed offset tells."""

    def __init__(self, committed: CommittedOffset) -> None:
        try:
            known = offset_metadata.decode(*committed)
        except StopPartition:
            known = OffsetMetadata()  # of a later version: it shows a few too many
        self._finished = known.finished
        self._started = {offset for offset, _ in known.started}
        self._acks_offset = known.acks_offset

    def read_on(self, scan: Scan, acks: str, number: int) -> None:
        """What was started since, as the acks partition tells."""
        low, _, end = scan.span(acks, number)
        for batch in scan.batches(acks, number, max(low, self._acks_offset), end):
            for record in batch:
                if (record.key() or b"").startswith(b"s/") and (value := record.value()) is not None:
                    self._learn(value)

    def _learn(self, value: bytes) -> None:
        with suppress(Undecodable):  # of a later version, or nobody's
            ack = codec.ACK.decode(value)
            if ack.state is AckState.STARTED:
                self._started.add(ack.work_offset)
            else:
                self._started.discard(ack.work_offset)

    def left(self, batch: Sequence[Record]) -> Sequence[Record]:
        if not (self._finished or self._started):
            return batch
        return [record for record in batch if not self._has(record.offset() or 0)]

    def has_ended(self, offset: int) -> bool:
        at = bisect_right(self._finished, offset, key=lambda run: run[0]) - 1
        return at >= 0 and offset <= self._finished[at][1]

    def is_started(self, offset: int) -> bool:
        return offset in self._started

    def _has(self, offset: int) -> bool:
        return self.is_started(offset) or self.has_ended(offset)
