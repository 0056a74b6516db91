"""What one owned partition of `jobs` must do: take over, fold its log into the index, say what is due, and apply
what has committed.

    log record ──fold──▶ index entry ──its time comes──▶ Emission (records + what to change) ──commit──▶ applied

What a record means is decided in `fold`, what a due entry turns into in `firing` and `commands`. The index is a
fold of the log and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import EARLIEST, Takeover
from pipeline.core.keys import HIGHEST, SCHEDULE
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.core.zones import zone_data_version
from pipeline.emission import Emission
from pipeline.filing import TO_FIRE, scheduled
from pipeline.firing import settle_all
from pipeline.fold import fold, plain_job
from pipeline.ports import Action, Delta, Entry, Index, Position, Put, Record
from pipeline.view import APP, View, headers_of

SYNC_MS = 60 * 60_000
SEEN, PAGE = b"schedules", 100
"""Fact: the zone data with which the schedules of an index were last looked over; so many of them at a time."""
LATE_MS, LOOKED_AT = 1_000, 8 * 1024 * 1024
"""A schedule that has been due for so long is looked for, among so many bytes of what is overdue."""


class Partition:
    """One partition of `jobs` in this assignment. Used by the dispatcher's thread only."""

    def __init__(self, number: int, *, site: Site, index: Index) -> None:
        self.number = number
        self._takeover_key = keys.takeover_key(number)
        self.state = PartitionState.ASSIGNED
        self.nonce = ""
        self.asked_at = 0
        """Monotonic ms at which the takeover record was committed."""
        self.fenced_earlier = False
        self.generation = 0
        self._site = site
        self._layout = site.layout.identity()  # placement is fixed for good
        self._index = index
        self.next_offset = 0
        self._epoch = -1
        self._synced_at = 0
        self._log_time = 0
        """Latest LogAppendTime read in this assignment."""
        self._echoes: Counter[bytes] = Counter()
        """Record keys of our own committed writes that have not come back yet (H8)."""

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
        self._echoes.clear()
        self.next_offset = 0
        self.take_over_anew()
        return 0

    def _trusts(self, position: Position, now: int) -> bool:
        site = self._site
        return (
            position.cluster_id == site.cluster_id
            and position.topic_id == site.topic_id
            and position.layout == self._layout
            and now - position.synced_at < site.stale_after_ms
        )

    def takeover(self, record: Takeover) -> Put:
        """The record that this owner must read back before it fires (DESIGN §5.2)."""
        self.nonce = record.nonce
        self.generation = record.generation
        return Put(
            self._site.names.jobs,
            self.number,
            self._takeover_key,
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
        value = self._index.fact(self.number, self._takeover_key)
        return codec.TAKEOVER.decode(value).transactional_ids if value else ()

    def close(self) -> None:
        self.state = self.state.advance(PartitionState.CLOSED)

    # -- folding the log ------------------------------------------------------------------------------------

    def ingest(self, records: Sequence[Record], position: int, now: int) -> None:
        """Fold `records` into the index. `position` is the next offset, past markers too (H15). StopPartition."""
        view, before = View(self._index, self.number), self.state
        for record in records:
            offset = record.offset()
            if offset is None or offset < self.next_offset:
                continue  # delivered again after a cooperative rebalance (DESIGN §5.7)
            key, value = record.key() or b"", record.value()
            plain = None
            if value is not None and key not in self._echoes:
                plain = plain_job(record, offset, key, value, self._site, view)
            if plain is not None:
                view.put(plain)
            else:
                self._fold(record, offset, key, value, view, now)
            self.next_offset = offset + 1
        if records:
            self._epoch = records[-1].leader_epoch() or -1
            self._log_time = max(self._log_time, records[-1].timestamp()[1])
        self.next_offset = max(self.next_offset, position)
        self._synced_at = now
        view.delta.position = self._position(now)
        self._index.apply(self.number, view.delta)
        if self.state is PartitionState.RUNNING and before is not PartitionState.RUNNING:
            self._look_over()

    def _look_over(self) -> None:
        """An index that was filled with other zone data has schedules filed under instants which a rule may have moved
        since; one of an earlier version of this program does not know the apps of its schedules. What is read from the
        log is filed rightly; the rest is here, once, when this process begins to own it."""
        version = zone_data_version().encode()
        if self._index.fact(self.number, SEEN) == version:
            return
        after = SCHEDULE
        while page := self._schedules(after):
            view, after = View(self._index, self.number), page[-1].record_key
            for entry in page:
                # The version ends the record: what waits for an instant of this one need not be read.
                waits = entry.fire_at > EARLIEST and entry.value.endswith(version)
                if entry.action in (*TO_FIRE, Action.HOLD) and (not waits or APP.encode() in entry.value):
                    state = codec.SCHEDULE.reread(entry.value)
                    view.note(state.spec.source, state.spec.id)
                    view.put(scheduled(entry.record_key, state, entry.value))
            self._index.apply(self.number, view.delta)
        done = Delta()
        done.facts[SEEN] = version
        self._index.apply(self.number, done)

    def _schedules(self, after: bytes) -> list[Entry]:
        page = self._index.entries(self.number, after, PAGE)
        return [entry for entry in page if entry.record_key.startswith(SCHEDULE)]

    def quiet(self, now: int) -> bool:
        """Whether nothing was read for so long that the index should say it is still in step with its log: one that
        looks stale is thrown away (H12)."""
        return self.state is PartitionState.RUNNING and now - self._synced_at > SYNC_MS

    def _position(self, now: int) -> Position:
        site = self._site
        return Position(site.cluster_id, site.topic_id, self._layout, self.next_offset, self._epoch, now)

    def _fold(
        self, record: Record, offset: int, key: bytes, value: bytes | None, view: View, now: int
    ) -> None:
        if key in self._echoes and not self._last_echo(key, value):
            return
        if value is None:
            view.end(key, view.entry(key), headers_of(record), record.timestamp()[1])
        elif key != self._takeover_key or not self._takeover_seen(value, view):
            fold(record, offset, key, value, self._site, view, now)

    def _last_echo(self, key: bytes, value: bytes | None) -> bool:
        """One of our own writes came back. The index has followed when it committed (H8); what may stand there by
        now is newer. Only the last one that comes back is folded, if it put something: then its offset is known. Of a
        schedule and of a highest run nobody asks for that."""
        left = self._echoes.pop(key) - 1
        if left:
            self._echoes[key] = left
        return not left and value is not None and not key.startswith((SCHEDULE, HIGHEST))

    def _takeover_seen(self, value: bytes, view: View) -> bool:
        """Whether it is a takeover record of this partition, ours or another owner's."""
        try:
            record = codec.TAKEOVER.decode(value)
        except Undecodable:
            return False
        if record.nonce == self.nonce and self.state is PartitionState.RESTORING:
            self.state = self.state.advance(PartitionState.RUNNING)
        view.delta.facts[self._takeover_key] = value
        return True

    # -- what is due ----------------------------------------------------------------------------------------

    def due(self, now: int, limit: int, room: int, since: int | None = None) -> list[Entry]:
        if self.state is not PartitionState.RUNNING:
            return []
        return self._index.due(self.number, now, limit, room, since)

    def postpone(self, entries: Iterable[Entry]) -> None:
        """File entries under a later time, here only: a rebuilt index has them at their own again."""
        view = View(self._index, self.number)
        for entry in entries:
            view.put(entry)
        if view.delta.entries:
            self._index.apply(self.number, view.delta)

    @property
    def size(self) -> int:
        """Number of live entries."""
        return self._index.size(self.number)

    def overdue(self, now: int, limit: int) -> int:
        """Number of entries that are due, counted up to `limit`."""
        return self._index.overdue(self.number, now, limit) if self.state is PartitionState.RUNNING else 0

    def schedule_overdue(self, now: int, limit: int) -> int:
        """For how many ms the oldest schedule among the first `limit` overdue entries has been due; 0 if none is.
        Nobody waits for a schedule that its owner has forgotten, so this is what watches it."""
        if self.state is not PartitionState.RUNNING or not self.overdue(now - LATE_MS, 1):
            return 0
        late = self._index.due(self.number, now - LATE_MS, limit, LOOKED_AT, EARLIEST + 1)
        return max(
            (now - entry.fire_at for entry in late if entry.record_key.startswith(SCHEDULE)), default=0
        )

    def next_due(self) -> int | None:
        return self._index.next_due(self.number) if self.state is PartitionState.RUNNING else None

    def still(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those of `entries` that stand in the index as they are."""
        return [entry for entry in entries if self._index.entry(self.number, entry.record_key) == entry]

    def emit(self, entries: Iterable[Entry], now: int) -> Emission:
        """The records that settle `entries`, and the index changes to apply once they have committed."""
        emission = Emission(self._site, self._index, self.number, now, self._log_time)
        settle_all(entries, emission)
        return emission

    def applied(self, emission: Emission) -> None:
        """`emission` has committed: the index follows at once (H8); reading it back later changes nothing."""
        self._index.apply(self.number, emission.view.delta)
        self._echoes.update(emission.own)
