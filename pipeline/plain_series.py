"""Schedules of which one instant is due, or one occurrence has succeeded, and nothing else is to be decided.

That is nearly all that happens to schedules, and it is done on the bytes of their records (codec.plain_schedule).
Whatever is not so plain is left to `recurring`, which decides all of it alike.
"""

from __future__ import annotations

from functools import lru_cache

from pipeline import codec
from pipeline.core import series
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import ScheduleOccurrence
from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.names import legal
from pipeline.core.schedule import OpenRun
from pipeline.core.zones import zone_data_version
from pipeline.emission import Emission
from pipeline.filing import NOWHERE, TO_FIRE
from pipeline.ports import Action, Entry


def fire(entry: Entry, emission: Emission) -> bool:
    """Emit the one instant that is due and file its schedule under the next one, if that is all there is to do."""
    now, plain = emission.now, codec.peek_schedule(entry.value)
    if plain is None or plain.open is not None or plain.zone_data != zone_data_version():
        return False
    rules, nominal = _rules(plain.rules), plain.next_nominal
    following = None if rules is None else _following(plain, rules, now)
    if rules is None or following is None:
        return False
    occurrence = f"s:{plain.id}:{plain.incarnation}:g::{nominal}"
    place = _place(plain, occurrence, emission)
    if not place:
        return False
    emission.run(place, occurrence.encode(), plain.run(occurrence, now))
    noted = None
    if rules.tracks:
        noted = OpenRun(occurrence_id=occurrence, nominal_at=nominal, emitted_at=now, place=place)
    value = plain.fired(now, *following, noted)
    _file(entry, value, following[1], emission)
    return True


def succeeded(occurrence: ScheduleOccurrence, occurrence_id: str, held: Entry, emission: Emission) -> bool:
    """Note that an occurrence of the schedule in `held` has succeeded, if that is all that follows from it."""
    plain = codec.peek_schedule(held.value) if held.action in TO_FIRE else None
    if (
        plain is None
        or plain.incarnation != occurrence.incarnation
        or (plain.open is not None and plain.open.occurrence_id != occurrence_id)
        or plain.next_due <= emission.now
        or plain.zone_data != zone_data_version()
        or _rules(plain.rules) is None
    ):
        return False
    value = plain.succeeded(occurrence.kind, occurrence.nominal_at, emission.now)
    _file(held, value, plain.next_due, emission)
    return True


def _file(before: Entry, value: bytes, due: int, emission: Emission) -> None:
    after = before._replace(fire_at=min(due, LATEST), offset=NOWHERE, action=Action.FIRE, value=value)
    emission.rewrite(before, after)


def _following(plain: codec.PlainSchedule, rules: series.Rules, now: int) -> tuple[int, int] | None:
    try:
        return rules.following(plain.id, plain.next_nominal, plain.next_due, now)
    except InvalidInput:  # damaged in what depends on its id
        return None


def _place(plain: codec.PlainSchedule, occurrence: str, emission: Emission) -> str:
    """Where its run goes; empty if that is for `filing.file_run` to say."""
    layout, queue = emission.site.layout, plain.queue
    if not (EARLIEST < plain.next_due <= LATEST and legal(plain.handler) and queue in layout.queues):
        return ""
    return f"{queue}/{layout.work_partition(queue, plain.serial or occurrence)}"


@lru_cache(maxsize=1 << 17)
def _rules(rules: bytes) -> series.Rules | None:
    """None of what is damaged, too: that shows when it is decided on."""
    try:
        return series.rules_of(codec.read_rules(rules))
    except InvalidInput:
        return None
