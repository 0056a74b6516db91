"""What the map of buckets shows."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.times import parse_instant
from pipeline.server.console.pages.buckets import SCALES, cell_of, short

NOW = parse_instant("now", "2026-11-30T13:27:45Z")
START = parse_instant("start", "2026-11-30T13:25:00Z")


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_map_begins_with_a_whole_row_and_holds_now(scale: Any) -> None:
    begin = scale.begin(NOW)
    assert begin % scale.row_ms == 0
    assert begin + scale.past * scale.row_ms <= NOW < begin + (scale.past + 1) * scale.row_ms
    assert len(scale.heads()) == scale.columns + 1


def view(**counts: int) -> dict[str, Any]:
    return {"from": "2026-11-30T13:25:00.000Z", "counts": counts, "late": 0}


def test_cells() -> None:
    nothing = cell_of(START, 300_000, None, 0, NOW)
    assert "href" not in nothing
    assert nothing["now"]
    full = cell_of(START, 300_000, view(pending=400), 400, NOW)
    few = cell_of(START, 300_000, view(succeeded=1), 400, NOW)
    assert (few["kind"], full["kind"]) == ("h1", "h4")
    assert "due%3E%3D2026-11-30T13%3A25%3A00.000Z+due%3C2026-11-30T13%3A30%3A00.000Z" in full["href"]
    assert cell_of(START, 300_000, view(dead=1), 400, NOW)["kind"] == "h1 failed"
    assert cell_of(START, 300_000, view(succeeded=1) | {"late": 3}, 400, NOW)["kind"] == "h1 late"


def test_short() -> None:
    assert [short(each) for each in (7, 999, 1_234, 12_345, 1_234_567, 12_345_678)] == [
        *("7", "999", "1.2k", "12k", "1.2M", "12M"),
    ]
