"""An installation on three brokers with nothing wrong about it; each test spoils one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline import codec
from pipeline.core.clock import Reading
from pipeline.core.job import GroupGuard, Heartbeat, Owned
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.topics import LiveTopic, plan
from pipeline.doctor import Finding, examine
from pipeline.doctor.facts import Copies, Ends, Facts, LocalIndex, LocalState, Member, Place, Share
from pipeline.heartbeat import Seen
from pipeline.ports import Position

NOW = 1_800_000_000_000
NAMES = Names("shop")
LAYOUT = default_layout(
    shards=2, ring=2, queues={"default": 2, "mail": 1}, fingerprints=codec.fingerprints(), product_version="1"
)
JOBS, WORK, MAIL = NAMES.jobs, NAMES.work("default"), NAMES.work("mail")
DISPATCHERS, WORKERS = NAMES.dispatcher_group, NAMES.worker_group("default")
BROKERS = frozenset((1, 2, 3))
PLANS = {topic.name: topic for topic in plan(NAMES, LAYOUT, len(BROKERS))}
PLACES = [Place(name, n) for name, topic in PLANS.items() for n in range(topic.partitions)]
SETTINGS = {
    "group.min.session.timeout.ms": "3000",
    "group.max.session.timeout.ms": "1800000",
    "group.consumer.min.session.timeout.ms": "45000",
    "group.consumer.max.session.timeout.ms": "60000",
    "offsets.retention.minutes": "53280",
    "offset.metadata.max.bytes": "4096",
    "transaction.max.timeout.ms": "900000",
    "log.cleaner.enable": "true",
}


def beat(process: str, role: str, *owned: Place, at: int = NOW, state: str = "running", **more: Any) -> Seen:
    """A heartbeat at that instant."""
    plain: dict[str, Any] = {"version": "1", "host": "h1", "pid": 7, "started_at": NOW - 1, "generation": 3}
    places = tuple(Owned(topic=place.topic, partition=place.partition, state=state) for place in owned)
    return Seen(Heartbeat(process=process, role=role, owned=places, **{**plain, **more}), at)


def owned(topic: str) -> list[Place]:
    return [place for place in PLACES if place.topic == topic]


def member(*partitions: int, **changes: Any) -> Member:
    plain = Member(id="m-1", client="dueline", host="/10.0.0.1", partitions=frozenset(partitions))
    return plain._replace(**changes)


FLEET = (
    beat("aa.0.x", "dispatcher", *owned(JOBS)),
    beat("aa.0.w", "worker", *owned(WORK), queues=("default",)),
    beat("aa.0.w", "worker", *owned(MAIL), queues=("mail",)),
)
POSITION = Position("cluster", "id of shop.jobs", LAYOUT.identity(), 90, 1, NOW - 60_000)
LOCAL = LocalState(
    path="/state",
    free_bytes=1 << 40,
    private=True,
    writable=True,
    instance="aa",
    indexes=(LocalIndex(slot=0, positions=dict.fromkeys(range(4), POSITION)),),
)
HEALTHY = Facts(
    names=NAMES,
    bootstrap="k:9092",
    version="1",
    known=frozenset(codec.fingerprints()),
    written=frozenset(codec.fingerprints()),
    brokers=BROKERS,
    layout=LAYOUT,
    era=1,
    guards={Share(group, n): GroupGuard(generation=3, topic_id=f"id of {topic}") for group, topic, n in
            ((DISPATCHERS, JOBS, 0), (WORKERS, WORK, 1))},
    topics={
        name: LiveTopic(
            name=name, partitions=topic.partitions, replication=topic.replication, settings=topic.settings
        )
        for name, topic in PLANS.items()
    },
    topic_ids={name: f"id of {name}" for name in PLANS},
    copies={place: Copies(leader=1, replicas=3, in_sync=3) for place in PLACES},
    broker_settings=dict.fromkeys(BROKERS, SETTINGS),
    now=NOW,
    clocks={broker: Reading(ahead_ms=0, error_ms=2, outside=False) for broker in BROKERS},
    fleet=FLEET,
    members={
        DISPATCHERS: (member(*range(4)),),
        WORKERS: (member(0, 1),),
        NAMES.worker_group("mail"): (member(0),),
    },
    committed={
        **{Share(DISPATCHERS, n): 90 for n in range(4)},
        **{Share(WORKERS, n): 40 for n in range(2)},
    },
    ends={place: Ends(first=0, stable=100, last=100) for place in PLACES},
    local=LOCAL,
)  # fmt: skip


def spoilt(**changes: Any) -> Facts:
    return replace(HEALTHY, **changes)


def found(check: str, facts: Facts) -> list[Finding]:
    """What that check says; no other check may say more than it does of a healthy store."""
    healthy = examine(HEALTHY)
    return [finding for name, finding in examine(facts) if name == check and (name, finding) not in healthy]


def only(check: str, facts: Facts) -> Finding:
    (finding,) = found(check, facts)
    return finding
