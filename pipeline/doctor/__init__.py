"""The doctor: what is wrong with an installation, what that endangers, and which command mends it.

Pure. Adapters gather `Facts`; each check is a function of them; a check whose facts could not be had says so, since
what nobody looked at is not well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.doctor import local, owners, processes, topics, transactions
from pipeline.doctor.facts import Facts
from pipeline.doctor.findings import Danger, Finding, Severity

__all__ = ["CHECKS", "Check", "Danger", "Facts", "Finding", "Severity", "confirmed", "examine"]


class Check(NamedTuple):
    """One question. `needs` = the fields of `Facts` it stands on. `passing`: what it finds may be a moment of a
    rebalance or of a transaction, so it counts once it is found twice."""

    look: Callable[[Facts], Iterable[Finding]]
    needs: tuple[str, ...]
    danger: Danger
    passing: bool = False


CHECKS: Mapping[str, Check] = {
    "installation": Check(topics.installation, (), Danger.ON_TIME),
    "hold": Check(topics.hold, ("now",), Danger.ON_TIME),
    "queue_paused": Check(topics.paused, ("now",), Danger.ON_TIME),
    "settings": Check(topics.settings, ("topics",), Danger.LOST),
    "copies": Check(topics.copies, ("copies", "topics"), Danger.LOST),
    "internal": Check(topics.internal, ("topics",), Danger.ONCE),
    "brokers": Check(topics.brokers, ("broker_settings",), Danger.LOST),
    "retention": Check(topics.retention, ("topics", "broker_settings"), Danger.LOST),
    "unacked": Check(topics.unacked, ("unacked", "topics", "now"), Danger.LOST),
    "owners": Check(owners.owners, ("fleet", "now"), Danger.ON_TIME, passing=True),
    "handlers": Check(owners.handlers, ("fleet", "now"), Danger.ON_TIME, passing=True),
    "members": Check(owners.members, ("members", "fleet", "now"), Danger.ON_TIME, passing=True),
    "offsets": Check(
        owners.offsets, ("committed", "ends", "topic_ids", "fleet", "now"), Danger.ONCE, passing=True
    ),
    "transactions": Check(
        transactions.transactions, ("undecided", "fleet", "now"), Danger.ON_TIME, passing=True
    ),
    "clocks": Check(processes.clocks, ("clocks",), Danger.CLOCK),
    "versions": Check(processes.versions, ("fleet", "now"), Danger.ON_TIME),
    "sessions": Check(processes.sessions, ("broker_settings",), Danger.ON_TIME),
    "index": Check(local.index, ("local", "fleet", "ends", "topic_ids", "now"), Danger.ON_TIME),
    "disk": Check(local.disk, ("local",), Danger.ON_TIME),
}
"""By the name under which findings tell of it."""

Named = tuple[str, Finding]
"""A finding with the name of its check."""


def examine(facts: Facts) -> list[Named]:
    """Every finding, the worst first. Of what is no installation yet only that is said."""
    first = [("installation", found) for found in topics.installation(facts)]
    found = first or [(name, each) for name in CHECKS for each in _looked(name, facts)]
    return sorted(found, key=lambda named: list(Severity).index(named[1].severity))


def _looked(name: str, facts: Facts) -> Iterator[Finding]:
    check = CHECKS[name]
    for fact in check.needs:
        if fact in facts.missing:
            yield Finding(
                severity=Severity.WARNING,
                subject=fact,
                problem=f"not checked: {facts.missing[fact]}",
                danger=check.danger,
                remedy="dueline doctor again, once that is mended",
            )
            return
    yield from check.look(facts)


def confirmed(first: Iterable[Named], second: Iterable[Named]) -> list[Named]:
    """What the second look found, without what a passing check found only once."""
    before = {(name, found.subject) for name, found in first}
    return [
        (name, found) for name, found in second if not CHECKS[name].passing or (name, found.subject) in before
    ]
