"""What is kept of one job: what its home partition says of it, its runs, and the attempts at them.

The three come from three topics, each in its own order, so they are kept apart, and whichever is read first the same
is known at the end. What they mean is told by the rules of `pipeline.follower`, which folds the same records whenever
it is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pipeline.core.attempts import fold_attempts
from pipeline.core.errors import Undecodable
from pipeline.core.handler import RESULT_LIMIT
from pipeline.core.history import BRIEF
from pipeline.core.ids import KeyedId, ScheduleOccurrence, parse_id
from pipeline.core.job import Ack, AckState, Event, Failure, JobStatus, Run
from pipeline.core.layout import Layout
from pipeline.core.schedule import Schedule
from pipeline.follower.folds import fold_of
from pipeline.follower.job import Emitted, Story, status_of
from pipeline.follower.occurrence import ScheduledFold
from pipeline.follower.trail import Fold, KeyedFold, Place, Trail
from pipeline.ports import Record

MOST_ATTEMPTS, WHOLE_ATTEMPTS = 50, 5
"""Attempts that are kept, the latest, and how many of them whole."""
MOST_RUNS = 20
MESSAGE_LIMIT, TRACE_LIMIT, LOG_LIMIT = 1_000, 4_000, 4_000
"""Characters that are kept of what an attempt came to, beside its whole result."""
ENDED = frozenset(
    {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.SKIPPED}
)


class Sent(NamedTuple):
    """A run on its work topic: when it was appended and where."""

    at: int
    offset: int


@dataclass(slots=True)
class Tale:
    """`id` is an occurrence's, of which jobs without a key have one of the same name. `partition`: of the queue
    `queue`, where its runs and acks were read. `first`: the lowest run there, without payload."""

    id: str
    trail: Trail
    sent: dict[int, Sent] = field(default_factory=dict)
    first: Run | None = None
    acks: list[Ack] = field(default_factory=list)
    queue: str = ""
    partition: int = -1
    ended_at: int = 0
    home_offset: int = -1
    """Where on its home partition the record stands that holds its payload; -1: on the work topic only."""

    def story(self) -> Story:
        """All of it, to be judged by the follower's rules."""
        first = self.first
        if not (self.trail.guessed or _told_place(self.trail) in (None, (self.queue, self.partition))):
            return Story(self.trail, {}, [])
        sent = {} if first is None else self.sent
        runs = {n: Emitted(first, *each) for n, each in sent.items() if first is not None}
        return Story(self.trail, runs, self.acks)

    @property
    def known(self) -> bool:
        """Whether there is such a job, as far as is known."""
        return self.trail.known or bool(self.sent)

    def status(self) -> JobStatus | None:
        """None while nothing but acks is known."""
        return status_of(self.story()) if self.known else None


# -- folding ------------------------------------------------------------------------------------------------


def fold_home(
    tale: Tale,
    key: bytes,
    record: Record,
    layout: Layout,
    current: int | None = None,
    before: Schedule | None = None,
) -> None:
    """Take in a record of its home partition. `current`: of a keyed job, the incarnation of the last state that
    stood under its key; `before`: of an occurrence, the last state of its schedule."""
    fold = home_fold(tale, layout)
    if isinstance(fold, KeyedFold):
        fold.current = current
    if isinstance(fold, ScheduledFold):
        fold.follows(before)
    fold.take(key, record)
    tale.trail = fold.trail


def home_fold(tale: Tale, layout: Layout) -> Fold:
    """The follower's fold, as it stands after all that was taken in. Undecodable if the id is none."""
    fold = fold_of(tale.id, layout)
    fold.trail = tale.trail
    return fold


def fold_run(tale: Tale, run: Run, queue: str, partition: int, sent: Sent) -> bool:
    """Take in a run of its work topic; whether it was news: of a run the first record counts."""
    if not _is_here(tale, queue, partition) or run.run in tale.sent:
        return False
    if tale.first is None or run.run < tale.first.run:
        tale.first = bare(run)
    tale.sent[run.run] = sent
    while len(tale.sent) > MOST_RUNS:
        del tale.sent[min(tale.sent)]
    return True


