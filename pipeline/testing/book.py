"""The parts of a client that keep jobs in a dictionary, as their owners would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from pipeline import codec
from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster, MemoryRecord
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.client import Parts
from pipeline.core.errors import NotFound
from pipeline.core.job import Command, Event, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.core.times import aware, format_instant, instant_of
from pipeline.ports import Put
from pipeline.testing.clock import FakeClock
from pipeline.testing.records import ScheduledJob, read_job, scheduled

_CONFLICTS = {"replace": "replaced", "debounce": "debounced", "reject": "rejected"}
_OF_SCHEDULES = {
    "schedule.create": "created",
    "schedule.pause": "paused",
    "schedule.resume": "resumed",
    "schedule.trigger": "fired",
    "schedule.backfill": "started",
    "schedule.cancel_backfill": "cancelled",
    "schedule.delete": "deleted",
}
"""What is answered about schedules, of which nothing is kept here: a test looks at what was asked."""


class _Queues(dict[str, int]):
    """Whatever queue is asked for, it is there."""

    def __contains__(self, _name: object) -> bool:
        return True


LAYOUT = replace(default_layout(), queues=_Queues())


class Book:
    """`Appender` of a client: it does at once what a record asks for. Any thread may call it."""

    def __init__(self, names: Names, clock: FakeClock) -> None:
        self._names, self._clock = names, clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._feed = _Feed()
        self.jobs: dict[str, ScheduledJob] = {}
        self.changes: list[tuple[str, str]] = []

    def parts(self) -> Parts:
        """Those of one connection."""
        self._closed.clear()
        return Parts(
            appender=self,
            clock=self._clock.store,
            reader=MemoryReader(MemoryCluster(self._clock.store.now)),
            names=self._names,
            load_layout=lambda: LAYOUT,
            finder=lambda _layout: _Finder(self),
            open_feed=lambda: self._feed,
            group_progress=lambda *_place: [],
            open_scan=lambda: MemoryScan(MemoryCluster(self._clock.store.now)),
        )

    def append(self, put: Put, done: Callable[[Exception | None, int, int], None] | None = None) -> None:
        asked = read_job(put)
        with self._lock:
            if isinstance(asked, Run):
                self.jobs[asked.job_id] = scheduled(asked)
            else:
                self._feed.tell(self._execute(asked, put.partition))
        if done is not None:
            done(None, 0, self._clock.store.ms)

    def poll(self, timeout_ms: int) -> None:
        self._closed.wait(timeout_ms / 1000)  # there is nothing to report

    def flush(self, timeout_ms: int) -> None:
        return

    def close(self) -> None:
        self._closed.set()

    def _execute(self, command: Command, partition: int) -> MemoryRecord:
        """The answer, after it was done."""
        asked = scheduled(command)
        word = self._word(command, asked)
        job = self.jobs.get(asked.id)
        due = {} if job is None else {"due_at": str(instant_of("due_at", job.due_at))}
        answer = Event(
            id=command.command_id, kind="answer", at=self._clock.store.ms, command_id=command.command_id,
            outcome=word, detail=due,
        )  # fmt: skip
        put = Put(self._names.events, partition, command.command_id.encode(), codec.EVENT.encode(answer))
        return MemoryRecord(put, 0, answer.at, None)

    def _word(self, command: Command, asked: ScheduledJob) -> str:
        if command.schedule_id is not None:
            self.changes.append((command.verb, command.schedule_id))
            return _OF_SCHEDULES.get(command.verb, "updated")
        return self._create(command, asked) if command.verb == "create" else self._change(command)

    def _create(self, command: Command, asked: ScheduledJob) -> str:
        held = self.jobs.get(asked.id)
        word = "created" if held is None else _CONFLICTS.get(command.on_conflict or "", "existing")
        if held is None or word == "replaced":
            self.jobs[asked.id] = asked
        elif word == "debounced":
            self.jobs[asked.id] = replace(held, due_at=asked.due_at)
        return word

    def _change(self, command: Command) -> str:
        job_id = command.job_id or ""
        self.changes.append((command.verb, job_id))
        job = self.jobs.get(job_id)
        if job is None:
            return "not_found"
        match command.verb:
            case "cancel" | "stop":
                del self.jobs[job_id]
                return "cancelled"
            case "reschedule":
                self.jobs[job_id] = replace(job, due_at=aware(command.due_at or 0))
                return "rescheduled"
            case _:
                self.jobs[job_id] = replace(job, payload=json.loads(command.payload or b"{}"))
                return "updated"


class _Feed:
    """The answers, as news of `events`."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._answers: list[MemoryRecord] = []
        self.following: frozenset[int] = frozenset()

    def tell(self, answer: MemoryRecord) -> None:
        with self._news:
            self._answers.append(answer)
            self._news.notify_all()

    def follow(self, partitions: frozenset[int]) -> None:
        self.following = partitions

    def poll(self, timeout_ms: int) -> Sequence[MemoryRecord]:
        with self._news:
            self._news.wait_for(lambda: self._answers, timeout_ms / 1000)
            answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        return


class _Finder:
    """`JobFinder` of what stands in a book: nothing of it has run."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def job(self, job_id: str) -> dict[str, Any]:
        job = self._book.jobs.get(job_id)
        if job is None:
            self._nothing(job_id)
        due_at = format_instant(instant_of("due_at", job.due_at))
        return {
            "id": job.id, "handler": job.handler, "status": "pending", "due_at": due_at, "key": job.key,
            "queue": job.queue, "result": None, "runs": [],
        }  # fmt: skip

    def run_of(self, job_id: str) -> NoReturn:
        self._nothing(job_id)

    def watch(self, job_id: str) -> NoReturn:
        self._nothing(job_id)

    def live_handlers(self, now: int) -> frozenset[str]:
        return frozenset()

    def schedule(self, schedule_id: str) -> NoReturn:
        self._nothing(schedule_id)

    def schedules(self) -> list[Schedule]:
        return []

    def schedule_view(self, schedule_id: str, now: int) -> NoReturn:
        self._nothing(schedule_id)

    def schedule_views(self, now: int, **wanted: Any) -> list[dict[str, Any]]:
        return []

    def _nothing(self, job_id: str) -> NoReturn:
        raise NotFound(f"nothing that ran, and no pending job, is known as {job_id}")
