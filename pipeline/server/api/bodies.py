"""What endpoints take, as JSON Schema for the document. What counts is checked where it is used, by the same code for
every way in; these say it to who writes a client."""

from __future__ import annotations

from typing import Any

from pipeline.server.job_actions import BULK_LIMIT, BULK_VERBS
from pipeline.server.replay_changes import ONLY

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean", "default": False}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9._-]{1,80}$"}
INSTANT: Schema = {
    "type": "string",
    "format": "date-time",
    "description": "RFC 3339 with an offset or Z, 2000 to 2200.",
    "examples": ["2030-01-31T09:30:00Z"],
}
LENGTH: Schema = {
    "type": ["string", "number"],
    "description": "`90s`, `10m`, `1h30m`, `2d`; or seconds.",
    "examples": ["10m"],
}
PAIRS: Schema = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 64}
PAYLOAD: Schema = {"type": "object", "description": "Handed to the handler; numbers keep every digit."}


def _or_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    kinds = [*kind, "null"] if isinstance(kind, list) else [kind, "null"]
    return {**schema, "type": kinds}


def _object(required: tuple[str, ...] = (), example: Any = None, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    # `in` and `from` are words of Python.
    schema["properties"] = {name.removesuffix("_"): each for name, each in properties.items()}
    return schema if example is None else {**schema, "examples": [example]}


_JOB: dict[str, Schema] = {
    "payload": _or_null(PAYLOAD),
    "at": {**_or_null(INSTANT), "description": "When; a past instant fires at once. This or `in`."},
    "in_": {
        **_or_null(LENGTH),
        "description": "How long from now by the store's clock, `0s` is now. This or `at`.",
    },
    "key": {**_or_null(TEXT), "description": "Identity: while the job holds it there is no second one."},
    "unique": {**_or_null(LENGTH), "description": "How long: finished (default), started, or a duration."},
    "on_conflict": {
        "enum": ["existing", "replace", "debounce", "reject", None],
        "description": "If the key is taken. Default: existing.",
    },
    "idempotency_key": {
        **_or_null(TEXT),
        "description": "What the handler makes its effect unique by. Default: the occurrence id.",
    },
    "queue": {**_or_null(NAME), "description": "Whose workers run it. Default: the setting."},
    "max_attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": 10_000},
    "timeout": {**_or_null(LENGTH), "description": "Of one attempt."},
    "serial": {**_or_null(TEXT), "description": "Jobs of one group start one after the other."},
    "labels": {**_or_null(PAIRS), "description": "To list by."},
    "headers": {**_or_null(PAIRS), "description": "Handed on."},
    "spread": {**_or_null(LENGTH), "description": "Put off by up to so long, the same for the same key."},
}
_SCHEDULE: dict[str, Schema] = {
    "cron": {
        **_or_null(TEXT),
        "description": "Five fields, six with seconds first, or @daily, @every 90s …",
        "examples": ["0 10 * * *"],
    },
    "every": {**_or_null(LENGTH), "description": "On a grid from the epoch and `phase` on."},
    "after": {"enum": ["finish", None], "description": "`every` counts from the end of each occurrence."},
    "phase": _or_null(LENGTH),
    "payload": _or_null(PAYLOAD),
    "queue": _or_null(NAME),
    "tz": {**_or_null(TEXT), "description": "IANA zone. Default: UTC.", "examples": ["Europe/Berlin"]},
    "dst_gap": {"enum": ["run_after", "skip", None], "description": "Of what the clock skips."},
    "dst_overlap": {"enum": ["first", "both", None], "description": "Of an hour that comes twice."},
    "exclude": {
        "type": ["object", "null"],
        "additionalProperties": {"type": "array", "items": TEXT},
        "description": "Calendars: name to rules (a date, FROM..TO, `cron:EXPR`).",
    },
    "start": _or_null(INSTANT),
    "end": _or_null(INSTANT),
    "max_occurrences": {"type": ["integer", "null"], "minimum": 1},
    "jitter": {**_or_null(LENGTH), "description": "Put each off by up to so long, always alike."},
    "misfire": {**_or_null(TEXT), "description": "latest (default), none, all(N)."},
    "catch_up": _or_null(LENGTH),
    "misfire_threshold": _or_null(LENGTH),
    "overlap": {
        **_or_null(TEXT),
        "description": "skip (default), buffer_one, buffer_all(N), cancel_other, allow.",
    },
    "overlap_timeout": _or_null(LENGTH),
    "pause_after": {"type": ["integer", "null"], "minimum": 1, "description": "Pause after N dead in a row."},
    "max_attempts": {"type": ["integer", "null"], "minimum": 1},
    "timeout": _or_null(LENGTH),
    "serial": _or_null(TEXT),
    "labels": _or_null(PAIRS),
    "headers": _or_null(PAIRS),
    "note": _or_null(TEXT),
}
_FILTER = {
    **_object(
        status={"type": "array", "items": TEXT},
        handler=TEXT,
        queue=TEXT,
        schedule=TEXT,
        labels=PAIRS,
        key=TEXT,
        key_prefix=TEXT,
        due_from=INSTANT,
        due_to=INSTANT,
        text=TEXT,
    ),
    "minProperties": 1,
}
_OVERLAPS = ["allow", "skip", "buffer_all", None]

