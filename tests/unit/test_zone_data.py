"""Other zone data: instants to come are those of the new rules, as soon as their owner runs with them; what is decided
stays (docs/cron-rules.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tzdata

from pipeline import codec, filing
from pipeline import partition as module
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core import keys, timing
from pipeline.core.errors import InvalidSchedule
from pipeline.core.job import EARLIEST, Event, Run, Takeover
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.core.states import PartitionState
from pipeline.core.zones import Zone, zone_of
from pipeline.emission import Emission
from pipeline.ports import Action
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner

HOUR = 3_600_000
ID = "daily"
KEY = keys.schedule_key(ID)
TEN_IN_BERLIN = 1_790_064_000_000
"""2026-09-22, 10:00 in Berlin, 08:00 UTC: the first after NOW, 2026-09-21T14:13:20Z."""


@pytest.fixture
def rules_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A release of the zone data in which Berlin has the rules of another zone."""

    def release(other: str) -> None:
        shifted = Zone("Europe/Berlin", zone_of(other).info)
        monkeypatch.setattr(
            timing, "zone_of", lambda name: shifted if name == "Europe/Berlin" else zone_of(name)
        )
        monkeypatch.setattr(tzdata, "IANA_VERSION", f"of {other}")
        forget()

    yield release
    monkeypatch.undo()
    forget()


def forget() -> None:
    """What a process that starts has not compiled yet."""
    timing.timing_of.cache_clear()
    timing._grid_of.cache_clear()


def made(owner: Owner, id_: str = ID, **changes: Any) -> None:
    spec = ScheduleSpec(**{"id": id_, "handler": "h", "cron": "0 10 * * *", "tz": "Europe/Berlin", **changes})
    assert owner.command("schedule.create", schedule_id=id_, spec=spec).outcome == "created"


def state(owner: Owner, id_: str = ID) -> Schedule:
    return codec.SCHEDULE.decode(owner.entry(keys.schedule_key(id_)).value)


def restarted(owner: Owner) -> Owner:
    """The next owner, which has the index and takes the partition over."""
    again = Owner(owner.number, index=owner.index)
    again.partition.next_offset = again.offset = owner.offset
    record = Takeover(process="d", transactional_ids=(), generation=1, nonce="n", at=NOW)
    put = again.partition.takeover(record)
    again.partition.asked(NOW)
    again.read(put.key, put.value)
    assert again.partition.state is PartitionState.RUNNING
    return again


def beside(owner: Owner, name: str) -> str:
    """An id that has its home here, too."""
    ids = (f"{name}{n}" for n in range(1_000))
    return next(id_ for id_ in ids if LAYOUT.home_of_name(id_) == owner.number)


def work(emission: Emission) -> list[Run]:
    return [codec.RUN.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.work("default")]


def fired(emission: Emission) -> list[int]:
    return [run.nominal_at for run in work(emission)]


@pytest.fixture
def owner() -> Owner:
    return Owner(LAYOUT.home_of_name(ID))


def test_a_rule_that_moves_an_instant_earlier_is_followed_once_an_owner_starts_with_it(
    owner: Owner, rules_of: Callable[[str], None]
) -> None:
    made(owner)
    assert owner.entry(KEY).fire_at == TEN_IN_BERLIN
    rules_of("Asia/Dubai")
    again = restarted(owner)
    assert again.entry(KEY).fire_at == EARLIEST
    assert fired(again.commit(NOW)) == []
    assert (state(again).next_nominal, again.entry(KEY).fire_at) == (
        TEN_IN_BERLIN - 2 * HOUR,
        TEN_IN_BERLIN - 2 * HOUR,
    )
    assert fired(again.commit(TEN_IN_BERLIN - 2 * HOUR)) == [TEN_IN_BERLIN - 2 * HOUR]
    assert fired(again.commit(TEN_IN_BERLIN)) == []
    assert state(again).next_nominal == TEN_IN_BERLIN + 22 * HOUR


def test_one_that_moves_it_later_is_too(owner: Owner, rules_of: Callable[[str], None]) -> None:
    made(owner)
    rules_of("Atlantic/Azores")
    again = restarted(owner)
    again.commit(NOW)
    assert fired(again.commit(TEN_IN_BERLIN)) == []
    assert fired(again.commit(TEN_IN_BERLIN + 2 * HOUR)) == [TEN_IN_BERLIN + 2 * HOUR]


