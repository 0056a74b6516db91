"""Transactions that stay open: everything behind one waits, takeovers and workers too (H18). Who holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.doctor.facts import Facts, Undecided
from pipeline.doctor.findings import Danger, Finding, Severity, listed, span
from pipeline.heartbeat import Seen

OPEN_MS = 2_000
"""A transaction of ours takes milliseconds."""
HANGING_MS = 30_000
"""Ours are ended by the coordinator after 10 s, and it looks every 10 s: one that lives on hangs, or is somebody
else's, with a longer time-out."""
OWNERS, WORKERS = frozenset((b"a", b"k", b"s", b"h", b"x")), frozenset((b"r", b"d"))
"""How the record keys on `jobs` begin that only an owner, and that only workers write. What else is there with a value
(`j/`, `c/`) is put by clients."""
ENDED = frozenset((b"j", b"c", b"r", b"d")) | OWNERS
"""Of which only an owner writes the tombstones."""


class Holder(NamedTuple):
    """Who may have opened a transaction: a live process, one that went silent, or `who` in words."""

    who: str
    seen: Seen | None = None


def transactions(facts: Facts) -> Iterator[Finding]:
    """One finding for each holder and topic, with the oldest of its transactions there."""
    waits: dict[tuple[str, Holder], list[Undecided]] = {}
    for one in facts.undecided:
        if facts.now - one.at >= OPEN_MS:
            waits.setdefault((one.place.topic, holder(facts, one)), []).append(one)
    for (topic, of), found in waits.items():
        yield _finding(facts, topic, of, sorted(found, key=lambda one: one.at))


def _finding(facts: Facts, topic: str, of: Holder, found: Sequence[Undecided]) -> Finding:
    age, first = facts.now - found[0].at, found[0]
    hidden = sum(ends.last - ends.stable for one in found if (ends := facts.ends.get(one.place)) is not None)
    return Finding(
        severity=Severity.ERROR if age >= HANGING_MS else Severity.WARNING,
        subject=topic,
        problem=f"a transaction is open for {span(age)} on partitions {listed(one.place.partition for one in found)},"
        f" {hidden} offsets wait behind it; {of.who}",
        danger=Danger.ON_TIME,
        remedy=_mending(facts, of, first),
    )


def _mending(facts: Facts, of: Holder, first: Undecided) -> str:
    tool = facts.tool("kafka-transactions.sh")
    place = f"--topic {first.place.topic} --partition {first.place.partition}"
    abort = f"{tool} abort {place} --start-offset {first.offset}"
    if of.seen is None:
        return f"{tool} describe-producers {place} names the producer; end it, then {abort}"
    beat = of.seen.heartbeat
    if not facts.fresh(of.seen):
        return f"end process {beat.pid} on {beat.host}, if it is still there, then {abort}"
    return f"wait 30 s; if it is still open, end process {beat.pid} on {beat.host}, then {abort}"


# -- who holds it --------------------------------------------------------------------------------------------


def holder(facts: Facts, one: Undecided) -> Holder:
    """The client library cannot ask the broker which producer it is; but the record says who wrote it, or whose kind
    it is, and heartbeats say who of that kind has gone silent, and who owns the partition."""
    role, named = _maker(facts, one)
    known = [seen for seen in facts.fleet if seen.heartbeat.role == role]
    if named:
        known = [seen for seen in known if seen.heartbeat.process == named]
        if not known:
            return Holder(f"its first record is by {named}, of which nothing was heard for minutes")
    found = known if named else _suspects(facts, one, known)
    suspects = {seen.heartbeat.process: seen for seen in found}  # a worker beats for each of its queues
    if len(suspects) == 1:
        (seen,) = suspects.values()
        return Holder(_told(facts, seen, certain=bool(named)), seen)
    if suspects:
        return Holder(f"it may be of {' or '.join(sorted(suspects))}")
    kind = f", a {role}'s" if role else ""
    return Holder(f"its first record is {one.key[:40]!r}{kind}, and no process is known that holds it")


def _suspects(facts: Facts, one: Undecided, known: Sequence[Seen]) -> list[Seen]:
    """First those that went silent as owners of the partition, then all that went silent, then its live owners."""
    topic = one.place.topic.replace(facts.names.acks(""), facts.names.work(""), 1)
    place = (topic, one.place.partition)
    silent = [seen for seen in known if not facts.fresh(seen)]
    owners = [seen for seen in known if place in {(o.topic, o.partition) for o in seen.heartbeat.owned}]
    return [seen for seen in silent if seen in owners] or silent or owners


def _told(facts: Facts, seen: Seen, *, certain: bool) -> str:
    beat = seen.heartbeat
    state = "alive" if facts.fresh(seen) else f"silent for {span(facts.now - seen.at)}"
    return (
        f"it is {'' if certain else 'most likely '}of {beat.role} {beat.process} ({state}, transactional ids"
        f" {', '.join(beat.transactional_ids) or 'unknown'})"
    )


def _maker(facts: Facts, one: Undecided) -> tuple[str, str]:
    """(role, process) of who wrote the record, each empty if it does not say."""
    names, kind, topic = facts.names, one.key[:1], one.place.topic
    if topic == names.jobs:
        if kind == b"o":
            return "dispatcher", _process(one)
        if one.value is None:
            return ("dispatcher" if kind in ENDED else ""), ""
        return ("dispatcher" if kind in OWNERS else "worker" if kind in WORKERS else ""), ""
    if topic.startswith(names.acks("")):
        return ("dispatcher", "") if kind == b"x" else ("worker", _process(one))
    if topic.startswith(names.work("")) or topic == names.events:
        return "dispatcher", ""
    return "", ""


def _process(one: Undecided) -> str:
    """The process that an `o/`, `s/` or `t/` record names."""
    try:
        match one.key[:2], one.value:
            case b"o/", bytes() as value:
                return codec.TAKEOVER.decode(value).process
            case ((b"s/" | b"t/"), bytes() as value):
                return codec.ACK.decode(value).worker
    except Undecodable:
        pass
    return ""
