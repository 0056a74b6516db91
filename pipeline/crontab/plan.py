"""What a sync would do, as data: the schedules that a source wants against those that there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.schedule import NAMES, Schedule, ScheduleSpec, spec_to_json

_NOT_COMPARED = ("id", "source", "version")
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One field of a schedule, by its name in JSON; None = not given."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A schedule that is there with other fields. `revision` is the one that was looked at."""

    spec: ScheduleSpec
    revision: int
    changed: tuple[Changed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A schedule that is wanted under an id that another source has: it stays as it is."""

    spec: ScheduleSpec
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What makes the schedules of one source those that are wanted. Each is in the order in which it was wanted,
    `delete` in that of the ids."""

    create: tuple[ScheduleSpec, ...] = ()
    update: tuple[Update, ...] = ()
    delete: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    foreign: tuple[Foreign, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.create or self.update or self.delete)

    def lines(self) -> list[str]:
        """The plan as a diff for people: one line a schedule, and one for each changed field."""
        lines = [f"+ {spec.id}  {_summary(spec)}" for spec in self.create]
        for update in self.update:
            lines.append(f"~ {update.spec.id}")
            lines += [
                f"    {item.field}: {_shown(item.old)} -> {_shown(item.new)}" for item in update.changed
            ]
        lines += [f"- {id}" for id in self.delete]
        lines += [f"! {item.spec.id}  left alone: it came from {item.source}" for item in self.foreign]
        counts = (
            len(self.create),
            len(self.update),
            len(self.delete),
            len(self.unchanged),
            len(self.foreign),
        )
        return [
            *lines,
            "{} to create, {} to update, {} to delete, {} unchanged, {} of other sources".format(*counts),
        ]


def plan(current: Sequence[Schedule], wanted: Sequence[ScheduleSpec], source: str) -> Plan:
    """What turns `current`, all schedules there are, into `wanted` as far as they are of `source`.

    Each wanted id stands once. A schedule that an application gave up (`removed`) is there no more.
    """
    there = {schedule.spec.id: schedule for schedule in current if schedule.ended != "removed"}
    create: list[ScheduleSpec] = []
    update: list[Update] = []
    unchanged: list[str] = []
    foreign: list[Foreign] = []
    for spec in wanted:
        state = there.get(spec.id)
        if state is None:
            create.append(spec)
        elif state.spec.source != source:
            foreign.append(Foreign(spec=spec, source=state.spec.source))
        elif changed := changes(state.spec, spec):
            update.append(Update(spec=spec, revision=state.revision, changed=changed))
        else:
            unchanged.append(spec.id)
    kept = {spec.id for spec in wanted}
    own = (id for id, state in there.items() if state.spec.source == source)
    return Plan(
        create=tuple(create),
        update=tuple(update),
        delete=tuple(sorted(id for id in own if id not in kept)),
        unchanged=tuple(unchanged),
        foreign=tuple(foreign),
    )


def changes(old: ScheduleSpec, new: ScheduleSpec) -> tuple[Changed, ...]:
    """The fields, in the order of NAMES, in which two specs of one schedule differ."""
    before, after = spec_to_json(old), spec_to_json(new)
    pairs = ((name, before.get(name), after.get(name)) for name in NAMES if name not in _NOT_COMPARED)
    return tuple(Changed(field=name, old=was, new=now) for name, was, now in pairs if was != now)


def _summary(spec: ScheduleSpec) -> str:
    fields = spec_to_json(spec)
    when = spec.cron or f"every {fields['every']}" + (" after the last" if spec.after_ms is not None else "")
    return f"{when}  {spec.tz}  {spec.handler}"


def _shown(value: Any) -> str:
    """On one line, whatever it is, and none of it moves the cursor."""
    if value is None:
        return "(not given)"
    text = json.dumps(value, ensure_ascii=not str(value).isprintable())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
