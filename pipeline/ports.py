"""What the protocol needs from the world, as small protocols; adapters translate and decide nothing.

Everything here is synchronous and called from one thread, the owner's, but for what is made `Aside`. Times are integer
milliseconds.
Implemented twice, by `pipeline.adapters` over the real parts and in memory, and held to one conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from pipeline.core.context import Side
from pipeline.core.job import Run

Headers = list[tuple[str, bytes]]


class Clock(Protocol):
    """The store's clock (DESIGN §6) and this machine's monotonic one."""

    def now(self) -> int:
        """A lower bound of the broker's time in epoch ms; never goes backwards, never ahead of the broker."""
        ...

    def monotonic(self) -> int:
        """CLOCK_MONOTONIC in ms: for waiting and for time-outs, never for due-ness."""
        ...

    def error(self) -> int:
        """By how many ms the broker's time may be ahead of `now`, at most."""
        ...

    def close(self) -> None:
        """Hear the store no more; `now` goes on with what is known."""
        ...


class Record(Protocol):
    """A record read from the log. The methods are those of confluent_kafka.Message, so the real adapter hands
    its messages over as they are: a copy per record would cost more than folding it.

    A tombstone's `value()` is None, and the record itself is falsy: test with `is None` (DESIGN §5.7).
    """

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def leader_epoch(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]:
        """(kind, LogAppendTime in epoch ms)."""
        ...


class Put(NamedTuple):
    """A record to append; `value` None is a tombstone."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers | None = None


class CommittedOffset(NamedTuple):
    """An offset of a group with its metadata (schemas/offset-metadata.md)."""

    offset: int
    metadata: str = ""


class GroupProgress(NamedTuple):
    """Where a consumer group stands on one partition: the offset it committed (None: none), the log's own first and
    next ones, and what it committed beside its offset."""

    committed: int | None
    low: int
    end: int
    metadata: str = ""


class Membership(NamedTuple):
    """Ownership and group metadata, taken together when a batch is chosen and never refreshed inside it (H2)."""

    generation: int
    member_id: str
    opaque: Any
    owned: frozenset[int]


class RebalanceListener(Protocol):
    """Called inside `GroupLog.poll`, on the polling thread. Must not raise and must not call the log."""

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Start offsets of the partitions that may be fetched at once; the others stay paused until `start`."""
        ...

    def revoked(self, partitions: Sequence[int]) -> None:
        """Given away politely: nothing of them may be appended after this returns."""
        ...

    def lost(self, partitions: Sequence[int]) -> None:
        """Taken away already: drop everything."""
        ...


