"""What one owned partition of `jobs` must do: fold its log into the index, and turn what is due into records.

    log record ──fold──▶ index entry ──its time comes──▶ Emission (records + what to change) ──commit──▶ applied

Anything the owner owes is an index entry with an action (`ports.Action`): a job to fire, a record to move home,
bytes to quarantine, a duplicate to drop. So nothing is done while folding, everything owed survives a crash,
and a rebuilt index owes exactly the same. The index is a fold of the log and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import StopPartition, Undecodable, UnknownFingerprint
from pipeline.core.job import EARLIEST, LATEST, DeadLetter, Event, Highest, Run, Takeover
from pipeline.core.keys import JobsKey, JobsKind
from pipeline.core.names import NAME
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.ports import Action, Delta, Entry, Headers, Index, Position, Put, Record

CREATION_LIMIT_MS = 15 * 60_000
"""A `j/` record appended later than this after its `created_at` is refused: the fired memory of 30 minutes
could no longer tell whether it is a late duplicate (DESIGN §4)."""

JOB, HIGHEST = b"j/", b"h/"
DETAIL_LIMIT = 500
"""Characters of a reason kept in the index: what a foreign record says of itself has no bound."""
MOVED = "moved"
"""Header of a record that an owner put at its home: it waited for that owner, so its age means nothing."""


@dataclass(slots=True)
class Emission:
    """What a step appends for one partition, and what the index applies once that has committed."""

    puts: list[Put] = field(default_factory=list)
    delta: Delta = field(default_factory=Delta)
    fired: int = 0
    dead: int = 0


class Partition:
    """One partition of `jobs` in this assignment. Used by the dispatcher's thread only."""

    def __init__(self, number: int, *, site: Site, index: Index) -> None:
        self.number = number
        self.state = PartitionState.ASSIGNED
        self.nonce = ""
        self.asked_at = 0
        """Monotonic ms at which the takeover record was committed."""
        self.fenced_earlier = False
        self.generation = 0
        self._site = site
        self._index = index
        self.next_offset = 0
        self._epoch = -1
        self._now = 0

    # -- taking over ----------------------------------------------------------------------------------------

    def open(self, now: int) -> int:
        """Where to read from: the index position if the index is of this log and fresh, else 0 with a wiped
        index; never the group offset (DESIGN §5.1, H12, H13, H14)."""
        position = self._index.position(self.number)
        if position is not None and self._trusts(position, now):
            self.next_offset, self._epoch = position.offset, position.leader_epoch
        else:
            self._index.wipe(self.number)
            self.next_offset = 0
        return self.next_offset

    def rebuild(self) -> int:
        """The log is not the one the index was made of (H13): forget it, read from 0, take over anew."""
        self._index.wipe(self.number)
        self.next_offset = 0
        self.take_over_anew()
        return 0

    def _trusts(self, position: Position, now: int) -> bool:
        site = self._site
        return (
            position.cluster_id == site.cluster_id
            and position.topic_id == site.topic_id
            and position.layout == site.layout.identity()
            and now - position.synced_at < site.stale_after_ms
        )

    def takeover(self, record: Takeover) -> Put:
        """The record that this owner must read back before it fires (DESIGN §5.2)."""
        self.nonce = record.nonce
        self.generation = record.generation
        return Put(
            self._site.names.jobs,
            self.number,
            keys.takeover_key(self.number),
            codec.TAKEOVER.encode(record),
        )

    def asked(self, monotonic: int) -> None:
        """The takeover record is committed; now it has to come back."""
        self.state = self.state.advance(PartitionState.RESTORING)
        self.asked_at = monotonic
        self.fenced_earlier = False

    def take_over_anew(self) -> None:
        """A transaction that touched this partition has an unknown outcome: fire nothing until read back."""
        if self.state is not PartitionState.ASSIGNED:
            self.state = self.state.advance(PartitionState.ASSIGNED)
        self.nonce = ""

    def earlier_ids(self) -> tuple[str, ...]:
        """Transactional ids of the last takeover before ours: whose transaction may stand in our way."""
        value = self._index.fact(self.number, keys.takeover_key(self.number))
        return codec.TAKEOVER.decode(value).transactional_ids if value else ()

    def close(self) -> None:
        self.state = self.state.advance(PartitionState.CLOSED)

    # -- folding the log ------------------------------------------------------------------------------------

    def ingest(self, records: Sequence[Record], position: int, now: int) -> None:
        """Fold `records` into the index. `position` is the next offset, past markers too (H15)."""
        delta, self._now = Delta(), now
        for record in records:
            offset = record.offset()
            if offset is None or offset < self.next_offset:
                continue  # delivered again after a cooperative rebalance (DESIGN §5.7)
            self._fold(record, offset, delta)
            self.next_offset = offset + 1
            self._epoch = record.leader_epoch() or -1
        self.next_offset = max(self.next_offset, position)
        delta.position = self._position(now)
        self._index.apply(self.number, delta)

    def _position(self, now: int) -> Position:
        site = self._site
        return Position(
            site.cluster_id, site.topic_id, site.layout.identity(), self.next_offset, self._epoch, now
        )

    def _fold(self, record: Record, offset: int, delta: Delta) -> None:
        key = record.key() or b""
        value = record.value()
        if value is None:
            self._fold_tombstone(key, record.timestamp()[1], delta)
            return
        try:
            parsed = keys.parse_jobs_key(key)
            entry = self._entry(parsed, record, key, value, offset, delta)
        except UnknownFingerprint as unknown:
            if self._announced(f"{unknown.fingerprint:016x}"):
                raise StopPartition(
                    f"partition {self.number} holds records of a schema that was announced but is unknown"
                    f" here ({unknown.fingerprint:016x}): upgrade this process"
                ) from unknown
            entry = _owed(key, offset, Action.DEAD, value, f"unknown_schema: {unknown}")
        except Undecodable as problem:
            entry = _owed(key, offset, Action.DEAD, value, f"undecodable: {problem}")
        if entry is not None:
            delta.put(entry, self._known(key, delta))

    def _announced(self, fingerprint: str) -> bool:
        site = self._site
        return fingerprint in site.layout.fingerprints or (
            site.look_again(self._now) and fingerprint in site.layout.fingerprints
        )

    def _fold_tombstone(self, key: bytes, log_time: int, delta: Delta) -> None:
        known = self._known(key, delta)
        if known is not None:
            delta.remove(known)
        if key.startswith(JOB):
            delta.ended[key[len(JOB) :].decode("utf-8", "replace")] = log_time
        elif key.startswith(HIGHEST):
            delta.facts[key] = None

    def _known(self, key: bytes, delta: Delta) -> Entry | None:
        changed = delta.entries.get(key)
        return changed[1] if changed is not None else self._index.entry(self.number, key)

    def _fact(self, key: bytes, delta: Delta) -> bytes | None:
        return delta.facts[key] if key in delta.facts else self._index.fact(self.number, key)

    def _entry(
        self, parsed: JobsKey, record: Record, key: bytes, value: bytes, offset: int, delta: Delta
    ) -> Entry | None:
        match parsed.kind:
            case JobsKind.JOB:
                return self._job(parsed.id, record, key, value, offset, delta)
            case JobsKind.RETRY:
                return self._retry(parsed, key, value, offset, delta)
            case JobsKind.TAKEOVER:
                self._takeover_seen(key, value, delta)
                return None
            case JobsKind.HIGHEST:
                codec.HIGHEST.decode(value)
                delta.facts[key] = value
                return None
            case _:
                # Commands, done facts, keyed jobs, schedules, changes and stops of a later version wait
                # for an owner that executes them; this one must not lose them.
                return _owed(key, offset, Action.HOLD, value, "")

    def _takeover_seen(self, key: bytes, value: bytes, delta: Delta) -> None:
        record = codec.TAKEOVER.decode(value)
        if record.nonce == self.nonce and self.state is PartitionState.RESTORING:
            self.state = self.state.advance(PartitionState.RUNNING)
        delta.facts[key] = value

    def _job(self, id_: str, record: Record, key: bytes, value: bytes, offset: int, delta: Delta) -> Entry:
        head, log_time = codec.peek_run(value), record.timestamp()[1]
        if head.job_id != id_ or head.occurrence_id != id_ or head.run != 1:
            return _owed(
                key,
                offset,
                Action.DEAD,
                value,
                "forged: job_id, occurrence_id and key differ, or run is not 1",
            )
        if id_ in delta.ended or self._index.ended(self.number, id_, log_time):
            first = self._firing(head, key, value, offset)
            work = f" {first.detail}" if first.action == Action.FIRE else ""
            return _owed(key, offset, Action.DROP, b"", f"duplicate{work}")
        if log_time - head.created_at > CREATION_LIMIT_MS and not _moved(record):
            return _owed(
                key, offset, Action.DEAD, value, "too_old: appended over 15 min after its created_at"
            )
        home = self._site.layout.home(id_)
        if home != self.number:
            return _owed(key, offset, Action.MOVE, value, str(home))
        return self._firing(head, key, value, offset)

    def _retry(self, parsed: JobsKey, key: bytes, value: bytes, offset: int, delta: Delta) -> Entry:
        head = codec.peek_run(value)
        if head.occurrence_id != parsed.id or head.run != parsed.run + 1:
            return _owed(key, offset, Action.DEAD, value, "forged: occurrence_id or run does not fit the key")
        home = self._site.layout.home(head.job_id)
        if home != self.number:
            return _owed(key, offset, Action.MOVE, value, str(home))
        if parsed.run < self._highest(parsed.id, delta):
            return _owed(key, offset, Action.DROP, b"", "superseded")
        return self._firing(head, key, value, offset)

    def _firing(self, head: codec.RunHead, key: bytes, value: bytes, offset: int) -> Entry:
        """Whatever could make the emission fail for ever is decided here, at fold (DESIGN §5.8)."""
        if not EARLIEST <= head.due_at <= LATEST:
            return _owed(key, offset, Action.DEAD, value, f"due_at: {head.due_at} is absurd")
        for name, text in (("handler", head.handler), ("queue", head.queue)):
            if not NAME.fullmatch(text):
                return _owed(key, offset, Action.DEAD, value, f"{name}: illegal name")
        if head.queue not in self._site.layout.queues and not self._found(head.queue):
            return _owed(key, offset, Action.DEAD, value, f"unknown_queue: {head.queue}")
        work = self._site.layout.work_partition(head.queue, head.serial or head.job_id)
        return Entry(key, head.due_at, offset, Action.FIRE, value, f"{head.queue}/{work}")

    def _found(self, queue: str) -> bool:
        """Whether the queue was made after this process read the layout: a job that was acknowledged for it must
        not end as dead for that."""
        return self._site.look_again(self._now) and queue in self._site.layout.queues

    def _highest(self, occurrence: str, delta: Delta) -> int:
        value = self._fact(keys.highest_key(occurrence), delta)
        return codec.HIGHEST.decode(value).run if value is not None else 1

    # -- what is due ----------------------------------------------------------------------------------------

    def due(self, now: int, limit: int, room: int) -> list[Entry]:
        if self.state is not PartitionState.RUNNING:
            return []
        return self._index.due(self.number, now, limit, room)

    def next_due(self) -> int | None:
        return self._index.next_due(self.number) if self.state is PartitionState.RUNNING else None

    def emit(self, entries: Iterable[Entry], now: int) -> Emission:
        """The records that settle `entries`, and the index changes to apply once they have committed."""
        emission = Emission()
        for entry in entries:
            match entry.action:
                case Action.FIRE:
                    self._fire(entry, now, emission)
                case Action.MOVE:
                    self._move(entry, now, emission)
                case Action.DEAD:
                    self._bury(entry, now, emission)
                case Action.DROP:
                    self._drop(entry, entry.detail, now, emission)
                case _:
                    raise AssertionError(f"action {entry.action} is never due")
            emission.delta.remove(entry)
        return emission

    def _fire(self, entry: Entry, now: int, emission: Emission) -> None:
        queue, _, work_partition = entry.detail.rpartition("/")
        if entry.record_key.startswith(JOB):
            occurrence, run = entry.record_key[len(JOB) :], 1
            emission.delta.ended[occurrence.decode()] = now
        else:
            parsed = keys.parse_jobs_key(entry.record_key)
            if parsed.run < self._highest(parsed.id, emission.delta):
                self._drop(entry, "superseded", now, emission)
                return
            occurrence, run = parsed.id.encode(), parsed.run + 1
            self._remember_run(
                parsed.id, Highest(run=run, queue=queue, work_partition=int(work_partition)), emission
            )
        emission.puts.append(Put(self._site.names.work(queue), int(work_partition), occurrence, entry.value))
        emission.puts.append(
            self._tombstone(entry, "fired", [("run", b"%d" % run), ("work", entry.detail.encode())])
        )
        emission.fired += 1

    def _remember_run(self, occurrence: str, highest: Highest, emission: Emission) -> None:
        key, value = keys.highest_key(occurrence), codec.HIGHEST.encode(highest)
        emission.puts.append(Put(self._site.names.jobs, self.number, key, value))
        emission.delta.facts[key] = value

    def _move(self, entry: Entry, now: int, emission: Emission) -> None:
        moved: Headers = [(MOVED, b"%d" % self.number)]
        emission.puts.append(
            Put(self._site.names.jobs, int(entry.detail), entry.record_key, entry.value, moved)
        )
        self._end(entry, "moved", now, emission)

    def _bury(self, entry: Entry, now: int, emission: Emission) -> None:
        letter = self._dead_letter(entry, now)
        place = keys.place_key(self._site.names.jobs, self.number, entry.offset)
        emission.puts.append(
            Put(
                self._site.names.dead,
                0,
                letter.run.occurrence_id.encode() if letter.run is not None else place,
                codec.DEAD_LETTER.encode(letter),
            )
        )
        emission.dead += 1
        self._end(entry, "dead", now, emission)

    def _dead_letter(self, entry: Entry, now: int) -> DeadLetter:
        reason, _, detail = entry.detail.partition(": ")
        run = _readable(entry.value) if reason != "undecodable" else None
        return DeadLetter(
            reason=reason,
            detail=detail,
            at=now,
            source_topic=self._site.names.jobs,
            source_partition=self.number,
            source_offset=entry.offset,
            record_key=entry.record_key,
            value=None if run is not None else entry.value,
            run=run,
        )

    def _drop(self, entry: Entry, detail: str, now: int, emission: Emission) -> None:
        reason, _, work = detail.partition(" ")
        id_ = entry.record_key.decode("utf-8", "replace")
        event = Event(id=id_, kind="dropped", at=now, reason=reason)
        emission.puts.append(
            Put(self._site.names.events, self.number, id_.encode(), codec.EVENT.encode(event))
        )
        self._end(entry, reason, now, emission, work)

    def _end(self, entry: Entry, end: str, now: int, emission: Emission, work: str = "") -> None:
        """Tombstone the record; an ended `j/` id is remembered so that a late duplicate cannot fire. A duplicate's
        tombstone replaces the one that said where its job was fired, so it says so too."""
        if entry.record_key.startswith(JOB):
            emission.delta.ended[entry.record_key[len(JOB) :].decode("utf-8", "replace")] = now
        emission.puts.append(self._tombstone(entry, end, [("work", work.encode())] if work else []))

    def _tombstone(self, entry: Entry, end: str, more: Headers) -> Put:
        headers: Headers = [("end", end.encode()), ("base", b"%d" % entry.offset), *more]
        return Put(self._site.names.jobs, self.number, entry.record_key, None, headers)

    def condemn(self, entry: Entry, reason: str) -> Entry:
        """The same entry, to be buried: the broker will never take the record it would have been (§5.8)."""
        return entry._replace(action=Action.DEAD, detail=reason)

    def applied(self, emission: Emission) -> None:
        """`emission` has committed: the index follows at once (H8); reading it back later changes nothing."""
        self._index.apply(self.number, emission.delta)


def _owed(key: bytes, offset: int, action: int, value: bytes, detail: str) -> Entry:
    """Something to settle at once: due at the beginning of time."""
    return Entry(key, 0, offset, action, value, detail[:DETAIL_LIMIT])


def _moved(record: Record) -> bool:
    try:
        return any(name == MOVED for name, _ in record.headers() or ())
    except (SystemError, UnicodeDecodeError):  # the client's answer to a header name that is no UTF-8
        return False


def _readable(value: bytes) -> Run | None:
    try:
        return codec.RUN.decode(value)
    except Undecodable:
        return None
