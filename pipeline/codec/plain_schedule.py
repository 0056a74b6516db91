"""The plainest of schedules, changed as bytes (DESIGN §5.9).

Nearly all that an owner does with a schedule is to fire its one due instant, or to hear that an occurrence succeeded,
while nothing of it waits, is paused or being made up. Of its record some numbers change then, and the run repeats
what stands in it; so the rest is copied and never decoded. Anything else is None here: `core.series` decides it on
the decoded state, as it would these (a test plays both and compares).
"""

from __future__ import annotations

import re

from pipeline.codec import run_wire
from pipeline.codec.registry import FRAME
from pipeline.codec.schedule_wire import FRAME as CURRENT
from pipeline.codec.schedule_wire import places, read_openrun, read_schedulespec, write, write_openrun
from pipeline.codec.wire import NULL, SOME, read_instant, read_long, read_string, write_long, write_string
from pipeline.core.schedule import RECENT, OpenRun, Schedule
from pipeline.core.spec import ScheduleSpec

LONGEST = 50
"""Counters at most, and twice the letters of their names: what is less takes one byte to write."""
_ITEM = rb"[\x80-\xff]+[\x00-\x7f]\x02[gtb][\x80-\xff]+[\x00-\x7f][\x00-\x7f][a-z_.]+"
"""A `Recent`: two instants with its kind between them, and its outcome."""
_recent = re.compile(_ITEM).match
_recents = re.compile(rb"((?:%b){0,%d})(?:%b)?\x00" % (_ITEM, RECENT - 1, _ITEM)).match
"""All of them; the group is those that stay when another one comes."""
_FIRED, _SUCCEEDED = write_string("fired"), write_string("succeeded")
_GRID = write_string("g")
_ONE = b"\x02"
"""The number 1; also an array of one."""
_TO_COME = NULL * 3 + SOME
"""It is not paused, not since ever, and has not ended; there is a next instant."""
_NONE_WAIT = NULL * 2
"""No buffer, no backfills."""