class GroupLog(Protocol):
    """A membership in the consumer group of one topic, with the transactional producer that goes with it.

    Reads read_committed. Owner's errors (`core.errors.OwnerError`) say what to do next.
    """

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        """Up to `limit` records of owned partitions, waiting at most `timeout_ms` for the first.

        Raises RebuildClients, and RebuildPartition for a partition whose position the log does not hold.
        """
        ...

    def positions(self) -> Mapping[int, int]:
        """Next offset to read per owned partition, counting markers passed at the end of the log (H15)."""
        ...

    def at_end(self) -> Set[int]:
        """Owned partitions of which everything had been delivered when the log was last heard of."""
        ...

    def start(self, partition: int, offset: int) -> None:
        """Begin fetching a paused partition at `offset`. `offset` < 0: at the beginning of the log."""
        ...

    def pause(self, partitions: Iterable[int]) -> None: ...
    def resume(self, partitions: Iterable[int], positions: Mapping[int, int]) -> None: ...

    def committed(self, partitions: Sequence[int], timeout_ms: int) -> Mapping[int, CommittedOffset | None]:
        """Stable committed offsets (no transaction pending on them). A partition that is not stable within
        the time is absent from the answer; None = nothing was ever committed."""
        ...

    def membership(self) -> Membership:
        """Owned partitions and group metadata now. RetryStep unless generation >= 1 and a member id is set (H3)."""
        ...

    def commit(
        self, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        """One transaction: begin, append all, flush to zero, send offsets with `membership`, commit.

        `offsets` holds at least one real offset (>= 0) for every partition touched; empty is a programming
        error (H4). Returns only if it committed. Raises RetryStep, PoisonRecord (nothing committed),
        OutcomeUnknown, RebuildClients. One at a time, from any thread: the others wait.
        """
        ...

    def fence(self, *transactional_ids: str) -> None:
        """Abort whatever those ids have open, errors ignored (DESIGN §5.2); never one of our own."""
        ...

    @property
    def transactional_ids(self) -> tuple[str, ...]: ...
    def close(self) -> None:
        """Leave the group politely."""
        ...


class Appender(Protocol):
    """Plain idempotent appends, outside any transaction."""

    def append(self, put: Put, done: Callable[[Exception | None, int, int], None] | None = None) -> None:
        """Queue one record. `done(error, offset, LogAppendTime)` is called from `poll` or `flush`."""
        ...

    def poll(self, timeout_ms: int) -> None: ...

    def flush(self, timeout_ms: int) -> None:
        """Wait until everything queued is durable; StoreUnreachable if it is not within the time."""
        ...

    def close(self) -> None: ...


class BatchAppender(Appender, Protocol):
    """One that can tell of many records at once: every run of a worker has a started record."""

    def append_all(self, puts: Sequence[Put], done: Callable[[Exception | None], None]) -> None:
        """Queue these, at least one. `done(error)` is called once, from `poll` or `flush`, when all were heard of: None
        if all of them are stored, else why one is not."""
        ...


class Reader(Protocol):
    """Reads partitions outside any group, read_committed."""

    def read(
        self, topic: str, partition: int, start: int | None = None, since_ms: int | None = None
    ) -> Iterator[Record]:
        """Records from `start` (or the first at or after `since_ms`, or the beginning) to the end as of now."""
        ...

    def tail(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Record]:
        """What stands at or after `start` right now, at most `limit` records, without waiting."""
        ...

    def decided(self, topic: str, partition: int, timeout_ms: int) -> None:
        """Wait until no transaction that is open on the partition now hides what was appended after it: whoever has
        just found nothing looks again then. StoreUnreachable if one still does when the time is over."""
        ...

    def leave(self, topic: str, partition: int) -> None:
        """Nobody will `tail` this partition any more for now."""
        ...

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0 if the topic does not exist."""
        ...

    def close(self) -> None: ...


class Span(NamedTuple):
    """A stretch of a partition, as offsets: the log begins at `low`, what is asked for at `start`, and what is
    committed ends before `end`."""

    low: int
    start: int
    end: int


class Scan(Protocol):
    """Partitions read in bulk, read_committed, outside any group. One thread at a time, one reading at a time.

    Raises StoreUnreachable; NotFound for what does not exist.
    """

    def span(self, topic: str, partition: int, since_ms: int | None = None) -> Span:
        """From the first record at or after `since_ms` (LogAppendTime; None: the beginning) to the end as it is now."""
        ...

    def decided(self, topic: str, partition: int) -> None:
        """Wait, for some seconds at most, until no transaction that is open now hides the end of the partition."""
        ...

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[Sequence[Record]]:
        """The records from offset `start` until before `end`, in order, some thousands at a time."""
        ...

    def committed(self, group: str, topic: str, partitions: int) -> Mapping[int, CommittedOffset]:
        """What the group has committed, by partition; absent: nothing. What an open transaction may change is told
        as it was before."""
        ...

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0 if the topic does not exist."""
        ...

    def close(self) -> None: ...


class Feed(Protocol):
    """News of one topic, read_committed, from the moment on at which a partition is followed; one thread."""

    def follow(self, partitions: frozenset[int]) -> None:
        """Follow these too, each from its end as of now."""
        ...

    @property
    def following(self) -> frozenset[int]:
        """Partitions whose end was seen: everything that is appended from now on comes."""
        ...

    def poll(self, timeout_ms: int) -> Sequence[Record]:
        """What has come, waiting at most `timeout_ms` for the first."""
        ...

    def close(self) -> None: ...


class Action:
    """What the owner does with an index entry when its time comes. Anything an owner owes is an entry."""

    FIRE = 1
    """Emit the value to the work topic, tombstone the record."""
    DEAD = 2
    """Move the record to `dead`, tombstone it."""
    MOVE = 3
    """Put the record at its home partition, tombstone it here."""
    DROP = 4
    """Tombstone the record: a duplicate, or a retry that is superseded."""
    HOLD = 5
    """Known but not executed by this version: kept until an owner that can."""
    COMMAND = 6
    """Execute the command, answer it on `events`, tombstone it."""
    DONE = 7
    """A worker's word that a run ended its job: free the key, tombstone the fact."""
    EXPIRE = 8
    """Kept for a limited time: tombstone it."""
    GRANTED = 9
    """FIRE, with a place reserved in the rate of its queue."""
    REPLAY = 10
    """Emit runs of a replay, as many at a time as the lane of a backlog takes, and answer it after the last one."""


class Entry(NamedTuple):
    """A live entry of the index: a record of the log that its owner still owes something.

    Ordered by (fire_at, id). `offset` is the record's own, the base that its tombstone names; `detail` is
    what the action needs beside the value: `<queue>/<work partition>` of a FIRE, the reason of a DEAD or DROP,
    the home of a MOVE. So firing moves bytes and decodes nothing.
    """

    record_key: bytes
    fire_at: int
    offset: int
    action: int
    value: bytes
    detail: str = ""


class Position(NamedTuple):
    """Identity and place of an index in the log (H12, H13); written in the same batch as the entries."""

    cluster_id: str
    topic_id: str
    layout: str
    offset: int
    leader_epoch: int
    synced_at: int


class Delta:
    """Changes to one partition of the index, applied atomically; later calls win.

    `entries[record_key]` = (fire_at of the row it replaces or None, new entry or None).
    `facts` are small values by key (owner state). `ended` are ids for the fired memory: the log time at which
    they ended, and how.
    """

    __slots__ = ("ended", "entries", "facts", "position")

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[int | None, Entry | None]] = {}
        self.facts: dict[bytes, bytes | None] = {}
        self.ended: dict[bytes, tuple[int, bytes]] = {}
        self.position: Position | None = None

    def put(self, entry: Entry, replaces: Entry | None) -> None:
        old = self.entries.get(entry.record_key)
        self.entries[entry.record_key] = (
            old[0] if old is not None else (replaces.fire_at if replaces is not None else None),
            entry,
        )

    def remove(self, entry: Entry) -> None:
        old = self.entries.get(entry.record_key)
        self.entries[entry.record_key] = (old[0] if old is not None else entry.fire_at, None)


