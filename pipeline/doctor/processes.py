"""Clocks, versions and sessions: what processes and brokers must share."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.facts import Facts
from pipeline.doctor.findings import Danger, Finding, Severity, span

APART_MS = 500
"""From so much on a broker's clock wants looking after, long before it is excluded at 2 s."""
ROLLOUT_MS = 3_600_000
"""Two versions beside each other for longer than this are no deploy under way."""


def clocks(facts: Facts) -> Iterator[Finding]:
    """The store's time is that of the brokers that agree; one outside may not be the next to be believed."""
    for broker, reading in sorted(facts.clocks.items()):
        sure = abs(reading.ahead_ms) - reading.error_ms
        if not reading.outside and sure < APART_MS:
            continue
        way = "ahead of" if reading.ahead_ms > 0 else "behind"
        yield Finding(
            severity=Severity.ERROR if reading.outside else Severity.WARNING,
            subject=f"broker {broker}",
            problem=f"its clock is {span(abs(reading.ahead_ms))} {way} the store's"
            + (", so it is excluded" if reading.outside else ""),
            danger=Danger.CLOCK,
            remedy=f"chronyc makestep on the host of broker {broker}, and see why its time is not kept",
        )


def versions(facts: Facts) -> Iterator[Finding]:
    """Readers first: a schema is announced before anybody writes it, and known before it is announced (DESIGN §3)."""
    assert facts.layout is not None
    announced = frozenset(facts.layout.fingerprints)
    live = {seen.heartbeat.version for seen in facts.fleet if facts.fresh(seen)}
    if ahead := announced - facts.known:
        yield Finding(
            severity=Severity.ERROR if facts.version in live else Severity.WARNING,
            subject=f"version {facts.version}",
            problem=f"does not know {len(ahead)} announced schemas ({', '.join(sorted(ahead)[:3])}): a process of it"
            " stops each partition where it meets one",
            danger=Danger.ON_TIME,
            remedy=f"deploy version {facts.layout.product_version} here and wherever {facts.version} runs",
        )
    if behind := facts.written - announced:
        older = ", ".join(sorted(live - {facts.version}))
        yield Finding(
            severity=Severity.ERROR if older and facts.version in live else Severity.WARNING,
            subject=f"version {facts.version}",
            problem=f"writes {len(behind)} schemas that are not announced: processes of version"
            f" {older or 'before it'} bury such records as dead letters",
            danger=Danger.LOST,
            remedy="dueline topics upgrade, before any process of this version starts",
        )
    yield from _mixed(facts)


def _mixed(facts: Facts) -> Iterator[Finding]:
    live = [seen.heartbeat for seen in facts.fleet if facts.fresh(seen)]
    there = sorted({beat.version for beat in live})
    if len(there) < 2:
        return
    for_ms = facts.now - max(beat.started_at for beat in live)
    yield Finding(
        severity=Severity.WARNING if for_ms > ROLLOUT_MS else Severity.NOTE,
        subject="fleet",
        problem=f"versions {', '.join(there)} run side by side"
        + (
            f", and nothing was started for {span(for_ms)}" if for_ms > ROLLOUT_MS else ": a deploy, it seems"
        ),
        danger=Danger.ON_TIME,
        remedy="finish the deploy: `dueline status` shows the version of each process",
    )


def sessions(facts: Facts) -> Iterator[Finding]:
    """A session that the brokers refuse keeps every process out of its group."""
    wanted = facts.session_timeout_ms
    if wanted is None:
        return
    kind = "group.consumer." if facts.group_protocol == "consumer" else "group."
    least, most = (
        facts.highest(f"{kind}min.session.timeout.ms"),
        facts.lowest(f"{kind}max.session.timeout.ms"),
    )
    if (least is not None and wanted < least) or (most is not None and wanted > most):
        yield Finding(
            severity=Severity.ERROR,
            subject="DUELINE_SESSION_TIMEOUT_MS",
            problem=f"is {wanted}, the brokers take {least} to {most} ms: no process with it can join",
            danger=Danger.ON_TIME,
            remedy=f"unset DUELINE_SESSION_TIMEOUT_MS, or {kind}min.session.timeout.ms={wanted} on every broker",
        )
