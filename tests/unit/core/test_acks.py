"""The tracker of one work partition, against a model of plain sets."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.core.acks import AckTracker, Start
from pipeline.core.errors import StopPartition
from pipeline.core.offset_metadata import BROKER_LIMIT, WINDOW_LIMIT, decode
from pipeline.core.token import make_token

TOKEN = make_token(0, 1, 7, 1)


def fresh(*delivered):
    tracker = AckTracker.from_committed(0, "")
    for offset in delivered:
        assert tracker.deliver(offset)
    return tracker


def successor(tracker):
    return AckTracker.from_committed(*tracker.committable())


def test_a_fresh_partition():
    tracker = AckTracker.from_committed(5, "")
    assert (tracker.mark, tracker.next_offset, tracker.acks_offset) == (5, 5, 0)
    assert (tracker.unfinished, tracker.in_flight) == (0, 0)
    assert tracker.committable() == (5, "1;0;;;")


def test_the_mark_waits_for_the_lowest_unfinished():
    tracker = fresh(0, 1, 2)
    tracker.finish(1)
    assert (tracker.mark, tracker.unfinished) == (0, 2)
    tracker.finish(0)
    assert tracker.mark == 2
    tracker.finish(2)
    assert (tracker.mark, tracker.unfinished) == (3, 0)


def test_what_was_delivered_is_not_delivered_again():
    tracker = fresh(0, 1)
    tracker.finish(1)
    assert [tracker.deliver(offset) for offset in (0, 1, 2)] == [False, False, True]


def test_nobody_waits_for_offsets_that_were_never_delivered():
    tracker = fresh(3, 7)
    tracker.finish(3)
    assert tracker.mark == 7
    tracker.finish(7)
    tracker.passed(12)
    assert tracker.mark == tracker.next_offset == 12
    tracker.passed(9)
    assert tracker.mark == 12
    assert not tracker.deliver(11)


def test_markers_between_single_records_cost_nothing():
    """One job a transaction leaves a marker after each: gaps that must not be written as finished runs."""
    tracker = fresh(*range(0, 4_000, 2))
    assert tracker.committable() == (0, "1;0;;;")
    assert tracker.room()


def test_what_would_be_committed_changes_nothing():
    tracker = fresh(0, 1, 2, 3)
    tracker.finish(2)
    assert tracker.committable([0], acks_offset=9) == (1, "1;9;1+1;;")
    assert tracker.committable([0, 1]) == (3, "1;0;;;")
    assert tracker.committable([3]) == (0, "1;0;2+2;;")
    assert tracker.committable([1]) == (0, "1;0;1+2;;")
    assert tracker.committable([0, 1, 3]) == (4, "1;0;;;")
    assert tracker.committable() == (0, "1;0;2+1;;")


def test_starts_survive_a_takeover_until_their_run_ends():
    tracker = fresh(0, 1, 2)
    tracker.begin(1, Start(1, TOKEN, "w1"))
    tracker.begin(1, Start(2, TOKEN + 1, "w2"))
    tracker.begin(2, Start(1, TOKEN, "w1"))
    assert tracker.in_flight == 2
    tracker.finish(2)
    assert tracker.in_flight == 1
    heir = successor(tracker)
    assert heir.starts(1) == 2
    assert [heir.deliver(offset) for offset in (0, 1, 2)] == [True, True, False]
    assert [heir.starts(offset) for offset in (0, 1, 2)] == [0, 2, 0]
    assert heir.last_start(1) == Start(2, TOKEN + 1, "w2")
    assert heir.last_start(0) is None
    assert heir.in_flight == 0
    heir.finish(1)
    assert heir.committable() == (0, "1;0;1+2;;")


def test_what_a_predecessor_knew_is_passed_on_before_it_is_read_again():
    tracker = fresh(0, 1, 2, 3, 4)
    tracker.begin(3, Start(1, TOKEN, "w1"))
    tracker.finish(2)
    before = tracker.committable(acks_offset=17)
    heir = AckTracker.from_committed(*before)
    assert heir.committable() == before
    assert heir.acks_offset == 17
    assert heir.deliver(0)
    assert heir.committable() == before


def test_a_finished_run_next_to_the_reading_position_is_passed_at_once():
    heir = AckTracker.from_committed(0, "1;0;1+5;;")
    assert heir.deliver(0)
    assert heir.next_offset == 6
    heir.finish(0)
    assert heir.committable() == (6, "1;0;;;")


def test_a_finished_run_that_was_jumped_over_lies_below_the_mark():
    heir = AckTracker.from_committed(0, "1;0;2+3;5@w;1.0,7.0")
    assert heir.starts(1) == 1
    assert heir.deliver(6)
    assert heir.mark == 6
    assert heir.starts(1) == 0
    assert heir.committable() == (6, "1;0;;5@w;2.0")


def test_a_finished_run_is_not_started_again_when_what_stood_before_it_is_gone():
    heir = AckTracker.from_committed(0, "1;0;2+3;;")
    assert not heir.deliver(3)
    assert heir.mark == heir.next_offset == 5
    assert heir.deliver(5)


def test_only_unfinished_offsets_begin_and_finish():
    with pytest.raises(ValueError, match="offset 9 is not unfinished"):
        fresh(0).finish(9)
    with pytest.raises(ValueError, match="offset 9 is not unfinished"):
        fresh(0).begin(9, Start(1, TOKEN, "w"))


def test_a_start_that_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="does not match"):
        fresh(0).begin(0, Start(1, TOKEN, "no;worker"))


def test_metadata_of_a_newer_version_stops_the_partition():
    with pytest.raises(StopPartition, match="version '2'"):
        AckTracker.from_committed(0, "2;")


# -- the window


def start_while_room(tracker, worker="worker-host-4711"):
    count = 0
    while tracker.room():
        tracker.deliver(tracker.next_offset)
        tracker.begin(tracker.next_offset - 1, Start(1, TOKEN, worker))
        count += 1
    return count


def test_the_window_holds_hundreds_of_runs_and_opens_again():
    tracker = AckTracker.from_committed(0, "")
    assert start_while_room(tracker) >= 400
    for offset in range(100):
        tracker.finish(offset)
    assert tracker.room()


def test_a_run_that_blocks_the_mark_narrows_the_window_and_never_closes_it():
    tracker = fresh(0)
    tracker.begin(0, Start(1, TOKEN, "w"))
    for offset in range(1, 20_000):
        assert tracker.deliver(offset)
        assert tracker.room()
        tracker.begin(offset, Start(1, TOKEN, "w"))
        tracker.finish(offset)
    assert tracker.committable()[1] == "1;0;1+19999;549755815681@w;0.0"
    assert start_while_room(tracker) >= 250


def test_the_window_allows_for_runs_far_apart_that_end_one_by_one():
    tracker, started = AckTracker.from_committed(0, ""), []
    while tracker.room():
        waiting, starting = tracker.next_offset + 10**5, tracker.next_offset + 2 * 10**5
        tracker.deliver(waiting)
        tracker.deliver(starting)
        tracker.begin(starting, Start(1, TOKEN, "w"))
        started.append(starting)
    for offset in started:
        tracker.finish(offset)
        assert len(tracker.committable()[1]) <= WINDOW_LIMIT
    assert len(tracker.committable()[1]) > WINDOW_LIMIT * 2 // 3


@settings(max_examples=12)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 3, 1_000]), st.booleans())
def test_honouring_room_keeps_the_text_within_the_limit(seed, holders, leaps):
    """Whatever is delivered, started and finished in whatever order, and through takeovers."""
    rng = random.Random(seed)
    tracker, waiting, running, end = AckTracker.from_committed(0, ""), [], [], 0
    for step in range(800):
        action = rng.random()
        if action < 0.55:
            end += rng.choice([1, 1, 2, 30, 10**5, 10**12] if leaps else [1])
            if tracker.deliver(end):
                waiting.append(end)
        elif action < 0.97 and waiting and tracker.room():
            offset = waiting.pop(rng.randrange(len(waiting)))
            holder = rng.randrange(holders)
            start = Start(rng.choice([1, 1, 1, 255]), (1 << 62) + holder, f"{holder:080}")
            tracker.begin(offset, start)
            running.append(offset)
        elif running and step % 3 == 0:
            tracker.finish(running.pop(rng.randrange(len(running))))
        if step % 40 == 0:
            text = tracker.committable(acks_offset=(1 << 63) - 1)[1]
            assert len(text) <= WINDOW_LIMIT < BROKER_LIMIT
    while running:
        tracker.finish(running.pop(rng.randrange(len(running))))
        assert len(tracker.committable(acks_offset=(1 << 63) - 1)[1]) <= WINDOW_LIMIT


# -- the model


class Model(RuleBasedStateMachine):
    """A log with gaps, a tracker, and takeovers; the model keeps plain sets."""

    def __init__(self):
        super().__init__()
        self.log, self.end = [], 0
        self.finished, self.starts = set(), {}
        self.unfinished, self.begun = set(), set()
        self.cursor = self.position = 0
        self.acks_offset = 0
        self.tracker = AckTracker.from_committed(0, "")

    @rule(gap=st.one_of(st.integers(0, 3), st.just(10**9)), count=st.integers(1, 4))
    def append(self, gap, count):
        self.log += range(self.end + gap, self.end + gap + count)
        self.end += gap + count

    @precondition(lambda self: self.cursor < len(self.log))
    @rule(count=st.integers(1, 6))
    def deliver(self, count):
        for offset in self.log[self.cursor : self.cursor + count]:
            assert self.tracker.deliver(offset) == (offset not in self.finished)
            assert not self.tracker.deliver(offset)
            if offset not in self.finished:
                self.unfinished.add(offset)
            self.cursor, self.position = self.cursor + 1, offset + 1

    @precondition(lambda self: self.cursor == len(self.log))
    @rule(markers=st.integers(0, 2))
    def reach_the_end(self, markers):
        self.end += markers
        self.position = self.end
        self.tracker.passed(self.end)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), token=st.integers(1, 3), worker=st.sampled_from("abc"))
    def begin(self, data, token, worker):
        offset = data.draw(st.sampled_from(sorted(self.unfinished)))
        start = Start(self.tracker.starts(offset) + 1, token, worker)
        assert self.tracker.room()
        self.tracker.begin(offset, start)
        self.starts[offset] = start
        self.begun.add(offset)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), acks=st.integers(0, 100))
    def commit(self, data, acks):
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.unfinished))))
        promised = self.tracker.committable(chosen, acks_offset=acks)
        for offset in data.draw(st.permutations(sorted(chosen))):
            self.tracker.finish(offset)
        assert self.tracker.committable(acks_offset=acks) == promised
        self.finished |= chosen
        self.unfinished -= chosen
        self.begun -= chosen

    @rule(data=st.data(), acks=st.integers(0, 100))
    def take_over(self, data, acks):
        mark, text = self.tracker.committable(acks_offset=acks)
        gone = data.draw(st.sets(st.sampled_from(self.log), max_size=2)) if self.log else set()
        self.log = [offset for offset in self.log if offset not in gone]
        self.cursor = sum(offset < mark for offset in self.log)
        self.position, self.acks_offset = mark, acks
        self.unfinished, self.begun = set(), set()
        self.tracker = AckTracker.from_committed(mark, text)

    @invariant()
    def agrees(self):
        tracker = self.tracker
        assert tracker.unfinished == len(self.unfinished)
        assert tracker.in_flight == len(self.begun)
        assert tracker.acks_offset == self.acks_offset
        if self.unfinished:
            assert tracker.mark == min(self.unfinished)
        else:
            assert tracker.mark >= self.position
        below = {offset for offset in self.log if offset < tracker.mark}
        assert below <= self.finished

    @invariant()
    def the_text_says_what_the_model_knows(self):
        mark, text = self.tracker.committable()
        metadata = decode(mark, text)
        # What `room` counts is what the text holds, or the window would drift.
        assert self.tracker._runs == len(metadata.finished)
        assert self.tracker._sizes.total() == len(metadata.started)
        told = {offset for offset in self.log for first, last in metadata.finished if first <= offset <= last}
        assert told == {offset for offset in self.log if offset in self.finished and offset >= mark}
        started = {offset: start for offset, start in metadata.started if offset in set(self.log)}
        assert started == {
            offset: start
            for offset, start in self.starts.items()
            if offset in set(self.log) and offset not in self.finished
        }
        assert all(self.tracker.starts(offset) == start.starts for offset, start in started.items())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_a_start_that_was_given_back_leaves_what_counts_of_those_before_it():
    tracker = AckTracker.from_committed(0, "")
    tracker.deliver(0)
    tracker.forget_start(0, None)  # it was never started
    assert (tracker.starts(0), tracker.in_flight) == (0, 0)
    tracker.begin(0, Start(2, 9, "w"))
    tracker.forget_start(0, Start(1, 9, "-"))
    assert (tracker.last_start(0), tracker.in_flight) == (Start(1, 9, "-"), 0)
    assert tracker.committable() == (0, "1;0;;9@-;0.0")
    tracker.forget_start(0, None)
    assert tracker.committable() == (0, "1;0;;;")
    with pytest.raises(ValueError, match="not unfinished"):
        tracker.forget_start(7, None)
