"""The way of a job in time."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.times import parse_instant
from pipeline.server.console.timeline import shares, timeline

CREATED, DUE, FIRED, STARTED, FINISHED = (
    f"2026-11-30T10:00:{second:02}.000Z" for second in (0, 10, 11, 13, 20)
)

BEFORE = parse_instant("now", CREATED)


def job(status: str, *, runs: list[Any] | None = None, due: str = DUE) -> dict[str, Any]:
    return {"status": status, "created_at": CREATED, "due_at": due, "runs": runs or []}


def run(*attempts: tuple[str | None, str | None], fired: str = FIRED) -> dict[str, Any]:
    return {
        "run": 1,
        "fired_at": fired,
        "attempts": [{"started_at": a, "finished_at": b} for a, b in attempts],
    }


def told(view: dict[str, Any]) -> list[tuple[str, str | None, int | None]]:
    return [(step.name, step.at, step.wait_ms) for step in timeline(view, BEFORE)]


def test_one_that_succeeded() -> None:
    view = job("succeeded", runs=[run((STARTED, FINISHED))])
    assert told(view) == [
        ("created", CREATED, None),
        ("due", DUE, 10_000),
        ("fired", FIRED, 1_000),
        ("started", STARTED, 2_000),
        ("finished", FINISHED, 7_000),
    ]
    assert shares(timeline(view, BEFORE)) == [(1, 0.1), (2, 0.2), (3, 0.7)]


def test_one_that_is_to_come() -> None:
    view = job("pending")
    assert told(view)[2:] == [("fired", None, None), ("started", None, None), ("finished", None, None)]
    assert shares(timeline(view, BEFORE)) == []


def test_one_that_was_cancelled_has_no_more_to_come() -> None:
    assert [name for name, _, _ in told(job("cancelled"))] == ["created", "due"]


def test_the_end_of_an_attempt_is_no_end_of_the_job() -> None:
    view = job("retrying", runs=[run((STARTED, FINISHED))], due="2026-11-30T11:00:00.000Z")
    assert told(view) == [
        ("created", CREATED, None),
        ("fired", FIRED, None),
        ("started", STARTED, 2_000),
        ("finished", None, None),
    ]


def test_of_several_runs_the_last_ones_way_is_told_and_what_lay_before_as_one_wait() -> None:
    fired, started, ended = (f"2026-11-30T10:30:{second:02}.000Z" for second in (11, 12, 14))
    last = run((started, ended), fired=fired) | {"run": 4}
    view = job("dead", runs=[run((STARTED, FINISHED)), last])
    steps = timeline(view, BEFORE)
    assert told(view)[2:] == [
        ("fired", FIRED, 1_000),
        ("run 4 fired", fired, 1_800_000),
        ("started", started, 1_000),
        ("finished", ended, 2_000),
    ]
    assert (steps[-1].bad, steps[3].wait) == (True, "in earlier runs and between them")
    assert [colour for colour, _ in shares(steps)] == [1, 0, 2, 3]
    assert dict(shares(steps))[3] < 0.01, "the run took two seconds, not half an hour"


def test_a_run_that_goes_on_again_has_not_started_with_the_first() -> None:
    again = "2026-11-30T10:01:00.000Z"
    view = job("queued", runs=[run((STARTED, FINISHED)), run(fired=again) | {"run": 2}])
    assert told(view)[-3:] == [
        ("run 2 fired", again, 49_000),
        ("started", None, None),
        ("finished", None, None),
    ]


@pytest.mark.parametrize(
    ("status", "runs", "name", "told", "since"),
    [
        ("pending", [], "fired", "overdue, so far", DUE),
        ("queued", [run()], "started", "waiting for a worker, so far", FIRED),
        ("running", [run((STARTED, None))], "finished", "running, so far", STARTED),
    ],
)
def test_what_is_still_waited_for_is_a_wait_so_far(
    status: str, runs: list[Any], name: str, told: str, since: str
) -> None:
    steps = timeline(job(status, runs=runs), parse_instant("now", since) + 60_000)
    (step,) = [step for step in steps if step.wait_ms == 60_000]
    assert (step.name, step.at, step.wait) == (name, None, told)
    assert shares(steps)[-1][1] > 0.9


def test_one_that_was_due_before_it_was_made() -> None:
    view = job("succeeded", runs=[run((STARTED, FINISHED))], due="2026-11-30T09:59:56.000Z")
    assert told(view)[:3] == [
        ("due", "2026-11-30T09:59:56.000Z", None),
        ("created", CREATED, 4_000),
        ("fired", FIRED, 11_000),
    ]
    assert timeline(view, BEFORE)[1].wait == "after it was due"


def test_clocks_that_disagree_make_no_negative_wait() -> None:
    assert told(job("succeeded", runs=[run((CREATED, FINISHED))]))[3] == ("started", CREATED, 0)


def test_one_whose_beginning_is_not_kept() -> None:
    view = job("succeeded", runs=[run((None, FINISHED))]) | {"created_at": None}
    assert told(view) == [
        ("due", DUE, None),
        ("fired", FIRED, 1_000),
        ("started", None, None),
        ("finished", FINISHED, None),
    ]
