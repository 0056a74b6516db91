"""The record of a replay: what is written is read back, and which replays may mean the same occurrences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.replay.record import STALE_MS, Replay, ReplayState, of_event, to_event
from pipeline.replay.runner import Runner
from pipeline.survey import Filter, Part, State, Window

T0 = 1_800_000_000_000
FAILED = frozenset({State.FAILED})
ELSEWHERE = Runner(host="elsewhere", pid=7, place="boot/4026531836", nonce="n1")


def replay(**changes: Any) -> Replay:
    fields = {
        "id": "3c9c5b1e-0000-4000-8000-000000000000",
        "state": ReplayState.RUNNING,
        "window": Window(from_ms=T0, to_ms=T0 + 60_000),
        "wanted": Filter(outcomes=FAILED),
        "requested_by": "ada@engine",
        "created_at": T0 + 90_000,
        "updated_at": T0 + 90_000,
        "runner": ELSEWHERE,
        **changes,
    }
    return Replay(**fields)


FULL = replay(
    wanted=Filter(
        handler="mail", schedule="nightly", queue="q", labels={"a": "b"}, key_prefix="inv", outcomes=FAILED
    ),
    rate=2.5, matched=7, counts={"replayed": 3}, part=Part("mail", 4), offset=99, resumed=2, attempt=3, era=4,
    reason="payload: too long",
)  # fmt: skip


@pytest.mark.parametrize("found", [replay(), FULL, replay(state=ReplayState.CANCELLED, runner=None)])
def test_what_is_written_is_read_back(found: Replay) -> None:
    assert of_event(codec.EVENT.decode(codec.EVENT.encode(to_event(found)))) == found


@pytest.mark.parametrize(
    "name", ["wanted", "from", "counts", "part", "rate", "created_at", "runner", "era", "attempt"]
)
@pytest.mark.parametrize("value", [None, "x", "[]", '{"handler":{}}'])
def test_what_is_no_record_is_told_so(name: str, value: str | None) -> None:
    event = to_event(FULL)
    detail = {key: text for key, text in event.detail.items() if key != name}
    with pytest.raises(Undecodable, match="the record of replay"):
        of_event(replace(event, detail=detail if value is None else {**detail, name: value}))


def test_another_event_is_no_record() -> None:
    with pytest.raises(Undecodable):
        of_event(replace(to_event(FULL), kind="answer"))
    with pytest.raises(Undecodable):
        of_event(replace(to_event(FULL), outcome="paused"))


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ({}, {}, True),
        ({"handler": "a"}, {}, True),
        ({"handler": "a"}, {"handler": "a", "queue": "q"}, True),
        ({"handler": "a"}, {"handler": "b"}, False),
        ({"schedule": "a"}, {"schedule": "b"}, False),
        ({"queue": "a"}, {"queue": "b"}, False),
        ({"key_prefix": "inv"}, {"key_prefix": "invoice-"}, True),
        ({"key_prefix": "inv"}, {"key_prefix": "order"}, False),
        ({"labels": {"a": "1"}}, {"labels": {"b": "1"}}, True),
        ({"labels": {"a": "1"}}, {"labels": {"a": "2"}}, False),
    ],
)
def test_which_may_mean_the_same_occurrences(one: Any, other: Any, meet: bool) -> None:
    first, second = (replay(wanted=Filter(outcomes=FAILED, **fields)) for fields in (one, other))
    assert first.overlaps(second) is second.overlaps(first) is meet


def test_windows_that_touch_do_not_overlap() -> None:
    later = replay(window=Window(from_ms=T0 + 60_000, to_ms=T0 + 70_000))
    assert not replay().overlaps(later)
    assert not later.overlaps(replay())
    assert replay().overlaps(replace(later, window=Window(from_ms=T0 + 59_999, to_ms=T0 + 70_000)))


def test_which_is_carried_out() -> None:
    found = replay()
    assert found.alive(found.updated_at + STALE_MS - 1)
    assert not found.alive(found.updated_at + STALE_MS)
    assert not replace(found, runner=None).alive(found.updated_at)
    assert not replace(found, state=ReplayState.FINISHED).alive(found.updated_at)
