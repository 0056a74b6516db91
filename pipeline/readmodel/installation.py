"""What is shown of an installation as a whole: the last hour, the queues, the fleet, the replays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from pipeline import codec
from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.backup import Hold
from pipeline.core.errors import Undecodable
from pipeline.core.job import JobStatus
from pipeline.core.keys import HOLD_KEY
from pipeline.core.keys import QUEUE as QUEUE_KEY
from pipeline.core.queues import Pause, Purge, QueueState
from pipeline.core.schedule import Schedule, state_of
from pipeline.follower.fleet import held_view, partitions_view, process_view, runs_view, schedules_view
from pipeline.follower.schedules import REMOVED
from pipeline.follower.values import readable_schedule, shown_instant
from pipeline.heartbeat import Seen
from pipeline.queues import states_of
from pipeline.readmodel.counts import Activity, merged, percentile
from pipeline.readmodel.lists import JobList
from pipeline.readmodel.questions import JobsWanted
from pipeline.readmodel.rows import CODES, META, SCHEDULE, after
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.words import HANDLER, QUEUE, Words
from pipeline.replay import Register

View = dict[str, Any]

MINUTE_MS = 60_000
HOUR_MINUTES = 60
OVERDUE_MS = 10_000
"""So long after it was due something that is to come counts as overdue."""
TO_COME = frozenset({JobStatus.PENDING, JobStatus.RETRYING})
MOST_OVERDUE = 10_000
SUMMARY_S = 3.0


# -- the last hour ------------------------------------------------------------------------------------------


def overview_of(
    sheet: Sheet, jobs: JobList, schedules: Summary, now: int, queues: frozenset[str] | None
) -> View:
    """`overview` without how fresh it is."""
    minutes = last_minutes(sheet, now)
    hour = merged(minutes.values())
    late = JobsWanted(statuses=TO_COME, due_to=now - OVERDUE_MS)
    overdue = jobs.count(late, MOST_OVERDUE).number
    first, _, _ = jobs.page(late, 1, None) if overdue else ([], None, 0)
    return {
        "at": shown_instant(now),
        "pending": pending(sheet),
        "overdue": overdue,
        "oldest_overdue": shown_instant(int.from_bytes(first[0].place[:8], "big")) if first else None,
        "lateness": {"p50_ms": percentile(hour.late, 0.5), "p99_ms": percentile(hour.late, 0.99)},
        "minutes": [_minute_view(minute, minutes[minute]) for minute in sorted(minutes)],
        "handlers": _handler_views(hour, sheet.words)
        if queues is None
        else [],  # nobody knows of which queue
        "schedules": schedules.view(now, queues),
        "held": held_view(hold_of(sheet.rows)),
    }


def pending(sheet: Sheet) -> int:
    """Jobs and retries to come."""
    return sheet.totals.shelves.total({CODES[status] for status in TO_COME})


def last_minutes(sheet: Sheet, now: int, count: int = HOUR_MINUTES) -> dict[int, Activity]:
    """The minutes before `now`, and the one that is under way."""
    newest = now // MINUTE_MS
    return {n: each for n, each in [*sheet.recent.minutes.items()] if newest - count < n <= newest}


def _minute_view(minute: int, activity: Activity) -> View:
    return {
        "at": shown_instant(minute * MINUTE_MS),
        "fired": activity.fired,
        "succeeded": activity.succeeded,
        "failed": activity.failed,
        "dead": activity.dead,
        "lateness_p50_ms": percentile(activity.late.copy(), 0.5),
        "lateness_p99_ms": percentile(activity.late.copy(), 0.99),
    }


def _handler_views(hour: Activity, words: Words) -> list[View]:
    """By name; those without a number of their own are left out."""
    found = [
        {"handler": name, "succeeded": succeeded, "failed": failed, "dead": dead}
        for number, (succeeded, failed, dead) in hour.handlers.items()
        if (name := words.word(HANDLER, number)) is not None
    ]
    return sorted(found, key=itemgetter("handler"))


def all_schedules(rows: RocksRows) -> Iterator[Schedule]:
    """Those that are there, by id."""
    for _, value in rows.scan(SCHEDULE, after(SCHEDULE)):
        state = readable_schedule(value)
        if state is not None and state.ended != REMOVED:
            yield state


class Summary:
    """How many schedules there are, paused and overdue: a page asks every second or two, and there may be many."""

    def __init__(self, rows: RocksRows) -> None:
        self._rows = rows
        self._known: tuple[float, View, Mapping[str, str]] = (0.0, {}, {})
        """When, what, and the queue of each that is overdue."""

    def view(self, now: int, queues: frozenset[str] | None = None) -> View:
        """As of a few seconds ago; overdue ones of these queues alone."""
        at, view, places = self._known
        if not view or time.monotonic() - at > SUMMARY_S:
            states = list(all_schedules(self._rows))
            paused = sum(state_of(state) == "paused" for state in states)
            view = {**schedules_view(states, now), "paused": paused}
            overdue = frozenset(view["overdue"])
            places = {state.spec.id: state.spec.queue for state in states if state.spec.id in overdue}
            self._known = time.monotonic(), view, places
        seen = [id_ for id_ in view["overdue"] if queues is None or places[id_] in queues]
        return {**view, "overdue": seen}


def hold_of(rows: RocksRows) -> Hold | None:
    """What holds the dispatch; None: nothing does, as far as this version can read."""
    value = rows.get(META + HOLD_KEY)
    with suppress(Undecodable):
        return None if value is None else codec.HOLD.decode(value)
    return None


# -- queues and processes -----------------------------------------------------------------------------------


def rates_of(sheet: Sheet, queue: str, now: int) -> View:
    """Of the last whole minute."""
    last = sheet.recent.minutes.get(now // MINUTE_MS - 1)
    number = sheet.words.known(QUEUE, queue)
    started, ended = (0, 0) if last is None or number is None else last.queues.get(number, (0, 0))
    return {"started_per_min": started, "ended_per_min": ended}


def said_of(rows: RocksRows) -> Mapping[str, QueueState]:
    """By queue, of which anything was ever said: whether it is paused, and its last purge."""
    return states_of(dict(meta_rows(rows, QUEUE_KEY)))


def pause_view(pause: Pause | None) -> View | None:
    """Who has paused a queue, when and why."""
    return None if pause is None else {"by": pause.by, "at": shown_instant(pause.at), "reason": pause.reason}


def purge_view(purge: Purge | None, left: int | None) -> View | None:
    """A queue's last purge, and how many of the runs that it means still wait for their end."""
    if purge is None:
        return None
    before = None if purge.before is None else shown_instant(purge.before)
    own = {"id": purge.id, "by": purge.by, "at": shown_instant(purge.at), "before": before}
    return {**own, "waiting": purge.waiting, "left": left}