def fold_ack(tale: Tale, ack: Ack, queue: str, partition: int) -> bool:
    """Take in what an attempt came to; whether it was news."""
    if not _is_here(tale, queue, partition):
        return False
    before = tale.acks
    runs = fold_attempts([*before, shortened(ack)])
    tale.acks = _trimmed([each for attempts in runs.values() for each in _latest(attempts)])
    return tale.acks != before


def _trimmed(acks: list[Ack]) -> list[Ack]:
    """Of all but the latest few only what they came to: a row is written anew with each. The last word on a run is
    among its latest, whatever was started beside it."""
    if len(acks) <= WHOLE_ATTEMPTS:
        return acks
    order = sorted(acks, key=lambda ack: (ack.run, ack.state.terminal, ack.token))[-MOST_ATTEMPTS:]
    whole = {(ack.run, ack.token) for ack in order[-WHOLE_ATTEMPTS:]}
    kept = {(ack.run, ack.token) for ack in order}
    return [
        ack if (ack.run, ack.token) in whole else _brief(ack) for ack in acks if (ack.run, ack.token) in kept
    ]


def _brief(ack: Ack) -> Ack:
    error = ack.error and replace(ack.error, message=ack.error.message[:BRIEF], trace=None)
    return replace(ack, error=error, result=None, log_tail=None)


def _latest(attempts: Mapping[int, Ack]) -> list[Ack]:
    tokens = sorted(attempts, key=lambda token: (attempts[token].state.terminal, token))[-MOST_ATTEMPTS:]
    return [ack for token, ack in attempts.items() if token in tokens]


def _is_here(tale: Tale, queue: str, partition: int) -> bool:
    """Whether the runs of this job stand there: its home says where, else the first record. What anybody appended
    elsewhere says nothing."""
    told, known, here = _told_place(tale.trail), (tale.queue, tale.partition), (queue, partition)
    if told not in (None, here) and not (tale.trail.guessed and known != told):
        return False
    if known != here:
        if tale.partition >= 0 and told != here:
            return False
        tale.queue, tale.partition = queue, partition
        tale.sent, tale.acks, tale.first = {}, [], None
    return True


def _told_place(trail: Trail) -> tuple[str, int] | None:
    return None if trail.work is None else (trail.work.queue, trail.work.partition)


def bare(run: Run) -> Run:
    """Without what is kept elsewhere, or not at all."""
    return replace(run, payload=b"", history=(), headers={})


def shortened(ack: Ack) -> Ack:
    """As much of it as is kept."""
    error = ack.error
    if error is None and ack.result is None and ack.log_tail is None:
        return ack
    if error is not None:
        trace = error.trace and error.trace[-TRACE_LIMIT:]
        error = Failure(type=error.type[:MESSAGE_LIMIT], message=error.message[:MESSAGE_LIMIT], trace=trace)
    result = ack.result if ack.result is None or len(ack.result) <= RESULT_LIMIT else None
    return replace(ack, error=error, result=result, log_tail=ack.log_tail and ack.log_tail[-LOG_LIMIT:])


# -- as JSON ------------------------------------------------------------------------------------------------


def new(id_: str) -> Tale:
    """Of a job of which nothing is known yet. Undecodable if `id_` is none."""
    parsed = parse_id(id_)
    incarnation = parsed.incarnation if isinstance(parsed, KeyedId) else None
    return Tale(id_, Trail(id_, incarnation))


def to_json(tale: Tale) -> bytes:
    trail = tale.trail
    told: dict[str, Any] = {
        "f": _run_json(trail.first),
        "l": {key.decode("utf-8", "surrogateescape"): _run_json(run) for key, run in trail.live.items()},
        "e": trail.end,
        "w": trail.work and [*trail.work],
        "h": trail.highest,
        "k": trail.known,
        "u": trail.unreadable,
        "s": trail.stop and [trail.stop.at, trail.stop.run],
        "z": trail.skipped,
        "b": trail.behind,
        "c": trail.certain,
        "g": trail.guessed,
        "p": [tale.queue, tale.partition] if tale.partition >= 0 else None,
        "r": [[number, *sent] for number, sent in tale.sent.items()],
        "x": _run_json(tale.first),
        "a": [_ack_json(ack) for ack in tale.acks],
        "o": tale.home_offset,
    }
    kept = {name: value for name, value in told.items() if value not in (None, False, {}, [], 0)}
    return json.dumps(kept, separators=(",", ":")).encode()