def test_an_index_that_is_made_anew_owes_the_same(owner: Owner, rules_of: Callable[[str], None]) -> None:
    made(owner)
    record = owner.entry(KEY)
    rules_of("Asia/Dubai")
    rebuilt = Owner(owner.number, index=MemoryIndex())
    rebuilt.read(KEY, record.value)
    assert rebuilt.entry(KEY)._replace(offset=record.offset) == restarted(owner).entry(KEY)


def test_an_instant_that_has_fired_keeps_its_occurrence(
    owner: Owner, rules_of: Callable[[str], None]
) -> None:
    """By the new rules it would have been two hours earlier; the next one is that of the next day."""
    made(owner)
    assert fired(owner.commit(TEN_IN_BERLIN)) == [TEN_IN_BERLIN]
    rules_of("Asia/Dubai")
    again = restarted(owner)
    assert fired(again.commit(TEN_IN_BERLIN + 1)) == []
    assert state(again).next_nominal == TEN_IN_BERLIN + 22 * HOUR
    assert state(again).counts == {"fired": 1}


def test_one_whose_new_time_has_passed_is_late_and_fires_by_the_misfire_policy(
    owner: Owner, rules_of: Callable[[str], None]
) -> None:
    made(owner)
    rules_of("Asia/Dubai")
    again = restarted(owner)
    assert fired(again.commit(TEN_IN_BERLIN - HOUR)) == [TEN_IN_BERLIN - 2 * HOUR]


def test_only_schedules_that_a_zone_can_move_are_looked_at_and_once(
    owner: Owner, rules_of: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    others: dict[str, dict[str, Any]] = {
        "utc": {"tz": "UTC"},
        "every": {"cron": None, "every_ms": HOUR},
        "open-minutes": {"cron": None, "every_ms": HOUR, "exclude": {"night": ("cron:* 0-5 * * *",)}},
    }
    ids = {
        name: next(f"{name}{n}" for n in range(999) if LAYOUT.home_of_name(f"{name}{n}") == owner.number)
        for name in others
    }
    for name, changes in others.items():
        made(owner, ids[name], **changes)
    made(owner)
    assert owner.command("schedule.pause", schedule_id=ID).outcome == "paused"
    owner.read(keys.highest_key("jx"), b"")
    before = {name: owner.entry(keys.schedule_key(id_)) for name, id_ in ids.items()}
    rules_of("Asia/Dubai")
    again = restarted(owner)
    after = {name: again.entry(keys.schedule_key(id_)) for name, id_ in ids.items()}
    assert (after["utc"], after["every"]) == (before["utc"], before["every"])
    assert after["open-minutes"].fire_at == EARLIEST
    assert again.entry(KEY).action == Action.HOLD
    # It is told by the index that this was done, whoever opens it next.
    monkeypatch.setattr(MemoryIndex, "entries", None)
    restarted(again)


def test_a_zone_that_only_newer_data_have_waits_for_an_owner_that_has_them(
    owner: Owner, rules_of: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rolling deploy a partition may go back to an older dispatcher; what is unknown there is no damage."""
    made(owner)
    (run,) = work(owner.commit(TEN_IN_BERLIN))
    rules_of("Asia/Dubai")
    monkeypatch.setattr(filing, "zone_names", lambda: frozenset({"UTC"}))
    monkeypatch.setattr("pipeline.core.timing.zone_of", unknown)
    forget()
    older = restarted(owner)
    assert older.entry(KEY).action == Action.HOLD
    fact = Event(id=run.occurrence_id, kind="done", at=NOW, run=1, outcome="succeeded")
    older.read(keys.done_key(run.occurrence_id, 1), codec.EVENT.encode(fact))
    assert [put.topic for put in older.commit(TEN_IN_BERLIN + 48 * HOUR).puts] == [NAMES.jobs], (
        "the fact is consumed"
    )
    assert older.command("schedule.trigger", schedule_id=ID).reason == "tz: unknown"
    monkeypatch.undo()
    forget()
    again = restarted(older)
    assert again.entry(KEY).action == Action.FIRE
    assert fired(again.commit(TEN_IN_BERLIN + 24 * HOUR)) == [TEN_IN_BERLIN + 24 * HOUR]


def unknown(_name: str) -> Zone:
    raise InvalidSchedule("tz", "unknown")
