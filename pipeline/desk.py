"""What becomes of an attempt, as records: where they go and in whose name (DESIGN §3, §7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.handler import Cancelled, DeadEnd, Decision, Retrying, Succeeded
from pipeline.core.history import brief, fit, lost
from pipeline.core.job import AckState, AttemptRecord, DeadLetter, Event, Failure, Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.lane import Flight, Lane
from pipeline.offers import offer
from pipeline.ports import Put, Record

CARRIED = 16 * 1024
"""Bytes of the attempts that a retry carries along, at most."""
TOLD = 256 * 1024
"""Bytes of the attempts that a dead letter tells, at most."""


class Desk:
    """Where the records of outcomes go, and in whose name. Used by the worker's thread only."""

    def __init__(self, *, names: Names, layout: Layout, queue: str, worker: str) -> None:
        self.names = names
        self.layout = layout
        self.queue = queue
        self.worker = worker
        self._topic = names.acks(queue)
        self._acks = codec.AckWriter(worker)

    def started(self, flight: Flight) -> Put:
        """The record that makes an attempt durable."""
        run = flight.run
        flight.opening = opening = self._acks.opening(run, flight.attempt, flight.token)
        value = self._acks.write(opening, AckState.STARTED, flight.started_at, flight.delivery.offset)
        return self._put(flight, keys.started_key(run.occurrence_id, run.run, flight.token), value)

    def released(self, flight: Flight, now: int) -> Put:
        """The attempt ends unspent: whoever owns the partition next may start it at once."""
        run = flight.run
        key = keys.started_key(run.occurrence_id, run.run, flight.token)
        return self._put(flight, key, self._ack(flight, AckState.RELEASED, now))

    def _put(self, flight: Flight, key: bytes, value: bytes) -> Put:
        # What `Put(…)` makes, without the call in Python: every run costs two.
        return tuple.__new__(Put, (self._topic, flight.lane.number, key, value, None))

    def settle(self, flight: Flight, decision: Decision, now: int, log: str | None = None) -> list[Put]:
        """The records of an outcome, to be committed together with the offset; a retry comes last. `log` = the last
        lines that the attempt logged."""
        match decision:
            case Succeeded():
                run = flight.run
                terminal = self._terminal(flight, AckState.SUCCEEDED, now, None, decision.result, log)
                if run.key is None and run.schedule_id is None:
                    return [terminal]
                return [terminal, *self._done(run, AckState.SUCCEEDED, now)]
            case Cancelled():
                return self._cancelled(flight, Failure(type="Cancel", message=decision.reason), now, log)
            case DeadEnd():
                terminal = self._terminal(flight, AckState.DEAD, now, error=decision.error, log_tail=log)
                letter = self._dead(flight, decision, now)
                return [terminal, letter, *self._done(flight.run, AckState.DEAD, now)]
            case Retrying():
                return self._settle_retry(flight, decision, now, log)

    def stopped(self, flight: Flight, now: int, log: str | None = None) -> list[Put]:
        """The end of a run that was stopped from outside, whether or not it had started."""
        return self._cancelled(flight, Failure(type="Stopped", message="stopped by request"), now, log)

    def _cancelled(self, flight: Flight, error: Failure, now: int, log: str | None) -> list[Put]:
        terminal = self._terminal(flight, AckState.CANCELLED, now, error=error, log_tail=log)
        return [terminal, *self._done(flight.run, AckState.CANCELLED, now)]

    def _settle_retry(self, flight: Flight, decision: Retrying, now: int, log: str | None) -> list[Put]:
        home = self._home(flight.run)
        if home is None:
            problem = f"job id {flight.run.job_id[:120]!r} names no home partition to retry from"
            error = decision.error or Failure(type="NoHome", message=problem)
            return self.settle(flight, DeadEnd(reason="no_home", error=error), now, log)
        ack = self._terminal(
            flight, AckState.RETRYING, now, error=decision.error, retry_at=decision.at, log_tail=log
        )
        return [ack, self._retry(flight, decision, home, now)]

    def offer(self, flight: Flight, puts: Sequence[Put]) -> list[Put]:
        """The outcome of a run whose partition is somebody else's now, for its owner to commit."""
        return offer(flight.id, self.worker, puts, self.names.acks(self.queue), flight.lane.number)

    def _done(self, run: Run, state: AckState, now: int) -> list[Put]:
        """The fact that ends a job with a key or a schedule: its owner frees the key when it reads it (DESIGN §4)."""
        home = None if run.key is None and run.schedule_id is None else self._home(run)
        if home is None:
            return []
        done = Event(
            id=run.occurrence_id,
            kind="done",
            at=now,
            job_id=run.job_id,
            occurrence_id=run.occurrence_id,
            run=run.run,
            outcome=state.value,
        )
        key = keys.done_key(run.occurrence_id, run.run)
        return [Put(self.names.jobs, home, key, codec.EVENT.encode(done))]

    def _home(self, run: Run) -> int | None:
        """None for a job id that is none: work records may come from anybody."""
        try:
            return self.layout.home(run.job_id)
        except Undecodable:
            return None

    def _retry(self, flight: Flight, decision: Retrying, home: int, now: int) -> Put:
        run = flight.run
        attempt = brief(self._attempt(flight, AckState.RETRYING, decision.error, now))
        again = replace(
            run,
            run=run.run + 1,
            due_at=decision.at,
            failures=decision.failures,
            history=run.history if _told(run, attempt) else fit(_attempts(flight, attempt), CARRIED),
        )
        return Put(
            self.names.jobs,
            home,
            keys.retry_key(run.occurrence_id, run.run),
            codec.RUN.encode(again),
        )

    def _dead(self, flight: Flight, decision: DeadEnd, now: int) -> Put:
        run = flight.run
        attempt = self._attempt(flight, AckState.DEAD, decision.error, now)
        letter = DeadLetter(
            reason=decision.reason,
            detail=decision.error.message if decision.error is not None else "",
            at=now,
            source_topic=self.names.work(self.queue),
            source_partition=flight.lane.number,
            source_offset=flight.delivery.offset,
            run=replace(run, history=()),
            attempts=fit(_attempts(flight, attempt), TOLD),
        )
        return Put(
            self.names.dead,
            self._home(run) or 0,
            run.occurrence_id.encode(),
            codec.DEAD_LETTER.encode(letter),
        )

    def _attempt(self, flight: Flight, outcome: AckState, error: Failure | None, now: int) -> AttemptRecord:
        return AttemptRecord(
            run=flight.run.run,
            attempt=flight.attempt,
            worker=self.worker,
            token=flight.token,
            at=now,
            outcome=outcome.value,
            error=error,
        )

    def unreadable(self, lane: Lane, record: Record, reason: str, now: int) -> Put:
        """The dead letter of a work record that nobody can decode."""
        offset, topic = record.offset() or 0, self.names.work(self.queue)
        letter = DeadLetter(
            reason="undecodable",
            detail=reason,
            at=now,
            source_topic=topic,
            source_partition=lane.number,
            source_offset=offset,
            record_key=record.key(),
            value=record.value(),
        )
        place = keys.place_key(topic, lane.number, offset)
        return Put(self.names.dead, 0, place, codec.DEAD_LETTER.encode(letter))

    def _terminal(
        self,
        flight: Flight,
        state: AckState,
        now: int,
        error: Failure | None = None,
        result: bytes | None = None,
        log_tail: str | None = None,
        retry_at: int | None = None,
    ) -> Put:
        run = flight.run
        key = keys.terminal_key(run.occurrence_id, run.run, flight.attempt)
        return self._put(flight, key, self._ack(flight, state, now, error, result, log_tail, retry_at))

    def _ack(self, flight: Flight, state: AckState, now: int, *rest: Any) -> bytes:
        """`rest`: error, result, log_tail, retry_at."""
        opening = flight.opening or self._acks.opening(flight.run, flight.attempt, flight.token)
        return self._acks.write(opening, state, now, flight.delivery.offset, flight.started_at, *rest)


def _attempts(flight: Flight, last: AttemptRecord) -> list[AttemptRecord]:
    """The attempts of all runs of the occurrence that are known of, oldest first."""
    run = flight.run
    return [*run.history, *lost(run.run, flight.attempt, flight.started_at), last]


def _told(run: Run, attempt: AttemptRecord) -> bool:
    """Whether `attempt` is no news: like the one before it not started at all, and for the same reason. A run whose
    handler nobody knows comes back every minute."""
    return (
        attempt.token == 0
        and bool(run.history)
        and (run.history[-1].token, run.history[-1].error) == (0, attempt.error)
    )
