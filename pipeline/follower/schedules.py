"""Schedules as JSON: all there is to know of one, or a line of a list (schemas/cli/cron_describe.json,
cron_list.json)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

from pipeline.core import keys
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import parse_occurrence
from pipeline.core.schedule import (
    Backfill,
    Recent,
    Schedule,
    ScheduleSpec,
    spec_to_json,
    state_of,
    timing_spec,
)
from pipeline.core.times import aware
from pipeline.follower.occurrence import SKIPPED, note_skipped
from pipeline.follower.trail import Trail
from pipeline.follower.values import readable_event, readable_schedule, shown_instant
from pipeline.ports import Record

if TYPE_CHECKING:
    from pipeline.core.timing import Timing

View = dict[str, Any]

SHOWN = 10
"""Instants that are shown of what is to come."""
OVERDUE_MS = 10_000
"""So long after it was due at the latest, an occurrence of a schedule that is not paused has fired or was skipped."""
STANDINGS = ("active", "paused", "ended", "overdue", "failing")
"""By which schedules are looked for; `failing`: its last occurrence that ended has ended dead."""
_DIGITS = 16
_KINDS = {"g": "grid", "t": "trigger", "b": "backfill"}
# Words of core.series, which whoever makes a client need not load: it comes with the grammar of cron.
REMOVED = "removed"
MISSED = ("misfire", "catch_up")
OVERLAPPED = ("overlap", "buffer_full")
_TOTALS = ("fired", "triggered", "backfilled", "succeeded", "dead", "cancelled")


def fold_schedules(records: Iterable[Record]) -> dict[str, Schedule]:
    """The schedules of one home partition by id, but for those that an app has removed."""
    latest: dict[bytes, bytes | None] = {}
    for _ in passing(records, latest):
        pass
    return states_of(latest)


def passing(records: Iterable[Record], latest: dict[bytes, bytes | None]) -> Iterator[Record]:
    """All of the records, while the last value of each schedule among them is kept in `latest`."""
    for record in records:
        key = record.key() or b""
        if key.startswith(_PREFIX):
            latest[key] = record.value()
        yield record


def states_of(latest: Mapping[bytes, bytes | None]) -> dict[str, Schedule]:
    """The schedules by id that these values are."""
    states = (readable_schedule(value) for value in latest.values())
    return {state.spec.id: state for state in states if state is not None and state.ended != REMOVED}


_PREFIX = keys.schedule_key("")


def fold_skips(trail: Trail, events: Iterable[Record]) -> None:
    """Mark an occurrence of the grid as skipped if one of these events says so: each is about a range of instants."""
    of = parse_occurrence(trail.id)
    if not may_be_skipped(trail):
        return
    key = of.schedule_id.encode()
    for record in events:
        if record.key() == key and (event := readable_event(record.value())) is not None:
            first, last = detail_number(event.detail.get("first")), detail_number(event.detail.get("last"))
            if event.kind == "skipped" and event.detail.get("kind") == "g" and first <= of.nominal_at <= last:
                assert trail.schedule is not None, "else nobody knows what may be skipped"
                note_skipped(trail, trail.schedule, of.nominal_at, event.reason, event.at)


def may_be_skipped(trail: Trail) -> bool:
    """Whether it is an instant of the grid of its schedule, as far as that is known."""
    of = parse_occurrence(trail.id)
    timing = None if trail.schedule is None else _timing(trail.schedule.spec)
    return of.kind == "g" and timing is not None and _on_grid(timing, trail.schedule, of.nominal_at)


def _on_grid(timing: Timing, state: Schedule | None, nominal: int) -> bool:
    after_finish = state is not None and state.spec.after_ms is not None
    return after_finish or timing.next_after(nominal - 1) == nominal


def detail_number(text: str | None) -> int:
    """Of an event's detail; -1 if it is none: whoever may append can say anything."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _DIGITS else -1


def is_overdue(state: Schedule, now: int) -> bool:
    """Whether its owner should long have decided what is due."""
    return state_of(state) == "active" and state.next_due is not None and state.next_due < now - OVERDUE_MS


