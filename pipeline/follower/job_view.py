"""One job as JSON (schemas/cli/job_get.json): the same of a server and of the topics."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.attempts import fold_attempts, outcome_of
from pipeline.core.job import Ack, AckState
from pipeline.follower.job import Story, View, ended_at, result_of, status_of
from pipeline.follower.values import shown_error, shown_instant
from pipeline.follower.why import in_words


def job_view(story: Story, *, payload: bytes | None, told: int | None) -> View:
    """What `dueline job get` shows. `payload` None: it is not kept. `told`: when it ended, epoch ms,
    where no ack tells. `due_at` is when the next run is due while one is pending, else when the job was first due."""
    trail, shown = story.trail, story.shown
    ended = ended_at(story, told)
    return {
        "id": trail.id,
        "handler": shown and shown.handler,
        "status": str(status_of(story)),
        "due_at": shown and shown_instant(shown.due_at),
        "created_at": shown_instant(shown.created_at) if shown is not None and shown.created_at else None,
        "ended_at": shown_instant(ended) if ended else None,
        "key": shown and shown.key,
        "queue": shown.queue if shown else trail.work and trail.work.queue,
        "labels": dict(shown.labels) if shown else {},
        "schedule": shown and shown.schedule_id,
        "occurrence": trail.occurrence_id,
        "serial": shown and shown.serial,
        "failures": shown.failures if shown else 0,
        "skipped": trail.skipped,
        "reason": None if trail.skipped is None else in_words(trail.skipped),
        "waits_behind": trail.behind,
        "kept": payload is not None,
        "payload": None if payload is None else payload.decode("utf-8", "replace"),
        "result": result_of(story.last),
        "runs": _runs_view(story),
    }


def _runs_view(story: Story) -> list[View]:
    attempts = fold_attempts(story.acks)
    return [
        {
            "run": number,
            "fired_at": shown_instant(story.runs[number].at),
            "attempts": _attempts_view(attempts.get(number, {})),
        }
        for number in sorted(story.runs)
    ]


def _attempts_view(attempts: Mapping[int, Ack]) -> list[View]:
    return [_attempt_view(attempts[token], outcome_of(attempts, token)) for token in sorted(attempts)]


def _attempt_view(ack: Ack, outcome: str | None) -> View:
    started = ack.at if ack.state is AckState.STARTED else ack.started_at
    view = {
        "attempt": ack.attempt,
        "worker": ack.worker,
        "token": str(ack.token),
        "started_at": None if started is None else shown_instant(started),
        "finished_at": None if ack.state is AckState.STARTED else shown_instant(ack.at),
        "outcome": outcome,
        "error": shown_error(ack.error),
    }
    return view if ack.log_tail is None else {**view, "log": ack.log_tail}
