"""Which topics an installation has, with every setting the proof rests on (DESIGN §3, H12, H24, H30, H32).

Pure: what is planned, how a live cluster differs from it, and how a wish changes a layout. The admin adapter
asks the cluster and carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.layout import (
    DEFAULT_BUCKET_WIDTH_MS,
    DEFAULT_RING,
    DEFAULT_SHARDS,
    DEFAULT_WORK_PARTITIONS,
    Layout,
    default_layout,
)
from pipeline.core.names import Names, check_name

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DELETE_RETENTION_MS = 7 * DAY_MS
WORK_RETENTION_MS = 30 * DAY_MS
"""How long a tombstone stays readable at least: an index synced within half of it has missed none (H12)."""
FULL_REPLICATION = 3
PARTITIONS = "partitions"
DEFAULT_QUEUE = "default"
MOST_PARTITIONS = 1_000
"""Of one topic: every owner takes each over anew after a rebalance (H24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """One topic as it should be. `growable`: more partitions move no job, so an upgrade may add them."""

    name: str
    partitions: int
    replication: int
    settings: Mapping[str, str]
    growable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """One topic as it is. `replication` is the lowest of its partitions."""

    name: str
    partitions: int
    replication: int
    settings: Mapping[str, str]


class Repair(StrEnum):
    """Who can mend a finding."""

    UPGRADE = "upgrade"
    """`dueline topics upgrade`."""
    OPERATOR = "operator"
    """An operator, with Kafka's own tools."""
    NONE = "none"
    """Nobody: it would move jobs to other partitions (H24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference between the plan and the cluster. `live` None: it is missing."""

    topic: str
    setting: str
    live: str | None
    planned: str
    repair: Repair

    def __str__(self) -> str:
        live = "missing" if self.live is None else self.live
        return f"{self.topic}: {self.setting} is {live}, planned {self.planned}"


# -- the plan ------------------------------------------------------------------------------------------------


def replication_of(brokers: int) -> int:
    """Three copies, or as many as there are brokers."""
    return max(1, min(FULL_REPLICATION, brokers))


def warnings(brokers: int) -> Iterator[str]:
    """What an operator should know about a cluster of this size."""
    if brokers < FULL_REPLICATION:
        yield (
            f"replication factor {replication_of(brokers)} instead of {FULL_REPLICATION}, for want of brokers"
            f" ({brokers}): a lost disk may lose jobs"
        )


def in_sync_of(replication: int) -> int:
    """Copies that must have a record before it counts: one may be away, of two or one copies none can be
    required beyond the leader, else a single restart would stop every write (H32)."""
    return 2 if replication >= FULL_REPLICATION else 1


def plan(names: Names, layout: Layout, brokers: int) -> list[TopicPlan]:
    """Every topic of the installation, `meta` first, since the layout on it decides about all others."""
    partitions = layout.partitions
    # One partition of `fleet` led by every broker, so that the store's clock hears each of them (DESIGN §6).
    fleet = _topic(names.fleet, max(3, brokers), brokers, _deleted(HOUR_MS, segment_ms=600_000), 2)
    plans = [
        meta_plan(names, brokers),
        _topic(names.jobs, partitions, brokers, _compacted(), 2),
        _topic(names.events, partitions, brokers, _deleted(WORK_RETENTION_MS), 2),
        _topic(names.dead, partitions, brokers, _deleted(90 * DAY_MS), 4),
        replace(fleet, growable=True),
    ]
    aged = _deleted(WORK_RETENTION_MS) | _compacted() | {"cleanup.policy": "compact,delete"}
    for queue, count in sorted(layout.queues.items()):
        plans.append(_topic(names.work(queue), count, brokers, _deleted(WORK_RETENTION_MS), 2))
        plans.append(_topic(names.acks(queue), count, brokers, aged, 4))
    return plans


def meta_plan(names: Names, brokers: int) -> TopicPlan:
    """`meta` alone: it is there before the layout."""
    return _topic(names.meta, 1, brokers, _compacted(), 2)


def _topic(name: str, partitions: int, brokers: int, cleanup: dict[str, str], message_mib: int) -> TopicPlan:
    replication = replication_of(brokers)
    settings = {
        **_COMMON,
        **_in_sync(replication),
        **cleanup,
        "max.message.bytes": str(message_mib * 1024 * 1024),
    }
    return TopicPlan(name=name, partitions=partitions, replication=replication, settings=settings)


_COMMON: dict[str, str] = {
    # A due time used as a record's time would break retention and compaction lag (H30), and the broker's time
    # is the clock that decides (DESIGN §6).
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
}


def _in_sync(replication: int) -> dict[str, str]:
    return {"min.insync.replicas": str(in_sync_of(replication))}


def _compacted() -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "min.compaction.lag.ms": str(DAY_MS),
        "segment.ms": str(6 * HOUR_MS),  # the active segment is never cleaned
    }


def _deleted(retention_ms: int, *, segment_ms: int = DAY_MS) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "retention.bytes": "-1",  # a limit of the cluster's would delete work that nobody has run yet
        "segment.ms": str(segment_ms),
    }


# -- how a cluster differs -----------------------------------------------------------------------------------


