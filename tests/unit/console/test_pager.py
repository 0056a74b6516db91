"""Pages that are filled from several answers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.readmodel.questions import Page
from pipeline.server.console.parts import pager
from pipeline.server.console.parts.pager import filled


class Scarce:
    """Every third of 30 records matches; an answer has looked at four of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str | None]] = []

    def __call__(self, count: int, cursor: str | None) -> Page:
        self.asked.append((count, cursor))
        begin = int(cursor or 0)
        found: list[dict[str, Any]] = []
        for at in range(begin, min(begin + 4, 30)):
            found += [{"id": at}] if at % 3 == 0 else []
            if len(found) == count:
                break
        return Page(rows=found, cursor=str(at + 1) if at < 29 else None, scanned=at + 1 - begin)


def test_a_page_goes_on_until_it_is_full() -> None:
    ask = Scarce()
    page = filled(ask, 5, None)
    assert [row["id"] for row in page.rows] == [0, 3, 6, 9, 12]
    assert (page.cursor, page.scanned) == ("13", 13)
    assert [count for count, _ in ask.asked] == [5, 3, 2, 1]
    rest = filled(ask, 50, page.cursor)
    assert ([row["id"] for row in rest.rows], rest.cursor) == ([15, 18, 21, 24, 27], None)


def test_a_page_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "FILL_S", -1.0)
    page = filled(Scarce(), 5, None)
    assert ([row["id"] for row in page.rows], page.cursor) == ([0, 3], "4")