def expected(state: Schedule, now: int) -> list[int]:
    """Up to ten nominal instants to come; while it is paused those that it would have if it were resumed now."""
    if state_of(state) != "paused":
        return [nominal for nominal, _ in upcoming(state)]
    timing = _timing(state.spec)
    return [] if timing is None or state.spec.after_ms is not None else timing.upcoming(now, SHOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSchedules:
    """Which schedules; None = any. `state`: one of STANDINGS, else InvalidInput. `text` is part of an id, handler or
    note. `queues`: of these only, as whoever asks is limited to them. What an app has removed is none."""

    text: str | None = None
    state: str | None = None
    source: str | None = None
    handler: str | None = None
    queues: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.state not in (None, *STANDINGS):
            raise InvalidInput("state", f"{self.state!r:.40} is none of {', '.join(STANDINGS)}")

    def matches(self, state: Schedule, now: int) -> bool:
        """`now`: epoch ms."""
        spec, texts = state.spec, (state.spec.id, state.spec.handler, state.paused or "")
        return (
            state.ended != REMOVED
            and (self.queues is None or spec.queue in self.queues)
            and self.source in (None, spec.source)
            and self.handler in (None, spec.handler)
            and (self.state is None or _stands_as(state, self.state, now))
            and (self.text is None or any(self.text in each for each in texts))
        )


def _stands_as(state: Schedule, word: str, now: int) -> bool:
    match word:
        case "overdue":
            return is_overdue(state, now)
        case "failing":
            return state.failures_in_row > 0
        case _:
            return state_of(state) == word


# -- views --------------------------------------------------------------------------------------------------


def listed_view(state: Schedule, now: int) -> View:
    """A line of `dueline cron list`."""
    spec, zone = state.spec, _zone(state.spec.tz)
    running = state_of(state) == "active"
    upcoming = state.next_nominal if running else None
    return {
        "id": spec.id,
        "expression": expression_of(spec),
        "words": _words(spec),
        "tz": spec.tz,
        "handler": spec.handler,
        "queue": spec.queue,
        "source": spec.source,
        "state": state_of(state),
        "paused": state.paused,
        "next_at": _instant(upcoming),
        "next_local": None if upcoming is None else _local(upcoming, zone),
        "last_at": shown_instant(state.recent[0].at) if state.recent else None,
        "last_outcome": state.recent[0].outcome if state.recent else None,
        "overdue": is_overdue(state, now),
    }


def schedule_view(state: Schedule, now: int) -> View:
    """All of `dueline cron describe`."""
    spec, zone = state.spec, _zone(state.spec.tz)
    return {
        "id": spec.id,
        "words": _words(spec),
        "tz": spec.tz,
        "state": state_of(state),
        "paused": state.paused,
        "paused_at": _instant(state.paused_at),
        "ended": state.ended or None,
        "overdue": is_overdue(state, now),
        "incarnation": state.incarnation,
        "revision": state.revision,
        "created_at": shown_instant(state.created_at),
        "changed_at": shown_instant(state.changed_at),
        "next": [_upcoming_view(nominal, due, zone) for nominal, due in upcoming(state)],
        "last": [_recent_view(recent, zone) for recent in state.recent],
        "last_success_at": _instant(state.last_success_at),
        "failures_in_row": state.failures_in_row,
        "counters": counters(state.counts),
        "open": [
            {
                "id": run.occurrence_id,
                "nominal_at": shown_instant(run.nominal_at),
                "emitted_at": shown_instant(run.emitted_at),
            }
            for run in state.open
        ],
        "waiting": [shown_instant(nominal) for nominal in state.buffer],
        "backfills": [_backfill_view(backfill) for backfill in state.backfills],
        "spec": spec_to_json(spec),
    }


def expression_of(spec: ScheduleSpec) -> str:
    """The expression as a crontab would have it."""
    if spec.cron is not None:
        return spec.cron
    return f"@every {spec_to_json(spec)['every']}" + ("" if spec.after_ms is None else " after finish")


def upcoming(state: Schedule) -> list[tuple[int, int]]:
    """Up to ten (nominal, due) to come; none while it is paused, one where more cannot be known."""
    if state_of(state) != "active" or state.next_nominal is None:
        return []
    first = [(state.next_nominal, state.next_due or state.next_nominal)]
    left = SHOWN
    if state.spec.max_occurrences is not None:
        used = state.counts.get("fired", 0) + len(state.buffer)
        left = min(SHOWN, max(state.spec.max_occurrences - used, 1))
    timing = _timing(state.spec)
    if timing is None or state.spec.after_ms is not None or left == 1:
        return first
    more = timing.upcoming(state.next_nominal, left - 1)
    return first + [(nominal, timing.due_of(nominal)) for nominal in more]


def counters(counts: Mapping[str, int]) -> View:
    """Counters of a state, those of skips by reason. `missed` and `overlapped` are sums of some of these."""
    skipped = {
        name.removeprefix(SKIPPED): n for name, n in sorted(counts.items()) if name.startswith(SKIPPED)
    }
    return {
        **{name: counts.get(name, 0) for name in _TOTALS},
        "missed": sum(skipped.get(reason, 0) for reason in MISSED),
        "overlapped": sum(skipped.get(reason, 0) for reason in OVERLAPPED),
        "skipped": skipped,
    }


def _upcoming_view(nominal: int, due: int, zone: tzinfo) -> View:
    return {
        "nominal_at": shown_instant(nominal),
        "local": _local(nominal, zone),
        "due_at": shown_instant(due),
    }


def _recent_view(recent: Recent, zone: tzinfo) -> View:
    return {
        "nominal_at": shown_instant(recent.nominal_at),
        "local": _local(recent.nominal_at, zone),
        "kind": _KINDS.get(recent.kind, recent.kind),
        "at": shown_instant(recent.at),
        "outcome": recent.outcome,
    }


def _backfill_view(backfill: Backfill) -> View:
    return {
        "id": backfill.id,
        "from": shown_instant(backfill.from_at),
        "to": shown_instant(backfill.to_at),
        "cursor": _instant(backfill.cursor),
        "overlap": backfill.overlap,
        "rate": backfill.rate,
        "reverse": backfill.reverse,
        "fired": backfill.fired,
        "total": backfill.total,
    }


def _timing(spec: ScheduleSpec) -> Timing | None:
    """None if this version, or its zone data, does not know what the record says."""
    from pipeline.core.timing import timing_of

    try:
        return timing_of(timing_spec(spec))
    except InvalidInput:
        return None


def _words(spec: ScheduleSpec) -> str:
    timing = _timing(spec)
    return expression_of(spec) if timing is None else timing.words


def _zone(name: str) -> tzinfo:
    from pipeline.core.zones import zone_of

    try:
        return zone_of(name).info
    except InvalidInput:
        return UTC


def _local(ms: int, zone: tzinfo) -> str:
    """With the offset, so that the two passes of a repeated hour differ."""
    try:
        at: datetime = aware(ms).astimezone(zone)
    except (OverflowError, ValueError):
        return str(ms)
    return at.isoformat(timespec="seconds")


def _instant(ms: int | None) -> str | None:
    return None if ms is None else shown_instant(ms)
