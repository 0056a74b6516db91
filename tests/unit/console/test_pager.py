"""Pages that are filled from several answers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.readmodel.questions import Page
from pipeline.server.console.parts import pager
from pipeline.server.console.parts.pager import Gathering, filled


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


class Slow:
    """One answer a refresh; `until` tells how far it looks."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str | None]] = []
        self.names = "abcdefgh"

    def __call__(self, now: int, count: int, cursor: str | None) -> Page:
        self.asked.append((now, cursor))
        begin = int(cursor or 0)
        rows = [{"id": name} for name in self.names[begin : begin + 2]][:count]
        end = begin + 2
        return Page(rows=rows, cursor=str(end) if end < len(self.names) else None, scanned=2)


def shown(gathering: Gathering, now: int, ask: Slow) -> str:
    return "".join(row["id"] for row in gathering.more(now, ask).page.rows)


def test_a_refresh_goes_on_where_the_last_one_had_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "FILL_S", -1.0)
    ask, gathering = Slow(), Gathering(5, None)
    assert [shown(gathering, now, ask) for now in (1, 2, 3)] == ["ab", "abcd", "abcde"]
    assert ask.asked == [(1, None), (1, "2"), (1, "4")]  # the list of the first instant


def test_what_was_found_stays_until_as_much_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "FILL_S", -1.0)
    ask, gathering = Slow(), Gathering(5, None)
    for now in (1, 2, 3):
        gathering.more(now, ask)
    ask.names = "ABCDEFGH"
    assert [shown(gathering, now, ask) for now in (4, 5, 6)] == ["abcde", "abcde", "ABCDE"]
    assert gathering.more(7, ask).now == 4
    assert ask.asked[3:] == [(4, None), (4, "2"), (4, "4"), (7, None)]


def test_the_end_of_a_list_is_shown_at_once() -> None:
    ask, gathering = Slow(), Gathering(50, "4")
    assert shown(gathering, 1, ask) == "efgh"
    ask.names = "abcdefg"
    assert shown(gathering, 2, ask) == "efg"
