"""Topics, their copies, and the brokers, against what the proofs rest on (DESIGN §3; H12, H21, H30, H32)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from pipeline.core import topics as planned
from pipeline.core.backup import HoldState
from pipeline.core.topics import DAY_MS, FULL_REPLICATION, WORK_RETENTION_MS, Repair
from pipeline.doctor.facts import Facts, Place
from pipeline.doctor.findings import Danger, Finding, Severity, listed, span

INTERNAL = ("__consumer_offsets", "__transaction_state")
"""A group's offsets and the transactions: what the fencing of every step rests on."""
FEWER_IS_WORSE = {
    "retention.ms": Danger.LOST,
    "delete.retention.ms": Danger.ONCE,
    "min.compaction.lag.ms": Danger.ONCE,
    "min.insync.replicas": Danger.LOST,
    "max.message.bytes": Danger.LOST,
    "replication factor": Danger.LOST,
}
ALWAYS_WRONG = {
    "topic": Danger.LOST,
    "partitions": Danger.LOST,
    "cleanup.policy": Danger.LOST,
    "retention.bytes": Danger.LOST,
    "unclean.leader.election.enable": Danger.LOST,
    "message.timestamp.type": Danger.CLOCK,
}
FOREVER = 1 << 63
"""What -1 means for a retention."""


def installation(facts: Facts) -> Iterator[Finding]:
    """Without a layout nothing else can be judged."""
    if facts.layout is None or facts.era is None:
        nothing = f"holds no {'layout' if facts.layout is None else 'era'}"
        yield Finding(
            severity=Severity.ERROR,
            subject=facts.names.meta,
            problem=f"{facts.missing.get('layout', nothing)}: no process can start",
            danger=Danger.ON_TIME,
            remedy="dueline topics create",
        )


def hold(facts: Facts) -> Iterator[Finding]:
    """What a restore leaves, until somebody says that what it brought back may fire."""
    if facts.hold is not None:
        done = facts.hold.state is HoldState.HELD
        yield Finding(
            severity=Severity.WARNING,
            subject=facts.names.meta,
            problem=f"the dispatch is held since {span(facts.now - facts.hold.at)}: backup {facts.hold.id} "
            + ("was restored" if done else "is being restored"),
            danger=Danger.ON_TIME,
            remedy="dueline release, once you have looked at it"
            if done
            else "dueline restore again, if it was cut off",
        )


def settings(facts: Facts) -> Iterator[Finding]:
    """Every difference that `dueline topics check` knows, weighed."""
    assert facts.layout is not None
    for topic in planned.plan(facts.names, facts.layout, len(facts.brokers)):
        for found in planned.differences(topic, facts.topics.get(topic.name)):
            severity, danger = _weigh(found)
            yield Finding(
                severity=severity,
                subject=found.topic,
                problem=f"{found.setting} is {'missing' if found.live is None else found.live},"
                f" planned {found.planned}",
                danger=danger,
                remedy=_mending(facts, found),
            )


def _weigh(found: planned.Finding) -> tuple[Severity, Danger]:
    """Less than planned breaks a promise; more only costs, except copies that must be in sync: those stop writes."""
    if found.setting in ALWAYS_WRONG:
        return Severity.ERROR, ALWAYS_WRONG[found.setting]
    if found.setting not in FEWER_IS_WORSE:
        return Severity.NOTE, Danger.ON_TIME
    if found.live is None or _amount(found.live) < _amount(found.planned):
        return Severity.ERROR, FEWER_IS_WORSE[found.setting]
    stops_writes = found.setting == "min.insync.replicas"
    return Severity.WARNING if stops_writes else Severity.NOTE, Danger.ON_TIME


def _amount(value: str) -> int:
    return FOREVER if value == "-1" else int(value)


def _mending(facts: Facts, found: planned.Finding) -> str:
    match found.repair:
        case Repair.UPGRADE:
            return "dueline topics upgrade"
        case Repair.OPERATOR:
            return _more_copies(facts, found.topic, found.planned)
        case Repair.NONE:
            return (
                f"{facts.tool('kafka-topics.sh')} --delete --topic {found.topic}, if it is empty,"
                " then dueline topics create; else set another DUELINE_PREFIX"
            )


def _more_copies(facts: Facts, topic: str, wanted: str) -> str:
    return (
        f"{facts.tool('kafka-reassign-partitions.sh')} --reassignment-json-file FILE --execute, where FILE gives each"
        f" partition of {topic} {wanted} replicas"
    )


