"""What a schedule still owed when it was deleted, by a person or by its app, does not fire and is told as skipped."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.job import Event
from pipeline.core.schedule import ScheduleSpec
from pipeline.emission import Emission
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner

ID, MINUTE, APP = "nightly", 60_000, "app:shop"
FIRST = (NOW // MINUTE + 1) * MINUTE
WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("schedule.delete", "deleted", {"schedule_id": ID}),
    ("schedule.delete", "removed", {"schedule_id": ID, "detail": {"source": APP}}),
    ("schedule.retain", "removed", {"detail": {"source": APP, "ids": ""}}),
]


@pytest.fixture
def owner() -> Owner:
    return Owner(LAYOUT.home_of_name(ID))


def make(owner: Owner, **changes: Any) -> None:
    spec = ScheduleSpec(**{"id": ID, "handler": "h", "every_ms": MINUTE, "source": APP, **changes})
    assert owner.command("schedule.put", schedule_id=ID, spec=spec).outcome == "created"


def delete(owner: Owner, verb: str, fields: dict[str, Any], at: int) -> Emission:
    if verb == "schedule.retain":
        fields = {"detail": {**fields["detail"], "partition": str(owner.number)}}
    owner.ask(verb, at, **fields)
    return owner.commit(at)


def fired(emission: Emission) -> int:
    return sum(put.topic == NAMES.work("default") for put in emission.puts)


def told(emission: Emission, kind: str) -> list[Event]:
    events = [codec.EVENT.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.events]
    return [event for event in events if event.kind == kind]


def skips(emission: Emission) -> list[tuple[str | None, int, int, int]]:
    skipped = [(event.reason, event.detail) for event in told(emission, "skipped")]
    return [
        (reason, int(d["count"]), (int(d["first"]) - FIRST) // MINUTE, (int(d["last"]) - FIRST) // MINUTE)
        for reason, d in skipped
    ]


@pytest.mark.parametrize(("verb", "reason", "fields"), WAYS)
def test_what_came_due_while_its_owner_was_away(
    owner: Owner, verb: str, reason: str, fields: dict[str, Any]
) -> None:
    make(owner, misfire="all(100)")
    emission = delete(owner, verb, fields, FIRST + 5 * MINUTE)
    assert fired(emission) == 0
    assert skips(emission) == [(reason, 6, 0, 5)]
    assert emission.skipped == {reason: 6}
    assert fired(owner.commit(FIRST + 9 * MINUTE)) == 0


@pytest.mark.parametrize(("verb", "reason", "fields"), WAYS)
def test_what_waited_for_another(owner: Owner, verb: str, reason: str, fields: dict[str, Any]) -> None:
    make(owner, overlap="buffer_all(3)")
    for minute in range(3):
        owner.commit(FIRST + minute * MINUTE)
    emission = delete(owner, verb, fields, FIRST + 2 * MINUTE + 1)
    assert skips(emission) == [(reason, 2, 1, 2)]


@pytest.mark.parametrize(("verb", "reason", "fields"), WAYS)
def test_what_follows_the_end_of_another(
    owner: Owner, verb: str, reason: str, fields: dict[str, Any]
) -> None:
    make(owner, every_ms=None, after_ms=MINUTE)
    assert skips(delete(owner, verb, fields, NOW + MINUTE)) == [(reason, 1, 0, 0)]


@pytest.mark.parametrize(("verb", "reason", "fields"), WAYS)
def test_nothing_was_owed(owner: Owner, verb: str, reason: str, fields: dict[str, Any]) -> None:
    """It was paused, so what passed meanwhile was skipped for that; or had ended; or had fired all."""
    make(owner)
    assert owner.command("schedule.pause", schedule_id=ID).outcome == "paused"
    assert skips(delete(owner, verb, fields, FIRST + 2 * MINUTE)) == [("paused", 3, 0, 2)]
    make(owner, max_occurrences=1, version="2")
    owner.commit(FIRST + 3 * MINUTE)
    assert skips(delete(owner, verb, fields, FIRST + 9 * MINUTE)) == []
    make(owner, version="3")
    assert skips(delete(owner, verb, fields, FIRST - 1)) == []


def test_that_its_app_removed_it_is_an_event(owner: Owner) -> None:
    make(owner)
    verb, _, fields = WAYS[1]
    (event,) = told(delete(owner, verb, fields, FIRST - 1), "schedule_ended")
    assert (event.reason, event.detail["schedule"]) == ("removed", ID)
    assert owner.entry(keys.schedule_key(ID)).fire_at > NOW
