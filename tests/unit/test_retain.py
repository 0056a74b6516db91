"""`schedule.retain`: what an app declares no more is removed by the owner of each partition, a piece at a time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pipeline import codec
from pipeline.commands.retain import retain
from pipeline.core import keys
from pipeline.core.job import Event, Takeover
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Action, Delta
from pipeline.view import View
from tests.unit.owner import LAYOUT, NOW, Owner

APP = "app:shop"
IDS = [id_ for n in range(2_000) if LAYOUT.home_of_name(id_ := f"n{n:04}") == 3][:8]


@pytest.fixture
def owner() -> Owner:
    return Owner(3)


def put(owner: Owner, id_: str, source: str = APP, version: str = "7", **changes: Any) -> None:
    spec = ScheduleSpec(id=id_, handler="h", every_ms=60_000, source=source, version=version, **changes)
    assert owner.command("schedule.put", schedule_id=id_, spec=spec).outcome == "created"


def ask(owner: Owner, *ids: str, **detail: str) -> Event:
    whole = {"source": APP, "version": "7", "partition": "3", "ids": " ".join(ids), **detail}
    return owner.command("schedule.retain", detail=whole)


def removed(event: Event) -> list[str]:
    assert event.outcome == "retained", event
    return event.detail.get("removed", "").split()


def state(owner: Owner, id_: str) -> Schedule:
    return codec.SCHEDULE.decode(owner.entry(keys.schedule_key(id_)).value)


def test_what_an_app_declares_no_more_is_removed_and_nothing_else(owner: Owner) -> None:
    kept, gone, theirs, newer, by_hand = IDS[:5]
    for id_ in (kept, gone):
        put(owner, id_)
    put(owner, theirs, source="app:shop2")
    put(owner, newer, version="8")
    put(owner, by_hand, source="cli", note=APP)
    answer = ask(owner, kept)
    assert removed(answer) == [gone]
    assert answer.detail["older"] == newer
    assert "next" not in answer.detail
    assert (state(owner, gone).ended, state(owner, gone).spec.version) == ("removed", "7")
    assert owner.entry(keys.schedule_key(gone)).action == Action.EXPIRE
    assert {state(owner, id_).ended for id_ in (kept, theirs, newer, by_hand)} == {""}


def test_asking_twice_removes_nothing_more_and_an_older_worker_brings_nothing_back(owner: Owner) -> None:
    put(owner, IDS[0])
    assert removed(ask(owner)) == [IDS[0]]
    assert removed(ask(owner)) == []
    spec = ScheduleSpec(id=IDS[0], handler="h", every_ms=60_000, source=APP, version="6")
    assert owner.command("schedule.put", schedule_id=IDS[0], spec=spec).outcome == "older"


def test_a_range_is_looked_at_and_what_lies_outside_it_stays(owner: Owner) -> None:
    for id_ in IDS[:5]:
        put(owner, id_)
    assert removed(ask(owner, IDS[2], after=IDS[0], until=IDS[3])) == [IDS[1], IDS[3]]
    assert {state(owner, id_).ended for id_ in (IDS[0], IDS[2], IDS[4])} == {""}


@pytest.mark.parametrize(("limit", "number"), [("NAMED", 2), ("REMOVED_BYTES", 3)])
def test_a_piece_is_bounded_and_says_from_where_to_go_on(
    owner: Owner, limit: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id_ in IDS[:6]:
        put(owner, id_)
    monkeypatch.setattr(sys.modules[retain.__module__], limit, number)
    gone: list[str] = []
    after, asked = "", 0
    while asked == 0 or after:
        answer = ask(owner, IDS[1], after=after)
        gone += removed(answer)
        after, asked = answer.detail.get("next", ""), asked + 1
    assert gone == [IDS[0], *IDS[2:6]]
    assert asked == 3


def test_what_the_same_batch_has_made_is_seen_and_what_it_has_deleted_is_not(owner: Owner) -> None:
    put(owner, IDS[0])
    put(owner, IDS[1])
    spec = ScheduleSpec(id=IDS[2], handler="h", every_ms=60_000, source=APP)
    for verb, fields in (
        ("schedule.delete", {"schedule_id": IDS[0]}),
        ("schedule.put", {"schedule_id": IDS[2], "spec": spec}),
    ):
        owner.ask(verb, **fields)
    assert removed(ask(owner)) == [IDS[1], IDS[2]]
    assert owner.index.entry(3, keys.schedule_key(IDS[0])) is None


def test_what_an_app_kept_once_is_not_asked_for_again(owner: Owner) -> None:
    """Deleted by hand, or somebody else's by now."""
    for id_ in IDS[:3]:
        put(owner, id_)
    assert owner.command("schedule.delete", schedule_id=IDS[0]).outcome == "deleted"
    assert owner.command("schedule.delete", schedule_id=IDS[1]).outcome == "deleted"
    put(owner, IDS[1], source="cli")
    assert removed(ask(owner, IDS[2])) == []
    assert View(owner.index, 3).kept_by(APP) == [IDS[2]]
    put(owner, IDS[0])
    assert removed(ask(owner)) == [IDS[0], IDS[2]]
    assert owner.index.fact(3, keys.source_key(APP)) is None


def test_an_index_that_is_made_anew_knows_the_apps_of_its_schedules(owner: Owner) -> None:
    put(owner, IDS[0])
    rebuilt = Owner(3)
    rebuilt.read(keys.schedule_key(IDS[0]), owner.entry(keys.schedule_key(IDS[0])).value)
    assert removed(ask(rebuilt)) == [IDS[0]]


def test_an_index_of_an_earlier_version_learns_them_at_its_takeover(owner: Owner) -> None:
    put(owner, IDS[0])
    put(owner, IDS[1], source="cli")
    forgotten = Delta()
    forgotten.facts[keys.source_key(APP)] = None
    owner.index.apply(3, forgotten)
    record = owner.partition.takeover(
        Takeover(process="d", transactional_ids=(), generation=1, nonce="n", at=NOW)
    )
    owner.partition.asked(NOW)
    owner.read(record.key, record.value)
    assert View(owner.index, 3).kept_by(APP) == [IDS[0]]
    assert removed(ask(owner)) == [IDS[0]]


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ({"source": "cli"}, "source: must be app:<name>"),
        ({"source": "file:jobs"}, "source: must be app:<name>"),
        ({"partition": "4"}, "partition: must be 3, on which the command stands"),
        ({"ids": None}, "ids: missing"),
    ],
)
def test_what_would_remove_what_nobody_meant_is_refused(
    owner: Owner, detail: dict[str, Any], reason: str
) -> None:
    put(owner, IDS[0])
    whole = {"source": APP, "version": "7", "partition": "3", "ids": "", **detail}
    given = {name: text for name, text in whole.items() if text is not None}
    answer = owner.command("schedule.retain", detail=given)
    assert (answer.outcome, (answer.reason or "").startswith(reason)) == ("refused", True), answer
    assert state(owner, IDS[0]).ended == ""
