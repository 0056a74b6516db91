"""The quick way of a schedule writes what the slow one writes, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import codec, plain_series
from pipeline.core import keys, series
from pipeline.core.ids import parse_occurrence
from pipeline.core.job import Command, Event
from pipeline.core.schedule import OpenRun, Recent, Schedule, ScheduleSpec
from pipeline.emission import Emission
from pipeline.ports import Action, Entry
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner

ID = "nightly"
KEY = keys.schedule_key(ID)
HOME = LAYOUT.home_of_name(ID)
MINUTE = 60_000
RHYTHMS = st.sampled_from(
    [
        {"every_ms": MINUTE},
        {"every_ms": 20_000, "phase_ms": 7},
        {"every_ms": MINUTE, "jitter_ms": 15_000},
        {"every_ms": MINUTE, "exclude": {"odd": ("1-59/2 * * * *",)}},
        {"every_ms": MINUTE, "start_at": NOW + 90_000, "end_at": NOW + 30 * MINUTE},
        {"cron": "17 * * * * *", "tz": "Europe/Berlin"},
        {"cron": "H * * * * *"},
        {"after_ms": MINUTE},
    ]
)
SPECS = st.builds(
    lambda rhythm, more: ScheduleSpec(id=ID, handler="report", **rhythm, **more),
    RHYTHMS,
    st.fixed_dictionaries(
        {
            "overlap": st.sampled_from(
                ["allow", "allow", "skip", "buffer_one", "buffer_all(2)", "cancel_other"]
            ),
            "misfire": st.sampled_from(["latest", "none", "all(3)"]),
            "misfire_threshold_ms": st.sampled_from([0, 30_000, MINUTE]),
            "catch_up_ms": st.sampled_from([None, 0, MINUTE]),
            "overlap_timeout_ms": st.sampled_from([90_000, 86_400_000]),
            "max_occurrences": st.sampled_from([None, None, 5]),
            "pause_after": st.sampled_from([None, 2]),
            "payload": st.sampled_from([b"{}", b'{"a":"' + b"x" * 200 + b'"}']),
            "serial": st.sampled_from([None, "reports"]),
            "attempt_limit": st.sampled_from([None, 7]),
            "timeout_ms": st.sampled_from([None, 9_000]),
            "labels": st.sampled_from([{}, {"team": "a", "of": "b"}]),
            "headers": st.sampled_from([{}, {"trace": "1"}]),
            "note": st.sampled_from(["", "ünterwegs"]),
        }
    ),
)
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait"] * 5 + ["end"] * 6 + ["pause", "resume", "trigger", "backfill", "edit", "twice"]
        ),
        st.integers(0, 99),
        st.sampled_from([1, 400, 5_000, 20_000, MINUTE, 3 * MINUTE]),
    ),
    max_size=25,
)


@contextmanager
def slow() -> Iterator[None]:
    """All is decided on decoded states."""
    with (
        patch.object(plain_series, "fire", lambda *_: False),
        patch.object(plain_series, "succeeded", lambda *_: False),
    ):
        yield


class Both:
    """Two owners of the same log; one knows the slow way only."""

    def __init__(self) -> None:
        self.quick, self.other = Owner(HOME), Owner(HOME)
        self.open: list[str] = []

    def read(self, key: bytes, value: bytes, at: int) -> None:
        for owner in (self.quick, self.other):
            owner.read(key, value, at=at)

    def commit(self, at: int) -> Emission:
        found = self.quick.commit(at)
        with slow():
            meant = self.other.commit(at)
        assert found.puts == meant.puts
        assert found.view.delta.entries == meant.view.delta.entries
        assert self.quick.index.entries(HOME, None, 99) == self.other.index.entries(HOME, None, 99)
        work = [put for put in found.puts if put.topic == NAMES.work("default")]
        self.open += [codec.RUN.decode(put.value or b"").occurrence_id for put in work]
        return found

    def ask(self, verb: str, n: int, at: int, **fields: Any) -> None:
        id_ = f"00000000-0000-4000-8000-{n:012}"
        command = Command(command_id=id_, verb=f"schedule.{verb}", schedule_id=ID, **fields)
        self.read(keys.command_key(id_), codec.COMMAND.encode(command), at)

    def end(self, occurrence: str, outcome: str, at: int, run: int = 1) -> None:
        fact = Event(id=occurrence, kind="done", at=at, run=run, outcome=outcome)
        self.read(keys.done_key(occurrence, run), codec.EVENT.encode(fact), at)


@settings(deadline=None, max_examples=200)
@given(spec=SPECS, deeds=DEEDS)
def test_whatever_happens_both_ways_write_the_same(spec: ScheduleSpec, deeds: Any) -> None:
    both, now = Both(), NOW
    both.ask("create", 0, now, spec=spec)
    both.commit(now)
    for n, (deed, pick, passed) in enumerate(deeds, 1):
        now += passed
        match deed:
            case "end" | "twice" if both.open:
                for _ in range(1 + (deed == "twice")):  # in one batch with what is due
                    occurrence = both.open.pop(pick % len(both.open))
                    both.end(occurrence, ("succeeded", "succeeded", "dead", "cancelled")[pick % 4], now)
                    if not both.open:
                        break
            case "pause" | "resume" | "trigger":
                both.ask(deed, n, now)
            case "backfill":
                both.ask(deed, n, now, detail={"from": str(now - 4 * MINUTE), "to": str(now)})
            case "edit":
                both.ask("update", n, now, spec=replace(spec, note=str(pick), handler="other"))
        both.commit(now)


def state_of(owner: Owner) -> Schedule:
    return codec.SCHEDULE.decode(owner.entry(KEY).value)


def made(**changes: Any) -> Owner:
    owner = Owner(HOME)
    spec = ScheduleSpec(**{"id": ID, "handler": "report", "every_ms": MINUTE, "overlap": "allow", **changes})
    assert owner.command("schedule.create", NOW, schedule_id=ID, spec=spec).outcome == "created"
    return owner


def emission(owner: Owner, at: int) -> Emission:
    return owner.partition.emit([], at)


def filed(owner: Owner, **changes: Any) -> Entry:
    """Its entry, with another state."""
    value = codec.SCHEDULE.encode(replace(state_of(owner), **changes))
    return owner.entry(KEY)._replace(value=value)


@pytest.mark.parametrize(
    "changes", [{}, {"overlap": "skip"}, {"overlap": "cancel_other"}, {"serial": "x"}, {"jitter_ms": 9_000}]
)
def test_what_is_due_on_time_goes_the_quick_way(changes: Any) -> None:
    owner = made(**changes)
    for _ in range(15):
        entry = owner.entry(KEY)
        assert plain_series.fire(entry, emission(owner, entry.fire_at + 5))
        (run,) = [p for p in owner.commit(entry.fire_at + 5).puts if p.topic == NAMES.work("default")]
        id_ = (run.key or b"").decode()
        held = owner.entry(KEY)
        assert plain_series.succeeded(parse_occurrence(id_), id_, held, emission(owner, entry.fire_at + 9))
        fact = Event(id=id_, kind="done", at=NOW, run=1, outcome="succeeded")
        owner.read(keys.done_key(id_, 1), codec.EVENT.encode(fact), at=entry.fire_at + 9)
        owner.commit(entry.fire_at + 9)
    state = state_of(owner)
    assert state.counts == {"fired": 15, "succeeded": 15}
    assert [each.outcome for each in state.recent] == ["succeeded"] * 10
    assert state.open == ()


OPEN = OpenRun(occurrence_id=f"s:{ID}:0:g::{NOW}", nominal_at=NOW, emitted_at=NOW, place="default/1")
NOT_PLAIN: dict[str, dict[str, Any]] = {
    "paused": {"paused": "note"},
    "ended": {"ended": "end"},
    "nothing to come": {"next_nominal": None, "next_due": None},
    "not due": {"next_due": NOW + 10 * MINUTE},
    "kept": {"kept_until": NOW},
    "open": {"open": (OPEN,)},
    "several open": {"open": (OPEN, replace(OPEN, nominal_at=NOW - 1))},
    "waiting": {"buffer": (NOW,)},
    "of other zone data": {"zone_data": "1999a"},
    "recent ones that nobody writes": {"recent": (Recent(nominal_at=5, kind="?", at=NOW, outcome="X"),)},
    "more recent ones than are kept": {
        "recent": tuple(Recent(nominal_at=NOW + n, kind="g", at=NOW, outcome="fired") for n in range(11))
    },
    "many counters": {"counts": {f"c{n}": n for n in range(60)}},
    "a long counter": {"counts": {"c" * 40: 1}},
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_anything_else_goes_the_slow_way(what: str) -> None:
    owner = made()
    entry = filed(owner, **NOT_PLAIN[what])
    at = owner.entry(KEY).fire_at + 1
    sent = emission(owner, at)
    assert not plain_series.fire(entry, sent)
    assert (sent.puts, sent.rewritten, sent.fired) == ([], {}, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"after_ms": MINUTE, "every_ms": None},
        {"max_occurrences": 3},
        {"queue": "gone"},
        {"misfire": "??"},
        {"overlap": "??"},
        {"every_ms": None, "cron": "0 1 * * *", "tz": "Mars/Olympus"},
        {"misfire_threshold_ms": 1},
    ],
)
def test_specs_of_which_more_is_to_be_asked_go_the_slow_way(changes: Any) -> None:
    owner = made()
    state = state_of(owner)
    entry = filed(owner, spec=replace(state.spec, **changes))
    assert not plain_series.fire(entry, emission(owner, entry.fire_at + 1))


def test_more_than_one_due_and_a_last_one_go_the_slow_way() -> None:
    owner = made()
    entry = owner.entry(KEY)
    assert not plain_series.fire(entry, emission(owner, entry.fire_at + MINUTE))
    last = made(end_at=NOW + MINUTE)
    entry = last.entry(KEY)
    assert not plain_series.fire(entry, emission(last, entry.fire_at))


def test_a_success_of_which_more_follows_goes_the_slow_way() -> None:
    owner = made(overlap="skip")
    incarnation = state_of(owner).incarnation
    at = owner.entry(KEY).fire_at
    owner.commit(at)
    id_ = f"s:{ID}:{incarnation}:g::{at}"
    this, held = parse_occurrence(id_), owner.entry(KEY)
    for sound, entry, occurrence, now in (
        (True, held, this, at + 5),
        (False, held._replace(action=Action.HOLD), this, at + 5),
        (False, held, parse_occurrence(f"s:{ID}:99:g::{at}"), at + 5),
        (False, held, this, at + MINUTE),
        (False, filed(owner, zone_data="1999a"), this, at + 5),
        (False, filed(owner, open=(OPEN,)), this, at + 5),
        (False, filed(owner, buffer=(at,)), this, at + 5),
    ):
        assert plain_series.succeeded(occurrence, id_, entry, emission(owner, now)) is sound


def test_a_success_that_nobody_remembers_is_counted_all_the_same() -> None:
    owner = made()
    state = state_of(owner)
    early = state.created_at - 30 * MINUTE
    for kind, manual in (("g", ""), ("t", "x")):
        id_ = f"s:{ID}:{state.incarnation}:{kind}:{manual}:{early}"
        sent = emission(owner, NOW + 5)
        assert plain_series.succeeded(parse_occurrence(id_), id_, owner.entry(KEY), sent)
        after = codec.SCHEDULE.decode(sent.rewritten[KEY].value)
        assert after == series.done(state, id_, kind, early, "succeeded", NOW + 5).state


def test_an_older_success_that_comes_later_is_not_the_last_one() -> None:
    both = Both()
    both.ask("create", 0, NOW, spec=ScheduleSpec(id=ID, handler="report", every_ms=MINUTE, overlap="allow"))
    both.commit(NOW)
    at = both.quick.entry(KEY).fire_at
    for n in range(2):
        both.commit(at + n * MINUTE)
    for occurrence in reversed(both.open):
        both.end(occurrence, "succeeded", at + MINUTE + 5)
        both.commit(at + MINUTE + 5)
    assert state_of(both.quick).last_success_at == at + MINUTE


def test_rules_are_shared_by_all_that_are_alike_and_ids_choose_where_they_matter() -> None:
    plain = codec.peek_schedule(made(labels={"a": "b"}).entry(KEY).value)
    other = codec.peek_schedule(made(payload=b'{"x":1}', note="other").entry(KEY).value)
    assert plain is not None
    assert other is not None
    assert plain.rules == other.rules
    spec = codec.read_rules(plain.rules)
    assert (spec.every_ms, spec.overlap, spec.misfire_threshold_ms) == (MINUTE, "allow", 60_000)


def test_bytes_of_another_version_or_of_something_else_are_not_looked_at() -> None:
    value = made().entry(KEY).value
    assert codec.peek_schedule(value) is not None
    assert codec.peek_schedule(b"\xc3\x01" + bytes(8) + value[10:]) is None
    assert codec.peek_schedule(b"") is None


MARS: dict[str, Any] = {"every_ms": None, "cron": "0 0 * * * *", "tz": "Mars/Olympus", "jitter_ms": 9_000}


def test_a_damage_that_depends_on_the_id_shows_when_it_is_decided_on() -> None:
    owner = made()
    entry = filed(owner, spec=replace(state_of(owner).spec, **MARS))
    assert not plain_series.fire(entry, emission(owner, entry.fire_at))


def test_a_damaged_one_that_was_changed_as_bytes_in_the_same_batch_is_buried_and_not_written() -> None:
    owner = made()
    state = state_of(owner)
    owner.read(KEY, codec.SCHEDULE.encode(replace(state, spec=replace(state.spec, **MARS))))
    for n, outcome in enumerate(("succeeded", "dead"), 1):
        id_ = f"s:{ID}:{state.incarnation}:g::{NOW - n * MINUTE}"
        fact = Event(id=id_, kind="done", at=NOW, run=1, outcome=outcome)
        owner.read(keys.done_key(id_, 1), codec.EVENT.encode(fact))
    sent = owner.commit(NOW)
    assert [put.value for put in sent.puts if put.key == KEY] == [None]
    (letter,) = [codec.DEAD_LETTER.decode(p.value or b"") for p in sent.puts if p.topic == NAMES.dead]
    assert (letter.record_key, letter.source_offset) == (KEY, state.incarnation)
    assert owner.index.entry(HOME, KEY) is None
