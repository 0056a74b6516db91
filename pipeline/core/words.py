"""A schedule in plain words."""

from __future__ import annotations

from functools import lru_cache

from pipeline.core.cron import ALIASES

_UNTOLD = frozenset("#LWHlwh?")


@lru_cache(maxsize=1 << 14)
def words_of(cron: str | None, every_ms: int | None, after_ms: int | None, tz: str) -> str:
    """Such as "At 08:00, Monday through Friday (Europe/Berlin)"."""
    if after_ms is not None:
        return f"{_duration(after_ms)} after the last run finished"
    if every_ms is not None:
        return f"every {_duration(every_ms)}"
    assert cron is not None
    text = cron.strip()
    if text.lower().startswith("@every"):
        return text[1:].lower()
    return f"{_of_fields(ALIASES.get(text.lower(), text))} ({tz})"


def _of_fields(text: str) -> str:
    fields = text.split()
    if _plain(fields):
        from cron_descriptor import (
            Options,
            get_description,
        )  # a library that only whoever shows schedules pays for

        options = Options()
        options.use_24hour_time_format = True
        try:
            return str(get_description(" ".join(fields), options))
        except Exception:  # noqa: BLE001 - it reads another dialect: what it cannot tell is told by our own words
            return _own(fields)
    return _own(fields)


def _plain(fields: list[str]) -> bool:
    """Whether the library tells it rightly: five fields, lists, ranges and steps only, no either-or of days."""
    return (
        len(fields) == 5
        and not any(_UNTOLD & set(field) and not _named(field) for field in fields)
        and (fields[2].startswith("*") or fields[4].startswith("*"))
        and not (fields[2] != "*" and fields[4] != "*")
        and "7" not in fields[4]
    )


def _named(field: str) -> bool:
    """Names of months and days hold letters that mean something else elsewhere."""
    return all(len(p) == 3 and p.isalpha() for p in _parts(field))


def _parts(field: str) -> list[str]:
    return field.replace("-", ",").split(",")


def _own(fields: list[str]) -> str:
    """The fields by their names: no guess is better than a wrong one."""
    names = ("second", "minute", "hour", "day of month", "month", "day of week")
    told = [
        f"{name} {field}"
        for name, field in zip(names[-len(fields) :], fields, strict=True)
        if field not in ("*", "?") and not (name == "second" and field == "0")
    ]
    both = len(fields) > 4 and not fields[-3].startswith(("*", "?")) and not fields[-1].startswith(("*", "?"))
    return (", ".join(told) or "every " + names[-len(fields)]) + (" (either day)" if both else "")


def _duration(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"
