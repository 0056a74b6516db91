"""The log lines of dispatchers and workers (`pipeline.service.log`) as a person reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

UNSHOWN = frozenset({"at", "role", "slot", "action"})
MARKS = frozenset({"at", "role", "action"})
"""What every such line has; a handler's own JSON has not, and is left alone."""
LONGEST = 120
"""Characters of one value; the rest is cut."""


def readable(line: str) -> str:
    """`running partitions=0-23` for an event, on one line as before; any other line as it is."""
    event = _event(line)
    if event is None:
        return line
    fields = (f"{name}={_cut(_value(value))}" for name, value in event.items() if name not in UNSHOWN)
    return " ".join((str(event["action"]), *fields))


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.keys() >= MARKS else None


def _value(value: Any) -> str:
    match value:
        case str() if value.isprintable() and value and not set(value) & set(' "='):
            return value
        case list() if value and all(type(item) is int for item in value):
            return ",".join(_ranges(sorted(value)))
        case _:
            text = json.dumps(value, ensure_ascii=False)
            return text if text.isprintable() else json.dumps(value)  # no line end, nothing for the terminal


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Each run of numbers that follow one another as `first-last`."""
    ends = [n for n, number in enumerate(numbers) if numbers[n + 1 : n + 2] != [number + 1]]
    starts = [0, *(n + 1 for n in ends[:-1])]
    return [
        f"{numbers[a]}-{numbers[b]}" if a < b else str(numbers[a]) for a, b in zip(starts, ends, strict=True)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
