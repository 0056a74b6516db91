"""A job as people read it: what `dueline job get` prints without --json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.cli.output import harmless, table

LONG = 4_000
"""Characters that are shown of one value; --json has all of it."""
_PLAIN = ("id", "handler", "status", "due_at", "created_at", "ended_at", "queue", "key")
_REST = ("schedule", "serial", "reason", "waits_behind", "payload")
_ATTEMPT = ("attempt", "outcome", "started_at", "finished_at", "worker")


def job_text(view: Mapping[str, Any]) -> str:
    """Of the JSON of `job get`: a line for each field that has something, a table of attempts, and what they logged."""
    lines = [f"{name:<12} {_shown(value)}" for name, value in _fields(view)]
    attempts = [
        (run["run"], run["fired_at"], *(attempt[name] for name in _ATTEMPT), _error(attempt["error"]))
        for run in view["runs"]
        for attempt in run["attempts"] or [dict.fromkeys((*_ATTEMPT, "error"))]
    ]
    if attempts:
        lines += ["", table(("run", "fired_at", *_ATTEMPT, "error"), attempts)]
    return "\n".join([*lines, *_told_at_length(view)])


def _fields(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _PLAIN:
        if view[name] is not None:
            yield name, view[name]
    if view["occurrence"] not in (None, view["id"]):
        yield "occurrence", view["occurrence"]
    if view["labels"]:
        yield "labels", " ".join(f"{name}={value}" for name, value in sorted(view["labels"].items()))
    if view["failures"]:
        yield "failures", str(view["failures"])
    for name in _REST:
        if view[name] is not None:
            yield name, view[name]
    if not view["kept"]:
        yield "payload", "(not kept)"
    if view["result"] is not None or view["status"] == "succeeded":
        yield "result", as_json(view["result"])


def as_json(value: Any) -> str:
    """As it would be written in a file: integers with all their digits."""
    return json.dumps(value, ensure_ascii=False)


def _shown(text: str) -> str:
    more = f"… ({len(text)} characters; all of them with --json)" if len(text) > LONG else ""
    return harmless(text, LONG) + more


def _error(error: Mapping[str, str] | None) -> str | None:
    return None if error is None else harmless(f"{error['type']}: {error['message'].partition(chr(10))[0]}")


def _told_at_length(view: Mapping[str, Any]) -> Iterator[str]:
    """What the attempts logged, and where those that failed did."""
    for run in view["runs"]:
        for attempt in run["attempts"]:
            error = attempt["error"] or {}
            for what, text in (("log", attempt.get("log")), ("trace", error.get("trace"))):
                if text:
                    yield f"\n{what} of run {run['run']}, attempt {attempt['attempt']}:"
                    yield from (f"  {harmless(line)}" for line in text.splitlines())
