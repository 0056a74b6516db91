"""Who owns what: partitions without an owner, runs without a handler, members that no process is, groups that lost
their memory (H20)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipeline.doctor.facts import Facts, Member, Place, Share
from pipeline.doctor.findings import CUT, Danger, Finding, Severity, listed

STATES = {"assigned", "restoring"}


def owners(facts: Facts) -> Iterator[Finding]:
    """Partitions that no live process says it runs, one that two say they run, and one that was stopped."""
    for _, topic, role, count in facts.shared():
        claims = _claims(facts, topic, role)
        unowned = [n for n in range(count) if not claims[n]]
        if unowned:
            yield _unowned(facts, topic, role, unowned, nobody=len(unowned) == count)
        yield from _of_states(topic, claims)
        twice = [n for n, of in claims.items() if len(of) > 1]
        if twice:
            processes = sorted({process for n in twice for process, _ in claims[n]})
            yield Finding(
                severity=Severity.WARNING,
                subject=topic,
                problem=f"partitions {listed(twice)} are claimed by {' and by '.join(processes)}: one of them was cut"
                " off and has not been told",
                danger=Danger.ON_TIME,
                remedy="nothing, for a minute: it is fenced, and finds out; else end the one of the lower generation,"
                " which dueline status shows",
            )


def _claims(facts: Facts, topic: str, role: str) -> dict[int, list[tuple[str, str]]]:
    """(process, state) of the live processes that name a partition as their own."""
    claims: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for seen in facts.live(role):
        for owned in seen.heartbeat.owned:
            if owned.topic == topic:
                claims[owned.partition].append((seen.heartbeat.process, owned.state))
    return claims


def _unowned(facts: Facts, topic: str, role: str, unowned: list[int], *, nobody: bool) -> Finding:
    waiting = any(place.topic == topic for place in facts.unacked)
    queue = topic.rpartition(".work.")[2]
    idle = role == "worker" and nobody and not waiting
    which = f"all {len(unowned)} partitions" if nobody else f"partitions {listed(unowned)}"
    return Finding(
        severity=Severity.WARNING if idle else Severity.ERROR,
        subject=topic,
        problem=f"{which} have no owner: "
        + ("nothing fires there" if role == "dispatcher" else "no run starts there"),
        danger=Danger.ON_TIME,
        remedy="dueline dispatcher"
        if role == "dispatcher"
        else f"dueline worker --app MODULE:APP --queue {queue}",
    )


def _of_states(topic: str, claims: dict[int, list[tuple[str, str]]]) -> Iterator[Finding]:
    stopped = sorted({(process, n) for n, of in claims.items() for process, state in of if state == "closed"})
    waiting = sorted({(process, n) for n, of in claims.items() for process, state in of if state in STATES})
    for process in sorted({process for process, _ in stopped}):
        numbers = [n for of, n in stopped if of == process]
        yield Finding(
            severity=Severity.ERROR,
            subject=topic,
            problem=f"{process} has stopped partitions {listed(numbers)}: a record there has a schema it does not know",
            danger=Danger.ON_TIME,
            remedy="deploy the version that `dueline topics upgrade` was run with, on the host of that process",
        )
    for process in sorted({process for process, _ in waiting}):
        numbers = [n for of, n in waiting if of == process]
        yield Finding(
            severity=Severity.WARNING,
            subject=topic,
            problem=f"{process} does not run partitions {listed(numbers)} yet: it reads their log, or waits for a"
            " transaction",
            danger=Danger.ON_TIME,
            remedy="nothing, while the finding `transactions` is absent and its log goes on; do not restart it",
        )


# -- members -------------------------------------------------------------------------------------------------


def handlers(facts: Facts) -> Iterator[Finding]:
    """Runs that workers keep because none of them knows their handler; after an hour they are dead letters."""
    parked: Counter[str] = Counter()
    for seen in facts.live("worker"):
        for queue in seen.heartbeat.queues:
            parked[queue] += seen.heartbeat.parked
    for queue, count in sorted((+parked).items()):
        yield Finding(
            severity=Severity.WARNING,
            subject=queue,
            problem=f"{count} {'run waits' if count == 1 else 'runs wait'} for a handler that no worker of the queue"
            " knows, and will be a dead letter (`unknown_handler`) once one has waited for an hour",
            danger=Danger.ON_TIME,
            remedy="start a worker whose app registers it: `dueline job list --status queued` tells the handlers",
        )


def members(facts: Facts) -> Iterator[Finding]:
    """Whoever may read a group may join it and hold its partitions for ever: nothing there fires then."""
    for group, topic, role, _ in facts.shared():
        named = set(_claims(facts, topic, role))
        there = facts.members.get(group, ())
        for member in there:
            if member.static:
                yield _static(facts, group, member)
            elif member.partitions and not member.partitions & named:
                yield _stranger(facts, group, member)
        idle = sum(not member.partitions for member in there)
        known = sum(
            not any(owned.topic == topic for owned in seen.heartbeat.owned)
            for seen in facts.live(role)
            if role == "dispatcher" or topic == facts.names.work(next(iter(seen.heartbeat.queues), ""))
        )
        if idle > known:
            yield Finding(
                severity=Severity.WARNING,
                subject=group,
                problem=f"{idle - known} members without partitions are no process that beats on {facts.names.fleet}",
                danger=Danger.ON_TIME,
                remedy=_describe(facts, group),
            )


def _static(facts: Facts, group: str, member: Member) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=group,
        problem=f"member {member.id} (client {member.client}, host {member.host}) has a group.instance.id: whoever uses"
        " it again has the same generation, and is not fenced",
        danger=Danger.ONCE,
        remedy=f"end that client: no process of ours sets it; {_describe(facts, group)}",
    )


def _stranger(facts: Facts, group: str, member: Member) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=group,
        problem=f"member {member.id} (client {member.client}, host {member.host}) holds partitions"
        f" {listed(member.partitions)} and is no process that beats on {facts.names.fleet}",
        danger=Danger.ON_TIME,
        remedy=f"end that client, and let nobody else read the group; {_describe(facts, group)}",
    )


def _describe(facts: Facts, group: str) -> str:
    return f"{facts.tool('kafka-consumer-groups.sh')} --describe --members --group {group}"


# -- what groups remember ------------------------------------------------------------------------------------


def offsets(facts: Facts) -> Iterator[Finding]:
    """Guards against committed offsets: a guard is never written without an offset, so a group that has the one
    and not the other was deleted or has expired. Offsets against the logs: a log that ends before one was cut."""
    for group, topic, role, count in facts.shared():
        guarded = [
            n
            for n in range(count)
            if (guard := facts.guards.get(Share(group, n))) and guard.topic_id == facts.topic_ids.get(topic)
        ]
        forgot = [n for n in guarded if Share(group, n) not in facts.committed]
        if forgot:
            yield _lost_memory(
                group, f"has no offset for partitions {listed(forgot)}, which it owned before", role
            )
        late = sorted(
            {
                seen.heartbeat.generation
                for seen in facts.live(role)
                for owned in seen.heartbeat.owned
                if owned.topic == topic
                and owned.partition in guarded
                and 0 < seen.heartbeat.generation < facts.guards[Share(group, owned.partition)].generation
            }
        )
        if late:
            yield _lost_memory(
                group, f"is at generation {late[0]}, lower than one that owned partitions before", role
            )
        yield from _against_the_log(facts, group, topic, role, count)


def _lost_memory(group: str, problem: str, role: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=group,
        problem=f"{problem}: it was deleted, has expired or was restored, and its {role}s refuse to start",
        danger=Danger.STARTED if role == "worker" else Danger.ONCE,
        remedy="stop all dispatchers and workers, dueline era bump, start them again",
    )


def _against_the_log(facts: Facts, group: str, topic: str, role: str, count: int) -> Iterator[Finding]:
    both = {
        n: (facts.committed[Share(group, n)], facts.ends[Place(topic, n)])
        for n in range(count)
        if Share(group, n) in facts.committed and Place(topic, n) in facts.ends
    }
    cut = [n for n, (offset, ends) in both.items() if offset > ends.last]
    if cut:
        yield Finding(
            severity=Severity.ERROR,
            subject=topic,
            problem=f"partitions {listed(cut)} end before the offset that {group} has committed: acknowledged records"
            " are gone",
            danger=Danger.LOST,
            remedy=CUT,
        )
    # The marker of the last transaction takes an offset too, which nobody commits and retention deletes.
    gone = [n for n, (offset, ends) in both.items() if role == "worker" and offset + 1 < ends.first]
    if gone:
        yield Finding(
            severity=Severity.ERROR,
            subject=topic,
            problem=f"partitions {listed(gone)} begin after the offset that {group} has committed: runs were deleted"
            " that nobody had done",
            danger=Danger.LOST,
            remedy="dueline outage --from T --to T tells which; dueline replay runs again what is still there",
        )
