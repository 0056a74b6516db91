"""The verbs of schedules (DESIGN §8, §9). An answer says in `detail` where the schedule stands after it, and who asked:
it is also what an audit reads.

Times count from when the log took the command, however long its owner was away: what was due before a pause or an
update was decided by what stood then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from pipeline import recurring
from pipeline.commands.answer import Answer
from pipeline.core import series
from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.job import EARLIEST, Command
from pipeline.core.limited import require_queue
from pipeline.core.schedule import Backfill, Schedule, ScheduleSpec, check_spec, policy, state_of
from pipeline.core.series import Step
from pipeline.core.times import parse_instant
from pipeline.emission import Emission
from pipeline.filing import file_run
from pipeline.fold import schedule_of

BACKFILL_LIMIT = 1_000
"""Occurrences of a backfill, unless its sender says that more are meant."""
BACKFILLS = 10
"""Backfills of one schedule at the same time."""
NOTE_LIMIT = 500


class _Asked:
    """A command about a schedule, and what stands there."""

    __slots__ = ("at", "command", "emission", "id", "incarnation", "state")

    def __init__(self, command: Command, incarnation: int, at: int, emission: Emission) -> None:
        id_ = schedule_of(command)
        if id_ is None:
            raise InvalidInput("schedule_id", "missing, or does not match [a-z0-9._-]{1,80}")
        if emission.site.layout.home_of_name(id_) != emission.number:
            raise InvalidInput("schedule_id", "has another home")
        self.command, self.incarnation, self.at, self.emission, self.id = (
            command,
            incarnation,
            at,
            emission,
            id_,
        )
        self.state = recurring.load(id_, emission)

    @property
    def living(self) -> Schedule | None:
        """The schedule, unless its app has removed it."""
        return None if self.state is None or self.state.ended == series.REMOVED else self.state

    def spec(self) -> ScheduleSpec:
        """The definition that the command carries, checked."""
        spec = self.command.spec
        if spec is None:
            raise InvalidInput("spec", "missing")
        if spec.id != self.id:
            raise InvalidInput("spec", "has another id than schedule_id")
        check_spec(spec)
        return spec

    def detail(self, name: str) -> str:
        return self.command.detail.get(name, "")

    def keep(self, state: Schedule) -> None:
        recurring.keep(state, self.emission)

    def step(self, before: Schedule, step: Step) -> Schedule:
        recurring.carry_out(before, step, self.emission)
        return recurring.load(self.id, self.emission) or step.state

    def answer(
        self, outcome: str, state: Schedule | None = None, reason: str | None = None, **more: str
    ) -> Answer:
        detail = {"schedule": self.id, **more}
        if self.command.requested_by is not None:
            detail["requested_by"] = self.command.requested_by[:NOTE_LIMIT]
        if state is not None:
            detail |= {"revision": str(state.revision), "incarnation": str(state.incarnation)}
            detail["state"] = state_of(state)
        if state is not None and state.next_due is not None:
            detail["next_due"] = str(state.next_due)
        return Answer(outcome=outcome, reason=reason, detail=detail)


def change_schedule(command: Command, incarnation: int, at: int, emission: Emission) -> Answer:
    """Execute a schedule verb as of `at`, when the log took it. InvalidInput, NotAllowed."""
    verb = _VERBS.get(command.verb)
    if verb is None:
        raise InvalidInput("verb", f"{command.verb[:80]!r} is unknown")
    asked = _Asked(command, incarnation, at, emission)
    living = asked.living
    for spec in (None if living is None else living.spec, command.spec):
        if spec is not None:
            require_queue(command, spec.queue)
    return verb(asked)


# -- making, changing, deleting -----------------------------------------------------------------------------


def _create(asked: _Asked) -> Answer:
    spec = asked.spec()
    if asked.living is not None:
        return asked.answer("existing", asked.living)
    return _make(asked, spec)


def _make(asked: _Asked, spec: ScheduleSpec) -> Answer:
    state = series.created(spec, incarnation=asked.incarnation, at=asked.at)
    if state.next_nominal is None:
        raise InvalidSchedule("end" if spec.end_at is not None else "cron", "no instant of it is to come")
    _check_queue(state, asked)
    asked.keep(state)
    return asked.answer("created", state)


def _check_queue(state: Schedule, asked: _Asked) -> None:
    """What could never be emitted is refused now (DESIGN §5.8)."""
    sample = recurring.run_of(state, f"s:{asked.id}:0:g::0", asked.at, asked.at, asked.emission)
    if problem := file_run(asked.emission.site, sample, asked.emission.now).problem:
        raise InvalidInput(*problem.split(": ", 1))


def _update(asked: _Asked) -> Answer:
    spec, state = asked.spec(), asked.living
    if state is None:
        return asked.answer("not_found")
    seen = asked.detail("revision")
    if seen and seen != str(state.revision):
        return asked.answer("refused", state, f"revision: it is {state.revision} by now, not {seen[:20]}")
    return asked.answer("updated", _edit(asked, state, spec))


def _edit(asked: _Asked, state: Schedule, spec: ScheduleSpec) -> Schedule:
    _check_queue(replace(state, spec=spec), asked)
    return asked.step(state, series.edited(state, spec, asked.at))


def _put(asked: _Asked) -> Answer:
    """What a file or an app declares: made, changed or left as it is, unless somebody else keeps it."""
    spec, state = asked.spec(), asked.state
    if state is None:
        return _make(asked, spec)
    if state.spec.source != spec.source:
        return _make(asked, spec) if state.ended == series.REMOVED else asked.answer("foreign", state)
    if older(spec.version, state.spec.version):
        return asked.answer("older", state, f"version {state.spec.version} is there")
    if state.ended == series.REMOVED:
        return _make(asked, spec)
    if replace(state.spec, version=spec.version) == spec:
        if state.spec.version != spec.version:
            asked.keep(replace(state, spec=spec))
        return asked.answer("unchanged", state)
    return asked.answer("updated", _edit(asked, state, spec))


def older(version: str, than: str) -> bool:
    """Whether a deploy version comes before another: numbers in it count as numbers. Nothing is older than "", nor is
    "" older than anything: who says no version declares as of now."""
    return bool(version) and bool(than) and _order(version) < _order(than)


def _order(version: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"([0-9]+)|([^0-9]+)", version[:200])
    return [(1, int(number), "") if number else (0, 0, text) for number, text in parts]


def _delete(asked: _Asked) -> Answer:
    """By hand it is forgotten; what an app no longer declares is remembered with the version that removed it, so that
    an older worker of a rolling deploy does not bring it back."""
    state, source, version = asked.living, asked.detail("source"), asked.detail("version")
    if state is None:
        return asked.answer("not_found")
    if source and source != state.spec.source:
        return asked.answer("foreign", state)
    if older(version, state.spec.version):
        return asked.answer("older", state, f"version {state.spec.version} is there")
    if source.startswith("app:"):
        recurring.remove(state, version or state.spec.version, asked.at, asked.emission)
    else:
        recurring.delete(state, asked.at, asked.emission)
    return asked.answer("deleted")


# -- pausing ------------------------------------------------------------------------------------------------


def _pause(asked: _Asked) -> Answer:
    if asked.living is None:
        return asked.answer("not_found")
    note = (asked.detail("note") or asked.command.reason or "")[:NOTE_LIMIT]
    return asked.answer("paused", asked.step(asked.living, series.paused(asked.living, note, asked.at)))


def _resume(asked: _Asked) -> Answer:
    state = asked.living
    if state is None:
        return asked.answer("not_found")
    if state.paused is not None:
        state = asked.step(state, series.resumed(state, asked.at))
    return asked.answer("resumed", state)


# -- beside the grid ----------------------------------------------------------------------------------------


def _trigger(asked: _Asked) -> Answer:
    state = asked.living
    if state is None:
        return asked.answer("not_found")
    overlap = asked.detail("overlap") or state.spec.overlap
    step = series.triggered(state, asked.command.command_id, asked.at, overlap)
    after = asked.step(state, step)
    if not step.fire:
        return asked.answer("skipped", after, "an occurrence is open")
    id_ = step.fire[0].id
    return replace(asked.answer("fired", after), job_id=id_, occurrence_id=id_, run=1, due_at=asked.at)


def _backfill(asked: _Asked) -> Answer:
    state = asked.living
    if state is None:
        return asked.answer("not_found")
    if state.spec.after_ms is not None:
        raise InvalidInput("schedule_id", "counts from the end of each occurrence: it has no past to make up")
    if len(state.backfills) >= BACKFILLS:
        raise InvalidInput("schedule_id", f"has {BACKFILLS} backfills under way")
    wanted = _wanted_backfill(asked)
    total = series.range_of(state, wanted.from_at, wanted.to_at)
    limit = _number(asked, "limit", BACKFILL_LIMIT, 10_000_000)
    if total == 0:
        return asked.answer("refused", state, "from: no instant lies in the range", total="0")
    if total > limit:
        reason = f"limit: {total} occurrences are more than {limit}"
        return asked.answer("refused", state, reason, total=str(total))
    room = recurring.slice_at_once(state, asked.emission)
    after = asked.step(state, series.backfilled(state, replace(wanted, total=total), asked.at, room))
    return asked.answer("started", after, total=str(total), backfill=wanted.id)


def _wanted_backfill(asked: _Asked) -> Backfill:
    """Its range is [from, to), of the past."""
    from_at, to_at = (_instant(asked, name) for name in ("from", "to"))
    if from_at >= to_at:
        raise InvalidInput("to", "is not after from")
    if to_at > asked.at:
        raise InvalidInput("to", "is in the future: a backfill makes up the past")
    reverse = asked.detail("reverse") or "false"
    if reverse not in ("true", "false"):
        raise InvalidInput("reverse", f"{reverse[:80]!r} is neither true nor false")
    return Backfill(
        id=asked.command.command_id,
        from_at=from_at,
        to_at=to_at,
        overlap=_own_overlap(asked),
        rate=_number(asked, "rate", 0, 60_000) or None,
        reverse=reverse == "true",
        next_at=asked.at,
    )


def _own_overlap(asked: _Asked) -> str:
    """Of a backfill: all at once, one after the other, or none while one of it runs."""
    text = asked.detail("overlap") or "allow"
    name = text if text == "buffer_all" else policy("overlap", text)[0]
    if name == "cancel_other":
        raise InvalidInput(
            "overlap", "cancel_other is nothing for a backfill: take allow, skip or buffer_all"
        )
    return name if name in ("allow", "skip") else "buffer_all"


def _instant(asked: _Asked, name: str) -> int:
    """RFC 3339, or epoch milliseconds."""
    text = asked.detail(name)
    if not text:
        raise InvalidInput(name, "missing")
    if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= EARLIEST:
        return int(text)
    return parse_instant(name, text)


def _number(asked: _Asked, name: str, default: int, most: int) -> int:
    text = asked.detail(name)
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or not 1 <= int(text) <= most:
        raise InvalidInput(name, f"{text[:80]!r} is no number from 1 to {most}")
    return int(text)


def _cancel_backfill(asked: _Asked) -> Answer:
    state, id_ = asked.living, asked.detail("backfill")
    if state is None or not any(each.id == id_ for each in state.backfills):
        return asked.answer("not_found", state)
    after = series.backfill_cancelled(state, id_)
    asked.keep(after)
    return asked.answer("cancelled", after, backfill=id_)


_VERBS: dict[str, Callable[[_Asked], Answer]] = {
    "schedule.create": _create,
    "schedule.update": _update,
    "schedule.put": _put,
    "schedule.delete": _delete,
    "schedule.pause": _pause,
    "schedule.resume": _resume,
    "schedule.trigger": _trigger,
    "schedule.backfill": _backfill,
    "schedule.cancel_backfill": _cancel_backfill,
}
