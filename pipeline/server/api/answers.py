"""What endpoints answer, as JSON Schema for the document: the schemas of the commands that show the same
(`schemas/cli/`), open for what a server adds to them, and a few of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.codec.registry import schema_dir

Schema = dict[str, Any]

COMMANDS: Mapping[str, str] = {
    "Job": "job_get",
    "JobRow": "job_list",
    "Why": "job_why",
    "Schedule": "cron_describe",
    "ScheduleRow": "cron_list",
    "DeadLetter": "dead_list",
    "DeadGroup": "dead_groups",
    "Replay": "replay_show",
}
"""Schemas that commands have: the document's name, and the file."""
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_MAYBE: Schema = {"type": ["string", "null"]}


def _view(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _page(row: str) -> Schema:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{row}"}}
    return _view("items", "cursor", items=items, cursor=_MAYBE, scanned=_NUMBER)


def _items(row: Schema) -> Schema:
    return _view("items", items={"type": "array", "items": row})


def answers() -> dict[str, Schema]:
    ref = _view("id", "status", "due_at", id=_TEXT, status=_TEXT, due_at=_TEXT)
    error = _view("line", "field", "message", line=_NUMBER, field=_TEXT, message=_TEXT)
    counts = {
        **_view("accepted", "rejected", "errors", accepted=_NUMBER, rejected=_NUMBER),
        "examples": [
            {
                "accepted": 2,
                "rejected": 1,
                "errors": [
                    {
                        "line": 3,
                        "field": "at",
                        "message": "missing: say when it is due, by at or in (in Python in_; 0s is now)",
                    }
                ],
            }
        ],
    }
    counts["properties"]["errors"] = {"type": "array", "items": error, "maxItems": 100}
    counts["properties"]["refs"] = {"type": "array", "items": ref, "maxItems": 10_000}
    token = _view("id", "name", "role", id=_TEXT, name=_TEXT, role=_TEXT, expires_at=_MAYBE)
    anything = {"type": "object"}
    return {
        **{name: _of_command(file) for name, file in COMMANDS.items()},
        "Problem": {
            **_view(
                "type", "title", "status", "detail", type=_TEXT, title=_TEXT, detail=_TEXT, status=_NUMBER
            ),
            "description": "RFC 9457.",
        },
        "JobRef": ref,
        "JobRefOrCounts": {"anyOf": [ref, counts]},
        "JobPage": _page("JobRow"),
        "SchedulePage": _page("ScheduleRow"),
        "DeadPage": _page("DeadLetter"),
        "DeadGroupPage": _page("DeadGroup"),
        "EventPage": _view("items", "cursor", items={"type": "array", "items": anything}, cursor=_MAYBE),
        "AuditPage": _view(
            "items",
            "cursor",
            "scanned",
            items={
                "type": "array",
                "items": _view(
                    *("at", "by", "role", "verb", "outcome", "job", "schedule", "detail"),
                    **dict.fromkeys(("at", "verb"), _TEXT),
                    **dict.fromkeys(("by", "role", "outcome", "job", "schedule"), _MAYBE),
                    detail={"type": "object", "additionalProperties": _TEXT},
                ),
            },
            cursor=_MAYBE,
            scanned=_NUMBER,
        ),
        "Count": _view("count", "capped", count=_NUMBER, capped={"type": "boolean"}),
        "Outcome": _view("id", "outcome", id=_TEXT, outcome=_TEXT, due_at=_MAYBE),
        "BulkDone": _view(
            "matched",
            "counts",
            "errors",
            "left",
            "left_ids",
            matched=_NUMBER,
            dry_run={"type": "boolean"},
            counts={"type": "object", "additionalProperties": _NUMBER},
            errors={"type": "array", "items": _view("id", "message", id=_TEXT, message=_TEXT)},
            left=_NUMBER,
            left_ids={"type": "array", "items": _TEXT},
        ),
        "ScheduleDone": _view(
            "id", "outcome", id=_TEXT, outcome=_TEXT, next_due=_MAYBE, occurrence_id=_MAYBE
        ),
        "Instants": _view(
            "words",
            "tz",
            "instants",
            words=_TEXT,
            tz=_TEXT,
            instants={
                "type": "array",
                "items": _view("at", "local", "note", at=_TEXT, due_at=_TEXT, local=_TEXT, note=_MAYBE),
            },
        ),
        "SyncPlan": _view("problems", "notes", problems={"type": "array"}, notes={"type": "array"}),
        "DeadRequeued": _view(
            "matched", "requeued", "dry_run", "left", matched=_NUMBER, requeued=_NUMBER, left=_NUMBER
        ),
        "Replays": _items({"$ref": "#/components/schemas/Replay"}),
        "ReplayCounted": _view(
            "id", "matched", "waiting", "dry_run", id=_MAYBE, matched=_NUMBER, waiting=_NUMBER
        ),
        "Buckets": _items(_view("from", "to", "counts", to=_TEXT, counts=anything, late=_NUMBER)),
        "QueueDone": _view("queue", "outcome", queue=_TEXT, outcome=_TEXT, by=_MAYBE),
        "Queues": _queues(),
        "Fleet": anything,
        "Overview": anything,
        "Me": _view("name", "role", "queues", name=_TEXT, role=_TEXT, queues={"type": ["array", "null"]}),
        "Tokens": _items(token),
        "NewTokenShown": {**token, "properties": {**token["properties"], "token": _TEXT}},
    }


def _queues() -> Schema:
    queue = _view("queue", "lag", "oldest_unacked", queue=_TEXT, lag=_NUMBER, oldest_unacked=_MAYBE)
    freshness = _view("behind", "age_ms", "ready", "problem", behind=_NUMBER, age_ms=_NUMBER, problem=_MAYBE)
    found = _items(queue)
    found["properties"]["freshness"] = freshness
    return found


def _of_command(file: str) -> Schema:
    """A schema of `schemas/cli/`: open for what a server adds, its definitions in place."""
    schema = json.loads(schema_dir().joinpath("cli", f"{file}.json").read_text("utf-8"))
    shared = schema.pop("$defs", {})
    opened: Schema = _opened(schema, shared)
    for name in ("$schema", "title"):
        opened.pop(name, None)
    if file == "job_list":
        opened["properties"]["status"] = {"type": "string"}  # a server lists what has ended, too
    return opened


def _opened(value: Any, shared: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_opened(each, shared) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        found = _opened(shared[value["$ref"].removeprefix("#/$defs/")], shared)
        return {**found, **{name: each for name, each in value.items() if name != "$ref"}}
    return {
        name: _opened(each, shared)
        for name, each in value.items()
        if not (name == "additionalProperties" and each is False)
    }
