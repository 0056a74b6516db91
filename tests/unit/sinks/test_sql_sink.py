"""What a sink answers to attempts, on SQLite."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from unit.sinks.given import EFFECTS, TOKENS, attempt, pay

from pipeline.core.errors import InvalidInput, Refused
from pipeline.sinks import Fenced, SqlSink
from pipeline.sinks.sql import RESULT_LIMIT


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(EFFECTS)
        SqlSink().create_table(connection)
        yield connection


def paid(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM paid").fetchone()[0])


def test_the_effect_happens_once_and_later_attempts_get_its_result(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    with connection:
        first = sink.once(attempt(TOKENS[0]), connection)
        assert first
        assert first.result is None
        first.keep({"number": "A-7", "lines": [1, 2.5, None]})
        assert first.result["number"] == "A-7"
    for token in TOKENS:
        with connection:
            again = sink.once(attempt(token), connection)
            assert not again
            assert again.result == {"number": "A-7", "lines": [1, 2.5, None]}
    with pytest.raises(Refused, match="an earlier attempt"):
        again.keep(1)


def test_the_same_attempt_that_asks_again_is_told_it_is_done(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    assert sink.once(attempt(), connection)
    assert not sink.once(attempt(), connection)
    assert sink.fenced == 0


def test_a_crash_between_key_and_effect_leaves_the_effect_to_the_next_attempt(
    connection: sqlite3.Connection,
) -> None:
    sink = SqlSink()
    assert sink.once(attempt(TOKENS[0]), connection)
    connection.rollback()
    assert [pay(sink, attempt(token), connection, "?") for token in TOKENS[1:3]] == ["paid", "done"]
    assert paid(connection) == 1


def test_an_older_attempt_is_refused_counted_and_logged(
    connection: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sink = SqlSink()
    assert pay(sink, attempt(TOKENS[1]), connection, "?") == "paid"
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Fenced, match=f"attempt {TOKENS[1]} was there before"),
    ):
        sink.once(attempt(TOKENS[0]), connection)
    assert sink.fenced == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(TOKENS[0]) in caplog.text
    assert paid(connection) == 1


def test_an_attempt_that_found_it_done_fences_the_ones_before_it(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    marks = [pay(sink, attempt(TOKENS[n]), connection, "?") for n in (0, 2, 1, 0, 3, 2)]
    assert marks == ["paid", "done", "fenced", "fenced", "done", "fenced"]
    assert sink.fenced == 3


def test_tokens_of_different_occurrences_are_not_compared(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    assert pay(sink, attempt(TOKENS[2], occurrence="j1"), connection, "?") == "paid"
    assert pay(sink, attempt(TOKENS[0], occurrence="j2"), connection, "?") == "done"
    # and the other occurrence's token has not taken the place of the first one's
    assert pay(sink, attempt(TOKENS[1], occurrence="j1"), connection, "?") == "fenced"


def test_effects_of_one_run_have_names(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    assert sink.once(attempt(), connection, effect="debit")
    assert sink.once(attempt(), connection, effect="credit")
    assert sink.once(attempt(), connection)
    assert not sink.once(attempt(), connection, effect="debit")


def test_two_tables_know_nothing_of_each_other(connection: sqlite3.Connection) -> None:
    other = SqlSink("main.Other_effects")
    other.create_table(connection)
    for sink in (SqlSink(), other):
        assert sink.once(attempt(TOKENS[1]), connection)
        assert sink.newest(attempt(TOKENS[1]), connection, "report")
    with pytest.raises(Fenced):
        other.once(attempt(TOKENS[0]), connection)
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {
        "paid",
        "dueline_effects",
        "dueline_effects_newest",
        "Other_effects",
        "Other_effects_newest",
    }


def test_the_largest_token_is_kept_exactly(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    assert TOKENS[3] == 2**63 - 1
    assert sink.once(attempt(TOKENS[3]), connection)
    assert connection.execute("SELECT token FROM dueline_effects").fetchone() == (2**63 - 1,)
    with pytest.raises(Fenced):
        sink.once(attempt(TOKENS[3] - 1), connection)


@pytest.mark.parametrize(
    ("nominal", "token", "outcome"),
    [
        (timedelta(hours=1), 3, "older"),
        (timedelta(0), 1, "fenced"),
        (timedelta(0), 2, "newer"),
        (timedelta(0), 3, "newer"),
        (timedelta(hours=-1), 1, "newer"),
    ],
)
def test_the_newest_pair_of_nominal_time_and_token_wins(
    connection: sqlite3.Connection, nominal: timedelta, token: int, outcome: str
) -> None:
    sink = SqlSink()
    assert sink.newest(attempt(2, occurrence="s:0"), connection, "report")
    occurrence = f"s:{nominal.total_seconds():.0f}"
    mine = attempt(token, occurrence=occurrence, nominal=nominal)
    if outcome == "fenced":
        with pytest.raises(Fenced, match="resource 'report'"):
            sink.newest(mine, connection, "report")
        assert sink.fenced == 1
    else:
        assert sink.newest(mine, connection, "report") is (outcome == "newer")
        last = connection.execute("SELECT occurrence_id, token FROM dueline_effects_newest").fetchone()
        assert last == ((occurrence, token) if outcome == "newer" else ("s:0", 2))
    assert sink.newest(mine, connection, "another report")


DAYS = timedelta(days=1)


def test_purge_deletes_the_oldest_and_never_what_can_come_again(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    for age in (400, 300, 200, 95, 5):
        assert sink.once(attempt(key=f"k{age}", fired=age * DAYS), connection)
        assert sink.newest(attempt(fired=age * DAYS), connection, f"r{age}")
    assert sink.purge(connection, limit=2) == 2
    assert sink.purge(connection, older_than="90d", limit=3) == 3
    assert sink.purge(connection) == 2
    assert sink.purge(connection) == 0
    left = connection.execute("SELECT idempotency_key FROM dueline_effects ORDER BY 1").fetchall()
    assert left == [("k5",)]
    left = connection.execute("SELECT resource FROM dueline_effects_newest ORDER BY 1").fetchall()
    assert left == [("r5",), ("r95",)]
    for older_than in ("89d", 0, "1h"):
        with pytest.raises(InvalidInput, match="older_than: must be at least 90d"):
            sink.purge(connection, older_than=older_than)
    with pytest.raises(InvalidInput, match="limit: 0"):
        sink.purge(connection, limit=0)


def test_a_key_asked_for_again_is_kept_as_long_again(connection: sqlite3.Connection) -> None:
    sink = SqlSink()
    assert sink.once(attempt(TOKENS[0], fired=200 * DAYS), connection)
    assert not sink.once(attempt(TOKENS[1], fired=10 * DAYS), connection)
    assert not sink.once(attempt(TOKENS[2], fired=200 * DAYS), connection)
    assert sink.purge(connection) == 0


@pytest.mark.parametrize(
    "table",
    [
        "",
        "1st",
        "a b",
        "a;drop table paid",
        'a"b',
        "a`b",
        "a.b.c",
        "a-b",
        "ä",
        "x" * 49,
        ".a",
        "a.",
        None,
        7,
        "a\n",
    ],
)
def test_a_garbage_table_name_is_refused(table: Any) -> None:
    with pytest.raises(InvalidInput, match="table: "):
        SqlSink(table)


@pytest.mark.parametrize("name", ["a\0b", "x" * 201, "ä" * 101, None, 7, "\ud800"])
def test_a_garbage_effect_name_is_refused(connection: sqlite3.Connection, name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"effect: .* is no name"):
        SqlSink().once(attempt(), connection, effect=name)
    assert not connection.in_transaction


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 513, None, b"r"])
def test_a_garbage_resource_name_is_refused(connection: sqlite3.Connection, name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"resource: .* is no name"):
        SqlSink().newest(attempt(), connection, name)


@pytest.mark.parametrize("result", [object(), float("nan"), {1, 2}, "x" * RESULT_LIMIT, b"bytes"])
def test_a_result_that_cannot_be_kept_is_refused(connection: sqlite3.Connection, result: Any) -> None:
    effect = SqlSink().once(attempt(), connection)
    with pytest.raises(InvalidInput, match="result: has"):
        effect.keep(result)
    assert effect.result is None


def test_names_are_data(connection: sqlite3.Connection) -> None:
    sink, hostile = SqlSink(), "'; DROP TABLE paid; -- :token ? %s"
    assert sink.once(attempt(key=hostile), connection, effect=hostile)
    assert sink.newest(attempt(), connection, hostile)
    assert connection.execute("SELECT idempotency_key, effect FROM dueline_effects").fetchone() == (
        hostile,
        hostile,
    )
    assert paid(connection) == 0


def test_the_ddl_makes_the_tables(connection: sqlite3.Connection) -> None:
    sink = SqlSink("made_by_hand")
    connection.executescript(sink.ddl("sqlite"))
    connection.executescript(sink.ddl("sqlite"))
    sink.create_table(connection)
    assert sink.once(attempt(), connection)
    with pytest.raises(InvalidInput, match="dialect: 'oracle' is not one of postgresql, sqlite, mysql"):
        sink.ddl("oracle")


@pytest.mark.parametrize(
    ("dialect", "marks"),
    [
        ("postgresql", ['"public"."t"', "token BIGINT NOT NULL", 'INDEX IF NOT EXISTS "t_at"']),
        ("mysql", ["`public`.`t`", "token BIGINT NOT NULL", "VARBINARY(512)", "INDEX `t_at` (at)"]),
    ],
)
def test_the_ddl_of_other_databases(dialect: str, marks: list[str]) -> None:
    text = SqlSink("public.t").ddl(dialect)
    assert all(mark in text for mark in marks), text
    assert text.count("CREATE TABLE IF NOT EXISTS") == 2


def test_a_fenced_attempt_ends_and_is_not_tried_again() -> None:
    from pipeline.core.handler import Cancelled, Registry, decide
    from pipeline.core.job import Run

    spec = Registry().add("pay", lambda ctx: None)
    run = Run(**dict.fromkeys(Run.__dataclass_fields__, 0))  # only a failure would look at it
    verdict = decide(spec, run, error=Fenced("fenced at its effect"), now=0, random=lambda n: 0)
    assert isinstance(verdict, Cancelled)
