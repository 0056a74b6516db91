"""One step of a schedule, under way: what is due of its grid and of its backfills, and what follows.

grid ──due──▶ misfire: too many missed? ──kept──▶ overlap: one still open? ──▶ fire | wait in the buffer | skip
                                └─▶ skip
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.core.ids import Kind, schedule_occurrence
from pipeline.core.schedule import (
    RECENT,
    Backfill,
    OpenRun,
    Recent,
    Schedule,
    ScheduleSpec,
    policy,
    timing_spec,
)
from pipeline.core.timing import Timing, timing_of
from pipeline.core.zones import zone_data_version

SLICE = 100
"""Occurrences that one step emits at most."""
OPEN_LIMIT = 1_000
"""Open runs that are noted at most; triggers may come as fast as somebody types."""
PAUSED, REMOVED, MAXIMUM, END = "paused", "removed", "max_occurrences", "end"
"""Reasons of a skip, and how a series ends."""
MISFIRE, CATCH_UP, OVERLAP, BUFFER_FULL = "misfire", "catch_up", "overlap", "buffer_full"
EDITED, CANCELLED, DELETED = "edited", "cancelled", "deleted"
"""Reasons of a skip: missed and not caught up; missed for longer than the catch-up window; an earlier one still open;
more wait already than may; the schedule was changed between an instant and its jitter; somebody cancelled it while it
waited; the schedule was deleted before it fired (removed, if its app did that)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One to emit now. `due_at` is when it was to be, after jitter; now, for what waited or is not of the grid."""

    id: str
    kind: Kind
    nominal_at: int
    due_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """`count` instants in a row that will not fire, from `first` to `last`."""

    reason: str
    count: int
    first: int
    last: int
    kind: Kind = "g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What becomes of a schedule: its next state, what to emit, what was skipped, which open runs to stop, and the
    backfills that have come to their end."""

    state: Schedule
    fire: tuple[Occurrence, ...] = ()
    skipped: tuple[Skip, ...] = ()
    stop: tuple[OpenRun, ...] = ()
    finished: tuple[Backfill, ...] = ()


def timing(state: Schedule) -> Timing:
    """When the schedule is meant to run."""
    return timing_of(timing_spec(state.spec))


def grid_open(open_: Sequence[OpenRun]) -> list[OpenRun]:
    """Those that the grid's overlap policy looks at: what is made up of the past has a policy of its own."""
    return [each for each in open_ if ":b:" not in each.occurrence_id]


def open_of(open_: Sequence[OpenRun], backfill: str) -> bool:
    return any(f":b:{backfill}:" in each.occurrence_id for each in open_)


def tracks(spec: ScheduleSpec) -> bool:
    """Whether open runs are noted: with overlap allow nobody asks for them."""
    return spec.overlap != "allow" or spec.after_ms is not None