class PlainSchedule:
    """Such a schedule; made by `peek_schedule`. `open` = the one occurrence that is open, None if there is none."""

    __slots__ = (
        "_at", "_counts", "_failures_at", "_kept_to", "_open_at", "_recent_at", "_recent_to", "_success_at", "_value",
        "_zone_at", "next_due", "next_nominal", "open",
    )  # fmt: skip

    def __init__(self, value: bytes) -> None:
        """ValueError if it is none."""
        self._value, self.open = value, None
        self._at = at = places(value, FRAME)
        _expect(value, at.paused, _TO_COME)
        self.next_nominal, pos = read_instant(value, at.paused + len(_TO_COME))
        _expect(value, pos, SOME)
        self.next_due, pos = read_instant(value, pos + 1)
        _expect(value, pos, NULL)  # nothing that was missed is left to fire
        self._open_at = pos = pos + 1
        if value[pos]:
            _expect(value, pos, _ONE)
            self.open, pos = read_openrun(value, pos + 1)
        pos += 1
        _expect(value, pos, _NONE_WAIT)
        self._read_past(pos + 2)

    def _read_past(self, pos: int) -> None:
        """Where what has become of earlier occurrences stands."""
        value, self._recent_at = self._value, pos
        self._kept_to = pos = pos + 1
        if value[pos - 1]:
            found = _recents(value, pos)
            if found is None:
                raise ValueError("recent occurrences of another form")
            self._kept_to, pos = found.end(1), found.end()
        self._recent_to = pos
        self._counts: dict[bytes, int] = {}
        count, pos = read_long(value, pos)
        for _ in range(count):
            end = pos + 1 + (value[pos] >> 1)
            if value[pos] > LONGEST or len(self._counts) > LONGEST:
                raise ValueError("counters that no owner has")
            self._counts[value[pos:end]], pos = read_long(value, end)
        self._failures_at = pos = pos + (count > 0)
        self._success_at = pos = read_long(value, pos)[1]
        self._zone_at = read_long(value, pos + 1)[1] if value[pos] else pos + 1

    @property
    def id(self) -> str:
        return read_string(self._value, self._at.id)[0]

    @property
    def incarnation(self) -> int:
        return read_long(self._value, FRAME)[0]

    @property
    def handler(self) -> str:
        return read_string(self._value, self._at.handler)[0]

    @property
    def queue(self) -> str:
        return read_string(self._value, self._at.queue)[0]

    @property
    def serial(self) -> str | None:
        at = self._at.serial
        return read_string(self._value, at + 1)[0] if self._value[at] else None

    @property
    def zone_data(self) -> str:
        return read_string(self._value, self._zone_at)[0]

    @property
    def rules(self) -> bytes:
        """When it runs and by which policies, for `read_rules`: alike for all schedules that are alike in that."""
        return self._value[self._at.cron : self._at.overlap_timeout_ms]

    def run(self, occurrence: str, created_at: int) -> bytes:
        """Run 1 of its next instant, encoded."""
        value, at = self._value, self._at
        id_, nominal = write_string(occurrence), write_long(self.next_nominal, "nominal_at")
        due = nominal if self.next_due == self.next_nominal else write_long(self.next_due, "due_at")
        return b"".join((
            run_wire.FRAME, id_, id_, due, _ONE,
            value[at.queue : at.payload], value[at.handler : at.queue], write_long(created_at, "created_at"),
            value[at.serial : at.labels], nominal, id_, SOME, value[at.id : at.handler],
            NULL,  # key
            NULL,  # failures
            value[at.attempt_limit : at.serial], value[at.labels : at.source], value[at.payload : at.cron],
            NULL,  # history
            value[self._success_at : self._zone_at],
        ))  # fmt: skip

    def fired(self, now: int, following: int, due: int, open_: OpenRun | None) -> bytes:
        """Its record once the next instant has fired, as the open run `open_` if that is noted; after it comes
        `following`, due at `due`."""
        value, nominal = self._value, write_long(self.next_nominal, "nominal_at")
        recent = value[self._recent_at + 1 : self._kept_to]
        count = min(RECENT, (value[self._recent_at] >> 1) + 1)
        return b"".join((
            value[: self._at.last_nominal], nominal, _TO_COME, write_long(following, "next_nominal"),
            SOME, write_long(due, "next_due"),
            NULL,  # kept_until
            NULL if open_ is None else _ONE + write_openrun(open_) + NULL, _NONE_WAIT,
            bytes((count << 1,)), nominal, _GRID, write_long(now, "at"), _FIRED, recent, NULL,
            self._counted(_FIRED), value[self._failures_at :],
        ))  # fmt: skip

    def succeeded(self, kind: str, nominal: int, now: int) -> bytes:
        """Its record once the occurrence of kind `kind` meant for `nominal` has succeeded, and none is open."""
        value = self._value
        last = read_long(value, self._success_at + 1)[0] if value[self._success_at] else nominal
        return b"".join((
            value[: self._open_at], NULL, _NONE_WAIT, self._heard_of(kind, nominal, now), self._counted(_SUCCEEDED),
            NULL,  # failures_in_row
            SOME, write_long(max(nominal, last), "last_success_at"), value[self._zone_at :],
        ))  # fmt: skip

    def _counted(self, name: bytes) -> bytes:
        """The counters, with one more of `name`."""
        counts = self._counts | {name: self._counts.get(name, 0) + 1}
        numbers = (counted + write_long(number, "counts") for counted, number in counts.items())
        return b"".join((bytes((len(counts) << 1,)), *numbers, NULL))

    def _heard_of(self, kind: str, nominal: int, now: int) -> bytes:
        """The recent ones, of which this one has succeeded now."""
        value, pos = self._value, self._recent_at + 1
        this = write_long(nominal, "nominal_at") + write_string(kind)
        while (found := _recent(value, pos)) is not None:
            if value.startswith(this, pos):
                heard = this + write_long(now, "at") + _SUCCEEDED
                return value[self._recent_at : pos] + heard + value[found.end() : self._recent_to]
            pos = found.end()
        return value[self._recent_at : self._recent_to]


def _expect(value: bytes, pos: int, there: bytes) -> None:
    if not value.startswith(there, pos):
        raise ValueError("not plain")


def peek_schedule(value: bytes) -> PlainSchedule | None:
    """The schedule of a record that `codec.SCHEDULE` wrote or has read before, if it is a plain one."""
    try:
        return PlainSchedule(value) if value.startswith(CURRENT) else None
    except ValueError:
        return None


_NOBODY = Schedule(
    incarnation=0, revision=0, spec=ScheduleSpec(id="", handler="", queue="", payload=b""), created_at=0, changed_at=0,
    last_nominal=0,
)  # fmt: skip
_ANY = write(_NOBODY)
_AT = places(_ANY, FRAME)


def read_rules(rules: bytes) -> ScheduleSpec:
    """What `PlainSchedule.rules` says; of the other fields of this spec nothing is known."""
    return read_schedulespec(_ANY[_AT.id : _AT.cron] + rules + _ANY[_AT.overlap_timeout_ms :], 0)[0]
