"""Each occurrence that had matched is counted once, however often it was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.job import Event
from pipeline.replay.counts import counts_in, settled, within


def test_counts_in_an_answer() -> None:
    def answer(**detail: str) -> Any:
        return Event(id="c", kind="answer", at=1, detail=detail)

    assert counts_in(answer(verb="replay", replay="1", requested_by="2", replayed="3", refused="0")) == {
        "replayed": 3,
        "refused": 0,
    }
    assert counts_in(answer(replayed="many", x="²", y="9" * 10)) == {}


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"replayed": 6, "superseded": 2}, {"replayed": 6, "superseded": 2}),
        ({"replayed": 10, "superseded": 3}, {"replayed": 10}),
        ({"replayed": 9, "superseded": 3, "changed": 1}, {"replayed": 9, "changed": 1}),
        ({"replayed": 8, "superseded": 3}, {"replayed": 8, "superseded": 2}),
        ({"replayed": 12}, {"replayed": 12}),
        ({"replayed": 3, "refused": 0}, {"replayed": 3}),
    ],
)
def test_what_was_asked_for_twice_counts_once(counts: dict[str, int], found: dict[str, int]) -> None:
    assert within(10, counts) == found


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        (False, {"replayed": 6, "changed": 4}),
        (True, {"replayed": 6, "changed": 1, "missing": 3}),
    ],
)
def test_what_was_not_met_again_has_changed_or_is_missing(gone: bool, found: dict[str, int]) -> None:
    assert settled(10, {"replayed": 6, "changed": 1}, gone=gone) == found
    assert settled(10, {"replayed": 9, "superseded": 4}, gone=gone) == {"replayed": 9, "superseded": 1}
