"""Dead letters as the read model keeps, lists and counts them: as the follower reads them from the topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from unit.readmodel.test_jobs import run_of

from pipeline import codec
from pipeline.core.errors import InvalidInput
from pipeline.core.job import DeadLetter, Run
from pipeline.follower import WantedLetters
from pipeline.follower.letter_groups import counted, joined
from pipeline.ports import Put
from pipeline.readmodel import ReadModel, letters

Settled = Callable[[], ReadModel]
T0 = 1_800_000_000_000
ALL = WantedLetters()


def bury(store: Any, run: Run | None, reason: str, at_ms: int, offset: int = 0, detail: str = "") -> None:
    letter = DeadLetter(
        reason=reason, detail=detail, at=at_ms, source_topic="t", source_partition=0, source_offset=offset,
        run=run, value=None if run else b"garbage",
    )  # fmt: skip
    key = run.occurrence_id.encode() if run else b"t/0/%d" % offset
    store.cluster.append(Put(store.names.dead, 0, key, codec.DEAD_LETTER.encode(letter)))


def test_letters_are_those_of_the_follower(store: Any, settled: Settled) -> None:
    runs = [run_of(n, handler=f"h{n % 2}") for n in range(5)]
    for n, run in enumerate(runs):
        bury(store, run, "max_attempts", T0 + n)
    bury(store, replace(runs[0], run=2), "max_attempts", T0 + 100)
    bury(store, runs[0], "max_attempts", T0 + 50)  # of an earlier run
    bury(store, None, "undecodable", T0 + 10, offset=7)
    bury(store, None, "undecodable", T0 + 11, offset=7)
    store.cluster.append(Put(store.names.dead, 0, b"x", b"no letter"))
    for run, number in ((runs[1], b"2"), (runs[2], b"1")):
        store.cluster.append(Put(store.names.dead, 0, run.job_id.encode(), None, [("run", number)]))
    model = settled()
    told = [letter.view for letter in store.follower.letters(ALL)]
    assert sorted(model.letters(ALL).rows, key=str) == sorted(told, key=str)
    assert [row["at"] for row in model.letters(ALL).rows] == sorted((v["at"] for v in told), reverse=True)
    found, cursor = [], None
    while True:
        page = model.letters(WantedLetters(handler="h0"), limit=1, cursor=cursor)
        found += [row["id"] for row in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert found == [runs[0].job_id, runs[4].job_id, runs[2].job_id]


@pytest.fixture
def town(store: Any, settled: Settled) -> ReadModel:
    """Letters of several kinds, mixed."""
    kinds = [
        ("a", "no 1234"),
        ("b", "no 1234"),
        ("a", "no 5678"),
        ("a", "yes"),
        ("a", "no 9999"),
        ("b", "no 1"),
    ]
    for n, (handler, detail) in enumerate(kinds):
        queue = "default" if n % 2 else "other"
        bury(store, run_of(n, handler=handler, queue=queue), "max_attempts", T0 + n, detail=detail)
    bury(store, None, "undecodable", T0 + 10, offset=7)
    return settled()


CHOICES = [
    ALL,
    WantedLetters(handler="a"),
    WantedLetters(queue="other"),
    WantedLetters(queues=frozenset({"default"})),
    WantedLetters(reason="undecodable"),
    WantedLetters(since=T0 + 3),
    WantedLetters(since=-(1 << 70)),
    WantedLetters(error="E"),
    WantedLetters(handler="a", queue="default", since=T0 + 2),
]


@pytest.mark.parametrize("wanted", CHOICES, ids=str)
def test_lists_and_groups_are_of_the_letters_that_the_follower_finds(
    store: Any, town: ReadModel, wanted: WantedLetters
) -> None:
    told = [letter.view for letter in store.follower.letters(wanted)]
    assert town.letters(wanted).rows == told
    page = town.letter_groups(wanted)
    assert (joined(page.rows), page.cursor) == (counted(told), None)
    for group in page.rows:
        of = replace(wanted, group=group["group"])
        assert len(town.letters(of).rows) == group["count"]


@pytest.mark.parametrize("limit", [1, 2, 50])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_groups_are_counted_stretch_by_stretch(
    town: ReadModel, monkeypatch: pytest.MonkeyPatch, limit: int, at_once: int
) -> None:
    whole = town.letter_groups(ALL).rows
    monkeypatch.setattr(letters, "BUDGET", at_once)
    rows: list[dict[str, Any]] = []
    scanned, cursor = 0, None
    while True:
        page = town.letter_groups(ALL, limit=limit, cursor=cursor)
        assert len(page.rows) <= limit
        assert page.scanned <= at_once
        rows += page.rows
        scanned += page.scanned
        if (cursor := page.cursor) is None:
            break
    assert (joined(rows), scanned) == (whole, 7)
    assert sum(row["count"] for row in whole) == 7


def test_a_stretch_ends_when_its_time_is_up_but_gets_somewhere(
    town: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "BUDGET_S", -1.0)
    assert town.letter_groups(ALL).cursor is None, "so few are looked at whatever the time"
    monkeypatch.setattr(letters, "LEAST", 3)
    page = town.letter_groups(ALL)
    assert page.scanned == 3
    assert page.cursor is not None


def test_what_makes_no_sense_is_named(town: ReadModel) -> None:
    cursor = town.letter_groups(ALL, limit=1).cursor
    for ask in (town.letters, town.letter_groups):
        with pytest.raises(InvalidInput, match="limit"):
            ask(ALL, limit=0)
        with pytest.raises(InvalidInput, match="cursor"):
            ask(WantedLetters(handler="a"), cursor=cursor)
    with pytest.raises(InvalidInput, match="cursor"):
        town.letters(ALL, cursor=cursor)
