"""Figures and promises of the night, from the evidence alone: pure, so that a broken promise can be tried on
it."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.core.job import AckState
from pipeline.core.times import format_instant
from pipeline.dev.demo.evidence import Emission, End, Evidence, Start
from pipeline.dev.demo.handlers import DUNNING, NIGHT_JOB
from pipeline.dev.demo.inputs import Planned

NAMED = 3
"""Culprits that a broken promise names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The worker that was killed: which process, by whose mail it was chosen, when (epoch ms)."""

    pid: int
    idempotency_key: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What cannot be read from the topics afterwards: when a waiting consumer had each run-1 record (lateness
    in ms), the kill, None if it did not come to it, and what the screen calls the processes, by pid."""

    lateness: Sequence[int]
    kill: Kill | None
    names: Mapping[int, str]


class Check(NamedTuple):
    """One promise, and what was found."""

    name: str
    holds: bool
    detail: str


def report(planned: Sequence[Planned], evidence: Evidence, observed: Observed) -> dict[str, Any]:
    """The report as data (schemas/cli/demo.json, without where and when it ran). `ok` False: a promise is
    broken."""
    case = _Case(planned, evidence, observed)
    checks = list(_checks(case))
    first = [e for e in evidence.emissions if e.run == 1]
    return {
        "ok": all(check.holds for check in checks),
        "jobs": len(evidence.created),
        "jobs_by_kind": _kinds(evidence),
        "runs": len(evidence.emissions),
        "attempts": len(evidence.starts),
        "restarted_runs": len(case.restarted),
        "mails_sent": len(evidence.mails),
        "duplicates_stopped": _stopped(evidence),
        "lost": len(case.lost),
        "doubled": len(case.doubled),
        "early": len(case.early),
        "dead": evidence.dead,
        "lateness_ms": _spread(observed.lateness),
        "emit_delay_ms": _spread([e.appended_at - e.due_at for e in first]),
        "kill": case.kill_report(),
        "invariants": [check._asdict() for check in checks],
    }


class _Case:
    """The evidence, sorted by what the promises ask."""

    def __init__(self, planned: Sequence[Planned], evidence: Evidence, observed: Observed) -> None:
        self.planned = planned
        self.evidence = evidence
        self.observed = observed
        self.key_of = {e.occurrence_id: e.idempotency_key for e in evidence.emissions}
        self.starts: dict[tuple[str, int], list[Start]] = defaultdict(list)
        for start in sorted(evidence.starts, key=lambda s: s.attempt):
            self.starts[start.occurrence_id, start.run].append(start)
        succeeded = {
            self.key_of.get(end.occurrence_id) for end in evidence.ends if end.state is AckState.SUCCEEDED
        }
        self.lost = [job.idempotency_key for job in planned if job.idempotency_key not in succeeded]
        runs = Counter(e.idempotency_key for e in evidence.emissions if e.run == 1)
        self.doubled = [key for key, count in runs.items() if count > 1]
        self.early = [e.idempotency_key for e in evidence.emissions if e.appended_at < e.due_at]
        self.restarted = {run: starts for run, starts in self.starts.items() if len(starts) > 1}
        self.names = {process: observed.names.get(pid) for pid, process in evidence.processes.items()}

    @property
    def killed_process(self) -> str | None:
        kill = self.observed.kill
        return None if kill is None else self.evidence.processes.get(kill.pid)

    def victim(self) -> Emission | None:
        """The run whose worker was killed."""
        kill = self.observed.kill
        wanted = None if kill is None else kill.idempotency_key
        return next((e for e in self.evidence.emissions if e.idempotency_key == wanted), None)

    def victim_starts(self) -> list[Start]:
        victim = self.victim()
        return [] if victim is None else self.starts[victim.occurrence_id, victim.run]

    def end_of(self, start: Start) -> End | None:
        place = start.occurrence_id, start.run, start.attempt
        return next((e for e in self.evidence.ends if (e.occurrence_id, e.run, e.attempt) == place), None)

    def takeover_ms(self) -> int | None:
        """From the kill to the start of the second attempt."""
        starts, kill = self.victim_starts(), self.observed.kill
        return starts[1].at - kill.at if kill is not None and len(starts) > 1 else None

    def kill_report(self) -> dict[str, Any] | None:
        kill = self.observed.kill
        if kill is None:
            return None
        return {
            "idempotency_key": kill.idempotency_key,
            "name": self.observed.names.get(kill.pid),
            "worker": self.killed_process,
            "at": format_instant(kill.at),
            "takeover_ms": self.takeover_ms(),
            "attempts": [self.attempt(start) for start in self.victim_starts()],
        }

    def attempt(self, start: Start) -> dict[str, Any]:
        end = self.end_of(start)
        sent = any(mail.token == start.token for mail in self._mails(start))
        return {
            "attempt": start.attempt,
            "name": self.names.get(start.worker),
            "worker": start.worker,
            "token": str(start.token),
            "outcome": "no ack" if end is None else str(end.state),
            "mail": "sent" if sent else _result(end).get("mail", "none"),
        }

    def _mails(self, start: Start) -> Iterator[Any]:
        key = self.key_of.get(start.occurrence_id)
        return (mail for mail in self.evidence.mails if mail.idempotency_key == key)


