"""Changes of an installation that is not there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from browser.fake import Book, Store
from browser.made import HOUR, View, matches, ms_of, now_ms, schedule, stamp, wanted_letters

from pipeline.client.request import Requests
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.core.times import aware, parse_duration, parse_instant
from pipeline.core.timing import TimingSpec, preview, timing_of
from pipeline.core.zones import zone_of
from pipeline.follower import WantedLetters
from pipeline.readmodel.questions import JobsWanted, Position
from pipeline.server.access import Principal, Role, TokenRecord, new_secret
from pipeline.server.actions import Done
from pipeline.server.schedule_changes import Stale
from pipeline.server.tokens import checked_name, token_view

REQUESTS = Requests(
    now=now_ms, random80=lambda: random.getrandbits(80), payload_limit=2**20, default_queue="default"
)
"""What a request for a job has to be is checked as it is for real."""


class Actions:
    """Changes a Store as owners would; each is noted in `store.done`."""

    default_queue = "default"

    def __init__(self, store: Store, book: Book) -> None:
        self.store, self.book = store, book

    def _do(self, who: Principal, name: str, role: Role = Role.OPERATOR, **given: Any) -> None:
        who.require(role)
        if self.store.broken:
            raise StoreUnreachable("no broker answers at 127.0.0.1:9092")
        self.store.done.append((name, given))

    async def cancel(self, who: Principal, job_id: str, *, stop: bool = False, wait: str = "5s") -> Done:
        self._do(who, "cancel", job_id=job_id, stop=stop)
        self.store.jobs[job_id]["status"] = "cancelled"
        return Done(
            {"id": job_id, "outcome": "stopped" if stop else "cancelled"}, (Position("dueline.jobs", 0, 5),)
        )

    async def reschedule(
        self, who: Principal, job_id: str, *, at: str | None = None, in_: str | None = None, wait: str = "5s"
    ) -> Done:
        self._do(who, "reschedule", job_id=job_id, at=at, in_=in_)
        return Done({"id": job_id, "outcome": "rescheduled"})

    async def update_payload(
        self, who: Principal, job_id: str, payload: dict[str, Any], *, wait: str = "5s"
    ) -> Done:
        self._do(who, "update_payload", job_id=job_id, payload=payload)
        self.store.jobs[job_id]["payload"] = json.dumps(payload)
        return Done({"id": job_id, "outcome": "updated"})

    async def requeue(self, who: Principal, job_id: str, *, wait: str = "5s") -> Done:
        self._do(who, "requeue", job_id=job_id)
        self.store.jobs[job_id]["status"] = "queued"
        return Done({"id": job_id, "outcome": "requeued", "run": 2, "due_at": None})

    async def change_jobs(
        self,
        who: Principal,
        verb: str,
        *,
        ids: Sequence[str] | None = None,
        wanted: JobsWanted | None = None,
        stop: bool = False,
        at: str | None = None,
        in_: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
    ) -> Done:
        some = (
            list(ids)
            if ids is not None
            else [
                view["id"]
                for view in self.store.jobs.values()
                if wanted is not None and matches(view, wanted)
            ]
        )
        self._do(who, "change_jobs", verb=verb, ids=ids, wanted=wanted, count=len(some))
        for each in some:
            self.store.jobs[each]["status"] = "cancelled" if verb == "cancel" else "queued"
        return Done(
            {
                "matched": len(some),
                "counts": {"cancelled" if verb == "cancel" else "requeued": len(some)},
                "errors": [],
            }
        )

    async def create_job(self, who: Principal, request: Mapping[str, Any], *, wait: str = "5s") -> Done:
        who.require_queue(request.get("queue") or self.default_queue)
        if request.get("queue") == "nowhere":
            raise InvalidInput("queue", "there is no queue 'nowhere'")
        (REQUESTS.command if request.get("key") else REQUESTS.run)(request)
        self._do(who, "create_job", request=dict(request))
        view = {**next(iter(self.store.jobs.values())), "id": "jnew", "status": "pending"}
        self.store.jobs["jnew"] = view
        return Done({"id": "jnew", "status": "pending", "due_at": view["due_at"]})

    def listed_tokens(self, who: Principal) -> list[View]:
        _may_see_tokens(who)
        return [token_view(record) for record in self.book.all()]

    async def create_token(
        self,
        who: Principal,
        *,
        name: str,
        role: str,
        queues: Sequence[str] = (),
        expires_in: str | None = None,
    ) -> Done:
        _may_see_tokens(who)
        id_, secret, digest = new_secret("dl")
        now = self.store.now
        record = TokenRecord(
            id=id_,
            name=checked_name(name),
            role=Role.of(role),
            digest=digest,
            created_at=now,
            created_by=who.name,
            queues=frozenset(queues) or None,
            expires_at=None if expires_in is None else now + parse_duration("expires_in", expires_in),
        )
        asked = {"called": name, "with_role": role, "queues": queues, "expires_in": expires_in}
        self._do(who, "create_token", Role.ADMIN, **asked)
        self.book.put(record)
        return Done({**token_view(record), "token": str(secret)})

    async def revoke_token(self, who: Principal, token_id: str) -> Done:
        _may_see_tokens(who)
        self._do(who, "revoke_token", Role.ADMIN, token_id=token_id)
        self.book.remove(token_id)
        return Done({"id": token_id, "outcome": "revoked"})

    async def create_schedule(
        self, who: Principal, schedule_id: str, options: Mapping[str, Any], *, wait: str = "5s"
    ) -> Done:
        self._do(who, "create_schedule", schedule_id=schedule_id, options=options)
        if not schedule_id:
            raise InvalidInput("id", "is empty")
        self.store.schedules[schedule_id] = schedule(self.store, schedule_id, dict(options), 5)
        return Done({"id": schedule_id, "outcome": "created"})

    async def update_schedule(
        self,
        who: Principal,
        schedule_id: str,
        options: Mapping[str, Any],
        *,
        etag: str | None = None,
        wait: str = "5s",
    ) -> Done:
        there = self.store.schedules.get(schedule_id)
        if there is None:
            raise NotFound(f"no schedule {schedule_id!r}")
        if etag is not None and etag != there["etag"]:
            raise Stale(f"{schedule_id} was changed meanwhile")
        self._do(who, "update_schedule", schedule_id=schedule_id, options=options, etag=etag)
        spec = {**there["spec"], **options}
        self.store.schedules[schedule_id] = schedule(self.store, schedule_id, spec, 1)
        return Done({"id": schedule_id, "outcome": "updated"})

    async def pause_schedule(
        self, who: Principal, schedule_id: str, *, note: str = "", wait: str = "5s"
    ) -> Done:
        self._do(who, "pause_schedule", schedule_id=schedule_id, note=note)
        self.store.schedules[schedule_id].update(state="paused", paused=note, paused_at=stamp(self.store.now))
        return Done({"id": schedule_id, "outcome": "paused"})

    async def resume_schedule(self, who: Principal, schedule_id: str, *, wait: str = "5s") -> Done:
        self._do(who, "resume_schedule", schedule_id=schedule_id)
        self.store.schedules[schedule_id].update(state="active", paused=None, paused_at=None)
        return Done({"id": schedule_id, "outcome": "resumed"})

    async def trigger_schedule(
        self, who: Principal, schedule_id: str, *, overlap: str | None = None, wait: str = "5s"
    ) -> Done:
        self._do(who, "trigger_schedule", schedule_id=schedule_id)
        return Done({"id": schedule_id, "outcome": "fired", "occurrence_id": f"s:{schedule_id}:1:t:x:1"})

    async def backfill_schedule(
        self,
        who: Principal,
        schedule_id: str,
        *,
        from_: str,
        to: str,
        overlap: str | None = None,
        rate: int | None = None,
        reverse: bool = False,
        limit: int = 1000,
        dry_run: bool = False,
        wait: str = "5s",
    ) -> Done:
        begin, end = parse_instant("from", from_), parse_instant("to", to)
        if not dry_run:
            self._do(
                who,
                "backfill_schedule",
                schedule_id=schedule_id,
                from_=from_,
                to=to,
                rate=rate,
                reverse=reverse,
            )
        total = (end - begin) // HOUR
        return Done(
            {
                "id": schedule_id,
                "outcome": "counted" if dry_run else "started",
                "backfill": None,
                "total": total,
            }
        )

    async def cancel_backfill(
        self, who: Principal, schedule_id: str, backfill: str, *, wait: str = "5s"
    ) -> Done:
        self._do(who, "cancel_backfill", schedule_id=schedule_id, backfill=backfill)
        return Done({"id": schedule_id, "outcome": "cancelled"})

    async def delete_schedule(self, who: Principal, schedule_id: str, *, wait: str = "5s") -> Done:
        self._do(who, "delete_schedule", schedule_id=schedule_id)
        del self.store.schedules[schedule_id]
        return Done({"id": schedule_id, "outcome": "deleted"})

    async def preview_schedule(
        self, who: Principal, options: Mapping[str, Any], *, after: str | None = None, count: int = 10
    ) -> View:
        return await asyncio.to_thread(_preview, options, after, count)

    async def requeue_letters(
        self,
        who: Principal,
        wanted: WantedLetters,
        *,
        everything: bool = False,
        payload: dict[str, Any] | None = None,
        dry_run: bool = False,
        wait: str = "5s",
    ) -> Done:
        some = wanted.ids or [each["id"] for each in wanted_letters(self.store, wanted) if each["id"]]
        if not dry_run:
            self._do(who, "requeue_letters", wanted=wanted, everything=everything, payload=payload)
        names = (
            "brought_forward",
            "superseded",
            "pending",
            "cancelled",
            "stopped",
            "refused",
            "not_found",
            "unknown",
        )
        counts = {**dict.fromkeys((*names, "unreadable"), 0), "requeued": 0 if dry_run else len(some)}
        return Done({"dry_run": dry_run, "matched": len(some), **counts})

    async def start_replay(
        self,
        who: Principal,
        *,
        from_: str,
        to: str | None = None,
        only: str = "failed",
        rate: float | None = None,
        dry_run: bool = False,
        **more: Any,
    ) -> Done:
        parse_instant("from", from_)
        if not dry_run:
            self._do(who, "start_replay", from_=from_, to=to, only=only, rate=rate)
        view = {
            "dry_run": dry_run,
            "id": None if dry_run else self.store.replays[0]["id"],
            "matched": 37,
            "waiting": 4,
            "outcomes": {"succeeded": 210, "dead": 37},
            "estimated_seconds": 37 / rate if rate else None,
            "gone_until": None,
            "counts": None,
        }
        return Done(view)

    async def cancel_replay(self, who: Principal, replay_id: str) -> Done:
        self._do(who, "cancel_replay", replay_id=replay_id)
        return Done({"id": replay_id, "outcome": "cancelling"})

    async def resume_replay(
        self, who: Principal, replay_id: str, *, rate: float | None = None, force: bool = False
    ) -> Done:
        self._do(who, "resume_replay", replay_id=replay_id)
        return Done({"id": replay_id, "outcome": "resuming"})

    async def pause_queue(self, who: Principal, queue: str, *, note: str = "") -> Done:
        self._do(who, "pause_queue", queue=queue, note=note)
        pause = {"by": who.name, "at": stamp(self.store.now), "reason": note}
        return Done({"queue": queue, "outcome": "paused", **self.store.pauses.setdefault(queue, pause)})

    async def resume_queue(self, who: Principal, queue: str) -> Done:
        self._do(who, "resume_queue", queue=queue)
        self.store.pauses.pop(queue, None)
        return Done({"queue": queue, "outcome": "running", "by": who.name, "at": stamp(self.store.now)})

    async def purge_queue(
        self,
        who: Principal,
        queue: str,
        *,
        before: str | None = None,
        dry_run: bool = False,
        counted: View | None = None,
    ) -> Done:
        who.require(Role.ADMIN)
        waiting = self.store.waiting[queue] if counted is None else counted["waiting"]
        view = {"queue": queue, "outcome": "counted", "id": None, "before": before, "waiting": waiting}
        if dry_run:
            return Done({**view, "ends": [waiting]})
        self._do(who, "purge_queue", Role.ADMIN, queue=queue, ends=counted and counted["ends"])
        own = {"id": "p1", "by": who.name, "at": stamp(self.store.now), "before": None}
        self.store.purges[queue] = {**own, "waiting": waiting, "left": None}
        return Done({**view, "outcome": "purging" if waiting else "nothing"})


def _may_see_tokens(who: Principal) -> None:
    who.require(Role.ADMIN)
    who.require_all_queues()


def _preview(options: Mapping[str, Any], after: str | None, count: int) -> View:
    own = {
        k: v
        for k, v in options.items()
        if k in ("dst_gap", "dst_overlap", "start", "end", "jitter", "exclude", "phase") and v
    }
    cron, tz = options.get("cron") or f"@every {options['every']}", options.get("tz") or "UTC"
    begin = datetime.now(UTC) if after is None else aware(parse_instant("after", after))
    zone = zone_of(tz).info
    instants = preview(cron, tz=tz, after=begin, count=count, **own)
    shown = []
    for at in instants:
        local = at.astimezone(zone)
        gap = (
            "the clock goes forward by 1 hour right before it"
            if (at - aware(ms_of(at) - 1)).total_seconds()
            and local.utcoffset() != aware(ms_of(at) - 1).astimezone(zone).utcoffset()
            else None
        )
        twice = (
            "this time comes twice: the first pass"
            if local.replace(fold=0).utcoffset() > local.replace(fold=1).utcoffset()
            else None
        )  # type: ignore[operator]
        shown.append(
            {
                "at": stamp(ms_of(at)),
                "due_at": stamp(ms_of(at)),
                "local": local.isoformat(),
                "note": gap or twice,
            }
        )
    words = timing_of(TimingSpec(cron=cron, tz=tz)).words
    return {"words": words, "tz": tz, "instants": shown}
