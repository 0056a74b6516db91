"""An installation in data: every status, hostile names, long ids, nights on which clocks change."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.core.times import aware, format_instant, parse_instant
from pipeline.core.timing import TimingSpec, preview, timing_of
from pipeline.core.zones import zone_of
from pipeline.follower import WantedLetters
from pipeline.readmodel.questions import JobsWanted, Page

if TYPE_CHECKING:
    from browser.fake import Store

View = dict[str, Any]
HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "{{ constructor.constructor('window.hacked=1')() }}",
    "`${window.hacked=1}` \\u0022 </script>",
    "‮evil\u0000\u0007 name\n\twith lines",
    "🙂 " + "long " * 40,
)
HALF = "half \ud83d pair"
"""In JSON text: what UTF-8 cannot say."""
BIG = 123456789012345678901234567890
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "UTC",
    "America/Sao_Paulo",
    "Pacific/Apia",
)
NAMES = ("daily-report", "..", "-", "a" * 80, "poll.inbox", "x_y.z")
MILD_NAMES = ("daily-report", "close-books", "sync-catalogue", "digest.weekly", "poll.inbox", "warm-cache")
HANDLERS = (
    "email.send",
    "invoice.render",
    "report.daily",
    "webhook.post",
    "cleanup.sessions",
    "sync.warehouse",
)
ENDED = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.SKIPPED)
HOUR = 3_600_000
DAY = 24 * HOUR


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stamp(ms: float) -> str:
    return format_instant(int(ms))


def made_job(store: Store, n: int) -> View:
    pick = store.random
    status = (
        list(JobStatus)[n % len(JobStatus)]
        if n < 90
        else pick.choice((JobStatus.PENDING, JobStatus.SUCCEEDED))
    )
    past = status not in (JobStatus.PENDING,)
    due = store.now + (-1 if past else 1) * pick.randrange(20_000, 4 * HOUR if n % 5 else 3 * DAY)
    handler = HANDLERS[n % len(HANDLERS)]
    ident = f"j{n:04d}{pick.getrandbits(110):022x}"[:27]
    key = None
    if n % 4 == 1:
        key = f"invoice_{n}"
    if 0 < n <= len(store.texts):
        key = store.texts[n - 1]
    if n % 11 == 3:
        ident = f"s:{'nightly-' + 'x' * 60}:{n}:g::{due}"
    failures = 2 if status in (JobStatus.DEAD, JobStatus.RETRYING) else 0
    payload = {
        "to": f"user{n}@example.org",
        "amount": BIG,
        "rate": 0.1,
        "tags": [store.texts[n % len(store.texts)]],
        "deep": {"a": {"b": {"c": [1, 2, {"d": None}]}}},
        "ok": True,
        "half": HALF,
    }
    view: View = {
        "id": ident,
        "handler": handler,
        "status": status.value,
        "due_at": stamp(due),
        "key": key,
        "queue": ("default", "mail", "webhooks")[n % 3],
        "result": {"sent": BIG} if status is JobStatus.SUCCEEDED else None,
        "runs": _runs(store, status, due, n),
        "created_at": stamp(due - pick.randrange(HOUR, DAY)),
        "labels": {"tenant": f"acme-{n % 7}"} if n % 2 else {},
        "payload": json.dumps(payload),
        "schedule": ident.split(":")[1] if ident.startswith("s:") else None,
        "kept": True,
        "run": 1 + (status is JobStatus.RETRYING),
        "failures": failures,
    }
    ends = [a["finished_at"] for run in view["runs"] for a in run["attempts"] if a["finished_at"]]
    view["ended_at"] = ends[-1] if ends and status in ENDED else None
    view["error"] = (
        f"ValueError: {store.texts[n % len(store.texts)]}".splitlines()[0]
        if status is JobStatus.DEAD
        else None
    )
    return view


def _runs(store: Store, status: JobStatus, due: int, n: int) -> list[View]:
    if status in (JobStatus.PENDING, JobStatus.CANCELLED, JobStatus.SKIPPED):
        return []
    fired = due + 12 + n % 40
    if status is JobStatus.QUEUED:
        return [{"run": 1, "fired_at": stamp(fired), "attempts": []}]
    runs, how = (
        [],
        {"succeeded": ["succeeded"], "dead": ["retrying", "retrying", "dead"], "retrying": ["retrying"]},
    )
    for place, outcome in enumerate(
        how.get(status.value, [None if status is JobStatus.RUNNING else "cancelled"])
    ):
        begin = fired + place * 30_000
        runs.append(
            {"run": place + 1, "fired_at": stamp(begin), "attempts": [_attempt(store, begin, outcome, n)]}
        )
    return runs


def _attempt(store: Store, fired: int, outcome: str | None, n: int) -> View:
    bad = outcome in ("retrying", "dead")
    error = {
        "type": "ValueError",
        "message": store.texts[n % len(store.texts)],
        "trace": 'Traceback (most recent call last):\n  File "jobs.py", line 12, in send\n    raise ValueError(to)\n'
        + store.texts[0],
    }
    return {
        "attempt": 1,
        "worker": f"worker-{n % 3}-host{n % 3}.example.org-{'f' * 12}",
        "token": str((1 << 62) + n),
        "started_at": stamp(fired + 140),
        "finished_at": None if outcome is None else stamp(fired + 1_900 + 37 * n),
        "outcome": outcome,
        "error": error if bad else None,
        "log": f"12:00:01 INFO sending to user{n}\n12:00:02 WARNING {store.texts[0]}",
    }


def made_schedules(store: Store) -> list[View]:
    made = []
    for n in range(30):
        cron = ("30 2 * * *", "*/5 * * * *", "0 8 * * mon-fri", "@every 90s", "15 0 1 * *", "0 */6 * * *")[
            n % 6
        ]
        ident = (
            (NAMES if store.texts is HOSTILE else MILD_NAMES)[n]
            if n < 6
            else f"sched-{n:02d}.{HANDLERS[n % 6]}"
        )
        made.append(
            schedule(
                store,
                ident,
                {
                    "cron": cron,
                    "tz": ZONES[n % len(ZONES)],
                    "handler": HANDLERS[n % 6],
                    "queue": ("default", "mail")[n % 2],
                    "source": ("api", "app:billing", "file:jobs.toml")[n % 3],
                    "payload": {"n": BIG, "text": store.texts[n % len(store.texts)]},
                    "note": store.texts[n % len(store.texts)] if n < 6 else "",
                },
                n,
            )
        )
    made[1]["state"], made[1]["paused"] = "paused", store.texts[1]
    made[1]["paused_at"], made[1]["next"], made[1]["next_at"], made[1]["next_local"], made[1]["upcoming"] = (
        stamp(store.now - HOUR),
        [],
        None,
        None,
        made[1]["upcoming"],
    )
    made[4]["overdue"] = True
    made[7]["backfills"] = [
        {
            "id": "b1d2",
            "from": stamp(store.now - 5 * DAY),
            "to": stamp(store.now - DAY),
            "cursor": stamp(store.now - 3 * DAY),
            "overlap": "allow",
            "rate": 60,
            "reverse": False,
            "fired": 48,
            "total": 96,
        }
    ]
    return made


def schedule(store: Store, ident: str, spec: Mapping[str, Any], n: int = 0) -> View:
    cron, tz = spec.get("cron") or f"@every {spec['every']}", spec.get("tz") or "UTC"
    instants = preview(cron, tz=tz, after=aware(store.now), count=10, schedule_id=ident)
    zone = zone_of(tz).info
    following = [
        {"nominal_at": stamp(ms_of(at)), "local": at.astimezone(zone).isoformat(), "due_at": stamp(ms_of(at))}
        for at in instants
    ]
    recent = [] if n == 5 else [_recent(store, ident, n, back) for back in range(1, 21)]
    last = recent[0] if recent else None
    words = timing_of(TimingSpec(cron=cron, tz=tz, schedule_id=ident)).words
    return {
        "id": ident,
        "expression": cron,
        "words": words,
        "tz": tz,
        "handler": spec["handler"],
        "queue": spec.get("queue") or "default",
        "source": spec.get("source", "api"),
        "state": "active",
        "paused": None,
        "paused_at": None,
        "ended": None,
        "overdue": False,
        "next_at": following[0]["nominal_at"] if following else None,
        "next_local": following[0]["local"] if following else None,
        "upcoming": [each["nominal_at"] for each in following[:3]],
        "recent": recent,
        "last_at": last["due_at"] if last else None,
        "last_outcome": last["outcome"] if last else None,
        "incarnation": 17 + n,
        "revision": 3,
        "created_at": stamp(store.now - 90 * DAY),
        "changed_at": stamp(store.now - 2 * DAY),
        "next": following,
        "last": [
            {
                "nominal_at": each["due_at"],
                "local": each["due_at"],
                "kind": "grid",
                "at": each["due_at"],
                "outcome": each["outcome"] or "fired",
            }
            for each in recent[:10]
        ],
        "last_success_at": last["due_at"] if last else None,
        "failures_in_row": n % 3,
        "counters": {
            "fired": 1200 + n,
            "triggered": 2,
            "backfilled": 0,
            "succeeded": 1100,
            "dead": 7,
            "cancelled": 0,
            "missed": 1,
            "overlapped": 4,
            "skipped": {"misfire": 1, "overlap": 4},
        },
        "open": [
            {
                "id": recent[0]["occurrence"],
                "nominal_at": recent[0]["due_at"],
                "emitted_at": recent[0]["due_at"],
            }
        ]
        if n == 0
        else [],
        "waiting": [],
        "backfills": [],
        "spec": {"id": ident, "queue": "default", **{k: v for k, v in spec.items() if v}},
        "etag": f"e{n}",
    }


def stands_as(view: View, standing: str) -> bool:
    match standing:
        case "overdue":
            return bool(view["overdue"])
        case "failing":
            return bool(view["failures_in_row"])
        case _:
            return bool(view["state"] == standing)


def ms_of(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _recent(store: Store, ident: str, n: int, back: int) -> View:
    due = store.now - back * 300_000 - n * 1000
    outcome = (
        ["succeeded", "succeeded", "succeeded", "dead", "skipped.overlap"][(n + back * back) % 5]
        if (n + back) % 3
        else "succeeded"
    )
    took = None if outcome.startswith("skipped") else 300 + (n * 131 + back * 977) % 4000
    return {
        "occurrence": f"s:{ident}:{17 + n}:g::{due}",
        "due_at": stamp(due),
        "outcome": outcome,
        "lateness_ms": 15 + back,
        "took_ms": took,
    }


def made_replay(store: Store, n: int) -> View:
    state = ("running", "finished", "interrupted", "cancelled")[n]
    counts = dict.fromkeys(
        (
            "replayed",
            "brought_forward",
            "superseded",
            "changed",
            "pending",
            "stopped",
            "key_taken",
            "refused",
        ),
        0,
    )
    return {
        "id": f"{n:08d}-aaaa-4bbb-8ccc-0123456789ab",
        "state": state,
        "from": stamp(store.now - DAY),
        "to": stamp(store.now - 20 * HOUR),
        "only": ["failed", "dead"],
        "handler": store.texts[0] if n == 2 else None,
        "schedule": None,
        "queue": None,
        "labels": {"tenant": "acme"} if n else {},
        "key_prefix": None,
        "rate": 50.0 if n == 0 else None,
        "requested_by": f"ana@host {store.texts[1]}" if n == 1 else "ana@host",
        "created_at": stamp(store.now - HOUR),
        "updated_at": stamp(store.now - 60_000),
        "runner": "dispatcher-1" if n == 0 else None,
        "resumed": n % 2,
        "matched": 1200,
        "counts": {**counts, "replayed": (400, 1180, 90, 10)[n], "superseded": n},
        "reason": None,
    }


def matches(view: View, wanted: JobsWanted) -> bool:
    due = parse_instant("due", view["due_at"])
    return (
        (not wanted.statuses or JobStatus(view["status"]) in wanted.statuses)
        and wanted.handler in (None, view["handler"])
        and wanted.queue in (None, view["queue"])
        and (wanted.queues is None or view["queue"] in wanted.queues)
        and wanted.schedule in (None, view["schedule"])
        and all(view["labels"].get(name) == value for name, value in wanted.labels.items())
        and (wanted.key_prefix is None or (view["key"] or "").startswith(wanted.key_prefix))
        and (wanted.due_from is None or due >= wanted.due_from)
        and (wanted.due_to is None or due < wanted.due_to)
        and (
            wanted.text is None or any(wanted.text in (view[name] or "") for name in ("id", "key", "handler"))
        )
    )


def listed(view: View) -> View:
    return {
        name: view[name]
        for name in (
            "id",
            "handler",
            "status",
            "due_at",
            "queue",
            "key",
            "run",
            "failures",
            "labels",
            "ended_at",
            "error",
        )
    }


def letters(store: Store) -> list[View]:
    some = []
    for n, view in enumerate(v for v in store.jobs.values() if v["status"] == "dead"):
        attempts = [
            {
                "run": run["run"],
                "at": a["finished_at"],
                **{k: a[k] for k in ("attempt", "worker", "token", "outcome", "error")},
            }
            for run in view["runs"]
            for a in run["attempts"]
        ]
        some.append(
            {
                "id": view["id"],
                "occurrence_id": view["id"],
                "handler": view["handler"],
                "queue": view["queue"],
                "reason": "max_attempts",
                "detail": store.texts[n % len(store.texts)],
                "at": view["ended_at"],
                "run": 3,
                "attempts": attempts,
                "source": {"topic": "dueline.work.default", "partition": n % 12, "offset": 1000 + n},
                "payload_bytes": 240 + n,
            }
        )
    some.append(
        {
            "id": None,
            "occurrence_id": None,
            "handler": None,
            "queue": None,
            "reason": "undecodable",
            "detail": "0 bytes",
            "at": stamp(store.now - DAY),
            "run": None,
            "attempts": [],
            "source": {"topic": "dueline.jobs", "partition": 3, "offset": 99},
            "payload_bytes": 0,
        }
    )
    return sorted(some, key=lambda each: each["at"], reverse=True)


def wanted_letters(store: Store, wanted: WantedLetters) -> list[View]:
    return [each for each in letters(store) if wanted.matches(each, parse_instant("at", each["at"]))]


def made_audits(store: Store) -> list[View]:
    """Changes with whatever texts there are."""
    job = next(iter(store.jobs))
    about: list[tuple[str, str | None, str | None]] = [
        ("schedule.pause", None, "daily-report"),
        ("job.cancel", job, None),
        ("queue.purge", None, None),
        ("schedule.update", None, ".."),
    ]
    return [
        {
            "at": stamp(store.now - n * HOUR),
            "by": "ops" if n % 2 else store.texts[n] if store.texts is HOSTILE else "ana",
            "role": "operator",
            "verb": verb,
            "outcome": "done",
            "job": job,
            "schedule": schedule,
            "detail": {"note": store.texts[n % len(store.texts)]},
        }
        for n, (verb, job, schedule) in enumerate(about)
    ]


def page_of(rows: list[View], limit: int, cursor: str | None) -> Page:
    if cursor is not None and not cursor.isdecimal():
        raise InvalidInput("cursor", "is none of ours")
    begin = int(cursor or 0)
    return Page(
        rows=rows[begin : begin + limit],
        cursor=str(begin + limit) if begin + limit < len(rows) else None,
        scanned=limit,
    )