def differences(planned: TopicPlan, live: LiveTopic | None) -> Iterator[Finding]:
    """Every difference of one topic. Its own number of copies decides which `min.insync.replicas` is right:
    demanding two of a single copy would stop every write."""
    if live is None:
        yield Finding(
            topic=planned.name, setting="topic", live=None, planned="to exist", repair=Repair.UPGRADE
        )
        return
    yield from partition_differences(planned, live.partitions)
    yield from _replication_differences(planned, live)
    expected = {**planned.settings, **_in_sync(live.replication)}
    for setting, value in expected.items():
        found = live.settings.get(setting)
        if found is None or _normal(found) != _normal(value):
            yield Finding(
                topic=planned.name, setting=setting, live=found, planned=value, repair=Repair.UPGRADE
            )


def partition_differences(planned: TopicPlan, partitions: int) -> Iterator[Finding]:
    """The number of partitions alone, which decides where a job is looked for (H24)."""
    if partitions == planned.partitions or (planned.growable and partitions > planned.partitions):
        return
    yield Finding(
        topic=planned.name,
        setting=PARTITIONS,
        live=str(partitions),
        planned=str(planned.partitions),
        repair=Repair.UPGRADE if planned.growable else Repair.NONE,
    )


def _replication_differences(planned: TopicPlan, live: LiveTopic) -> Iterator[Finding]:
    if live.replication < planned.replication:
        yield Finding(
            topic=planned.name,
            setting="replication factor",
            live=str(live.replication),
            planned=str(planned.replication),
            repair=Repair.OPERATOR,
        )


def _normal(value: str) -> list[str]:
    """Kafka may answer a list in another order than it was given."""
    return sorted(part.strip() for part in value.split(","))


def refuse_mismatch(findings: list[Finding]) -> None:
    """Refused if a topic's partitions are not the layout's: every job would be looked for elsewhere (H24)."""
    wrong = [str(finding) for finding in findings if finding.repair is Repair.NONE]
    if wrong:
        raise Refused(
            f"layout mismatch: {'; '.join(wrong)}. Partitions are fixed for life: a topic that was made or"
            " grown by somebody else must be made anew, or another prefix used"
        )


# -- how a wish changes a layout -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a caller asks the layout to be. None, and a queue that is not named: as it is, else the default.
    `queues` holds work partitions by queue, None = any number, a new one gets the default."""

    shards: int | None = None
    ring: int | None = None
    bucket_width_ms: int | None = None
    queues: Mapping[str, int | None] = field(default_factory=dict)
    fingerprints: tuple[str, ...] = ()
    product_version: str | None = None


def settle(stored: Layout | None, wish: Wish) -> Layout:
    """The layout that fulfils the wish: the stored one with what may be added, else a new one.

    Raises InvalidInput for numbers that make no sense; Refused with the exact difference if the stored layout
    forbids the wish, since what decides placement is fixed for life (H24).
    """
    if stored is None:
        return _first(wish)
    _refuse_change(stored, wish)
    queues = {queue: count or DEFAULT_WORK_PARTITIONS for queue, count in _checked(wish.queues).items()}
    return replace(
        stored,
        queues=dict(sorted({**queues, **stored.queues}.items())),
        fingerprints=tuple(sorted({*stored.fingerprints, *wish.fingerprints})),
        product_version=wish.product_version or stored.product_version,
    )


def _first(wish: Wish) -> Layout:
    shards, ring = wish.shards or DEFAULT_SHARDS, wish.ring or DEFAULT_RING
    if shards * ring > MOST_PARTITIONS:
        raise InvalidInput("shards", f"{shards} x ring {ring} is more than {MOST_PARTITIONS} partitions")
    queues = _checked(wish.queues or {DEFAULT_QUEUE: None})
    return default_layout(
        shards=shards,
        ring=ring,
        bucket_width_ms=wish.bucket_width_ms or DEFAULT_BUCKET_WIDTH_MS,
        queues={queue: count or DEFAULT_WORK_PARTITIONS for queue, count in queues.items()},
        fingerprints=tuple(sorted(wish.fingerprints)),
        product_version=wish.product_version or "",
    )


def _checked(queues: Mapping[str, int | None]) -> Mapping[str, int | None]:
    for queue, count in queues.items():
        check_name("queue", queue)
        if count is not None and not 0 < count <= MOST_PARTITIONS:
            raise InvalidInput("queue", f"{queue}: {count} partitions is not within 1 … {MOST_PARTITIONS}")
    return queues


def _refuse_change(stored: Layout, wish: Wish) -> None:
    pairs: list[tuple[str, int | None, int | None]] = [
        ("shards", wish.shards, stored.shards),
        ("ring", wish.ring, stored.ring),
        ("bucket width", wish.bucket_width_ms, stored.bucket_width_ms),
        *(
            (f"queue {queue}", count, stored.queues.get(queue))
            for queue, count in sorted(wish.queues.items())
        ),
    ]
    wrong = [
        f"{name} is {there}, asked for {asked}"
        for name, asked, there in pairs
        if asked is not None and there is not None and asked != there
    ]
    if wrong:
        raise Refused(
            f"layout mismatch: {'; '.join(wrong)}. It is fixed for life: leave it, or use another prefix"
        )
