"""Events and schedules in straight lines: the same values, bytes and refusals as by fastavro."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.codec.registry import Codec
from pipeline.core.errors import Undecodable
from pipeline.core.job import Event
from pipeline.core.schedule import Backfill, OpenRun, Recent, Schedule, ScheduleSpec

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
LONG = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(1_700_000_000_000, 1_900_000_000_000)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
PAIRS = st.dictionaries(TEXT, TEXT, max_size=3)
EVENTS = st.builds(
    Event,
    id=TEXT,
    kind=TEXT,
    at=LONG,
    job_id=st.none() | TEXT,
    occurrence_id=st.none() | TEXT,
    run=st.none() | INT,
    command_id=st.none() | TEXT,
    outcome=st.none() | TEXT,
    reason=st.none() | TEXT,
    detail=PAIRS,
) | st.builds(Event, id=TEXT, kind=TEXT, at=LONG)
SPECS = st.builds(
    ScheduleSpec,
    id=TEXT,
    handler=TEXT,
    payload=st.binary(max_size=200),
    cron=st.none() | TEXT,
    every_ms=st.none() | LONG,
    phase_ms=LONG,
    exclude=st.dictionaries(TEXT, st.lists(TEXT, max_size=3).map(tuple), max_size=2),
    start_at=st.none() | LONG,
    pause_after=st.none() | INT,
    serial=st.none() | TEXT,
    labels=PAIRS,
)
SCHEDULES = st.builds(
    Schedule,
    incarnation=LONG,
    revision=INT,
    spec=SPECS,
    created_at=LONG,
    changed_at=LONG,
    last_nominal=LONG,
    paused=st.none() | TEXT,
    next_nominal=st.none() | LONG,
    next_due=st.none() | LONG,
    open=st.lists(
        st.builds(OpenRun, occurrence_id=TEXT, nominal_at=LONG, emitted_at=LONG, place=TEXT), max_size=2
    ).map(tuple),
    buffer=st.lists(LONG, max_size=2).map(tuple),
    backfills=st.lists(
        st.builds(Backfill, id=TEXT, from_at=LONG, to_at=LONG, rate=st.none() | INT, reverse=st.booleans()),
        max_size=2,
    ).map(tuple),
    recent=st.lists(st.builds(Recent, nominal_at=LONG, kind=TEXT, at=LONG, outcome=TEXT), max_size=3).map(
        tuple
    ),
    counts=st.dictionaries(TEXT, LONG, max_size=3),
    failures_in_row=INT,
    zone_data=TEXT,
)
STRAIGHT: dict[str, Codec[Any]] = {"Event": codec.EVENT, "Schedule": codec.SCHEDULE}
BY_FASTAVRO: dict[str, Codec[Any]] = {
    name: Codec(codec._RELEASED, f"dueline.{name}", codec._TYPES) for name in STRAIGHT
}


def check(name: str, value: Any) -> bytes:
    straight = STRAIGHT[name]
    data = straight.encode(value)
    assert data == BY_FASTAVRO[name].encode(value)
    assert straight.decode(data) == straight.reread(data) == value
    return data


@given(event=EVENTS)
def test_an_event_is_written_and_read_as_by_the_library(event: Event) -> None:
    check("Event", event)


@settings(deadline=None)
@given(schedule=SCHEDULES)
def test_a_schedule_is_written_and_read_as_by_the_library(schedule: Schedule) -> None:
    data = check("Schedule", schedule)
    codec.peek_schedule(data)  # whatever it holds, it is plain or not


@settings(deadline=None)
@given(values=st.tuples(EVENTS, SCHEDULES), draw=st.data())
def test_damaged_bytes_are_refused_where_the_library_refuses_them(
    values: tuple[Event, Schedule], draw: st.DataObject
) -> None:
    for (name, straight), value in zip(STRAIGHT.items(), values, strict=True):
        data = bytearray(straight.encode(value))
        for _ in range(draw.draw(st.integers(1, 3))):
            data[draw.draw(st.integers(10, len(data) - 1))] = draw.draw(st.integers(0, 255))
        cut = bytes(data[: draw.draw(st.integers(10, len(data)))])
        try:
            meant = BY_FASTAVRO[name].decode(cut)
        except Undecodable:
            with pytest.raises(Undecodable):
                straight.decode(cut)
        else:
            assert straight.decode(cut) == meant