BODIES: dict[str, Schema] = {
    "NewJob": _object(
        ("handler",),
        {"handler": "email.send", "payload": {"to": "a@b"}, "in": "10m"},
        handler=NAME,
        **_JOB,
    ),
    "Cancel": _object(stop={**FLAG, "description": "Also if it has fired: its worker ends the run."}),
    "Reschedule": _object((), {"in": "1h"}, at=_or_null(INSTANT), in_=_or_null(TEXT)),
    "NewPayload": _object(("payload",), {"payload": {"to": "c@d"}}, payload=PAYLOAD),
    "BulkChange": _object(
        ("verb",),
        {"verb": "cancel", "filter": {"handler": "email.send", "status": ["pending"]}, "dry_run": True},
        verb={"enum": list(BULK_VERBS)},
        ids={"type": ["array", "null"], "items": TEXT, "maxItems": BULK_LIMIT},
        filter={"anyOf": [_FILTER, {"type": "null"}]},
        stop=FLAG,
        at=_or_null(INSTANT),
        in_=_or_null(TEXT),
        limit={"type": "integer", "minimum": 1, "maximum": BULK_LIMIT, "default": BULK_LIMIT},
        dry_run=FLAG,
    ),
    "NewSchedule": _object(
        ("id", "handler"),
        {"id": "daily-report", "handler": "report.daily", "cron": "0 10 * * *", "tz": "Europe/Berlin"},
        id=NAME,
        handler=NAME,
        **_SCHEDULE,
    ),
    "ScheduleOptions": {
        **_object((), {"cron": "30 10 * * *"}, handler=NAME, **_SCHEDULE),
        "minProperties": 1,
    },
    "Preview": _object(
        (),
        {"cron": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-26T00:00:00Z", "count": 4},
        id=_or_null(NAME),
        from_=_or_null(INSTANT),
        count={"type": "integer", "minimum": 1, "maximum": 1_000, "default": 10},
        **_SCHEDULE,
    ),
    "SyncFile": _object(
        ("name", "text"),
        {"name": "crontab", "text": "0 10 * * * /usr/local/bin/report --daily\n"},
        name={"type": "string", "minLength": 1, "maxLength": 200},
        text=TEXT,
        format={"enum": ["crontab", "toml"], "default": "crontab"},
        tz=_or_null(TEXT),
    ),
    "Note": _object((), {"note": "until the provider is back"}, note=_or_null(TEXT)),
    "Trigger": _object(overlap={"enum": ["allow", "skip", None]}),
    "Backfill": _object(
        ("from", "to"),
        {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "dry_run": True},
        from_=INSTANT,
        to=INSTANT,
        overlap={"enum": _OVERLAPS},
        rate={"type": ["integer", "null"], "minimum": 1, "description": "Occurrences a minute at most."},
        reverse=FLAG,
        limit={"type": "integer", "minimum": 1, "default": 1_000},
        dry_run=FLAG,
    ),
    "RequeueDead": _object(
        (),
        {"handler": "email.send", "dry_run": True},
        ids={"type": ["array", "null"], "items": TEXT, "maxItems": BULK_LIMIT},
        **dict.fromkeys(("handler", "queue", "reason", "error", "group"), _or_null(TEXT)),
        since={**_or_null(INSTANT), "description": "That died then or later."},
        everything=FLAG,
        payload={**_or_null(PAYLOAD), "description": "Instead of their own."},
        dry_run=FLAG,
    ),
    "NewReplay": _object(
        ("from",),
        {"from": "2026-01-01T02:00:00Z", "to": "2026-01-01T03:30:00Z", "only": "failed", "dry_run": True},
        from_=INSTANT,
        to=_or_null(INSTANT),
        only={"enum": list(ONLY), "default": "failed"},
        handler=_or_null(TEXT),
        schedule=_or_null(TEXT),
        queue=_or_null(TEXT),
        labels=_or_null(PAIRS),
        key_prefix=_or_null(TEXT),
        rate={"type": ["number", "null"], "minimum": 0.01, "description": "Runs a second at most."},
        limit={"type": "integer", "minimum": 1, "default": 1_000, "description": "409 if more would run."},
        force={**FLAG, "description": "With `only` all: run again even what succeeded."},
        beside={
            **FLAG,
            "description": "Though another replay is not finished that may mean the same.",
        },
        dry_run=FLAG,
    ),
    "ResumeReplay": _object(
        rate={"type": ["number", "null"], "minimum": 0.01},
        force={**FLAG, "description": "Though another process seems to carry it out."},
    ),
    "Purge": _object(
        (),
        {"dry_run": True},
        before={**_or_null(INSTANT), "description": "Only what was emitted before."},
        dry_run={**FLAG, "description": "Only count what waits."},
    ),
    "NewToken": _object(
        ("name", "role"),
        {"name": "billing", "role": "operator", "queues": ["billing"], "expires_in": "90d"},
        name={"type": "string", "minLength": 1, "maxLength": 80},
        role={"enum": ["viewer", "operator", "admin"]},
        queues={"type": ["array", "null"], "items": NAME, "maxItems": 100},
        expires_in=_or_null(TEXT),
    ),
}