class Index(Protocol):
    """The due index of one process, all its partitions side by side. Methods return values and lists, never
    live iterators, which would hold the lock after `close` (H25)."""

    def position(self, partition: int) -> Position | None: ...
    def entry(self, partition: int, record_key: bytes) -> Entry | None: ...
    def fact(self, partition: int, key: bytes) -> bytes | None: ...

    def ended(self, partition: int, id_: bytes, log_time: int) -> bytes | None:
        """How `id_` ended, if it did within the 30 minutes of log time before `log_time` (it may remember longer)."""
        ...

    def size(self, partition: int) -> int:
        """Number of live entries that stand for a job: `j/`, `a/`, `r/`, `k/`."""
        ...

    def overdue(self, partition: int, until: int, limit: int) -> int:
        """Number of entries with fire_at <= until, counted up to `limit`."""
        ...

    def footprint(self) -> int:
        """Bytes that the index takes on disk and in memory, roughly."""
        ...

    def due(
        self, partition: int, until: int, limit: int, room: int = 1 << 62, since: int | None = None
    ) -> list[Entry]:
        """Entries with fire_at <= until (and >= since), in order of (fire_at, record key): at most `limit`, and no more
        than fit in `room` bytes of values together, but one at least. HOLD is never due."""
        ...

    def next_due(self, partition: int) -> int | None: ...

    def entries(self, partition: int, after: bytes | None, limit: int) -> list[Entry]:
        """A page of live entries in order of record key, HOLD too; `after` = record key of the last one seen
        (it may be gone by now)."""
        ...

    def apply(self, partition: int, delta: Delta) -> None: ...
    def wipe(self, partition: int) -> None: ...
    def close(self) -> None: ...


class Task(NamedTuple):
    """What another process needs to call a handler itself."""

    run: Run
    attempt: int
    token: int
    fired_at: int
    side: Side


class Call(NamedTuple):
    """One handler call for an executor; `ticket` comes back with its result.

    `function` returns the result or, if `asynchronous`, a coroutine for it. With a `task` it is a process of the pool
    that calls the handler. `timeout_ms` counts from when the handler begins; None = no limit. `handler` and `fired_at`
    (epoch ms of the store) are for whoever measures.
    """

    ticket: int
    function: Callable[[], Any]
    asynchronous: bool
    timeout_ms: int | None = None
    task: Task | None = None
    handler: str = ""
    fired_at: int = 0


class Done(NamedTuple):
    """A finished call: `error` None = it returned `value`. `began` and `ended` are CLOCK_MONOTONIC seconds."""

    ticket: int
    value: Any
    error: BaseException | None
    began: float = 0.0
    ended: float = 0.0


class Executor(Protocol):
    """Runs handler calls off the owner's thread. Called from that thread only."""

    def submit(self, call: Call) -> None: ...
    def completed(self) -> list[Done]:
        """Calls finished since the last time, each once, without waiting. One whose time is over comes with TimedOut:
        a coroutine was cancelled then, a process killed, a thread left alone, its result to be thrown away."""
        ...

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        """Those of `tickets` whose handlers had not begun: now they never will, and nothing more is heard of them."""
        ...

    def stop(self, tickets: Iterable[int]) -> None:
        """End these calls if they can be ended: a coroutine is cancelled, a process killed; they come with Stopped."""
        ...

    def close(self, timeout_ms: int) -> bool:
        """Whether all calls ended; those that did not within the time are left behind."""
        ...


class Pending(Protocol):
    """A call that is being made while its caller goes on. Asked by the owner's thread only."""

    def done(self) -> bool: ...
    def result(self) -> None:
        """Wait until it is done; raises what the call raised."""
        ...


Aside = Callable[[Callable[[], None]], Pending]
"""Makes a call off the owner's thread."""


class Events(Protocol):
    """Where owners tell what happened: log lines and metrics are made of it."""

    def on(self, action: str, **fields: Any) -> None: ...


class Random(Protocol):
    """The part of random.Random that is used."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
