"""What one step appends for one partition, and what its index applies once that has committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import DeadLetter, Event, Run
from pipeline.core.schedule import Schedule
from pipeline.core.site import Site
from pipeline.ports import Entry, Headers, Index, Put
from pipeline.view import END, View

_new = tuple.__new__
"""Without the call in between that a NamedTuple makes of its own."""
_FIRED = END, b"fired"
BURIED, LONGEST_KEY = 3_900_000, 200_000
"""Bytes of a value and of a record key that fit a dead letter: compression can bring more than the log takes back."""
MOVED = "moved"
"""Header of a record that an owner put at its home: it waited for that owner, so its age means nothing."""


class Emission:
    """The records that settle some entries of partition `number`, decided at `now` by the store's clock."""

    __slots__ = (
        "_at",
        "_ended",
        "_jobs",
        "_places",
        "answered",
        "dead",
        "fired",
        "now",
        "number",
        "own",
        "puts",
        "reasons",
        "rewritten",
        "schedules",
        "site",
        "skipped",
        "view",
    )

    def __init__(self, site: Site, index: Index, number: int, now: int, log_time: int = 0) -> None:
        self.site = site
        self.number = number
        self.now = now
        self._at = max(now, log_time)
        """When what ends here ended, for the memory: never before what the partition has read, since another owner's
        clock may have been ahead of ours."""
        self.view = View(index, number)
        self.puts: list[Put] = []
        self.own: list[bytes] = []
        """Record keys written on this partition: they come back through the log."""
        self._jobs = site.names.jobs
        self._places: dict[str, tuple[str, int, Headers]] = {}
        self._ended = self._at, b"fired"
        self.fired = 0
        self.dead = 0
        self.answered: list[tuple[Event, int]] = []
        """Answers, with the ms that the command waited for its owner; -1 if it was answered before."""
        self.reasons: list[str] = []
        """Why records were put on `dead`, in one word each."""
        self.schedules: dict[bytes, Schedule] = {}
        """Schedules that this batch has changed and not written yet, by record key (recurring)."""
        self.rewritten: dict[bytes, Entry] = {}
        """And those that it has changed as bytes only."""
        self.skipped: Counter[str] = Counter()
        """Occurrences of schedules that were skipped, by reason."""

    def fire(self, entry: Entry) -> None:
        """Emit run 1 of an anonymous job. All that fires in bulk passes here, so it is `run` and `end` in one, and
        moves bytes only."""
        key, _, offset, _, value, place = entry
        if key in self.view.delta.entries:
            return  # cancelled or changed by a command before it in this batch
        topic, partition, headers = self._places.get(place) or self._place(place)
        id_ = key[2:]
        told = [_FIRED, ("base", b"%d" % offset), *headers]
        self.puts.append(_new(Put, (topic, partition, id_, value, None)))
        self.puts.append(_new(Put, (self._jobs, self.number, key, None, told)))
        self.own.append(key)
        self.view.delta.entries[key] = entry.fire_at, None
        self.view.delta.ended[id_] = self._ended
        self.fired += 1

    def _place(self, place: str) -> tuple[str, int, Headers]:
        queue, _, partition = place.rpartition("/")
        found = self.site.names.work(queue), int(partition), [("run", b"1"), ("work", place.encode())]
        self._places[place] = found
        return found

    def keep(self, entry: Entry, headers: Headers | None = None) -> None:
        """Write `entry` as the owner's own record; only the owner writes such keys."""
        self.write(entry, headers)
        self.view.put(entry)

    def write(self, entry: Entry, headers: Headers | None = None) -> None:
        """Write what is filed already."""
        self.puts.append(Put(self._jobs, self.number, entry.record_key, entry.value, headers))
        self.own.append(entry.record_key)

    def rewrite(self, before: Entry, after: Entry) -> None:
        """File `after` in place of `before`; it is written with the other schedules, at the end of the batch."""
        self.view.delta.put(after, before)
        self.rewritten[after.record_key] = after

    def end(self, entry: Entry, end: str, more: Iterable[tuple[str, bytes]] = ()) -> None:
        """Tombstone the record. A tombstone says how it ended, so that whoever reads only it knows."""
        headers: Headers = [(END, end.encode()), ("base", b"%d" % entry.offset), *more]
        self.puts.append(Put(self._jobs, self.number, entry.record_key, None, headers))
        self.own.append(entry.record_key)
        self.view.end(entry.record_key, entry, headers, self._at)

    def put_at(self, home: int, key: bytes, value: bytes) -> None:
        """Put a record at its home partition, another one than this."""
        moved: Headers = [(MOVED, b"%d" % self.number)]
        self.puts.append(Put(self._jobs, home, key, value, moved))

    def run(self, place: str, occurrence: bytes, value: bytes) -> None:
        """Emit a run to `place` = `<queue>/<work partition>`."""
        queue, _, partition = place.rpartition("/")
        self.puts.append(Put(self.site.names.work(queue), int(partition), occurrence, value))
        self.fired += 1

    def tell(self, key: bytes, event: Event) -> bytes:
        """Append an event here; its bytes."""
        value = codec.EVENT.encode(event)
        self.puts.append(Put(self.site.names.events, self.number, key, value))
        return value

    def bury(self, entry: Entry) -> None:
        """Put the record on `dead`, as a job if it can be read as one."""
        reason, _, detail = entry.detail.partition(": ")
        size = len(entry.value)
        run = _readable(entry) if reason != "undecodable" and size <= BURIED else None
        if size > BURIED:
            detail = f"{detail}; of {size} bytes the first {BURIED}"
        letter = DeadLetter(
            reason=reason,
            detail=detail,
            at=self.now,
            source_topic=self._jobs,
            source_partition=self.number,
            source_offset=entry.offset,
            record_key=entry.record_key[:LONGEST_KEY],
            value=None if run is not None else entry.value[:BURIED],
            run=run,
            attempts=() if run is None else run.history,
        )
        place = keys.place_key(self._jobs, self.number, entry.offset)
        key = run.occurrence_id.encode() if run is not None else place
        self.puts.append(Put(self.site.names.dead, 0, key, codec.DEAD_LETTER.encode(letter)))
        self.dead += 1
        self.reasons.append(reason)


def _readable(entry: Entry) -> Run | None:
    try:
        if entry.record_key.startswith(keys.KEYED):
            return codec.KEY_STATE.decode(entry.value).run
        return codec.RUN.decode(entry.value)
    except Undecodable:
        return None
