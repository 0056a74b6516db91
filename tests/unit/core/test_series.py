"""The series of a schedule: every policy row by row, and what no policy may break."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core import series
from pipeline.core.schedule import RECENT, Backfill, Schedule, ScheduleSpec
from pipeline.core.series import Step, advance, created, done, edited, paused, resumed, triggered, wake_at
from pipeline.core.zones import zone_data_version

MINUTE = 60_000
T0 = 1_790_000_040_000
"""A whole minute."""
assert T0 % MINUTE == 0


def spec_of(**changes: Any) -> ScheduleSpec:
    wanted = {"id": "s", "handler": "h", "every_ms": MINUTE, "overlap": "allow", **changes}
    if wanted.get("after_ms") is not None:
        wanted["every_ms"] = None
    return ScheduleSpec(**wanted)


def made(at: int = T0, **changes: Any) -> Schedule:
    return created(spec_of(**changes), incarnation=7, at=at)


def minutes(instants: Any) -> list[int]:
    return [(at - T0) // MINUTE for at in instants]


def fires(step: Step) -> list[int]:
    """Minutes after T0 of what fires."""
    return minutes(each.nominal_at for each in step.fire)


def skips(step: Step) -> list[tuple[str, int, int, int]]:
    return [(s.reason, s.count, *minutes((s.first, s.last))) for s in step.skipped]


def ended(state: Schedule, minute: int, outcome: str = "succeeded", now: int = 0) -> Step:
    nominal = T0 + minute * MINUTE
    return done(state, f"s:s:7:g::{nominal}", "g", nominal, outcome, now or nominal + 1_000)


def drained(state: Schedule, now: int) -> tuple[Schedule, list[int], list[tuple[str, int, int, int]]]:
    """What one step after the other decides until nothing is due any more."""
    fired, skipped = [], []
    for _ in range(100):
        at = wake_at(state)
        if at is None or at > now:
            return state, fired, skipped
        step = advance(state, now)
        assert step.state != state, "a step that changes nothing would be taken for ever"
        assert len(step.fire) <= series.SLICE
        state = step.state
        fired += fires(step)
        skipped += skips(step)
    raise AssertionError("it does not come to an end")


# -- on time ------------------------------------------------------------------------------------------------


def test_the_first_instant_is_after_the_creation() -> None:
    state = made(T0)
    assert (state.last_nominal, state.next_nominal, state.next_due) == (T0, T0 + MINUTE, T0 + MINUTE)
    assert wake_at(state) == T0 + MINUTE
    assert advance(state, T0 + MINUTE - 1).fire == ()


def test_one_that_is_due_fires_once_and_the_next_is_told_from_its_nominal_time() -> None:
    late = T0 + MINUTE + 17_003
    step = advance(made(), late)
    (fired,) = step.fire
    assert (fired.id, fired.nominal_at, fired.due_at) == (f"s:s:7:g::{T0 + MINUTE}", T0 + MINUTE, T0 + MINUTE)
    assert step.state.next_due == T0 + 2 * MINUTE
    assert advance(step.state, late).fire == ()
    assert step.state.counts == {"fired": 1}


def test_jitter_moves_what_is_due_and_not_the_grid() -> None:
    state = made(jitter_ms=30_000)
    due = state.next_due or 0
    assert T0 + MINUTE <= due < T0 + 2 * MINUTE
    assert advance(state, due - 1).fire == ()
    step = advance(state, due)
    assert fires(step) == [1]
    assert step.fire[0].due_at == due
    assert step.state.next_nominal == T0 + 2 * MINUTE


# -- misfire ------------------------------------------------------------------------------------------------

OUTAGE = T0 + 30 * 24 * 60 * MINUTE + 30_000
"""After 30 days, half a minute past the last missed instant."""
DAYS = 30 * 24 * 60


@pytest.mark.parametrize(
    ("policy", "fired"),
    [
        # The last one is late for less than the threshold of a minute: it fires, and counts as the newest.
        ("latest", [DAYS]),
        ("none", [DAYS]),
        ("all(1)", [DAYS]),
        ("all(3)", [DAYS - 2, DAYS - 1, DAYS]),
        ("all(100)", list(range(DAYS - 99, DAYS + 1))),
        ("all(250)", list(range(DAYS - 249, DAYS + 1))),
    ],
)
def test_after_an_outage_the_newest_fire_and_the_rest_is_told(policy: str, fired: list[int]) -> None:
    state, seen, skipped = drained(made(misfire=policy), OUTAGE)
    assert seen == fired
    assert skipped == [("misfire", DAYS - len(fired), 1, DAYS - len(fired))]
    assert state.next_nominal == T0 + (DAYS + 1) * MINUTE
    assert state.counts == {"fired": len(fired), "skipped.misfire": DAYS - len(fired)}


@pytest.mark.parametrize(("policy", "fired"), [("latest", 1), ("none", 0), ("all(100)", 100)])
def test_without_a_fresh_one_the_policy_alone_counts(policy: str, fired: int) -> None:
    _, seen, skipped = drained(made(misfire=policy, misfire_threshold_ms=1_000), OUTAGE)
    assert len(seen) == fired
    assert sum(count for _, count, _, _ in skipped) == DAYS - fired


def test_less_late_than_the_threshold_always_fires() -> None:
    _, seen, skipped = drained(made(misfire="none", misfire_threshold_ms=5 * MINUTE), T0 + 9 * MINUTE)
    assert seen == [5, 6, 7, 8, 9]
    assert skipped == [("misfire", 4, 1, 4)]


def test_more_fresh_ones_than_the_policy_keeps_all_fire_over_several_steps() -> None:
    now = T0 + 450 * MINUTE + 1
    _, seen, skipped = drained(made(misfire="latest", misfire_threshold_ms=300 * MINUTE), now)
    assert seen == list(range(151, 451))
    assert skipped == [("misfire", 150, 1, 150)]


def test_what_one_step_kept_fires_in_the_next_however_late_that_is() -> None:
    step = advance(made(misfire="all(150)"), T0 + 500 * MINUTE)
    assert fires(step) == list(range(351, 451))
    assert skips(step) == [("misfire", 350, 1, 350)]
    later = advance(step.state, T0 + 5_000 * MINUTE)
    assert fires(later)[:50] == list(range(451, 501)), "kept before the second outage"
    assert later.skipped == ()
    _, seen, _ = drained(later.state, T0 + 5_000 * MINUTE)
    assert seen == list(range(4_851, 5_001))


@pytest.mark.parametrize(
    ("window", "policy", "fired", "skipped"),
    [
        (10 * MINUTE, "all(100)", list(range(490, 501)), [("catch_up", 489, 1, 489)]),
        (10 * MINUTE, "all(5)", list(range(496, 501)), [("catch_up", 489, 1, 489), ("misfire", 6, 490, 495)]),
        (10 * MINUTE, "latest", [500], [("catch_up", 489, 1, 489), ("misfire", 10, 490, 499)]),
        (0, "latest", [500], [("catch_up", 499, 1, 499)]),
    ],
)
def test_older_than_the_window_never_fires(window: int, policy: str, fired: Any, skipped: Any) -> None:
    _, seen, told = drained(made(misfire=policy, catch_up_ms=window), T0 + 500 * MINUTE)
    assert (seen, told) == (fired, skipped)


def test_outside_the_window_and_not_fresh_nothing_fires() -> None:
    spec = {"misfire": "latest", "catch_up_ms": 1_000, "misfire_threshold_ms": 2_000}
    state, seen, told = drained(made(**spec), T0 + 5 * MINUTE + 10_000)
    assert (seen, told) == ([], [("catch_up", 5, 1, 5)])
    assert state.next_nominal == T0 + 6 * MINUTE


def test_on_time_is_within_any_window() -> None:
    assert fires(advance(made(catch_up_ms=0), T0 + MINUTE + 50)) == [1]


def test_of_a_missed_one_with_jitter_only_what_is_due_counts() -> None:
    state = made(jitter_ms=50_000, misfire="all(10)")
    last = T0 + 5 * MINUTE
    due = series.timing(state).due_of(last)
    if due > last:
        assert fires(advance(state, due - 1)) == [1, 2, 3, 4]
    assert fires(advance(state, due)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("threshold", [0, 1, 45_000, 60_000, 150_000])
def test_with_jitter_freshness_counts_from_when_it_was_due(threshold: int) -> None:
    state = made(jitter_ms=50_000, misfire="none", misfire_threshold_ms=threshold)
    due_of = series.timing(state).due_of
    now = T0 + 7 * MINUTE + 40_000
    expected = [
        m for m in range(1, 8) if due_of(T0 + m * MINUTE) <= now < due_of(T0 + m * MINUTE) + threshold
    ]
    assert drained(state, now)[1] == expected


# -- overlap ------------------------------------------------------------------------------------------------


def test_skip_leaves_out_what_comes_while_one_is_open() -> None:
    first = advance(made(overlap="skip"), T0 + MINUTE)
    assert fires(first) == [1]
    second = advance(first.state, T0 + 2 * MINUTE)
    assert (fires(second), skips(second)) == ([], [("overlap", 1, 2, 2)])
    closed = ended(second.state, 1, now=T0 + 2 * MINUTE + 5)
    assert fires(closed) == []
    assert fires(advance(closed.state, T0 + 3 * MINUTE)) == [3]


def test_buffer_one_keeps_the_newest_waiting() -> None:
    state = advance(made(overlap="buffer_one"), T0 + MINUTE).state
    second = advance(state, T0 + 2 * MINUTE)
    assert (fires(second), skips(second), minutes(second.state.buffer)) == ([], [], [2])
    third = advance(second.state, T0 + 3 * MINUTE)
    assert (fires(third), skips(third), minutes(third.state.buffer)) == ([], [("overlap", 1, 2, 2)], [3])
    closed = ended(third.state, 1, now=T0 + 3 * MINUTE + 9)
    assert fires(closed) == [3]
    assert closed.fire[0].due_at == T0 + 3 * MINUTE + 9, "since it waited until then"
    assert closed.state.buffer == ()


def test_buffer_all_keeps_so_many_and_fires_them_one_after_the_other() -> None:
    state = advance(made(overlap="buffer_all(2)"), T0 + MINUTE).state
    told = []
    for minute in range(2, 6):
        step = advance(state, T0 + minute * MINUTE)
        state, told = step.state, told + skips(step)
    assert minutes(state.buffer) == [2, 3]
    assert told == [("buffer_full", 1, 4, 4), ("buffer_full", 1, 5, 5)]
    now, order = T0 + 5 * MINUTE + 1, []
    for minute in (1, 2, 3):
        step = ended(state, minute, now=now)
        state, order = step.state, order + fires(step)
    assert order == [2, 3]


def test_cancel_other_stops_the_open_one_and_waits_for_its_end() -> None:
    state = advance(made(overlap="cancel_other"), T0 + MINUTE).state
    step = advance(state, T0 + 2 * MINUTE)
    assert (fires(step), minutes(run.nominal_at for run in step.stop)) == ([], [1])
    assert fires(ended(step.state, 1, "cancelled", T0 + 2 * MINUTE + 30)) == [2]


def test_allow_notes_nothing_so_its_state_does_not_grow() -> None:
    state = made(overlap="allow")
    for minute in range(1, 40):
        state = advance(state, T0 + minute * MINUTE).state
    assert (state.open, len(state.recent)) == ((), RECENT)
    assert state.counts == {"fired": 39}


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all(3)", "cancel_other"])
def test_an_open_run_older_than_the_time_out_counts_as_ended(overlap: str) -> None:
    state = advance(made(overlap=overlap, overlap_timeout_ms=150_000), T0 + MINUTE).state
    state = advance(state, T0 + 2 * MINUTE).state
    if state.buffer:
        assert wake_at(state) == T0 + 3 * MINUTE
        state = advance(state, T0 + 3 * MINUTE).state
        assert wake_at(state) == T0 + MINUTE + 150_000
        assert fires(advance(state, T0 + MINUTE + 150_000))[0] in (2, 3)
    else:
        assert fires(advance(advance(state, T0 + 3 * MINUTE).state, T0 + 4 * MINUTE)) == [4]


def test_after_an_outage_the_overlap_rule_still_holds() -> None:
    _, seen, told = drained(made(misfire="all(5)", overlap="skip"), T0 + 10 * MINUTE)
    assert seen == [6]
    assert told == [("misfire", 5, 1, 5), ("overlap", 4, 7, 10)]


# -- what an end tells --------------------------------------------------------------------------------------


def test_an_end_is_counted_and_remembered_with_its_occurrence() -> None:
    state = advance(made(), T0 + MINUTE).state
    state = ended(state, 1, "succeeded").state
    assert state.counts == {"fired": 1, "succeeded": 1}
    assert state.last_success_at == T0 + MINUTE
    assert [(each.nominal_at, each.outcome) for each in state.recent] == [(T0 + MINUTE, "succeeded")]


def test_an_older_success_that_comes_later_is_not_the_last_one() -> None:
    state = advance(advance(made(), T0 + MINUTE).state, T0 + 2 * MINUTE).state
    state = ended(ended(state, 2).state, 1).state
    assert state.last_success_at == T0 + 2 * MINUTE


def test_after_so_many_dead_in_a_row_it_pauses_itself() -> None:
    state = made(pause_after=2)
    for minute, outcome in ((1, "dead"), (2, "succeeded"), (3, "dead"), (4, "cancelled"), (5, "dead")):
        state = advance(state, T0 + minute * MINUTE).state
        assert state.paused is None
        state = ended(state, minute, outcome).state
    assert state.paused == "2 dead in a row"
    assert wake_at(state) is None
    assert state.failures_in_row == 2


def test_resumed_it_may_fail_as_often_again() -> None:
    state = made(pause_after=1)
    state = ended(advance(state, T0 + MINUTE).state, 1, "dead").state
    state = resumed(state, T0 + 3 * MINUTE).state
    assert (state.paused, state.failures_in_row) == (None, 0)


# -- after the end of the one before --------------------------------------------------------------------------


def test_after_finish_the_next_counts_from_the_end() -> None:
    state = made(after_ms=10 * MINUTE)
    assert state.next_due == T0 + 10 * MINUTE
    step = advance(state, T0 + 10 * MINUTE)
    assert fires(step) == [10]
    assert step.state.next_due is None
    closed = ended(step.state, 10, now=T0 + 13 * MINUTE)
    assert closed.state.next_due == T0 + 23 * MINUTE


def test_after_finish_a_dead_fleet_does_not_end_the_series() -> None:
    state = advance(made(after_ms=MINUTE, overlap_timeout_ms=30 * MINUTE), T0 + MINUTE).state
    assert wake_at(state) == T0 + 31 * MINUTE
    state = advance(state, T0 + 31 * MINUTE).state
    assert state.next_due == T0 + 32 * MINUTE
    late = ended(state, 1, now=T0 + 31 * MINUTE + 500)
    assert late.state.next_due == T0 + 32 * MINUTE, "its end comes too late to say anything"


@pytest.mark.parametrize(
    ("changes", "fired", "reason"),
    [({}, [1], None), ({"misfire": "none"}, [], "misfire"), ({"catch_up_ms": MINUTE}, [], "catch_up")],
)
def test_after_finish_a_missed_one_goes_by_the_policy_and_the_series_goes_on(
    changes: dict[str, Any], fired: list[int], reason: str | None
) -> None:
    step = advance(made(after_ms=MINUTE, **changes), T0 + 60 * MINUTE)
    assert fires(step) == fired
    assert [skip.reason for skip in step.skipped] == ([] if reason is None else [reason])
    assert step.state.next_due == (None if fired else T0 + 61 * MINUTE)


def test_after_finish_ends_at_its_end_and_begins_at_its_start() -> None:
    state = made(after_ms=MINUTE, start_at=T0 + 5 * MINUTE, end_at=T0 + 7 * MINUTE)
    assert state.next_due == T0 + 5 * MINUTE
    state = advance(state, T0 + 5 * MINUTE).state
    state = ended(state, 5, now=T0 + 5 * MINUTE + 10_000).state
    assert state.next_due == T0 + 6 * MINUTE + 10_000
    state = advance(state, T0 + 6 * MINUTE + 10_000).state
    nominal = T0 + 6 * MINUTE + 10_000
    state = done(state, f"s:s:7:g::{nominal}", "g", nominal, "dead", nominal + 1).state
    assert state.next_due is None
    assert state.ended == "end"


def test_after_finish_a_trigger_does_not_move_the_series() -> None:
    state = made(after_ms=10 * MINUTE)
    step = triggered(state, "x", T0 + MINUTE, "allow")
    closed = done(step.state, step.fire[0].id, "t", T0 + MINUTE, "succeeded", T0 + 2 * MINUTE)
    assert closed.state.next_due == T0 + 10 * MINUTE


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "allow"])
def test_after_finish_goes_on_whatever_a_trigger_did_to_it(overlap: str) -> None:
    step = triggered(made(after_ms=MINUTE, overlap=overlap), "x", T0 + 30_000, "allow")
    step2 = advance(step.state, T0 + MINUTE)
    closed = done(step2.state, step.fire[0].id, "t", T0 + 30_000, "succeeded", T0 + MINUTE + 5)
    open_ = [run for run in closed.state.open if ":g:" in run.occurrence_id]
    assert len(open_) == 1 or closed.state.next_due is not None


# -- pause, resume, edit ------------------------------------------------------------------------------------


def test_a_pause_fires_what_was_due_and_nothing_after() -> None:
    step = paused(made(), "holiday", T0 + MINUTE + 500)
    assert fires(step) == [1]
    assert (step.state.paused, step.state.paused_at, step.state.revision) == ("holiday", T0 + MINUTE + 500, 2)
    assert wake_at(step.state) is None
    assert advance(step.state, T0 + 50 * MINUTE).fire == ()


def test_a_resume_skips_what_fell_into_the_pause() -> None:
    state = paused(made(), "", T0 + MINUTE + 500).state
    step = resumed(state, T0 + 50 * MINUTE + 1)
    assert (fires(step), skips(step)) == ([], [("paused", 49, 2, 50)])
    assert step.state.next_nominal == T0 + 51 * MINUTE
    assert drained(step.state, T0 + 50 * MINUTE + 1)[1] == []


def test_paused_again_it_stays_paused_since_the_first_time() -> None:
    state = paused(made(), "a", T0 + 1).state
    state = paused(state, "b", T0 + 5 * MINUTE).state
    assert (state.paused, state.paused_at) == ("b", T0 + 1)


def test_a_pause_drops_what_waits_and_says_so() -> None:
    state = advance(advance(made(overlap="buffer_one"), T0 + MINUTE).state, T0 + 2 * MINUTE).state
    step = paused(state, "", T0 + 2 * MINUTE + 1)
    assert skips(step) == [("paused", 1, 2, 2)]
    assert step.state.buffer == ()


def test_what_was_kept_before_a_pause_still_fires() -> None:
    step = paused(made(misfire="all(250)"), "", T0 + 250 * MINUTE)
    assert fires(step) == list(range(1, 101))
    state, seen, told = drained(step.state, T0 + 900 * MINUTE)
    assert (seen, told) == (list(range(101, 251)), [])
    assert (state.next_due, wake_at(state)) == (None, None)


def test_resumed_before_all_was_emitted_the_rest_waits_its_turn() -> None:
    step = paused(made(misfire="all(250)"), "", T0 + 250 * MINUTE)
    step = resumed(step.state, T0 + 300 * MINUTE)
    assert skips(step) == [("paused", 50, 251, 300)]
    _, seen, _ = drained(step.state, T0 + 301 * MINUTE)
    assert sorted(seen) == [*range(101, 251), 301]


def test_an_edit_fires_what_was_due_by_the_old_rule_and_nothing_past_by_the_new() -> None:
    step = edited(made(), spec_of(every_ms=7 * MINUTE), T0 + 2 * MINUTE + 500)
    assert fires(step) == [1, 2] or fires(step) == [2]
    after = step.state
    assert after.last_nominal == T0 + 2 * MINUTE + 500
    assert (after.next_nominal or 0) > T0 + 2 * MINUTE + 500
    assert (after.next_nominal or 0) % (7 * MINUTE) == 0
    assert after.revision == 2


def test_an_edit_of_anything_but_the_rhythm_leaves_the_grid_alone() -> None:
    state = made(jitter_ms=30_000)
    step = edited(state, replace(state.spec, payload=b'{"a":1}'), T0 + MINUTE)
    assert (step.state.next_nominal, step.state.next_due) == (state.next_nominal, state.next_due)
    assert skips(step) == []


def test_an_edit_between_an_instant_and_its_jitter_tells_what_becomes_of_it() -> None:
    state = made(jitter_ms=59_000)
    due = state.next_due or 0
    assert due > T0 + MINUTE + 10
    step = edited(state, spec_of(every_ms=5 * MINUTE), T0 + MINUTE + 10)
    assert (fires(step), skips(step)) == ([], [("edited", 1, 1, 1)])


def test_an_edit_while_it_is_paused_tells_what_fell_into_the_pause() -> None:
    state = paused(made(), "", T0 + 1).state
    step = edited(state, spec_of(every_ms=2 * MINUTE), T0 + 5 * MINUTE)
    assert skips(step) == [("paused", 5, 1, 5)]
    assert (step.state.paused, step.state.next_due) == ("", None)
    assert skips(resumed(step.state, T0 + 10 * MINUTE)) in ([("paused", 2, 6, 8)], [("paused", 3, 6, 10)])


def test_what_was_kept_before_an_edit_still_fires() -> None:
    step = edited(made(misfire="all(150)"), spec_of(every_ms=60 * MINUTE), T0 + 150 * MINUTE)
    assert fires(step) == list(range(1, 101))
    _, seen, _ = drained(step.state, T0 + 150 * MINUTE)
    assert seen == list(range(101, 151))


def test_an_edit_to_allow_forgets_what_is_open_and_lets_go_what_waits() -> None:
    state = advance(advance(made(overlap="buffer_one"), T0 + MINUTE).state, T0 + 2 * MINUTE).state
    step = edited(state, spec_of(overlap="allow"), T0 + 2 * MINUTE + 1)
    assert step.state.open == ()
    assert drained(step.state, T0 + 2 * MINUTE + 1)[1] == [2]


def test_an_edit_from_a_grid_to_after_finish_and_back() -> None:
    state = edited(made(), spec_of(after_ms=3 * MINUTE), T0 + 1).state
    assert state.next_due == T0 + 1 + 3 * MINUTE
    state = edited(state, spec_of(after_ms=4 * MINUTE), T0 + 2).state
    assert state.next_due == T0 + 2 + 4 * MINUTE
    assert edited(state, spec_of(), T0 + 3).state.next_due == T0 + MINUTE


def test_an_edit_of_the_payload_leaves_after_finish_alone() -> None:
    state = made(after_ms=3 * MINUTE)
    assert edited(state, replace(state.spec, note="x"), T0 + MINUTE).state.next_due == T0 + 3 * MINUTE


# -- ends ---------------------------------------------------------------------------------------------------


def test_at_its_end_nothing_follows_until_the_end_is_moved() -> None:
    state, seen, _ = drained(made(end_at=T0 + 3 * MINUTE, misfire="all(10)"), T0 + 9 * MINUTE)
    assert (seen, state.ended, wake_at(state)) == ([1, 2], "end", None)
    state = edited(state, spec_of(end_at=T0 + 20 * MINUTE), T0 + 9 * MINUTE + 1).state
    assert (state.ended, state.next_nominal) == ("", T0 + 10 * MINUTE)


def test_no_more_fire_than_may() -> None:
    state, seen, told = drained(made(max_occurrences=3, misfire="all(10)"), T0 + 9 * MINUTE)
    assert (seen, state.ended, told) == ([1, 2, 3], "max_occurrences", [])
    state = edited(state, spec_of(max_occurrences=3, note="x"), T0 + 9 * MINUTE).state
    assert state.ended == "max_occurrences"
    state = edited(state, spec_of(max_occurrences=4), T0 + 9 * MINUTE + 1).state
    assert drained(state, T0 + 20 * MINUTE)[1] == [20], "nothing past, and one more in all"


def test_what_waits_when_the_last_one_fires_is_told() -> None:
    state = advance(made(overlap="buffer_all(5)", max_occurrences=2), T0 + MINUTE).state
    for minute in (2, 3):
        state = advance(state, T0 + minute * MINUTE).state
    step = ended(state, 1, now=T0 + 3 * MINUTE + 1)
    assert (fires(step), skips(step)) == ([2], [("max_occurrences", 1, 3, 3)])
    assert step.state.ended == "max_occurrences"


def test_resumed_after_its_end_it_has_still_ended() -> None:
    state, _, _ = drained(made(max_occurrences=1), T0 + MINUTE)
    state = resumed(paused(state, "", T0 + 2 * MINUTE).state, T0 + 9 * MINUTE).state
    assert (state.ended, wake_at(state), dict(state.counts)) == ("max_occurrences", None, {"fired": 1})


def test_removed_nothing_fires_and_its_version_is_known() -> None:
    state = series.removed(advance(made(overlap="skip"), T0 + MINUTE).state, "v7", T0 + 90_000).state
    assert (state.ended, state.spec.version, wake_at(state)) == ("removed", "v7", None)
    assert advance(state, T0 + 90 * MINUTE).fire == ()
    assert ended(state, 1).state.ended == "removed"


# -- triggers and backfills -----------------------------------------------------------------------------------


def test_a_trigger_fires_paused_or_not_and_leaves_the_grid_alone() -> None:
    for state in (made(), paused(made(), "", T0 + 1).state):
        step = triggered(state, "abc", T0 + 500, "allow")
        assert [each.id for each in step.fire] == [f"s:s:7:t:abc:{T0 + 500}"]
        assert (step.state.next_nominal, step.state.last_nominal) == (state.next_nominal, state.last_nominal)
        assert step.state.counts == {"triggered": 1}


def test_a_trigger_that_would_overlap_is_skipped_if_it_is_to_be() -> None:
    state = advance(made(overlap="skip"), T0 + MINUTE).state
    assert [skip.kind for skip in triggered(state, "abc", T0 + MINUTE + 1, "skip").skipped] == ["t"]
    assert len(triggered(state, "abc", T0 + MINUTE + 1, "buffer_one").fire) == 1


def test_while_a_trigger_runs_the_grid_sees_it() -> None:
    step = triggered(made(overlap="skip"), "abc", T0 + 500, "skip")
    assert skips(advance(step.state, T0 + MINUTE)) == [("overlap", 1, 1, 1)]


def backfill(first: int, last: int, **changes: Any) -> Backfill:
    return Backfill(id="b", from_at=T0 + first * MINUTE, to_at=T0 + last * MINUTE, next_at=T0, **changes)


NOT_YET = T0 + 40_000


@pytest.mark.parametrize(
    ("changes", "fired"),
    [({}, [-9, -8, -7, -6]), ({"reverse": True}, [-6, -7, -8, -9])],
)
def test_a_backfill_fires_the_instants_of_its_range_in_its_direction(changes: Any, fired: list[int]) -> None:
    step = series.backfilled(made(overlap="skip"), backfill(-9, -5, **changes), T0 + 1)
    assert fires(step) == fired
    assert {each.kind for each in step.fire} == {"b"}
    assert [(each.fired, each.id) for each in step.finished] == [(4, "b")]
    assert step.state.backfills == ()
    assert step.state.open == (), "of one that may overlap nothing is noted"
    assert series.range_of(step.state, T0 - 9 * MINUTE, T0 - 5 * MINUTE) == 4


def test_a_backfill_of_many_is_cut_into_steps() -> None:
    step = series.backfilled(made(), backfill(-250, 0), T0 + 1)
    state, seen, _ = drained(step.state, NOT_YET)
    assert fires(step) + seen == list(range(-250, 0))
    assert state.counts == {"backfilled": 250}


def test_a_backfill_one_after_the_other_waits_for_each_end() -> None:
    step = series.backfilled(made(), backfill(-3, 0, overlap="buffer_all"), T0 + 1)
    order = fires(step)
    state = step.state
    assert wake_at(state) == min(state.next_due or 0, T0 + 1 + state.spec.overlap_timeout_ms)
    for minute in (-3, -2, -1):
        nominal = T0 + minute * MINUTE
        step = done(state, f"s:s:7:b:b:{nominal}", "b", nominal, "succeeded", NOT_YET)
        state, order = step.state, order + fires(step)
    assert order == [-3, -2, -1]
    assert state.backfills == ()
    assert state.open == ()


def test_a_backfill_that_skips_leaves_out_what_would_overlap() -> None:
    step = series.backfilled(made(), backfill(-4, 0, overlap="skip"), T0 + 1)
    assert fires(step) == [-4]
    assert [(s.kind, s.reason, s.count) for s in step.skipped] == [("b", "overlap", 3)]


def test_a_backfill_keeps_to_its_rate() -> None:
    state = series.backfilled(made(), backfill(-5, 0, rate=6), T0).state
    at = [T0]
    while state.backfills:
        now = wake_at(state) or 0
        step = advance(state, now)
        at += [now] * sum(each.kind == "b" for each in step.fire)
        state = step.state
    assert len(at) == 5
    assert all(9_000 <= later - before <= 10_000 for before, later in pairwise(at))


def test_a_cancelled_backfill_fires_no_more() -> None:
    state = series.backfilled(made(), backfill(-250, 0), T0 + 1).state
    assert series.backfill_cancelled(state, "other").backfills == state.backfills
    state = series.backfill_cancelled(state, "b")
    assert drained(state, NOT_YET)[1] == []


def test_a_backfill_and_what_waits_of_the_grid_do_not_mind_each_other() -> None:
    state = series.backfilled(made(overlap="skip"), backfill(-3, 0, overlap="buffer_all"), T0 + 1).state
    assert fires(advance(state, T0 + MINUTE)) == [1]


# -- single changes -------------------------------------------------------------------------------------------


def test_one_that_waits_can_be_cancelled() -> None:
    state = advance(advance(made(overlap="buffer_one"), T0 + MINUTE).state, T0 + 2 * MINUTE).state
    step = series.unbuffered(state, T0 + 2 * MINUTE, T0 + 2 * MINUTE + 1)
    assert skips(step) == [("cancelled", 1, 2, 2)]
    assert fires(ended(step.state, 1)) == []


def test_a_requeued_one_is_open_again_where_anybody_looks() -> None:
    state = ended(advance(made(overlap="skip"), T0 + MINUTE).state, 1, "dead").state
    id_ = f"s:s:7:g::{T0 + MINUTE}"
    again = series.reopened(state, id_, T0 + MINUTE, "default/1", T0 + 90_000)
    assert [run.place for run in again.open] == ["default/1"]
    assert series.reopened(again, id_, T0 + MINUTE, "default/1", T0 + 91_000) == again
    free = advance(made(overlap="allow"), T0 + MINUTE).state
    assert series.reopened(free, id_, T0 + MINUTE, "default/1", T0 + 90_000) == free


def test_other_zone_data_move_what_is_to_come() -> None:
    state = replace(made(), next_nominal=T0 + 30_000, next_due=T0 + 30_000, zone_data="of last year")
    step = advance(state, T0 + 30_000)
    assert step.fire == ()
    assert step.state.next_nominal == T0 + MINUTE
    assert step.state.zone_data == zone_data_version()


# -- what no policy may break -----------------------------------------------------------------------------------

POLICIES = st.fixed_dictionaries(
    {
        "every_ms": st.sampled_from([20_000, MINUTE, 7 * MINUTE]),
        "misfire": st.sampled_from(["latest", "none", "all(3)", "all(150)"]),
        "overlap": st.sampled_from(["skip", "buffer_one", "buffer_all(2)", "cancel_other", "allow"]),
        "jitter_ms": st.sampled_from([0, 15_000]),
        "misfire_threshold_ms": st.sampled_from([0, 30_000, MINUTE, 20 * MINUTE]),
        "catch_up_ms": st.sampled_from([None, 0, 10 * MINUTE]),
        "overlap_timeout_ms": st.sampled_from([90_000, 86_400_000]),
    }
)
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["advance", "advance", "advance", "done", "pause", "resume", "edit", "trigger", "room"]
        ),
        st.integers(0, 300),
        st.sampled_from([1, 20_000, MINUTE, 3 * MINUTE, 400 * MINUTE]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=300)
@given(policies=POLICIES, deeds=DEEDS)
def test_no_slot_fires_twice_none_is_lost_and_all_are_counted(policies: Any, deeds: Any) -> None:
    """Whatever happens in whatever order: what the grid fired, what was told as skipped and what still waits are
    together its enumeration, each once, and nothing fires before it is due."""
    state = made(**policies)
    enumerate_ = series.timing(state)
    now, fired, skipped, open_ = T0, [], 0, []
    told: list[tuple[int, int]] = []
    for deed, pick, passed in deeds:
        now += passed
        match deed:
            case "done" if open_:
                id_, nominal = open_.pop(pick % len(open_))
                outcome = ("succeeded", "dead", "cancelled")[pick % 3]
                step = done(state, id_, "g", nominal, outcome, now)
            case "pause":
                step = paused(state, "", now)
            case "resume" if state.paused is not None:
                step = resumed(state, now)
            case "edit":
                step = edited(state, replace(state.spec, note=str(pick)), now)
            case "trigger":
                step = triggered(state, f"t{pick}", now, "allow")
            case "room":
                step = advance(state, now, 1)
            case _:
                step = advance(state, now)
        for each in step.fire:
            assert each.due_at <= now
            if each.kind == "g":
                fired.append(each.nominal_at)
                open_.append((each.id, each.nominal_at))
                assert enumerate_.due_of(each.nominal_at) <= now
        grid = [each for each in step.skipped if each.kind == "g"]
        skipped += sum(each.count for each in grid)
        told += [(each.first, each.last) for each in grid]
        state = step.state
        assert len(set(fired)) == len(fired), "twice"
        decided = enumerate_.count(T0, state.last_nominal)
        assert len(fired) + skipped + len(state.buffer) == decided, "lost, or counted twice"
        assert not set(fired) & set(state.buffer)
        assert state.counts.get("fired", 0) == len(fired)
        at = wake_at(state)
        assert at is None or at > now or advance(state, now).state != state


def test_what_waits_when_a_schedule_is_paused_does_not_fire() -> None:
    state = replace(made(), paused="by hand", buffer=(T0,))
    assert advance(state, T0 + 1).fire == ()
    assert fires(advance(replace(state, paused=None), T0 + 1)) == [0]