class Work:
    """One step of a schedule, under way."""

    def __init__(self, state: Schedule, now: int, room: int) -> None:
        self.was, self.spec, self.now, self.room = state, state.spec, now, room
        self.timing = timing(state)
        self.last_nominal, self.kept_until = state.last_nominal, state.kept_until
        self.note, self.note_at, self.ended = state.paused, state.paused_at, state.ended
        self.next_nominal, self.next_due = state.next_nominal, state.next_due
        self.open, self.buffer = list(state.open), list(state.buffer)
        self.backfills, self.recent = list(state.backfills), list(state.recent)
        self.counts = dict(state.counts)
        self.failures, self.success_at = state.failures_in_row, state.last_success_at
        self.fired: list[Occurrence] = []
        self.skipped: list[Skip] = []
        self.stops: list[OpenRun] = []
        self.finished: list[Backfill] = []
        self.ahead: tuple[int, int | None] = 0, None

    def state(self, changed: bool = False) -> Schedule:
        was = self.was
        return Schedule(
            incarnation=was.incarnation,
            revision=was.revision + changed,
            spec=self.spec,
            created_at=was.created_at,
            changed_at=self.now if changed else was.changed_at,
            last_nominal=self.last_nominal,
            paused=self.note,
            paused_at=self.note_at,
            ended=self.ended,
            next_nominal=self.next_nominal,
            next_due=self.next_due,
            kept_until=self.kept_until,
            open=tuple(self.open),
            buffer=tuple(self.buffer),
            backfills=tuple(self.backfills),
            recent=tuple(self.recent),
            counts=self.counts,
            failures_in_row=self.failures,
            last_success_at=self.success_at,
            zone_data=zone_data_version(),
        )

    def step(self, changed: bool = False) -> Step:
        return Step(
            state=self.state(changed),
            fire=tuple(self.fired),
            skipped=tuple(self.skipped),
            stop=tuple(self.stops),
            finished=tuple(self.finished),
        )

    # -- deciding what is due -------------------------------------------------------------------------------

    def advance(self) -> None:
        if self.ended == REMOVED:
            return
        if self.was.zone_data != zone_data_version() and self.spec.after_ms is None and not self.ended:
            self._plan()  # a rule of its zone may have changed: instants to come move, those decided do not
        if self.open:
            self._time_out()
        if self.buffer:
            self._drain()
        self._misfire()
        if self.kept_until is not None:
            self._fire_kept()
        for backfill in self.was.backfills:
            self._make_up(backfill)

    def _time_out(self) -> None:
        """An open run older than the time-out counts as ended, whatever became of its worker."""
        limit = self.now - self.spec.overlap_timeout_ms
        over = [each for each in self.open if each.emitted_at <= limit]
        if over:
            self.open = [each for each in self.open if each.emitted_at > limit]
            if any(":g:" in each.occurrence_id for each in over):
                self._follow()

    def _drain(self) -> None:
        """Emit what waits: all of it, or one if they run one after the other."""
        if self.note is not None:
            return
        allow = self._overlap()[0] == "allow"
        while self.buffer and self.room > 0 and (allow or not grid_open(self.open)):
            self.fire(self.buffer.pop(0), self.now)

    def _overlap(self) -> tuple[str, int]:
        return policy("overlap", self.spec.overlap)

    def _misfire(self) -> None:
        """Which of the instants that are due by now are kept, and which are skipped."""
        due, nominal = self.next_due, self.next_nominal
        if due is None or nominal is None or due > self.now or self.note is not None or self.ended:
            return
        if self.kept_until is not None and nominal <= self.kept_until:
            return  # what the last step kept is not all emitted yet
        following = None if self.spec.after_ms is not None else self._look_ahead(nominal)
        fresh = self.now - due < self.spec.misfire_threshold_ms
        if fresh and (following is None or self.timing.due_of(following) > self.now):
            self.kept_until = nominal
        elif self.spec.after_ms is not None:
            self._misfire_one(nominal)
        else:
            self._misfire_many()

    def _look_ahead(self, nominal: int) -> int | None:
        """The instant after `nominal`, remembered for `_plan`."""
        following = self.timing.next_after(nominal)
        self.ahead = nominal, following
        return following

    def _misfire_one(self, nominal: int) -> None:
        """Of a series that has one instant at a time; if that is skipped the next is so long after now."""
        reason = self._lost(nominal)
        if reason is None:
            self.kept_until = nominal
        else:
            self.last_nominal, self.next_nominal, self.next_due = nominal, None, None
            self.skip(reason, 1, nominal, nominal)
            self._follow()

    def _lost(self, nominal: int) -> str | None:
        window = self.spec.catch_up_ms
        if window is not None and self.now - nominal > window:
            return CATCH_UP
        return MISFIRE if policy("misfire", self.spec.misfire)[0] == "none" else None

    def _misfire_many(self) -> None:
        after, until = self.last_nominal, self._due_until()
        fresh_after = max(after, self._fresh_after(after, until))
        name, number = policy("misfire", self.spec.misfire)
        wanted = {"latest": 1, "none": 0}.get(name, number)
        kept_after = fresh_after
        window_after = after
        if self.spec.catch_up_ms is not None:
            window_after = min(fresh_after, max(after, self.now - self.spec.catch_up_ms - 1))
        if wanted:
            newest = self.timing.latest(window_after, until, wanted)
            if newest:
                kept_after = min(fresh_after, newest[0] - 1)
        self.skip_range(CATCH_UP, after, min(window_after, kept_after))
        self.skip_range(MISFIRE, min(window_after, kept_after), kept_after)
        self.last_nominal = max(after, kept_after)
        self.kept_until = until
        self._plan()

    def _due_until(self) -> int:
        """Up to here instants are due, after jitter: all but perhaps the newest of those before now."""
        newest = self.timing.latest(self.last_nominal, self.now, 1)
        if newest and self.timing.due_of(newest[0]) > self.now:
            return newest[0] - 1
        return self.now

    def _fresh_after(self, after: int, until: int) -> int:
        """Instants after this are late for less than the threshold, and always fire."""
        limit = self.now - self.spec.misfire_threshold_ms
        before = self.timing.latest(after, min(limit, until), 1)
        if before and self.timing.due_of(before[0]) > limit:
            return before[0] - 1
        return min(limit, until)

    def _fire_kept(self) -> None:
        """What the misfire rule kept, one after the other through the overlap rule, as far as there is room."""
        kept_until, nominal = self.kept_until, self.next_nominal
        while nominal is not None and kept_until is not None and nominal <= kept_until:
            if self.room <= 0:
                return
            self.last_nominal, self.next_nominal, self.next_due = nominal, None, None
            self._admit(nominal)
            if self.spec.after_ms is None:
                self._plan()
            nominal = self.next_nominal
        self.kept_until = None
        self.plan_rest()

    def _admit(self, nominal: int) -> None:
        name, most = self._overlap()
        open_ = grid_open(self.open) if self.open else []
        if name == "allow" or not (open_ or self.buffer):
            self.fire(nominal, self.timing.due_of(nominal))
        elif name == "skip":
            self.skip(OVERLAP, 1, nominal, nominal)
        elif name == "buffer_all" and len(self.buffer) >= most:
            self.skip(BUFFER_FULL, 1, nominal, nominal)
        else:
            if name != "buffer_all":
                self._empty_buffer(OVERLAP)
            if name == "cancel_other":
                self.stops = open_
            self.buffer.append(nominal)

    def _make_up(self, backfill: Backfill) -> None:
        """The next of a backfill, in its direction, as its rate and its own overlap policy let them."""
        place = self.backfills.index(backfill)
        while self.room > 0 and backfill.next_at <= self.now:
            waits = backfill.overlap != "allow" and open_of(self.open, backfill.id)
            if waits and backfill.overlap == "buffer_all":
                break
            nominal = self._next_of(backfill)
            if nominal is None:
                del self.backfills[place]
                self.finished.append(backfill)
                return
            fired = 0 if waits else 1
            if waits:
                self.room -= 1
                self.skip(OVERLAP, 1, nominal, nominal, "b")
            else:
                self.fire(nominal, self.now, "b", backfill.id, track=backfill.overlap != "allow")
            backfill = replace(
                backfill, cursor=nominal, fired=backfill.fired + fired, next_at=self._paced(backfill)
            )
        self.backfills[place] = backfill

    def _next_of(self, backfill: Backfill) -> int | None:
        """The next instant of the range in its direction; None: there is none left."""
        if backfill.reverse:
            before = backfill.to_at - 1 if backfill.cursor is None else backfill.cursor - 1
            found = self.timing.latest(backfill.from_at - 1, before, 1)
            return found[0] if found else None
        after = backfill.from_at - 1 if backfill.cursor is None else backfill.cursor
        nominal = self.timing.next_after(after)
        return None if nominal is None or nominal >= backfill.to_at else nominal

    def _paced(self, backfill: Backfill) -> int:
        if backfill.rate is None:
            return backfill.next_at
        return max(backfill.next_at, self.now - 1_000) + 60_000 // backfill.rate

    # -- single changes -------------------------------------------------------------------------------------

    def fire(
        self, nominal: int, due: int, kind: Kind = "g", manual_id: str = "", track: bool | None = None
    ) -> None:
        """Emit one; note it as open where a policy will look at it."""
        id_ = schedule_occurrence(self.spec.id, self.was.incarnation, kind, manual_id, nominal)
        self.fired.append(Occurrence(id=id_, kind=kind, nominal_at=nominal, due_at=due))
        self.room -= 1
        if track or (track is None and tracks(self.spec)):
            run = OpenRun(occurrence_id=id_, nominal_at=nominal, emitted_at=self.now, place="")
            self.open = [*self.open, run][-OPEN_LIMIT:]
        self._count({"g": "fired", "t": "triggered", "b": "backfilled"}[kind])
        self._remember(nominal, kind, "fired")
        if kind == "g" and self.counts["fired"] >= (self.spec.max_occurrences or 1 << 62):
            self._end(MAXIMUM)

    def _end(self, reason: str) -> None:
        self.ended, self.next_nominal, self.next_due, self.kept_until = reason, None, None, None
        self._empty_buffer(reason)

    def _empty_buffer(self, reason: str) -> None:
        for nominal in self.buffer:
            self.skip(reason, 1, nominal, nominal)
        self.buffer = []

    def skip(self, reason: str, count: int, first: int, last: int, kind: Kind = "g") -> None:
        before = self.skipped[-1] if self.skipped else None
        if before is not None and (before.reason, before.kind) == (reason, kind):
            self.skipped[-1] = replace(
                before,
                count=before.count + count,
                first=min(first, before.first),
                last=max(last, before.last),
            )
        else:
            self.skipped.append(Skip(reason=reason, count=count, first=first, last=last, kind=kind))
        self._count(f"skipped.{reason}", count)
        self._remember(last, kind, f"skipped.{reason}")

    def skip_range(self, reason: str, after: int, until: int) -> None:
        """Skip the instants in (after, until]."""
        if self.spec.after_ms is None and until > after and (count := self.timing.count(after, until)):
            first = self.timing.next_after(after)
            assert first is not None
            self.skip(reason, count, first, self.timing.latest(after, until, 1)[0])

    def _count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def _remember(self, nominal: int, kind: str, outcome: str) -> None:
        self.recent.insert(0, Recent(nominal_at=nominal, kind=kind, at=self.now, outcome=outcome))
        del self.recent[RECENT:]

    def closed(self, occurrence_id: str, kind: str, nominal_at: int, outcome: str) -> None:
        self.open = [each for each in self.open if each.occurrence_id != occurrence_id]
        self._count(outcome)
        for place, each in enumerate(self.recent):
            if (each.nominal_at, each.kind) == (nominal_at, kind):
                self.recent[place] = replace(each, at=self.now, outcome=outcome)
                break
        if outcome == "succeeded":
            self.failures = 0
            self.success_at = max(nominal_at, self.success_at or nominal_at)
        elif outcome == "dead":
            self.failures += 1
        if kind == "g":
            self._follow()
        limit = self.spec.pause_after
        if outcome == "dead" and limit is not None and self.failures >= limit and self.note is None:
            self.pause(f"{self.failures} dead in a row")

    def pause(self, note: str) -> None:
        self._empty_buffer(PAUSED)
        self.note, self.note_at = note, self.note_at or self.now
        self.plan_rest()

    def respecify(self, spec: ScheduleSpec) -> None:
        before, self.spec = self.spec, spec
        self.timing, self.ahead = timing_of(timing_spec(spec)), (0, None)
        if not tracks(self.spec):
            self.open = [each for each in self.open if ":b:" in each.occurrence_id]
        if self.counts.get("fired", 0) >= (spec.max_occurrences or 1 << 62):
            self._end(MAXIMUM)
            return
        if self.ended:  # it goes on, but not with what was meant while it had ended
            self.ended, self.last_nominal = "", max(self.last_nominal, self.now)
            self.plan_anew()
        elif spec.after_ms is None or spec.after_ms != before.after_ms:
            self.plan_anew()

    # -- what comes next ------------------------------------------------------------------------------------

    def move_on(self, reason: str) -> None:
        """The grid goes on after now. What is left of it before is skipped; what was kept and is not emitted yet waits
        in the buffer."""
        if self.kept_until is not None:
            self.buffer += self.timing.latest(self.last_nominal, self.kept_until, OPEN_LIMIT)
            self.last_nominal, self.kept_until = max(self.last_nominal, self.kept_until), None
        if not self.ended:
            self.skip_range(reason, self.last_nominal, self.now)
        self.last_nominal = max(self.last_nominal, self.now)

    def give_up(self, reason: str) -> None:
        """What waits, or has come due by now, does not fire."""
        if self.spec.after_ms is not None and self.next_nominal is not None and self.next_nominal <= self.now:
            self.skip(reason, 1, self.next_nominal, self.next_nominal)
        self.move_on(reason if self.note is None else PAUSED)
        self._empty_buffer(reason)

    def plan_anew(self) -> None:
        """The next instant after all that is decided, where something has changed what that is."""
        if self.spec.after_ms is None:
            self._plan()
        else:
            self.next_nominal = self.next_due = None
            self._follow()

    def plan_rest(self) -> None:
        """Once all that was kept is emitted: nothing follows while it is paused, and what follows an end may."""
        if self.note is not None and self.kept_until is None:
            self.next_nominal = self.next_due = None
        elif self.spec.after_ms is not None:
            self._follow()

    def _plan(self) -> None:
        self.next_nominal = self.next_due = None
        if self.ended or (self.note is not None and self.kept_until is None):
            return
        known = self.ahead[1] is not None and self.ahead[0] == self.last_nominal
        nominal = self.ahead[1] if known else self.timing.next_after(self.last_nominal)
        if nominal is None:
            self.ended = END
        else:
            self.next_nominal, self.next_due = nominal, self.timing.due_of(nominal)

    def _follow(self) -> None:
        """The next of a series that counts from the end of an occurrence, once none is left that will end."""
        spec = self.spec
        busy = (
            self.next_nominal is not None
            or self.buffer
            or any(":g:" in each.occurrence_id for each in self.open)
        )
        if spec.after_ms is None or self.ended or self.note is not None or busy:
            return
        nominal = max(self.now + spec.after_ms, spec.start_at or 0, self.last_nominal + 1)
        if spec.end_at is not None and nominal >= spec.end_at:
            self._end(END)
        else:
            self.next_nominal, self.next_due = nominal, self.timing.due_of(nominal)