def from_json(id_: str, value: bytes) -> Tale:
    """What `to_json` wrote."""
    told = json.loads(value)
    tale = new(id_)
    trail, stop, place = tale.trail, told.get("s"), told.get("w")
    job_id = _job_of(id_)
    trail.first = _run(job_id, id_, told.get("f"))
    for key, run in told.get("l", {}).items():
        live = _run(job_id, id_, run)
        assert live is not None, "a run to come is one"
        trail.live[key.encode("utf-8", "surrogateescape")] = live
    trail.end, trail.highest, trail.known = told.get("e"), told.get("h", 0), told.get("k", False)
    trail.unreadable, trail.certain = told.get("u", False), told.get("c", False)
    trail.guessed = told.get("g", False)
    trail.skipped, trail.behind = told.get("z"), told.get("b")
    trail.work = None if place is None else Place(*place)
    if stop is not None:
        trail.stop = Event(id=id_, kind="stopped", at=stop[0], run=stop[1])
    tale.queue, tale.partition = told.get("p", ("", -1))
    tale.sent = {number: Sent(at, offset) for number, at, offset in told.get("r", ())}
    tale.first = _run(job_id, id_, told.get("x"))
    tale.acks = [_ack(job_id, id_, ack) for ack in told.get("a", ())]
    tale.home_offset = told.get("o", 0)
    return tale


def _job_of(id_: str) -> str:
    return id_.partition(".")[0] if id_.startswith("k") else id_


def schedule_of(id_: str) -> str | None:
    """The schedule that an occurrence is of; None: of none."""
    if not id_.startswith("s:"):
        return None
    try:
        parsed = parse_id(id_)
    except Undecodable:
        return None
    return parsed.schedule_id if isinstance(parsed, ScheduleOccurrence) else None


def _run_json(run: Run | None) -> list[Any] | None:
    if run is None:
        return None
    key = run.idempotency_key if run.idempotency_key != run.occurrence_id else None
    told = [
        run.run, run.due_at, run.handler, run.queue, run.created_at, run.nominal_at, run.failures, run.key,
        run.schedule_id, dict(run.labels) or None, run.serial, key,
    ]  # fmt: skip
    while told and told[-1] in (None, 0):
        told.pop()
    return told


def _run(job_id: str, occurrence_id: str, told: list[Any] | None) -> Run | None:
    if told is None:
        return None
    run, due_at, handler, queue, created_at, nominal_at, failures, key, schedule_id, labels, serial, once = (
        told + [None] * (12 - len(told))
    )  # fmt: skip
    return Run(
        job_id=job_id, occurrence_id=occurrence_id, run=run, due_at=due_at, handler=handler, queue=queue,
        created_at=created_at or 0, nominal_at=nominal_at or 0, failures=failures or 0, key=key,
        schedule_id=schedule_id, labels=labels or {}, serial=serial, idempotency_key=once or occurrence_id,
        payload=b"",
    )  # fmt: skip


def _ack_json(ack: Ack) -> list[Any]:
    error = ack.error and [ack.error.type, ack.error.message, ack.error.trace]
    result = None if ack.result is None else ack.result.decode("utf-8", "surrogateescape")
    told = [
        ack.run, ack.attempt, ack.token, ack.state.value, ack.worker, ack.handler, ack.at, ack.started_at,
        ack.work_offset, error, result, ack.log_tail, ack.retry_at,
    ]  # fmt: skip
    while told[-1] is None:
        told.pop()
    return told


def _ack(job_id: str, occurrence_id: str, told: list[Any]) -> Ack:
    run, attempt, token, state, worker, handler, at, started_at, offset, error, result, tail, retry_at = (
        told + [None] * (13 - len(told))
    )  # fmt: skip
    return Ack(
        job_id=job_id, occurrence_id=occurrence_id, run=run, attempt=attempt, token=token, worker=worker,
        handler=handler, state=AckState(state), at=at, started_at=started_at, work_offset=offset,
        error=None if error is None else Failure(type=error[0], message=error[1], trace=error[2]),
        result=None if result is None else result.encode("utf-8", "surrogateescape"), log_tail=tail,
        retry_at=retry_at,
    )  # fmt: skip
