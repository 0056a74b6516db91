"""What the doctor looks at: plain facts about one installation at one instant, gathered by adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.backup import Hold
from pipeline.core.clock import Reading
from pipeline.core.job import GroupGuard
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.queues import Pause, QueueState
from pipeline.core.topics import LiveTopic
from pipeline.heartbeat import Seen
from pipeline.ports import Position

FRESH_MS = 5_000
"""A process that beat within this time is alive; it beats once a second."""


class Place(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Share(NamedTuple):
    """One partition as one consumer group sees it."""

    group: str
    partition: int


class Copies(NamedTuple):
    """Of one partition: the broker that leads it (None: nobody), how many copies it should have and has in sync."""

    leader: int | None
    replicas: int
    in_sync: int


class Ends(NamedTuple):
    """Offsets of one log: the first there is, the one up to which everything is decided, the next to be written."""

    first: int
    stable: int
    last: int


class Undecided(NamedTuple):
    """The first record of a transaction that is still open on a partition, with its LogAppendTime."""

    place: Place
    offset: int
    key: bytes
    value: bytes | None
    at: int


class Member(NamedTuple):
    """Of a consumer group, as its coordinator sees it."""

    id: str
    client: str
    host: str
    partitions: frozenset[int]
    static: bool = False
    """Whether it has a `group.instance.id`, by which it comes back with its old generation (H19)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIndex:
    """The due index of one dispatcher slot of this state directory."""

    slot: int
    positions: Mapping[int, Position]
    zone_data: Mapping[int, str] = field(default_factory=dict)
    """By partition: the release by which its schedules are filed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """This machine's state directory. `instance` = the id its processes have in their names; empty: none began."""

    path: str
    free_bytes: int
    private: bool
    writable: bool
    instance: str = ""
    indexes: Sequence[LocalIndex] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the checks may ask. A fact that could not be had stands in `missing`, by the name of its field with
    the reason; its field holds nothing then."""

    names: Names
    bootstrap: str
    development: bool = False
    """Whether the store is the embedded one of `dueline dev`."""
    session_timeout_ms: int | None = None
    group_protocol: str = "classic"
    version: str = ""
    known: frozenset[str] = frozenset()
    """Announced fingerprints that this version can read."""
    zone_data: str = ""
    """Release of this machine's, such as 2026c."""
    written: frozenset[str] = frozenset()
    """Fingerprints this version writes."""

    brokers: frozenset[int] = frozenset()
    cluster_id: str = ""
    layout: Layout | None = None
    era: int | None = None
    hold: Hold | None = None
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    """What was ever said of a queue by `dueline queue`."""
    guards: Mapping[Share, GroupGuard] = field(default_factory=dict)
    topics: Mapping[str, LiveTopic] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[Place, Copies] = field(default_factory=dict)
    broker_settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    now: int = 0
    """The store's clock, epoch ms."""
    clocks: Mapping[int, Reading] = field(default_factory=dict)
    fleet: Sequence[Seen] = ()
    """The last heartbeat of every process of the last minutes that has not left."""
    members: Mapping[str, Sequence[Member]] = field(default_factory=dict)
    committed: Mapping[Share, int] = field(default_factory=dict)
    ends: Mapping[Place, Ends] = field(default_factory=dict)
    undecided: Sequence[Undecided] = ()
    unacked: Mapping[Place, int] = field(default_factory=dict)
    """LogAppendTime of the oldest record of a work partition that is not committed."""
    local: LocalState | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def tool(self, name: str) -> str:
        """How a command of Kafka's own begins; a store that asks for a password wants its `--command-config` too."""
        return f"{name} --bootstrap-server {self.bootstrap}"

    def paused(self, queue: str) -> Pause | None:
        """Who has paused a queue, if it is paused."""
        state = self.queues.get(queue)
        return None if state is None else state.pause

    def live(self, role: str) -> list[Seen]:
        """Heartbeats of the live processes of this role; a worker has one for each of its queues."""
        return [seen for seen in self.fleet if seen.heartbeat.role == role and self.fresh(seen)]

    def fresh(self, seen: Seen) -> bool:
        return self.now - seen.at <= FRESH_MS

    def shared(self) -> Iterator[tuple[str, str, str, int]]:
        """(group, topic, role, partitions) of everything that members of a group own."""
        assert self.layout is not None
        yield self.names.dispatcher_group, self.names.jobs, "dispatcher", self.layout.partitions
        for queue, count in sorted(self.layout.queues.items()):
            yield self.names.worker_group(queue), self.names.work(queue), "worker", count

    def lowest(self, setting: str) -> int | None:
        """The lowest number that any broker has for a setting; None: none of them told."""
        return min((int(of[setting]) for of in self.broker_settings.values() if setting in of), default=None)

    def highest(self, setting: str) -> int | None:
        return max((int(of[setting]) for of in self.broker_settings.values() if setting in of), default=None)