def _checks(case: _Case) -> Iterator[Check]:
    yield _input_check(case)
    yield _none("nothing is lost: every job has succeeded", case.lost, "lost")
    yield _none("nothing is doubled: one run-1 record for each job", case.doubled, "doubled")
    yield _none("nothing is early: no record before its due time, by the broker's clock", case.early, "early")
    yield Check("nothing is dead", case.evidence.dead == 0, f"{case.evidence.dead} dead letters")
    yield _mail_check(case)
    yield _kill_check(case)
    yield _no_op_check(case)
    yield _restart_check(case)
    yield _token_check(case)
    yield _probe_check(case)


def _input_check(case: _Case) -> Check:
    wanted = Counter(job.idempotency_key for job in case.planned)
    found = Counter(job.idempotency_key for job in case.evidence.created)
    wrong = [*(wanted - found), *(found - wanted)]
    return _none("the topic of jobs holds what the input files say", wrong, "missing or too many")


def _mail_check(case: _Case) -> Check:
    wanted = Counter({job.payload["invoice"]: 1 for job in case.planned if job.handler == DUNNING})
    found = Counter(mail.invoice for mail in case.evidence.mails)
    wrong = [f"invoice {n}: {found[n]}" for n in sorted(wanted | found) if wanted[n] != found[n]]
    return _none("one mail for each invoice", wrong, "wrong")


def _kill_check(case: _Case) -> Check:
    """The first attempt had sent its mail and was never acked; the second ran elsewhere."""
    name = "a worker was killed between effect and ack, another took over"
    starts, killed = case.victim_starts(), case.killed_process
    if killed is None or len(starts) < 2:
        return Check(name, False, "nobody was killed" if killed is None else f"{len(starts)} attempts")
    attempts = [case.attempt(start) for start in starts]
    holds = (
        attempts[0]["worker"] == killed
        and attempts[0]["outcome"] == "no ack"
        and attempts[0]["mail"] == "sent"
        and all(attempt["worker"] != killed for attempt in attempts[1:])
    )
    return Check(name, holds, f"after {case.takeover_ms()} ms")


def _no_op_check(case: _Case) -> Check:
    """Stopped by the key: the result says so, and so does the store."""
    name = "the second attempt was a no-op because of the key"
    starts = case.victim_starts()
    if len(starts) < 2:
        return Check(name, False, "there was none")
    end = case.end_of(starts[1])
    mail = _result(end).get("mail")
    refused = any(stop.token == starts[1].token for stop in case.evidence.stopped)
    holds = end is not None and end.state is AckState.SUCCEEDED and mail == "stopped" and refused
    by = f" by {_result(end).get('by')}" if mail == "stopped" else ""
    return Check(name, holds, f"{'no ack' if end is None else end.state}, mail {mail}{by}")


def _restart_check(case: _Case) -> Check:
    killed = case.killed_process
    wrong = [
        case.key_of.get(occurrence, occurrence)
        for (occurrence, _), starts in case.restarted.items()
        if any(start.worker != killed for start in starts[:-1])
    ]
    return _none("only runs of the killed worker were started again", wrong, "others")


def _token_check(case: _Case) -> Check:
    wrong = [
        case.key_of.get(occurrence, occurrence)
        for (occurrence, _), starts in case.restarted.items()
        if any(before.token >= after.token for before, after in pairwise(starts))
    ]
    return _none("fencing tokens grow with every attempt", wrong, "not growing")


def _probe_check(case: _Case) -> Check:
    seen, there = len(case.observed.lateness), sum(e.run == 1 for e in case.evidence.emissions)
    return Check("lateness was measured for every run-1 record", seen == there, f"{seen} of {there}")


def _none(name: str, culprits: Sequence[object], word: str) -> Check:
    named = f": {', '.join(str(c) for c in culprits[:NAMED])}{' …' if len(culprits) > NAMED else ''}"
    return Check(name, not culprits, f"{len(culprits)} {word}{named if culprits else ''}")


def _kinds(evidence: Evidence) -> dict[str, int]:
    by = Counter(job.handler for job in evidence.created)
    return {"mails": by[DUNNING], "night_jobs": by[NIGHT_JOB]}


def _stopped(evidence: Evidence) -> dict[str, int]:
    by = Counter(stop.stopped_by for stop in evidence.stopped)
    return {"total": len(evidence.stopped), "by_lookup": by["lookup"], "by_server": by["server"]}


def _result(end: End | None) -> Mapping[str, Any]:
    result = json.loads(end.result) if end is not None and end.result else None
    return result if isinstance(result, dict) else {}


def _spread(values: Sequence[int]) -> dict[str, int | None]:
    ordered = sorted(values)
    return {
        "min": ordered[0] if ordered else None,
        "p50": _percentile(ordered, 0.50),
        "p99": _percentile(ordered, 0.99),
        "max": ordered[-1] if ordered else None,
    }


def _percentile(ordered: Sequence[int], share: float) -> int | None:
    """Nearest rank: a value that was measured."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
