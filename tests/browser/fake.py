"""An installation that is not there, in memory.

`Store` answers as a read model does and changes as owners do; a test breaks it, holds it back, counts what is asked of
it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from browser.made import (
    HANDLERS,
    HOSTILE,
    HOUR,
    View,
    listed,
    made_audits,
    made_job,
    made_replay,
    made_schedules,
    matches,
    now_ms,
    page_of,
    stamp,
    stands_as,
    wanted_letters,
)

from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.core.times import parse_instant
from pipeline.follower import WantedLetters, WantedSchedules
from pipeline.follower.letter_groups import counted
from pipeline.readmodel.questions import AuditWanted, Count, Freshness, JobsWanted, Page, Position
from pipeline.server.access import TokenRecord

MOST = 1_000
"""Jobs that one answer finds at most."""
HELD_S = 60
"""No longer than that, if a test fails meanwhile."""


class Store:
    """What there is. `broken`: nothing can be reached; `fresh`: how far behind; `asked`: questions, counted by name;
    `done`: changes that were made, as (name, arguments)."""

    def __init__(self, texts: Sequence[str] = HOSTILE) -> None:
        """`texts` stand wherever somebody else may have written something."""
        self.texts = texts
        self.lock = threading.Lock()
        self.answering = 0
        """Questions that are not answered yet."""
        self.begin()

    def begin(self, jobs: int = 320) -> None:
        """As it is at the beginning of each test."""
        self.now = now_ms()
        self.random = random.Random(7)
        self.broken = False
        self.hold: threading.Event | None = None
        """What is asked now is answered once it is set."""
        self.fresh = Freshness(behind=0, age_ms=40, ready=True, problem=None)
        self.asked: Counter[str] = Counter()
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.jobs = {view["id"]: view for view in (made_job(self, n) for n in range(jobs))}
        self.schedules = {view["id"]: view for view in made_schedules(self)}
        self.replays = [made_replay(self, n) for n in range(4)]
        self.held: View | None = None
        self.pauses: dict[str, View] = {
            "webhooks": {"by": "ana", "at": stamp(self.now - HOUR), "reason": self.texts[0]}
        }
        self.purges: dict[str, View] = {}
        self.waiting = {"default": 0, "mail": 120, "webhooks": 240}

    def ask(self, name: str) -> None:
        with self.lock:
            self.asked[name] += 1
            self.answering += 1
        try:
            if (hold := self.hold) is not None:
                hold.wait(HELD_S)
        finally:
            with self.lock:
                self.answering -= 1
        if self.broken:
            raise StoreUnreachable("no broker answers at 127.0.0.1:9092")


class Questions:
    """Over a Store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def freshness(self) -> Freshness:
        return self.store.fresh

    def wait_for(self, position: Position, timeout_ms: int) -> bool:
        return True

    def job(self, job_id: str) -> View:
        self.store.ask("job")
        if job_id == "odd":
            raise InvalidInput("id", "'odd' is no job or occurrence id")
        if job_id not in self.store.jobs:
            raise NotFound(f"no job {job_id!r}")
        return dict(self.store.jobs[job_id])

    def why(self, job_id: str) -> View:
        self.store.ask("why")
        view = self.store.jobs[job_id]
        return {
            "id": job_id,
            "status": view["status"],
            "waits_for": "worker",
            "sentence": f"It was due {view['due_at']} and waits: no live worker of {view['queue']} knows it.",
        }

    def jobs(self, wanted: JobsWanted, *, limit: int = 50, cursor: str | None = None) -> Page:
        self.store.ask("jobs")
        found = [listed(view) for view in self._matching(wanted)]
        seal = f"-{crc32(repr(wanted).encode()):08x}"
        if cursor is not None and not cursor.endswith(seal):
            raise InvalidInput("cursor", "is of another list")
        page = page_of(found, min(limit, MOST), cursor and cursor.removesuffix(seal))
        return replace(page, cursor=page.cursor and page.cursor + seal)

    def count(self, wanted: JobsWanted, *, at_most: int = 10_000) -> Count:
        self.store.ask("count")
        number = len(self._matching(wanted))
        return Count(min(number, at_most), number > at_most)

    def _matching(self, wanted: JobsWanted) -> list[View]:
        some = [view for view in self.store.jobs.values() if matches(view, wanted)]
        return sorted(some, key=lambda view: view["due_at"], reverse=wanted.order == "-due")

    def schedules(self, wanted: WantedSchedules, *, limit: int = 50, cursor: str | None = None) -> Page:
        self.store.ask("schedules")
        some = [
            view
            for _, view in sorted(self.store.schedules.items())
            if (wanted.text is None or wanted.text in view["id"])
            and (wanted.state is None or stands_as(view, wanted.state))
            and wanted.source in (None, view["source"])
            and (wanted.queues is None or view["queue"] in wanted.queues)
        ]
        return page_of(some, limit, cursor)

    def schedule(self, schedule_id: str) -> View:
        self.store.ask("schedule")
        if schedule_id not in self.store.schedules:
            raise NotFound(f"no schedule {schedule_id!r}")
        return dict(self.store.schedules[schedule_id])

    def letters(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        self.store.ask("letters")
        return page_of(wanted_letters(self.store, wanted), limit, cursor)

    def letter_groups(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        self.store.ask("letter_groups")
        return page_of(counted(wanted_letters(self.store, wanted)), limit, cursor)

    def buckets(self, since: int, until: int, width_ms: int) -> Sequence[View]:
        self.store.ask("buckets")
        some: dict[int, Counter[str]] = {}
        for view in self.store.jobs.values():
            due = parse_instant("due", view["due_at"])
            if since <= due < until:
                some.setdefault(due // width_ms * width_ms, Counter())[view["status"]] += 1
        return [
            {"from": stamp(at), "to": stamp(at + width_ms), "counts": dict(counts), "late": counts["queued"]}
            for at, counts in sorted(some.items())
        ]

    def overview(self, queues: frozenset[str] | None = None) -> View:
        self.store.ask("overview")
        store, now = self.store, self.store.now
        pick = random.Random(3)
        minutes = []
        for back in range(60, 0, -1):
            fired = 900 + pick.randrange(200) - (500 if 20 < back < 26 else 0)
            bad = pick.randrange(30) + (120 if 20 < back < 26 else 0)
            minutes.append(
                {
                    "at": stamp((now // 60_000 - back) * 60_000),
                    "fired": fired,
                    "succeeded": fired - bad,
                    "failed": bad,
                    "dead": bad // 9,
                    "lateness_p50_ms": 11 + pick.randrange(6),
                    "lateness_p99_ms": 40 + pick.randrange(60) + (2_000 if 20 < back < 24 else 0),
                }
            )
        overdue = [view["id"] for view in store.schedules.values() if view["overdue"]]
        return {
            "at": stamp(now),
            "pending": 1_048_213,
            "oldest_overdue": stamp(now - 14_000),
            "overdue": 212,
            "lateness": {"p50_ms": 12, "p99_ms": 96},
            "minutes": minutes,
            "handlers": [
                {"handler": name, "succeeded": 4000 - 97 * n, "failed": 12 * n, "dead": n % 4}
                for n, name in enumerate(HANDLERS if store.texts is not HOSTILE else (*HANDLERS, HOSTILE[0]))
            ],
            "schedules": {"count": len(store.schedules), "paused": 1, "overdue": overdue},
            "held": store.held,
            "freshness": store.fresh._asdict(),
        }

    def queues(self) -> Sequence[View]:
        self.store.ask("queues")
        return [
            {
                "queue": name,
                "lag": self.store.waiting[name],
                "oldest_unacked": stamp(self.store.now - 9_000) if n else None,
                "workers": (3, 1, 0)[n],
                "in_flight": (24, 6, 0)[n],
                "held": n % 2,
                "parked": 3 if n == 2 else 0,
                "handlers": list(HANDLERS[2 * n : 2 * n + 2]),
                "started_per_min": 420.5,
                "ended_per_min": 418.0,
                "paused": self.store.pauses.get(name),
                "purge": self.store.purges.get(name),
            }
            for n, name in enumerate(self.store.waiting)
        ]

    def fleet(self) -> View:
        self.store.ask("fleet")
        now = self.store.now
        parts = [
            {
                "topic": "dueline.jobs",
                "partition": n,
                "owner": None if n == 17 else f"dispatcher-{n % 3}-9f2c",
                "state": None if n == 17 else "running",
                "generation": 41,
                "era": 1,
                "pending": 43_000 + n,
            }
            for n in range(24)
        ]
        parts += [
            {
                "topic": "dueline.work.mail",
                "partition": n,
                "owner": f"worker-{n % 3}",
                "state": "restoring" if n == 3 else "running",
                "generation": 12,
                "era": 1,
                "pending": None,
            }
            for n in range(6)
        ]
        processes = [
            {
                "process": f"{role}-{n}-{'9f2c' * 4}",
                "role": role,
                "host": f"node-{n}.internal.example.org",
                "pid": 4000 + n,
                "version": "0.1.0",
                "started_at": stamp(now - 6 * HOUR),
                "seen_at": stamp(now - 700),
                "generation": 41,
                "owned": 8,
                "queues": ["default", "mail"] if role == "worker" else [],
                "handlers": [],
                "in_flight": 8 if role == "worker" else 0,
            }
            for role in ("dispatcher", "worker", "server")
            for n in range(3)
        ]
        running = [view for view in self.store.jobs.values() if view["status"] == "running"][:12]
        runs = [
            {
                "job": view["id"],
                "occurrence": view["id"],
                "run": 1,
                "attempt": 1,
                "handler": view["handler"],
                "queue": view["queue"],
                "worker": f"worker-{n % 3}",
                "started_at": stamp(now - 60_000 * n),
                "age_ms": 60_000 * n,
                "progress": None if n % 3 == 0 else n / 12,
                "note": self.store.texts[n % len(self.store.texts)] if n % 3 else None,
                "held": n == 4,
                "stuck": n == 11,
            }
            for n, view in enumerate(running)
        ]
        return {"partitions": parts, "processes": processes, "runs": runs}

    def replays(self) -> Sequence[View]:
        self.store.ask("replays")
        return [dict(each) for each in self.store.replays]

    def replay(self, replay_id: str) -> View:
        self.store.ask("replay")
        for each in self.store.replays:
            if each["id"] == replay_id:
                return {
                    **each,
                    "outcomes": {"counts": {"succeeded": 371, "running": 20, "dead": 9}, "capped": False},
                }
        raise NotFound(f"no replay {replay_id!r}")

    def events(self, after: str | None = None, limit: int = 500) -> Page:
        return Page(rows=[], cursor=None)

    def audit(self, wanted: AuditWanted, limit: int = 50, cursor: str | None = None) -> Page:
        self.store.ask("audit")
        asked = {"job": wanted.job, "schedule": wanted.schedule, "by": wanted.by}
        found = [
            each
            for each in made_audits(self.store)
            if all(v in (None, each[name]) for name, v in asked.items())
        ]
        return Page(rows=found[:limit], cursor=None, scanned=len(found))

    def close(self) -> None: ...


class Book:
    """Tokens in memory."""

    def __init__(self) -> None:
        self.records: dict[str, TokenRecord] = {}

    def find(self, token_id: str) -> TokenRecord | None:
        return self.records.get(token_id)

    @property
    def loaded(self) -> bool:
        return True

    def any(self) -> bool:
        return bool(self.records)

    def refresh(self) -> None: ...

    def put(self, record: TokenRecord) -> None:
        self.records[record.id] = record

    def remove(self, token_id: str) -> None:
        self.records.pop(token_id, None)

    def all(self) -> list[TokenRecord]:
        return [record for record in self.records.values() if record.parent is None]
