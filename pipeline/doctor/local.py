"""What lies on this machine: the due indexes of its dispatchers, and the disk they stand on (H12, H13)."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.topics import DELETE_RETENTION_MS
from pipeline.doctor.facts import Facts, LocalIndex, LocalState, Place
from pipeline.doctor.findings import CUT, Danger, Finding, Severity, listed, span

STALE_MS = DELETE_RETENTION_MS // 2
"""An index that was not in step with its log for so long may have missed tombstones: its owner wipes it."""
FULL_BYTES, LOW_BYTES = 256 * 1024**2, 1024**3


def index(facts: Facts) -> Iterator[Finding]:
    """Age of what a running dispatcher keeps, and whether the log still holds where an index stands."""
    assert facts.local is not None
    for here in facts.local.indexes:
        yield from _aged(facts, facts.local, here)
        yield from _beside_the_log(facts, facts.local, here)
        yield from _zones(facts, facts.local, here)
    yield from _elsewhere(facts, facts.local)


def _owned(facts: Facts, local: LocalState, here: LocalIndex) -> set[int] | None:
    """Partitions of the live process in that slot; None: there is none."""
    process = f"{local.instance}.{here.slot}."
    live = [seen for seen in facts.live("dispatcher") if seen.heartbeat.process.startswith(process)]
    return {owned.partition for seen in live for owned in seen.heartbeat.owned} if live else None


def _zones(facts: Facts, local: LocalState, here: LocalIndex) -> Iterator[Finding]:
    owned = _owned(facts, local, here) or set()
    other = {n: version for n, version in here.zone_data.items() if n in owned and version != facts.zone_data}
    if other:
        releases = ", ".join(sorted({*other.values()}))
        yield Finding(
            severity=Severity.WARNING,
            subject=_name(local, here),
            problem=f"schedules of partitions {listed(other)} are filed by zone data {releases},"
            f" this machine has {facts.zone_data}: instants may move when its dispatcher is started again",
            danger=Danger.ON_TIME,
            remedy="restart the dispatcher of that slot, with the same tzdata package on every host",
        )


def _aged(facts: Facts, local: LocalState, here: LocalIndex) -> Iterator[Finding]:
    owned, ages = _owned(facts, local, here), {n: facts.now - p.synced_at for n, p in here.positions.items()}
    late = {n: age for n, age in ages.items() if n in (owned or ()) and age > STALE_MS // 2}
    if late:
        yield Finding(
            severity=Severity.WARNING,
            subject=_name(local, here),
            problem=f"was last in step with the log of partitions {listed(late)} {span(max(late.values()))} ago; after"
            f" {span(STALE_MS)} they are read anew",
            danger=Danger.ON_TIME,
            remedy="see why they are not read: the finding `transactions`, /readyz of the dispatcher, its log",
        )
    if owned is None and ages and min(ages.values()) > STALE_MS:
        yield Finding(
            severity=Severity.NOTE,
            subject=_name(local, here),
            problem=f"was last in step with its log {span(min(ages.values()))} ago: the next dispatcher in this slot"
            " reads its partitions from their beginning",
            danger=Danger.ON_TIME,
            remedy="nothing: it costs a minute or two",
        )


def _beside_the_log(facts: Facts, local: LocalState, here: LocalIndex) -> Iterator[Finding]:
    jobs = facts.names.jobs
    cut = [
        n
        for n, position in here.positions.items()
        if position.topic_id == facts.topic_ids.get(jobs)
        and (ends := facts.ends.get(Place(jobs, n))) is not None
        and position.offset > ends.last
    ]
    if cut:
        yield Finding(
            severity=Severity.ERROR,
            subject=_name(local, here),
            problem=f"stands behind the end of partitions {listed(cut)} of {jobs}: acknowledged records are gone",
            danger=Danger.LOST,
            remedy=CUT,
        )


def _elsewhere(facts: Facts, local: LocalState) -> Iterator[Finding]:
    ours = f"{local.instance}." if local.instance else "nobody's"
    elsewhere = [s.heartbeat for s in facts.live("dispatcher") if not s.heartbeat.process.startswith(ours)]
    if elsewhere:
        yield Finding(
            severity=Severity.NOTE,
            subject="index",
            problem=f"not checked of {len(elsewhere)} dispatchers with another state directory (hosts"
            f" {', '.join(sorted({beat.host for beat in elsewhere}))})",
            danger=Danger.SIGHT,
            remedy="dueline doctor there, or watch dueline_index_synced_timestamp_seconds (docs/metrics.md)",
        )


def _name(local: LocalState, here: LocalIndex) -> str:
    return f"{local.path}/dispatcher/{here.slot}/index"


def disk(facts: Facts) -> Iterator[Finding]:
    """A full disk ends the dispatcher; losing the directory costs a rebuild and nothing else."""
    local = facts.local
    assert local is not None
    if not local.writable:
        yield _about(
            local,
            Severity.ERROR,
            "cannot be written by this user: no process can start",
            "chown it to this user, or set DUELINE_STATE_DIR",
        )
    if not local.private:
        yield _about(
            local, Severity.WARNING, "can be read by others: payloads stand in it", f"chmod 700 {local.path}"
        )
    if local.free_bytes < LOW_BYTES:
        yield _about(
            local,
            Severity.ERROR if local.free_bytes < FULL_BYTES else Severity.WARNING,
            f"has {local.free_bytes // 1024**2} MiB free",
            "free some, or set DUELINE_STATE_DIR to another disk: an index is made anew there",
        )
    if not facts.development:  # whose broker keeps its logs in that directory
        yield Finding(
            severity=Severity.NOTE,
            subject="brokers' disks",
            problem="not checked: the client library cannot ask for log directories",
            danger=Danger.SIGHT,
            remedy=f"{facts.tool('kafka-log-dirs.sh')} --describe, df on each broker",
        )


def _about(local: LocalState, severity: Severity, problem: str, remedy: str) -> Finding:
    return Finding(
        severity=severity, subject=local.path, problem=problem, danger=Danger.ON_TIME, remedy=remedy
    )
