"""What `q/<queue>` on `meta` says, and what changes of it come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Event
from pipeline.core.queues import (
    Gate,
    Pause,
    Purge,
    QueueChange,
    QueueState,
    of_event,
    paused,
    purged,
    resumed,
    to_event,
)

PAUSE = Pause(by="ann@h1", at=7, reason="the mail server is down")
PURGE = Purge(id="p1", by="bob@h2", at=9, topic_id="t1", ends=(3, 0, 12))


def test_a_pause_names_who_wanted_it_and_the_second_changes_nothing() -> None:
    state = paused(None, "mail", PAUSE)
    assert state == QueueState(queue="mail", changed=QueueChange.PAUSED, by="ann@h1", at=7, pause=PAUSE)
    assert paused(state, "mail", Pause(by="bob@h2", at=8)) == state


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[31mred", "bell\x07", "x" * 501, "\u202eturned"])
def test_a_reason_is_one_line_for_whoever_reads_it(reason: str) -> None:
    with pytest.raises(InvalidInput, match=r"^reason: is not one line of at most 500 characters"):
        paused(None, "mail", Pause(by="ann@h1", at=7, reason=reason))


def test_resumed_says_by_whom_and_can_be_paused_again() -> None:
    state = resumed(paused(None, "mail", PAUSE), "mail", "bob@h2", 8)
    assert state == QueueState(queue="mail", changed=QueueChange.RESUMED, by="bob@h2", at=8)
    assert resumed(state, "mail", "eve@h3", 9) == state
    assert resumed(None, "mail", "eve@h3", 9) is None
    assert paused(state, "mail", PAUSE).pause == PAUSE


def test_a_purge_leaves_the_pause_and_keeps_what_an_earlier_one_meant() -> None:
    state = purged(paused(None, "mail", PAUSE), "mail", PURGE)
    assert (state.pause, state.purge, state.changed, state.by) == (PAUSE, PURGE, QueueChange.PURGED, "bob@h2")
    later = purged(state, "mail", replace(PURGE, id="p2", at=10, ends=(4, 2, 5)))
    assert later.purge == replace(PURGE, id="p2", at=10, ends=(4, 2, 12))
    anew = purged(state, "mail", replace(PURGE, id="p3", topic_id="t2", ends=(1, 1, 1)))
    assert anew.purge is not None
    assert anew.purge.ends == (1, 1, 1), "offsets of a topic that is gone mean nothing"
    assert resumed(state, "mail", "ann@h1", 11) == replace(
        state, pause=None, changed=QueueChange.RESUMED, by="ann@h1", at=11
    )


@pytest.mark.parametrize(
    "state",
    [
        paused(None, "mail", PAUSE),
        paused(None, "mail", replace(PAUSE, reason="")),
        purged(None, "mail", PURGE),
        purged(paused(None, "mail", PAUSE), "mail", replace(PURGE, before=5)),
        resumed(purged(paused(None, "mail", PAUSE), "mail", PURGE), "mail", "bob@h2", 8),
    ],
)
def test_what_is_written_is_read(state: QueueState) -> None:
    assert of_event(to_event(state)) == state


def test_a_purge_may_say_how_many_it_means() -> None:
    state = purged(None, "mail", replace(PURGE, waiting=12))
    assert of_event(to_event(state)) == state


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "replay"},
        {"outcome": None},
        {"detail": {}},
        {"detail": {"by": "x", "paused_by": "x"}},
        {"detail": {"by": "x", "paused_by": "x", "paused_at": "noon"}},
        {"detail": {"by": "x", "purge_id": "p"}},
    ],
)
def test_what_is_no_record_of_a_queue_is_refused(change: dict[str, Any]) -> None:
    event: Event = replace(to_event(purged(None, "mail", PURGE)), **change)
    with pytest.raises(Undecodable, match="no record of a queue"):
        of_event(event)


def test_a_gate_is_what_the_record_says() -> None:
    gate = Gate(closed=True)
    gate.follow(None, "t1")
    assert (gate.closed, gate.end(0), gate.end(99)) == (False, 0, 0)
    gate.follow(purged(paused(None, "mail", PAUSE), "mail", PURGE), "t1")
    assert (gate.closed, gate.end(0), gate.end(2), gate.end(3)) == (True, 3, 12, 0)
    assert gate.reason == "purge p1 of the queue by bob@h2"
    gate.follow(purged(None, "mail", PURGE), "another topic of the name")
    assert (gate.closed, gate.end(0), gate.reason) == (False, 0, "")