def meta_rows(rows: RocksRows, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Records of `meta` whose keys begin so."""
    low = META + prefix
    return ((key[1:], value) for key, value in rows.scan(low, after(low)))


def fleet_of(sheet: Sheet, names: Any, layout: Any, processes: Sequence[Seen], now: int) -> View:
    """Owners, processes and runs in flight, as `dueline status` shows them."""
    era = era_of(sheet.rows)
    partitions = partitions_view(names, layout, processes)
    return {
        "at": shown_instant(now),
        "era": era,
        "partitions": [{**view, "era": era if view["owner"] else None} for view in partitions],
        "processes": [process_view(seen) for seen in processes],
        "runs": runs_view(processes, now),
    }


def era_of(rows: RocksRows) -> int:
    """The era of the installation."""
    value = rows.get(META + b"era")
    with suppress(Undecodable):
        return 1 if value is None else codec.ERA.decode(value).era
    return 1


# -- replays ------------------------------------------------------------------------------------------------


class _Stored:
    """A record of `meta` as it is kept."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return 0


class _Meta:
    """The records of `meta` that are kept, as a reader of them."""

    def __init__(self, rows: RocksRows) -> None:
        self._rows = rows

    def read(
        self, topic: str, partition: int, start: int | None = None, since_ms: int | None = None
    ) -> Iterable[_Stored]:
        return (_Stored(key, value) for key, value in meta_rows(self._rows))


def register_of(rows: RocksRows, names: Any, now: int) -> Register:
    """The replays as they are kept here; it cannot write."""
    reader: Any = _Meta(rows)
    nothing: Any = None
    return Register(topic=names.meta, reader=reader, appender=nothing, now=lambda: now)