# -- copies --------------------------------------------------------------------------------------------------


def copies(facts: Facts) -> Iterator[Finding]:
    """Partitions without a leader, without enough copies to be written to, or with a copy behind."""
    offline, stuck, behind = _where(facts, _offline), _where(facts, _stuck), _where(facts, _behind)
    for topic, partitions in offline.items():
        yield _about_copies(
            facts, topic, f"partitions {listed(partitions)} have no leader", Severity.ERROR, Danger.ON_TIME
        )
    for topic, partitions in stuck.items():
        yield _about_copies(
            facts,
            topic,
            f"partitions {listed(partitions)} have fewer copies in sync than min.insync.replicas: nothing can be"
            " written there",
            Severity.ERROR,
            Danger.ON_TIME,
        )
    for topic, partitions in behind.items():
        yield _about_copies(
            facts,
            topic,
            f"partitions {listed(partitions)} have a copy that is not in sync",
            Severity.WARNING,
            Danger.LOST,
        )


def _where(facts: Facts, bad: Callable[[Facts, Place], bool]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place in facts.copies:
        if bad(facts, place):
            found[place.topic].append(place.partition)
    return dict(sorted(found.items()))


def _offline(facts: Facts, place: Place) -> bool:
    return facts.copies[place].leader is None


def _stuck(facts: Facts, place: Place) -> bool:
    topic = facts.topics.get(place.topic)
    least = int(topic.settings.get("min.insync.replicas", 1)) if topic else 1
    return not _offline(facts, place) and facts.copies[place].in_sync < least


def _behind(facts: Facts, place: Place) -> bool:
    here = facts.copies[place]
    return not _offline(facts, place) and not _stuck(facts, place) and here.in_sync < here.replicas


def _about_copies(facts: Facts, topic: str, problem: str, severity: Severity, danger: Danger) -> Finding:
    return Finding(
        severity=severity,
        subject=topic,
        problem=problem,
        danger=danger,
        remedy=f"start the broker that is away: {facts.tool('kafka-topics.sh')} --describe"
        f" --topic {topic} names it",
    )


# -- the brokers ---------------------------------------------------------------------------------------------


def internal(facts: Facts) -> Iterator[Finding]:
    """The topics of Kafka's own that the fencing stands on are held to the same as ours (H32)."""
    wanted = min(FULL_REPLICATION, len(facts.brokers))
    for name in INTERNAL:
        topic = facts.topics.get(name)
        if topic is None:
            continue  # made with the first group, or the first transaction
        if topic.replication < wanted:
            yield Finding(
                severity=Severity.ERROR,
                subject=name,
                problem=f"has {topic.replication} copies of {wanted}",
                danger=Danger.ONCE,
                remedy=_more_copies(facts, name, str(wanted)),
            )
        if topic.settings.get("unclean.leader.election.enable") == "true":
            yield Finding(
                severity=Severity.ERROR,
                subject=name,
                problem="may elect a leader that lacks what was acknowledged",
                danger=Danger.ONCE,
                remedy=f"{facts.tool('kafka-configs.sh')} --alter --topic {name}"
                " --add-config unclean.leader.election.enable=false",
            )


def brokers(facts: Facts) -> Iterator[Finding]:
    """How many there are, and settings of theirs that no topic has."""
    count = len(facts.brokers)
    if count < FULL_REPLICATION:
        yield Finding(
            severity=Severity.NOTE if facts.development else Severity.WARNING,
            subject="brokers",
            problem=f"{count} of {FULL_REPLICATION}: a lost disk may lose jobs",
            danger=Danger.LOST,
            remedy=f"add {FULL_REPLICATION - count} brokers, then three replicas for each topic"
            + (" (a development store needs none)" if facts.development else ""),
        )
    if any(of.get("log.cleaner.enable") == "false" for of in facts.broker_settings.values()):
        yield _of_brokers(
            "log.cleaner.enable=true", "is false: compacted topics grow for ever", Danger.ON_TIME
        )
    if (facts.lowest("offset.metadata.max.bytes") or 4096) < 4096:
        yield _of_brokers(
            "offset.metadata.max.bytes=4096",
            "is less: workers' commits with many finished runs are refused",
            Danger.ON_TIME,
        )
    if (facts.lowest("transaction.max.timeout.ms") or 10_000) < 10_000:
        yield _of_brokers(
            "transaction.max.timeout.ms=900000", "is under 10 s: no process can start", Danger.ON_TIME
        )


def _of_brokers(setting: str, problem: str, danger: Danger) -> Finding:
    name, _, _ = setting.partition("=")
    return Finding(
        severity=Severity.ERROR,
        subject="brokers",
        problem=f"{name} {problem}",
        danger=danger,
        remedy=f"{setting} in server.properties of every broker; restart them one at a time",
    )


# -- retention -----------------------------------------------------------------------------------------------


def retention(facts: Facts) -> Iterator[Finding]:
    """What is kept for how long, against each other: a replay reads `work` and asks `acks` what ended."""
    assert facts.layout is not None
    for queue in sorted(facts.layout.queues):
        work, acks = facts.names.work(queue), facts.names.acks(queue)
        kept, told = _kept(facts, work), _kept(facts, acks)
        if kept is None or told is None:
            continue  # a missing topic is a finding of its own
        if told < kept:
            yield Finding(
                severity=Severity.ERROR,
                subject=acks,
                problem=f"keeps {span(told)}, {work} {span(kept)}: of older runs nobody knows whether they ended",
                danger=Danger.STARTED,
                remedy=f"{facts.tool('kafka-configs.sh')} --alter --topic {acks}"
                f" --add-config retention.ms={-1 if kept == FOREVER else kept}",
            )
    yield from _forgotten_groups(facts)


def _kept(facts: Facts, topic: str) -> int | None:
    live = facts.topics.get(topic)
    return None if live is None else _amount(live.settings.get("retention.ms", "-1"))


def _forgotten_groups(facts: Facts) -> Iterator[Finding]:
    """A group that has been empty for longer than the brokers keep its offsets begins anew: its workers refuse then."""
    minutes = facts.lowest("offsets.retention.minutes")
    if minutes is None or minutes * 60_000 >= WORK_RETENTION_MS:
        return
    stock = minutes * 60_000 >= 7 * DAY_MS
    yield Finding(
        severity=Severity.NOTE if stock else Severity.WARNING,
        subject="brokers",
        problem=f"offsets.retention.minutes is {minutes}: workers of a queue that are all away for"
        f" {span(minutes * 60_000)} refuse to start again until `dueline era bump`, work is kept for"
        f" {span(WORK_RETENTION_MS)}",
        danger=Danger.ON_TIME,
        remedy=f"offsets.retention.minutes={(WORK_RETENTION_MS + 7 * DAY_MS) // 60_000} in server.properties of every"
        " broker; restart them one at a time",
    )


def unacked(facts: Facts) -> Iterator[Finding]:
    """Work that nobody has done, against the day on which its topic forgets it (H21)."""
    for topic in sorted({place.topic for place in facts.unacked}):
        oldest = min(at for place, at in facts.unacked.items() if place.topic == topic)
        age, kept = facts.now - oldest, _kept(facts, topic)
        if kept is None or age < kept / 5:
            continue
        yield Finding(
            severity=Severity.ERROR if age > kept * 4 / 5 else Severity.WARNING,
            subject=topic,
            problem=f"a run has waited for {span(age)}; after {span(kept)} it is deleted unseen",
            danger=Danger.LOST,
            remedy=f"{_started_by(facts, topic)}; until then"
            f" {facts.tool('kafka-configs.sh')} --alter --topic {topic} --add-config retention.ms=-1",
        )


def _started_by(facts: Facts, topic: str) -> str:
    """What lets the runs of a work topic start."""
    queue = topic.removeprefix(facts.names.work(""))
    if facts.paused(queue) is not None:
        return f"dueline queue resume {queue}"
    return f"dueline worker --app MODULE:APP --queue {queue}"


def paused(facts: Facts) -> Iterator[Finding]:
    """Nothing of a paused queue starts, and what it holds is deleted unseen in the end (docs/queues.md)."""
    assert facts.layout is not None
    for queue in sorted(facts.layout.queues):
        pause, topic = facts.paused(queue), facts.names.work(queue)
        if pause is None:
            continue
        told = f": {pause.reason}" if pause.reason else ""
        since = f"for {span(facts.now - pause.at)}, by {pause.by}" if pause.by else "as far as can be read"
        oldest = min((at for place, at in facts.unacked.items() if place.topic == topic), default=None)
        waits = "" if oldest is None else f"; its oldest run was fired {span(facts.now - oldest)} ago"
        yield Finding(
            severity=Severity.WARNING,
            subject=queue,
            problem=f"has been paused {since}{told}{waits}",
            danger=Danger.ON_TIME,
            remedy=f"dueline queue resume {queue}, once what it was paused for is over",
        )
