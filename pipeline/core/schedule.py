"""A schedule: its definition, where it stands, and its one form in JSON (DESIGN §8).

`ScheduleSpec` is what its user gave, `Schedule` what its owner keeps under `s/<id>` (schemas/schedule.avsc). All
instants and durations are in ms; JSON has RFC 3339 text and durations such as `90s`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.job import PAYLOAD_CEILING
from pipeline.core.names import check_name
from pipeline.core.spec import ScheduleSpec
from pipeline.core.times import format_instant, parse_duration, parse_instant

if TYPE_CHECKING:
    from pipeline.core.timing import TimingSpec

__all__ = [
    "NOT_ALONE",
    "Backfill",
    "OpenRun",
    "Recent",
    "Schedule",
    "ScheduleSpec",
    "check_spec",
    "policy",
    "spec_from_json",
    "spec_to_json",
    "timing_spec",
]

NOT_ALONE = "not_alone"
"""What an owner answers to a command about the next instant of a schedule: it has no change of its own."""
RECENT = 10
"""Occurrences that a schedule remembers."""
MOST = 1_000
"""The n of all(n) and buffer_all(n) at most: so many instants may stand in one record."""
TEXTS_CEILING = 160_000
"""Bytes of what a spec has beside its payload: its runs must fit their topics."""
_SOURCE = re.compile(r"cli|api|(?:app|file):[^\s\x00]{1,200}")
_POLICY = re.compile(r"([a-z_]+)(?:\(([1-9][0-9]{0,8})\))?")
_MISFIRES = {"latest": False, "none": False, "all": True}
_OVERLAPS = {"skip": False, "buffer_one": False, "buffer_all": True, "cancel_other": False, "allow": False}
"""Policies by name, and whether they take a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """An occurrence that was emitted and has not ended as far as its owner knows.

    `place` = `<queue>/<work partition>` of its runs; `emitted_at` = when its first run was emitted, epoch ms.
    """

    occurrence_id: str
    nominal_at: int
    emitted_at: int
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A range of the past that is being made up: nominal instants in [from_at, to_at).

    `cursor` = the last nominal instant that was decided, None at the beginning. `overlap` is a policy as of a spec,
    `rate` occurrences a minute at most, None = no limit. `next_at` = when the next one may be decided.
    """

    id: str
    from_at: int
    to_at: int
    cursor: int | None = None
    overlap: str = "allow"
    rate: int | None = None
    reverse: bool = False
    fired: int = 0
    total: int = 0
    next_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """One of the last occurrences: `kind` g (grid), t (trigger) or b (backfill), `at` = when it was last heard of,
    `outcome` fired | succeeded | dead | cancelled | skipped.<reason>."""

    nominal_at: int
    kind: str
    at: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Where a schedule stands: the value of `s/<id>`, written by its owner only.

    `incarnation` = offset of the command that created it; `revision` counts its changes by people and programs, from
    1. `paused` = a note (may be empty), None = it is not paused. `ended` = "" | end | max_occurrences | removed.
    Everything on the grid at or before `last_nominal` is decided: fired, skipped, or waiting in `buffer`.
    `next_nominal` and `next_due` (with jitter) None: nothing to come for now. Up to `kept_until` the misfire rule has
    been applied: what is left there is to fire, however long a restart takes. `counts`: fired (of the grid, what
    max_occurrences limits), triggered, backfilled, succeeded, dead, cancelled, skipped.<reason>.
    """

    incarnation: int
    revision: int
    spec: ScheduleSpec
    created_at: int
    changed_at: int
    last_nominal: int
    paused: str | None = None
    paused_at: int | None = None
    ended: str = ""
    next_nominal: int | None = None
    next_due: int | None = None
    kept_until: int | None = None
    open: tuple[OpenRun, ...] = ()
    buffer: tuple[int, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    recent: tuple[Recent, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    failures_in_row: int = 0
    last_success_at: int | None = None
    zone_data: str = ""
    """Version of the zone data that `next_nominal` was computed with."""


def state_of(state: Schedule) -> str:
    """active | paused | ended."""
    if state.ended:
        return "ended"
    return "active" if state.paused is None else "paused"


# -- checking -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def policy(field: str, text: str) -> tuple[str, int]:
    """(name, n) of a `misfire` or `overlap` policy; n is 0 where it has none. InvalidInput naming `field`."""
    names = _MISFIRES if field == "misfire" else _OVERLAPS
    match = _POLICY.fullmatch(text)
    if match is None or match[1] not in names or names[match[1]] != (match[2] is not None):
        known = " | ".join(f"{name}(n)" if counted else name for name, counted in names.items())
        raise InvalidInput(field, f"{text[:80]!r} is none of {known}")
    number = int(match[2] or 0)
    if number > MOST:
        raise InvalidInput(field, f"{number} is more than {MOST}")
    return match[1], number


def check_spec(spec: ScheduleSpec) -> None:
    """InvalidInput naming the first field, by its name in JSON, that is wrong; InvalidSchedule if it is about when
    the schedule is meant to run, one that never fires included."""
    check_name("id", spec.id)
    check_name("handler", spec.handler)
    check_name("queue", spec.queue)
    policy("misfire", spec.misfire)
    policy("overlap", spec.overlap)
    _check_source(spec)
    _check_numbers(spec)
    _check_payload(spec)
    _check_timing(spec)


def _check_source(spec: ScheduleSpec) -> None:
    if not _SOURCE.fullmatch(spec.source):
        raise InvalidInput("source", f"{spec.source[:80]!r} is none of cli, api, app:<name>, file:<name>")


def _check_numbers(spec: ScheduleSpec) -> None:
    at_least_one = (
        ("max_occurrences", spec.max_occurrences),
        ("pause_after", spec.pause_after),
        ("max_attempts", spec.attempt_limit),
        ("timeout", spec.timeout_ms),
        ("overlap_timeout", spec.overlap_timeout_ms),
        ("every", spec.every_ms),
        ("every", spec.after_ms),
    )
    for name, number in at_least_one:
        if number is not None and number < 1:
            raise InvalidInput(name, "must be at least 1")
    not_negative = (
        ("jitter", spec.jitter_ms),
        ("misfire_threshold", spec.misfire_threshold_ms),
        ("catch_up", spec.catch_up_ms or 0),
    )
    for name, number in not_negative:
        if number < 0:
            raise InvalidInput(name, "is negative")


def _check_payload(spec: ScheduleSpec) -> None:
    if not isinstance(_json(spec.payload), dict):
        raise InvalidInput("payload", "must be a JSON object")
    if len(spec.payload) > PAYLOAD_CEILING // 2:
        # It stands in the state, which is written with every firing, beside the run that it makes.
        raise InvalidInput("payload", f"is longer than {PAYLOAD_CEILING // 2} bytes")
    rules = chain.from_iterable((name, *texts) for name, texts in spec.exclude.items())
    pairs = chain(*spec.labels.items(), *spec.headers.items())
    texts = (spec.serial or "", spec.note, spec.version, spec.cron or "", *rules, *pairs)
    if sum(len(text.encode()) for text in texts) > TEXTS_CEILING:
        raise InvalidInput("labels", f"texts beside the payload are longer than {TEXTS_CEILING} bytes")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _check_timing(spec: ScheduleSpec) -> None:
    from pipeline.core.timing import check_phase, timing_of

    given = [name for name in ("cron", "every_ms", "after_ms") if getattr(spec, name) is not None]
    if len(given) != 1:
        raise InvalidSchedule("cron", "give exactly one of cron and every")
    if spec.start_at is not None and spec.end_at is not None and spec.end_at <= spec.start_at:
        raise InvalidSchedule("end", "is not after start")
    when = timing_spec(spec)
    timing_of(when)
    check_phase(when)


def timing_spec(spec: ScheduleSpec) -> TimingSpec:
    """The part of a spec that says when, for `core.timing.timing_of`."""
    # Here, not above: whoever only makes jobs reads schemas with schedules, and need not load a cron grammar.
    from pipeline.core.timing import TimingSpec

    return TimingSpec(
        schedule_id=spec.id,
        cron=spec.cron,
        every_ms=spec.every_ms,
        after_ms=spec.after_ms,
        phase_ms=spec.phase_ms,
        tz=spec.tz,
        dst_gap=spec.dst_gap,
        dst_overlap=spec.dst_overlap,
        exclude=tuple((name, tuple(rules)) for name, rules in sorted(spec.exclude.items())),
        start_at=spec.start_at,
        end_at=spec.end_at,
        jitter_ms=spec.jitter_ms,
    )


# -- JSON ---------------------------------------------------------------------------------------------------

_TEXTS = ("id", "handler", "queue", "cron", "tz", "dst_gap", "dst_overlap", "misfire", "overlap", "serial",
          "source", "version", "note")  # fmt: skip
_DURATIONS = {
    "phase": "phase_ms",
    "jitter": "jitter_ms",
    "catch_up": "catch_up_ms",
    "misfire_threshold": "misfire_threshold_ms",
    "overlap_timeout": "overlap_timeout_ms",
    "timeout": "timeout_ms",
}
_INSTANTS = {"start": "start_at", "end": "end_at"}
_COUNTS = {
    "max_occurrences": "max_occurrences",
    "pause_after": "pause_after",
    "max_attempts": "attempt_limit",
}
NAMES = (
    "id", "handler", "queue", "payload", "cron", "every", "after", "phase", "tz", "dst_gap", "dst_overlap", "exclude",
    "start", "end", "max_occurrences", "jitter", "misfire", "catch_up", "misfire_threshold", "overlap",
    "overlap_timeout", "pause_after", "max_attempts", "timeout", "serial", "labels", "headers", "source", "version",
    "note",
)  # fmt: skip
"""Names of a spec in JSON, in the order in which they are written."""


def spec_from_json(given: Mapping[str, Any]) -> ScheduleSpec:
    """The spec of a JSON object with NAMES, of which `id` and `handler` must be there; null = not given. Durations are
    text or seconds, instants RFC 3339 text or epoch ms, `payload` is an object. With `"after": "finish"`, `every`
    counts from when the last occurrence finished. InvalidInput naming the field for an unknown name or a wrong type;
    what the values mean is for `check_spec`."""
    for name in given:
        if name not in NAMES:
            raise InvalidInput(str(name)[:80], "no such field of a schedule")
    fields: dict[str, Any] = {}
    for name in NAMES:
        value = given.get(name)
        if value is not None and name != "after":
            to, read = _READERS[name]
            fields[to] = read(name, value)
    for name in ("id", "handler"):
        if name not in fields:
            raise InvalidInput(name, "missing")
    if given.get("after") is not None:
        _after_finish(given["after"], fields)
    return ScheduleSpec(**fields)


def _after_finish(after: Any, fields: dict[str, Any]) -> None:
    if after != "finish":
        raise InvalidInput("after", f"{after!r:.80} is not 'finish'")
    if "every_ms" not in fields:
        raise InvalidInput("after", "needs every, the time from one finish to the next start")
    fields["after_ms"] = fields.pop("every_ms")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(name, "must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(name, "half of a surrogate pair") from None
    return value


def _instant(name: str, value: Any) -> int:
    return _integer(name, value) if isinstance(value, int) else parse_instant(name, value)


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(name, "must be an integer")
    if not -(1 << 31) <= value < 1 << 31 and name not in _INSTANTS:
        raise InvalidInput(name, "out of range")
    if not 0 <= value < 1 << 48 and name in _INSTANTS:
        raise InvalidInput(name, "is no instant in epoch milliseconds")
    return value


def _texts(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInput(name, "must be an object of strings")
    return {_text(name, key): _text(name, item) for key, item in value.items()}


def _calendars(name: str, value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping) or not all(
        isinstance(rules, (list, tuple)) for rules in value.values()
    ):
        raise InvalidInput(name, "must be an object of calendars, each a list of rules")
    return {_text(name, key): tuple(_text(name, rule) for rule in rules) for key, rules in value.items()}


def _payload(name: str, value: Any) -> bytes:
    if not isinstance(value, Mapping):
        raise InvalidInput(name, "must be an object")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise InvalidInput(name, "half of a surrogate pair") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(name, f"is not JSON: {error}") from None


_READERS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    **{name: (name, _text) for name in _TEXTS},
    **{name: (to, parse_duration) for name, to in _DURATIONS.items()},
    **{name: (to, _instant) for name, to in _INSTANTS.items()},
    **{name: (to, _integer) for name, to in _COUNTS.items()},
    "every": ("every_ms", parse_duration),
    "payload": ("payload", _payload),
    "exclude": ("exclude", _calendars),
    "labels": ("labels", _texts),
    "headers": ("headers", _texts),
}


def spec_to_json(spec: ScheduleSpec) -> dict[str, Any]:
    """The JSON object of a spec, which `spec_from_json` reads back to the same; what is empty is left out."""
    values: dict[str, Any] = {name: getattr(spec, name) for name in _TEXTS}
    values |= {name: _duration_text(getattr(spec, of)) for name, of in _DURATIONS.items()}
    values |= {name: _instant_text(getattr(spec, of)) for name, of in _INSTANTS.items()}
    values |= {name: getattr(spec, of) for name, of in _COUNTS.items()}
    values |= {
        "every": _duration_text(spec.every_ms if spec.after_ms is None else spec.after_ms),
        "after": None if spec.after_ms is None else "finish",
        "payload": json.loads(spec.payload),
        "exclude": {name: list(rules) for name, rules in spec.exclude.items()} or None,
        "labels": dict(spec.labels) or None,
        "headers": dict(spec.headers) or None,
    }
    return {name: values[name] for name in NAMES if values[name] not in (None, "")}


def _instant_text(ms: int | None) -> str | None:
    return None if ms is None else format_instant(ms)


def _duration_text(ms: int | None) -> str | None:
    """`90s`: the largest unit of which it is a whole number."""
    if ms is None:
        return None
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
    return next((f"{ms // size}{unit}" for unit, size in units if ms and ms % size == 0), f"{ms}ms")
