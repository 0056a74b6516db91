"""`ReadModel`: the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable, Undecodable
from pipeline.core.job import JobStatus
from pipeline.core.queues import QueueState
from pipeline.core.schedule import Schedule, state_of
from pipeline.follower import Follower, WantedLetters, WantedSchedules
from pipeline.follower.fleet import queue_view
from pipeline.follower.schedules import REMOVED, expected, listed_view, schedule_view
from pipeline.follower.values import readable_schedule, shown_instant
from pipeline.ports import Reader
from pipeline.readmodel import audit, letters, made_of
from pipeline.readmodel import tale as tales
from pipeline.readmodel.body import unpack
from pipeline.readmodel.counts import figures_of
from pipeline.readmodel.finding import find
from pipeline.readmodel.following import Following
from pipeline.readmodel.forgetting import Retention
from pipeline.readmodel.groups import Groups
from pipeline.readmodel.installation import (
    Summary,
    fleet_of,
    overview_of,
    pause_view,
    purge_view,
    rates_of,
    register_of,
    said_of,
)
from pipeline.readmodel.lists import Cursor, JobList, asked, check, page_of, queues_asked
from pipeline.readmodel.open_runs import oldest, waiting
from pipeline.readmodel.questions import (
    LIST_LIMIT,
    AuditWanted,
    Count,
    Freshness,
    JobsWanted,
    Made,
    Page,
    Position,
    View,
    etag_of,
)
from pipeline.readmodel.replayed import outcomes_of
from pipeline.readmodel.rows import (
    BASE,
    EVENT,
    HOUR,
    JOB,
    LETTER,
    MINUTE,
    OCCURRENCE,
    PAYLOAD,
    SCHEDULE,
    STATUSES,
    after,
)
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.source import Connect, Source
from pipeline.readmodel.tale import Tale
from pipeline.readmodel.views import listed, run_of, whole
from pipeline.replay import Register
from pipeline.replay.shown import view_of

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
RECENT = 20
"""Runs that are shown of a schedule."""
UPCOMING = 3
MOST_BUCKETS = 10_000
MOST_EVENTS = 1_000


class ReadModel:
    """`Questions`. Any thread may ask."""

    def __init__(self, path: Path, connect: Connect, retention: Retention | None = None) -> None:
        """In the directory `path`, which is its own. Refused if another process has it open. Begins to follow at
        once; the store need not be there."""
        self._rows = RocksRows(path)
        self._following = Following(self._rows, connect, retention or Retention())
        self._groups = Groups(self._following)
        self._summary = Summary(self._rows)
        self._following.start()
        self._groups.start()

    def close(self) -> None:
        self._groups.close()
        self._following.close()
        self._rows.close()

    def freshness(self) -> Freshness:
        return self._following.freshness()

    def wait_for(self, position: Position, timeout_ms: int) -> bool:
        return self._following.wait_for(position, timeout_ms)

    def awaited(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        return self._following.awaited(wake)

    def give_way(self) -> None:
        self._following.way.give()

    def footprint(self) -> int:
        """Bytes on disk and in memory, roughly."""
        return self._rows.size()

    @property
    def _sheet(self) -> Sheet:
        return self._following.sheet

    def _source(self) -> Source:
        source = self._following.source
        if source is None:
            raise StoreUnreachable(self._following.freshness().problem or "the store is not reached")
        return source

    @contextmanager
    def _reading(self, source: Source) -> Iterator[Reader]:
        """The reader, which serves one thread at a time. StoreUnreachable if the store was lost meanwhile."""
        with source.reading:
            if self._following.source is not source:
                raise StoreUnreachable("the store was lost a moment ago: ask again")
            yield source.reader

    # -- jobs -------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> View:
        tale = self._tale(job_id)
        return whole(job_id, tale, self._payload(tale))

    def _tale(self, job_id: str) -> Tale:
        folding = self._following.folding
        return find(self._rows, self._sheet.words, None if folding is None else folding.layout, job_id)

    def _payload(self, tale: Tale) -> bytes | None:
        """None: it is kept nowhere any more, or the store does not answer."""
        kept = self._rows.get(PAYLOAD + tale.id.encode())
        if kept is not None:
            return kept
        source = self._following.source
        if source is None:
            return None
        try:
            return self._read_payload(tale, source)
        except (StoreUnreachable, NotFound, Undecodable):
            return None

    def _read_payload(self, tale: Tale, source: Source) -> bytes | None:
        names = source.names
        if tale.home_offset >= 0:
            place = names.jobs, source.layout.home(tale.id), tale.home_offset
        elif tale.sent:
            place = names.work(tale.queue), tale.partition, tale.sent[max(tale.sent)].offset
        else:
            return self._payload_to_come(tale)
        with self._reading(source) as reader:
            records = reader.tail(*place, 1)
            reader.leave(*place[:2])
        for record in records:
            if record.offset() == place[2]:
                run = made_of.run_in(record)
                if run is not None and run.occurrence_id == tale.id:
                    return run.payload
        return None

    def _payload_to_come(self, tale: Tale) -> bytes | None:
        """Of an occurrence that has not fired: what its schedule says."""
        schedule = tales.schedule_of(tale.id)
        state = None if schedule is None else readable_schedule(self._rows.get(SCHEDULE + schedule.encode()))
        return state.spec.payload if state is not None and tale.trail.live else None

    def runs_of(self, job_ids: Iterable[str]) -> Iterator[Made]:
        source, wanted = self._source(), list[made_of.Wanted]()
        for id_ in job_ids:
            try:
                wanted.append(made_of.wanted(id_, self._tale(id_), source.names, source.layout))
            except NotFound:
                continue
        yield from (Made(each.id, None, each.highest) for each in wanted if not each.places)
        placed = (each for each in wanted if each.places)
        yield from made_of.read_runs(placed, partial(self._reading, source))

    def why(self, job_id: str) -> View:
        source = self._source()
        with self._reading(source) as reader:
            follower = Follower(reader=reader, names=source.names, layout=source.layout)
            reason = follower.why(job_id, source.clock.now())
        status = None if reason.status is None else str(reason.status)
        return {"id": job_id, "status": status, "waits_for": reason.waits_for, "sentence": reason.sentence}

    def jobs(self, wanted: JobsWanted, *, limit: int = 50, cursor: str | None = None) -> Page:
        check(wanted, limit, LIST_LIMIT)
        cursors = self._cursor("cursor", asked(wanted))
        found, place, scanned = self._list().page(wanted, limit, cursors.read(cursor))
        rows = [listed(self._shown_id(each.id), each.tale) for each in found]
        return Page(rows=rows, cursor=None if place is None else cursors.written(place), scanned=scanned)

    def _cursor(self, field: str, what: object) -> Cursor:
        return Cursor(field, what, self._following.secret)

    def _list(self) -> JobList:
        sheet = self._sheet
        return JobList(self._rows, sheet.words, sheet.totals.shelves)

    def _shown_id(self, occurrence: str) -> str:
        """The id that people know: of the last incarnation of a keyed job the one without it."""
        if not occurrence.startswith("k"):
            return occurrence
        base, _, incarnation = occurrence.partition(".")
        value = self._rows.get(BASE + base.encode())
        return base if value is not None and str(json.loads(value)[1]) == incarnation else occurrence

    def count(self, wanted: JobsWanted, *, at_most: int = 10_000) -> Count:
        check(wanted, 1, 1)
        return self._list().count(wanted, at_most)

    # -- schedules --------------------------------------------------------------------------------------------

    def schedules(self, wanted: WantedSchedules, *, limit: int = 50, cursor: str | None = None) -> Page:
        _check_limit(limit)
        by = wanted.text, wanted.state, wanted.source, wanted.handler, queues_asked(wanted.queues)
        cursors = self._cursor("cursor", ["schedules", *by])
        start = cursors.read(cursor, SCHEDULE)
        low = SCHEDULE if start is None else start + b"\0"
        rows = ((key, readable_schedule(value)) for key, value in self._rows.scan(low, after(SCHEDULE)))
        now = self._following.now()
        found, place, scanned = page_of(
            rows, limit, lambda state: state is not None and wanted.matches(state, now)
        )
        views = [self._listed_schedule(state, now) for state in found]
        return Page(rows=views, cursor=None if place is None else cursors.written(place), scanned=scanned)

    def _listed_schedule(self, state: Schedule, now: int) -> View:
        following = [shown_instant(nominal) for nominal in expected(state, now)[:UPCOMING]]
        return {**listed_view(state, now), "upcoming": following, "recent": self._recent(state.spec.id)}

    def schedule(self, schedule_id: str) -> View:
        state = readable_schedule(self._rows.get(SCHEDULE + schedule_id.encode("utf-8", "surrogatepass")))
        if state is None or state.ended == REMOVED:
            raise NotFound(f"{schedule_id}: there is no schedule of this id")
        etag = etag_of(str(state.incarnation), str(state.revision), state_of(state))
        view = schedule_view(state, self._following.now())
        return {**view, "recent": self._recent(schedule_id), "etag": etag}

    def _recent(self, schedule_id: str) -> list[View]:
        """Its last runs, the latest first."""
        prefix = OCCURRENCE + schedule_id.encode() + b"\0"
        found: list[View] = []
        for key, _ in self._rows.scan_back(prefix, after(prefix)):
            id_ = key[len(prefix) + 8 :]
            row = self._rows.get(JOB + id_)
            tale = None if row is None else unpack(id_.decode(), row, self._sheet.words)
            if tale is not None and _has_run(tale):
                found.append(run_of(tale, id_.decode()))
            if len(found) == RECENT:
                break
        return found

    # -- what ended badly, times, places ----------------------------------------------------------------------

    def letters(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        _check_limit(limit)
        cursors = self._cursor("cursor", ["letters", letters.asked(wanted)])
        rows = letters.stored(self._rows, wanted, cursors.read(cursor, LETTER))
        found, place, scanned = page_of(rows, limit, lambda view: view is not None)
        return Page(rows=found, cursor=None if place is None else cursors.written(place), scanned=scanned)

    def letter_groups(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        _check_limit(limit)
        cursors = self._cursor("cursor", ["letter groups", letters.asked(wanted)])
        rows = letters.stored(self._rows, wanted, cursors.read(cursor, LETTER))
        found, place, scanned = letters.grouped(rows, limit)
        return Page(rows=found, cursor=None if place is None else cursors.written(place), scanned=scanned)

    def buckets(self, since: int, until: int, width_ms: int) -> Sequence[View]:
        if width_ms < MINUTE_MS or width_ms % MINUTE_MS:
            raise InvalidInput("width", "must be whole minutes")
        if not 0 <= since < until or (until - since) // width_ms > MOST_BUCKETS:
            raise InvalidInput("since", f"must be before until, by {MOST_BUCKETS} buckets at most")
        since -= since % MINUTE_MS  # they are counted by minute
        hourly = width_ms % HOUR_MS == 0 and since % HOUR_MS == 0
        step, kind = (HOUR_MS, HOUR) if hourly else (MINUTE_MS, MINUTE)
        low, high = (
            kind + (at // step).to_bytes(4, "big")
            for at in (since, min(until + step - 1, (1 << 32) * step - 1))
        )
        sums: dict[int, list[int]] = {}
        for key, value in self._rows.scan(low, high):
            at = int.from_bytes(key[1:], "big") * step
            bucket = sums.setdefault((at - since) // width_ms, [0] * (len(STATUSES) + 1))
            for n, figure in enumerate(figures_of(value)):
                bucket[n] += figure
        return [_bucket_view(since + n * width_ms, width_ms, figures) for n, figures in sorted(sums.items())]

    def overview(self, queues: frozenset[str] | None = None) -> View:
        now = self._following.now()
        freshness = self.freshness()._asdict()
        return {**overview_of(self._sheet, self._list(), self._summary, now, queues), "freshness": freshness}

    def queues(self) -> Sequence[View]:
        following, now = self._following, self._following.now()
        processes, said = following.processes.alive(now), said_of(self._rows)
        return [
            {
                **queue_view(queue, processes, *self._backlog(queue, partitions)),
                **rates_of(self._sheet, queue, now),
                **self._held(said.get(queue)),
            }
            for queue, partitions in sorted(following.layout().queues.items())
        ]

    def _backlog(self, queue: str, partitions: int) -> tuple[int, int | None]:
        """Runs that wait, and since when the oldest is there that has not ended."""
        below = partial(self._groups.below, queue)
        return waiting(self._sheet, queue), oldest(self._sheet, queue, partitions, below)

    def _held(self, said: QueueState | None) -> View:
        pause, purge = (None, None) if said is None else (said.pause, said.purge)
        left = None if purge is None else self._groups.left(purge)
        return {"paused": pause_view(pause), "purge": purge_view(purge, left)}

    def fleet(self) -> View:
        following, now = self._following, self._following.now()
        processes = following.processes.alive(now)
        return fleet_of(self._sheet, following.names(), following.layout(), processes, now)

    def replays(self) -> Sequence[View]:
        """The latest first."""
        register = self._register()
        every = sorted(register.all(), key=lambda replay: replay.created_at, reverse=True)
        return [view_of(replay, register.standing(replay)) for replay in every]

    def replay(self, replay_id: str) -> View:
        register = self._register()
        replay = register.get(replay_id)
        view = view_of(replay, register.standing(replay))
        return {**view, "outcomes": outcomes_of(self._rows, replay_id)}

    def _register(self) -> Register:
        return register_of(self._rows, self._following.names(), self._following.now())

    def events(self, after: str | None = None, limit: int = 500) -> Page:
        limit = min(max(limit, 1), MOST_EVENTS)
        cursors = self._cursor("after", ["events", self._following.nonce])
        start = cursors.read(after)
        first, following = self._sheet.totals.events
        if start is None:
            number = max(first, following - limit)
        elif len(start) != 8:
            raise InvalidInput("after", "is none that a page of ours came with")
        else:
            number = int.from_bytes(start, "big") + 1
        low, high = (EVENT + n.to_bytes(8, "big") for n in (number, min(number + limit, following)))
        rows, last = [], None if start is None else start
        for key, value in self._rows.scan(low, max(low, high)):
            last = key[1:]
            rows.append({"id": cursors.written(last), **json.loads(value)})
        return Page(rows=rows, cursor=None if last is None else cursors.written(last), scanned=len(rows))

    def audit(self, wanted: AuditWanted, limit: int = 50, cursor: str | None = None) -> Page:
        _check_limit(limit)
        cursors = self._cursor(
            "cursor", ["audit", self._following.nonce, wanted.job, wanted.schedule, wanted.by]
        )
        before = cursors.read(cursor)
        first, following = self._sheet.totals.events
        span = first, following if before is None else min(following, int.from_bytes(before, "big"))
        views, on, scanned = audit.found(self._rows, span, wanted, limit)
        following_cursor = None if on is None else cursors.written(on.to_bytes(8, "big"))
        return Page(rows=views, cursor=following_cursor, scanned=scanned)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= LIST_LIMIT:
        raise InvalidInput("limit", f"{limit} is not within 1 to {LIST_LIMIT}")


def _has_run(tale: Tale) -> bool:
    """Whether it is a run of its schedule, or one that it left out; not one that went with a change of the schedule."""
    to_come = tale.status() is JobStatus.PENDING
    return tale.known and not to_come and (bool(tale.sent) or tale.trail.end != "cancelled")


def _bucket_view(begin: int, width_ms: int, figures: list[int]) -> View:
    counts = {str(status): figures[n] for n, status in enumerate(STATUSES) if figures[n]}
    return {
        "from": shown_instant(begin),
        "to": shown_instant(begin + width_ms),
        "counts": counts,
        "late": figures[-1],
    }
