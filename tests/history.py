"""Whether a history keeps the promises of DESIGN §2: a pure function over what read_committed readers found.

It knows nothing of dispatchers: only which jobs were acknowledged, what stands on the work topics and which
tombstones stand on `jobs`. So it can neither share a mistake with the product nor be talked out of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    LOST = "lost"
    """Due, acknowledged, and no run 1."""
    DOUBLED = "doubled"
    """More than one run 1."""
    EARLY = "early"
    """Appended before its due time, by the store's clock."""
    FOREIGN = "foreign"
    """A run 1 of a job that nobody created."""
    ALTERED = "altered"
    """A run 1 with another due time than the job was created with."""
    TORN = "torn"
    """Half a transaction: a run 1 without the tombstone of its job, or the other way round."""
    MISPLACED = "misplaced"
    """The tombstone names another work partition than the one that has the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A committed record of a work topic. `place` is `<queue>/<partition>`; times are epoch ms."""

    occurrence: str
    run: int
    due_at: int
    appended_at: int
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A committed tombstone of a job on `jobs`. `place` is what its `work` header says, or empty."""

    occurrence: str
    end: str
    place: str


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    occurrence: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.occurrence} {self.detail}".rstrip()


def anomalies(created: Mapping[str, int], work: Iterable[Fired], ends: Iterable[Ended]) -> list[Anomaly]:
    """What is wrong with a history in which every job of `created` (due times by id) has come due, and none was
    cancelled. Empty if nothing is; ordered by job."""
    runs: defaultdict[str, list[Fired]] = defaultdict(list)
    for fired in work:
        if fired.run == 1:
            runs[fired.occurrence].append(fired)
    tombs: defaultdict[str, list[Ended]] = defaultdict(list)
    for ended in ends:
        if ended.end == "fired":
            tombs[ended.occurrence].append(ended)
    found: list[Anomaly] = []
    for job in sorted({*created, *runs, *tombs}):
        found += _of_job(job, created.get(job), runs[job], tombs[job])
    return found


def _of_job(job: str, due: int | None, runs: list[Fired], tombs: list[Ended]) -> Iterable[Anomaly]:
    if due is None:
        yield Anomaly(Kind.FOREIGN, job)
        return
    if not runs:
        yield Anomaly(Kind.LOST, job)
    if len(runs) > 1:
        yield Anomaly(Kind.DOUBLED, job, ", ".join(f"{run.place} at {run.appended_at}" for run in runs))
    if len(runs) != len(tombs):
        yield Anomaly(Kind.TORN, job, f"{len(runs)} runs, {len(tombs)} tombstones")
    for run in runs:
        if run.appended_at < due:
            yield Anomaly(Kind.EARLY, job, f"{due - run.appended_at} ms")
        if run.due_at != due:
            yield Anomaly(Kind.ALTERED, job, f"{run.due_at} instead of {due}")
    if runs and any(tomb.place not in {run.place for run in runs} for tomb in tombs):
        yield Anomaly(Kind.MISPLACED, job, f"{tombs[0].place} instead of {runs[0].place}")


def worst_lateness(created: Mapping[str, int], seen: Mapping[str, int]) -> int:
    """Most ms between a job's due time and the instant at which a waiting reader had its run 1 (DESIGN §1)."""
    return max((at - created[job] for job, at in seen.items() if job in created), default=0)
