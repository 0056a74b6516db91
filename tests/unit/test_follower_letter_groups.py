"""Which dead letters count as alike, and how they are counted."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.follower.letter_groups import Grouping, counted, joined, kind_of, masked

AT = "2027-01-15T08:00:00.000Z"


def view(n: int = 0, **fields: Any) -> dict[str, Any]:
    """A letter as it is listed; the larger `n`, the older."""
    error = {"type": fields.pop("error", "ValueError"), "message": "no", "trace": None}
    attempts = [{"run": 1, "error": {**error, "type": "Other"}}, {"run": 2, "error": error}]
    usual = {"id": f"j{n}", "handler": "h", "queue": "q", "reason": "max_attempts", "detail": "no", "run": 2}
    return {**usual, "at": f"2027-01-15T08:00:0{9 - n}.000Z", "attempts": attempts, **fields}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("timed out after 5.031 s", "timed out after # s"),
        ("order 8831: no such order", "order #: no such order"),
        ("answered 503", "answered 503"),
        ("exit code 137", "exit code 137"),
        ("no route to 10.0.0.12", "no route to 10.0.0.12"),
        ("10.0.0.12:54321 refused", "10.0.0.12:# refused"),
        ("job j01hzy3vq8e5k7m9n2p4r6s8t0a is gone", "job # is gone"),
        ("user 3F2504E0-4f89-11d3-9a0c-0305e82c3301", "user #"),
        ("<object at 0x7f8d65c77ec0>", "<object at #>"),
        ("commit deadbeef1 of facade", "commit # of facade"),
        ("due 2027-01-15T08:00:00.123Z, or 2027-01-15 08:00:00+01:00", "due #, or #"),
        ("on 2027-01-15", "on #"),
        ("\n  first   line \nsecond", "first line"),
        ("", ""),
        ("x" * 400, "x" * 300),
    ],
)
def test_what_varies_is_masked_and_what_tells_errors_apart_is_not(message: str, shown: str) -> None:
    assert masked(message) == shown


def test_the_error_is_that_of_the_run_that_died() -> None:
    assert kind_of(view())[:3] == ("h", "max_attempts", "ValueError")
    assert kind_of(view(run=3)).error is None, "its owner buried it before it started"
    lost = {"run": 2, "error": None}
    assert kind_of(view(attempts=[lost])).error is None
    assert kind_of(view(attempts=[], handler=None, run=None)).error is None
    assert len(kind_of(view(error="E" * 1_000)).error or "") == 200


def test_the_name_of_a_group_never_changes_and_has_all_of_its_kind() -> None:
    assert kind_of(view()).group == "f866a3e0a68a"
    others = [
        view(handler="i"),
        view(reason="timeout"),
        view(error="E"),
        view(detail="yes"),
        view(detail="\ud800"),
    ]
    assert len({kind_of(each).group for each in [view(), *others]}) == 6
    assert kind_of(view(1, detail="no\nmore", queue="r")) == kind_of(view())


def test_letters_are_counted_the_largest_group_first() -> None:
    rows = counted([view(0, handler="i"), view(1), view(2), view(3, handler="g")])
    assert [(row["handler"], row["count"]) for row in rows] == [("h", 2), ("i", 1), ("g", 1)]
    assert rows[0] == {
        **kind_of(view())._asdict(),
        "group": kind_of(view()).group,
        "count": 2,
        "oldest": view(2)["at"],
        "newest": view(1)["at"],
        "example": "j1",
    }


def test_no_more_kinds_are_counted_than_asked_for() -> None:
    grouping = Grouping(1)
    assert grouping.add(view(0))
    assert not grouping.add(view(1, handler="i"))
    assert grouping.add(view(2)), "it is of a kind that there is already"
    assert [row["count"] for row in grouping.rows()] == [2]


def test_stretches_together_are_as_one() -> None:
    letters = [view(n, handler=handler) for n, handler in enumerate("hiihkh")]
    stretches = [counted(letters[:2]), counted(letters[2:4]), counted(letters[4:])]
    assert joined(row for rows in stretches for row in rows) == counted(letters)
    assert joined([]) == []
