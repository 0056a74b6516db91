"""`app.schedules` over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, Unpack

from pipeline.client.http import Http
from pipeline.client.http_calls import NotDone, segment
from pipeline.client.http_json import instant, plain, waited
from pipeline.client.schedule_options import (
    ScheduleOptions,
    backfill_detail,
    edited,
    plain_option,
    spec_of,
)
from pipeline.client.schedules import _WAIT, NOT_FOUND, ScheduleChange, Schedules
from pipeline.core.errors import InvalidInput, NotFound, Refused
from pipeline.core.handler import Duration
from pipeline.core.names import check_name
from pipeline.core.schedule import Schedule
from pipeline.core.times import format_instant


class _Way(NamedTuple):
    """How a verb is asked for. `again`: asked twice it is done once, by a key of its own if `keyed`."""

    method: str
    path: str
    again: bool = False
    keyed: bool = False


_WAYS: Mapping[str, _Way] = {
    "schedule.pause": _Way("POST", "/pause", again=True),
    "schedule.resume": _Way("POST", "/resume", again=True),
    "schedule.trigger": _Way("POST", "/trigger", again=True, keyed=True),
    "schedule.backfill": _Way("POST", "/backfill", again=True, keyed=True),
    "schedule.delete": _Way("DELETE", ""),
    "schedule.cancel_backfill": _Way("DELETE", "/backfills/{backfill}"),
}


class HttpSchedules(Schedules):
    """`Schedules`, asked of a server."""

    @property
    def _http(self) -> Http:
        http: Any = self._connected()
        assert isinstance(http, Http)
        return http

    def create(
        self,
        schedule_id: str,
        handler: str,
        *,
        source: str = "api",
        wait: Duration = _WAIT,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleChange:
        if source not in ("api", "cli"):
            raise InvalidInput("source", "is always `api` over HTTP")
        own = {"queue": self._queue, **{name: value for name, value in options.items() if value is not None}}
        spec_of({**own, "id": schedule_id, "handler": handler, "source": source})
        body = {"id": schedule_id, "handler": handler, **_json(own)}
        try:
            return self._asked("POST", "/schedules", schedule_id, wait, body=body)
        except Refused:  # there is another of this id
            view = self.get(schedule_id)
            due = [each["due_at"] for each in view["next"][:1]]
            return ScheduleChange(
                id=schedule_id,
                outcome="existing",
                next_due=instant(due[0]) if due else None,
                revision=view["revision"],
            )

    def update(
        self,
        schedule_id: str,
        *,
        handler: str | None = None,
        wait: Duration = _WAIT,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleChange:
        try:
            view = self.get(schedule_id)
        except NotFound:
            return ScheduleChange(id=schedule_id, outcome=NOT_FOUND)
        given = dict(options) if handler is None else {**options, "handler": handler}
        edited(view["spec"], given)  # so that what is wrong is told as over Kafka
        return self._asked("PATCH", _path(schedule_id), schedule_id, wait, body=_json(given))

    def count(self, schedule_id: str, from_: datetime | str, to: datetime | str) -> int:
        check_name("id", schedule_id)
        detail = backfill_detail(from_, to, overlap=None, rate=None, reverse=False, limit=1)
        body = {"from": format_instant(int(detail["from"])), "to": format_instant(int(detail["to"]))}
        path = f"{_path(schedule_id)}/backfill"
        total: int = self._http.calls.ask("POST", path, body={**body, "dry_run": True}, repeatable=True)[
            "total"
        ]
        return total

    def get(self, schedule_id: str) -> dict[str, Any]:
        check_name("id", schedule_id)
        return self._http.schedule_view(schedule_id)

    def list(
        self, *, state: str | None = None, source: str | None = None, handler: str | None = None
    ) -> list[dict[str, Any]]:
        return self._http.schedule_views(state=state, source=source, handler=handler)

    def state(self, schedule_id: str) -> Schedule:
        raise Refused("the record of a schedule is not to be had over HTTP: `get` tells what is in it")

    def _change(self, verb: str, schedule_id: str, wait: Duration, **fields: Any) -> ScheduleChange:
        check_name("id", schedule_id)
        way, detail = _WAYS[verb], dict(fields.get("detail") or {})
        path = _path(schedule_id) + way.path.format(backfill=segment(detail.pop("backfill", "")))
        headers = {"Idempotency-Key": str(uuid.uuid4())} if way.keyed else {}
        body = _detail_json(detail) if way.method == "POST" and verb != "schedule.resume" else None
        return self._asked(
            way.method, path, schedule_id, wait, body=body, headers=headers, repeatable=way.again
        )

    def _asked(self, method: str, path: str, schedule_id: str, wait: Duration, **more: Any) -> ScheduleChange:
        patience = waited(wait)
        try:
            view = self._http.calls.ask(method, path, query=patience.query, wait_ms=patience.ms, **more)
        except NotFound:
            return ScheduleChange(id=schedule_id, outcome=NOT_FOUND)
        except NotDone as error:
            return ScheduleChange(id=schedule_id, outcome=error.outcome, reason=str(error))
        due = view.get("next_due")
        return ScheduleChange(
            id=schedule_id,
            outcome=view.word("outcome"),
            next_due=None if due is None else instant(due),
            revision=view.get("revision"),
            occurrence_id=view.get("occurrence_id"),
            detail={name: str(view[name]) for name in ("backfill", "total") if view.get(name) is not None},
        )


def _path(schedule_id: str) -> str:
    return f"/schedules/{segment(schedule_id)}"


def _json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them; None takes one back."""
    return {name: plain_option(name, plain(name, value)) for name, value in options.items()}


def _detail_json(detail: Mapping[str, str]) -> dict[str, Any]:
    """What a command says in text, as the API has it."""
    body: dict[str, Any] = dict(detail)
    for name in ("from", "to"):
        if name in body:
            body[name] = format_instant(int(body[name]))
    for name in ("limit", "rate"):
        if name in body:
            body[name] = int(body[name])
    if "reverse" in body:
        body["reverse"] = True
    return body
