"""Which connections a sink takes, and how it speaks to them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession
from unit.sinks.given import EFFECTS, TOKENS, attempt

from pipeline.core.errors import InvalidInput
from pipeline.sinks import Fenced, SqlSink
from pipeline.sinks.connections import _bound, _styled

TESTS = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        SqlSink().create_table(connection)
        connection.execute(EFFECTS)
    return path


@pytest.fixture
def engine(file: Path) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("style", "sql", "bound"),
    [
        ("qmark", "a = ? AND b = ? OR a = ?", (1, "x", 1)),
        ("numeric", "a = :1 AND b = :2 OR a = :3", (1, "x", 1)),
        ("named", "a = :a AND b = :b OR a = :a", {"a": 1, "b": "x"}),
        ("format", "a = %s AND b = %s OR a = %s", (1, "x", 1)),
        ("pyformat", "a = %(a)s AND b = %(b)s OR a = %(a)s", {"a": 1, "b": "x"}),
    ],
)
def test_parameters_are_written_as_the_driver_wants_them(style: str, sql: str, bound: object) -> None:
    text = "a = :a AND b = :b OR a = :a"
    assert _styled(text, style) == sql
    assert _bound(text, style, {"a": 1, "b": "x", "unused": 2}) == bound


def test_a_connection_of_sqlalchemy(engine: sqlalchemy.Engine) -> None:
    sink = SqlSink()
    with engine.begin() as connection:
        effect = sink.once(attempt(TOKENS[1]), connection)
        assert effect
        effect.keep([1])
    with engine.begin() as connection:
        assert sink.once(attempt(TOKENS[2]), connection).result == [1]
        assert sink.newest(attempt(), connection, "report")
    with pytest.raises(Fenced), engine.begin() as connection:
        sink.once(attempt(TOKENS[0]), connection)
    with engine.begin() as connection:
        assert sink.purge(connection) == 0
        SqlSink("another").create_table(connection)


@pytest.mark.parametrize("scoped", [False, True])
def test_a_session_of_sqlalchemy_shares_its_transaction(engine: sqlalchemy.Engine, scoped: bool) -> None:
    sink = SqlSink()
    factory = orm.sessionmaker(engine)
    session: Any = orm.scoped_session(factory) if scoped else factory()
    assert sink.once(attempt(), session)
    session.rollback()
    assert sink.once(attempt(), session)
    session.commit()
    assert not sink.once(attempt(), session)
    session.close()


class Derived(sqlite3.Connection):
    """What a user may have made of it."""


def test_a_derived_connection_and_its_own_rows_and_texts(file: Path) -> None:
    sink = SqlSink()
    with closing(sqlite3.connect(file, factory=Derived)) as connection:
        connection.row_factory = lambda cursor, row: {column[0]: 0 for column in cursor.description}
        connection.text_factory = bytes
        effect = sink.once(attempt(TOKENS[1]), connection)
        effect.keep("kept")
        assert sink.once(attempt(TOKENS[2]), connection).result == "kept"
        with pytest.raises(Fenced):
            sink.once(attempt(TOKENS[0]), connection)


def test_autocommit_is_refused_unless_a_transaction_is_open(file: Path) -> None:
    sink = SqlSink()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for ask in (
            lambda: sink.once(attempt(), connection),
            lambda: sink.newest(attempt(), connection, "r"),
        ):
            with pytest.raises(InvalidInput, match="connection: is in autocommit mode"):
                ask()
        connection.execute("BEGIN IMMEDIATE")
        assert sink.once(attempt(), connection)
        connection.execute("ROLLBACK")
        assert sink.purge(connection) == 0


def test_autocommit_of_sqlalchemy_is_refused(engine: sqlalchemy.Engine) -> None:
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with loose.connect() as connection, pytest.raises(InvalidInput, match="autocommit"):
        SqlSink().once(attempt(), connection)


DJANGO = """
import sys
import django
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}
settings.configure(DATABASES={"default": database})
django.setup()
from django.db import connection, transaction
from unit.sinks.given import TOKENS, attempt
from pipeline.core.errors import InvalidInput
from pipeline.sinks import Fenced, SqlSink

sink, outcomes = SqlSink(), []
try:
    sink.once(attempt(), connection)
except InvalidInput as error:
    outcomes.append(str(error)[:37])
for token in TOKENS[1], TOKENS[2], TOKENS[0]:
    try:
        with transaction.atomic():
            outcomes.append(sink.once(attempt(token), connection).first)
    except Fenced:
        outcomes.append("fenced")
print(outcomes)
"""


def test_a_connection_of_django(file: Path) -> None:
    # In a process of its own, since Django's settings are made once.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    told = subprocess.check_output([sys.executable, "-c", DJANGO, file], env=environment, text=True)
    assert told == "['connection: is in autocommit mode, bu', True, False, 'fenced']\n"


class Asynchronous:
    async def execute(self, sql: str) -> None: ...


@pytest.mark.parametrize(
    ("connection", "problem"),
    [
        (None, "NoneType is no connection of SQLAlchemy, Django, or one of MySQLdb, "),
        ("sqlite:///app.db", "str is no connection"),
        (Asynchronous(), "Asynchronous is asynchronous: with SQLAlchemy's, call through its run_sync"),
        (AsyncSession(), "AsyncSession is asynchronous"),
        (
            sqlalchemy.create_engine("sqlite://"),
            r"Engine is an engine, .* `with engine.begin\(\) as connection`",
        ),
    ],
)
def test_what_is_no_connection_is_refused_by_name(connection: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"connection: {problem}"):
        SqlSink().once(attempt(), connection)
