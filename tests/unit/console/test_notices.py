"""What stands still until somebody does something."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.server.console.pages.now import Answer, notices

CALM: dict[str, Any] = {"queue": "mail", "lag": 6, "workers": 2, "parked": 0, "paused": None}


def told(*, problem: str | None = None, held: Any = None, **queue: Any) -> list[tuple[str, str]]:
    overview = {"held": held, "freshness": {"problem": problem}}
    found = notices(Answer(overview=overview, queues=[{**CALM, **queue}], fleet={}))
    return [(each.title, each.text) for each in found]


def test_runs_that_wait_for_their_turn_are_no_notice() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("queue", "title", "text"),
    [
        (
            {"paused": {"reason": "mail server down"}},
            "Queue mail is paused.",
            "mail server down. 6 runs waiting.",
        ),
        ({"paused": {"reason": ""}, "lag": 0}, "Queue mail is paused.", ""),
        ({"workers": 0, "lag": 1}, "Queue mail has no live worker.", "1 run waiting."),
        (
            {"parked": 1},
            "Queue mail has a handler that no live worker knows.",
            "1 run parked until one is there.",
        ),
    ],
)
def test_a_queue_that_stands_still(queue: dict[str, Any], title: str, text: str) -> None:
    assert told(**queue) == [(title, text)]


def test_a_queue_without_workers_that_need_none() -> None:
    assert told(workers=0, lag=0) == []
    assert told(workers=0, lag=None) == []


def test_workers_that_are_not_heard_are_not_said_to_be_gone() -> None:
    assert told(workers=0, problem="no broker answers") == []


def test_a_dispatch_on_hold_comes_first() -> None:
    held = {"backup": "b7", "state": "held", "since": "2026-11-30T00:00:00.000Z"}
    found = told(held=held, workers=0)
    assert [title for title, _ in found] == ["Dispatch is on hold.", "Queue mail has no live worker."]
    assert found[0][1].startswith("Restored from backup b7, held since 2026-11-30")


def _fleet(*owners: str | None) -> dict[str, Any]:
    jobs = [{"topic": "dueline.jobs", "partition": n, "owner": owner} for n, owner in enumerate(owners)]
    return {"partitions": [*jobs, {"topic": "dueline.work.default", "partition": 0, "owner": None}]}


@pytest.mark.parametrize(
    ("fleet", "titles"),
    [
        (_fleet("a", "b"), []),
        (_fleet("a", None), ["1 of 2 partitions of jobs have no owner."]),
        (_fleet(None, None), ["No dispatcher is alive."]),
    ],
)
def test_that_nothing_fires_is_told(fleet: dict[str, Any], titles: list[str]) -> None:
    calm = {"held": None, "freshness": {"problem": None}}
    assert [each.title for each in notices(Answer(overview=calm, queues=[CALM], fleet=fleet))] == titles
    silent = {"held": None, "freshness": {"problem": "no broker answers"}}
    assert notices(Answer(overview=silent, queues=[CALM], fleet=fleet)) == []
