"""Options of a schedule as Python has them, made a checked spec; and those of a backfill. No store, nothing of
Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from pipeline.core.errors import InvalidInput
from pipeline.core.handler import Duration
from pipeline.core.schedule import ScheduleSpec, check_spec, spec_from_json
from pipeline.core.times import instant_of, parse_instant

RHYTHM = ("cron", "every", "after", "phase")
"""A schedule has one of them: whoever gives a new one replaces all of the old."""
TRIGGER_OVERLAPS = ("allow", "skip")
BACKFILL_OVERLAPS = ("allow", "skip", "buffer_all")


class ScheduleOptions(TypedDict, total=False):
    """What a schedule may be made with beside its id and handler, by the names of docs/schedules.md; None = not
    given."""

    cron: str | None
    every: Duration | None
    after: str | None
    phase: Duration | None
    payload: Mapping[str, Any] | None
    queue: str | None
    tz: str | None
    dst_gap: str | None
    dst_overlap: str | None
    exclude: Mapping[str, Iterable[str]] | None
    start: datetime | str | None
    end: datetime | str | None
    max_occurrences: int | None
    jitter: Duration | None
    misfire: str | None
    catch_up: Duration | None
    misfire_threshold: Duration | None
    overlap: str | None
    overlap_timeout: Duration | None
    pause_after: int | None
    max_attempts: int | None
    timeout: Duration | None
    serial: str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    note: str | None


def spec_of(given: Mapping[str, Any]) -> ScheduleSpec:
    """The checked spec of options by their names in JSON, None = not given; instants and durations may be Python's.
    InvalidInput naming the option, InvalidSchedule if it is about when the schedule is meant to run."""
    spec = spec_from_json({name: plain_option(name, value) for name, value in given.items()})
    check_spec(spec)
    return spec


def edited(current: Mapping[str, Any], options: Mapping[str, Any]) -> ScheduleSpec:
    """The spec of the JSON object `current` once these options are given anew; None = its default."""
    new_rhythm = options.get("cron") is not None or options.get("every") is not None
    kept = {name: value for name, value in current.items() if not (new_rhythm and name in RHYTHM)}
    return spec_of({**kept, **options})


def plain_option(name: str, value: Any) -> Any:
    """Python's own forms as those of JSON."""
    match value:
        case datetime():
            return instant_of(name, value)
        case Mapping() if name == "exclude":
            return {calendar: _listed(rules) for calendar, rules in value.items()}
        case _:
            return value


def _listed(rules: Any) -> Any:
    return rules if isinstance(rules, str) or not isinstance(rules, Iterable) else list(rules)


def overlap_word(value: object, words: Sequence[str]) -> str:
    """A policy for one trigger or backfill. InvalidInput('overlap')."""
    if not isinstance(value, str) or value not in words:
        raise InvalidInput("overlap", f"{value!r:.80} is none of {', '.join(words)}")
    return value


def backfill_detail(
    from_: datetime | str,
    to: datetime | str,
    *,
    overlap: str | None,
    rate: int | None,
    reverse: bool,
    limit: int,
) -> dict[str, str]:
    """What the command of a backfill says. InvalidInput naming the option."""
    begin, end = past_range(from_, to)
    detail = {"from": str(begin), "to": str(end), "limit": str(limit)}
    if overlap is not None:
        detail["overlap"] = overlap_word(overlap, BACKFILL_OVERLAPS)
    if rate is not None:
        if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
            raise InvalidInput("rate", f"{rate!r} is no whole number of occurrences a minute")
        detail["rate"] = str(rate)
    if reverse:
        detail["reverse"] = "true"
    return detail


def past_range(from_: datetime | str, to: datetime | str) -> tuple[int, int]:
    """[from, to) in epoch ms. InvalidInput naming the one."""
    begin, end = _instant("from", from_), _instant("to", to)
    if end <= begin:
        raise InvalidInput("to", "is not after from")
    return begin, end


def _instant(name: str, value: object) -> int:
    """Epoch ms of an aware datetime or RFC 3339 text. InvalidInput naming it."""
    return instant_of(name, value) if isinstance(value, datetime) else parse_instant(name, value)
