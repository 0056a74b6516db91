"""The way of a job in time."""

from __future__ import annotations

from typing import Any

from pipeline.server.console.timeline import shares, timeline

CREATED, DUE, FIRED, STARTED, FINISHED = (
    f"2026-11-30T10:00:{second:02}.000Z" for second in (0, 10, 11, 13, 20)
)


def job(status: str, *, runs: list[Any] | None = None, due: str = DUE) -> dict[str, Any]:
    return {"status": status, "created_at": CREATED, "due_at": due, "runs": runs or []}


def run(*attempts: tuple[str | None, str | None], fired: str = FIRED) -> dict[str, Any]:
    return {
        "run": 1,
        "fired_at": fired,
        "attempts": [{"started_at": a, "finished_at": b} for a, b in attempts],
    }


def told(view: dict[str, Any]) -> list[tuple[str, str | None, int | None]]:
    return [(step.name, step.at, step.wait_ms) for step in timeline(view)]


def test_one_that_succeeded() -> None:
    view = job("succeeded", runs=[run((STARTED, FINISHED))])
    assert told(view) == [
        ("created", CREATED, None),
        ("due", DUE, 10_000),
        ("fired", FIRED, 1_000),
        ("started", STARTED, 2_000),
        ("finished", FINISHED, 7_000),
    ]
    assert shares(timeline(view)) == [(1, 0.1), (2, 0.2), (3, 0.7)]


def test_one_that_is_to_come() -> None:
    view = job("pending")
    assert told(view)[2:] == [("fired", None, None), ("started", None, None), ("finished", None, None)]
    assert shares(timeline(view)) == []


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


def test_several_runs_are_from_the_first_to_the_last_end() -> None:
    again = "2026-11-30T10:01:00.000Z"
    view = job("dead", runs=[run((STARTED, FINISHED)), run((again, again), fired=again)])
    steps = timeline(view)
    assert (steps[-1].at, steps[-1].bad) == (again, True)
    assert [step.at for step in steps[2:4]] == [FIRED, STARTED]


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
