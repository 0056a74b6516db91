"""The SQL sink on a real PostgreSQL: attempts that race, zombies, crashes, isolation levels."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
import sqlalchemy
from integration.postgres import running_postgres
from integration.sink_racer import KEYS, race
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from unit.sinks.given import EFFECTS, TOKENS, attempt, pay

from pipeline.core.context import Context
from pipeline.core.errors import InvalidInput
from pipeline.sinks import Fenced, SqlSink

TESTS = Path(__file__).parents[1]
Connect = Callable[..., "psycopg.Connection[Any]"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as dsn:
        yield dsn


@pytest.fixture
def dsn(server: str) -> str:
    """A database of this test alone."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    dsn = server.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(dsn) as connection:
        connection.execute(EFFECTS)
        SqlSink().create_table(connection)
    return dsn


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    opened: list[psycopg.Connection[Any]] = []

    def open_one(**options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(dsn, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def waiting(connect: Connect, eventually: Callable[..., None]) -> Callable[[int], None]:
    """Returns once so many sessions wait for a lock."""
    watcher = connect(autocommit=True)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return lambda count: eventually(lambda: watcher.execute(sql).fetchone() == (count,))


def paid(connect: Connect) -> Counter[str]:
    with connect() as connection:
        return Counter(key for (key,) in connection.execute("SELECT key FROM paid"))


# -- races --------------------------------------------------------------------------------------------------


@pytest.fixture
def spawn(dsn: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `sink_racer` as a process: `spawn("race", "1")`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    spawned: list[subprocess.Popen[str]] = []

    def start(what: str, *rest: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "integration.sink_racer", what, dsn, *rest]
        spawned.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return spawned[-1]

    yield start
    for process in spawned:
        process.kill()
        process.communicate()


def test_a_thousand_interleaved_attempts_of_threads_have_one_effect_for_each_key(
    dsn: str, connect: Connect
) -> None:
    with ThreadPoolExecutor(4) as threads:
        total = sum(threads.map(lambda seed: race(dsn, seed), range(4)), Counter[str]())
    assert paid(connect) == Counter(KEYS)
    assert total["paid"] == len(KEYS)
    assert min(total["fenced"], total["done"]) > 0


def test_a_thousand_interleaved_attempts_of_processes_have_one_effect_for_each_key(
    connect: Connect, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    racers = [spawn("race", str(seed)) for seed in range(4)]
    assert [racer.communicate(timeout=50)[0] for racer in racers] == ["250\n"] * 4
    assert paid(connect) == Counter(KEYS)


def test_the_second_of_two_attempts_waits_for_the_first_and_then_sees_its_result(
    connect: Connect, waiting: Callable[[int], None]
) -> None:
    sink, first, second = SqlSink(), connect(), connect()
    effect = sink.once(attempt(TOKENS[0]), first)
    effect.keep({"number": 7})
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(sink.once, attempt(TOKENS[1]), second)
        waiting(1)
        assert not answer.done()
        first.commit()
        assert not answer.result(10)
        assert answer.result().result == {"number": 7}


def test_an_attempt_that_dies_in_its_transaction_leaves_the_effect_to_the_one_that_waits(
    connect: Connect, waiting: Callable[[int], None]
) -> None:
    sink, first, second = SqlSink(), connect(), connect()
    assert sink.once(attempt(TOKENS[0]), first)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(pay, sink, attempt(TOKENS[1]), second, "%s")
        waiting(1)
        first.close()  # what the server sees of a process that was killed
        assert answer.result(10) == "paid"
    assert paid(connect) == {"invoice-55": 1}


# -- zombies ------------------------------------------------------------------------------------------------


def test_a_frozen_worker_thawed_after_its_run_ended_elsewhere_is_refused_and_counted(
    connect: Connect, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    zombie = spawn("freeze")
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert pay(SqlSink(), attempt(TOKENS[1]), connect(), "%s") == "paid"
    zombie.send_signal(signal.SIGCONT)
    assert zombie.communicate(timeout=60)[0].split() == ["fenced", "1"]
    assert paid(connect) == {"invoice-55": 1}


def test_a_holder_frozen_with_the_key_in_hand_stops_nobody_for_ever(connect: Connect) -> None:
    sink, frozen, other = SqlSink(), connect(), connect(options="-c lock_timeout=100ms")
    assert sink.once(attempt(TOKENS[0]), frozen)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        pay(sink, attempt(TOKENS[1]), other, "%s")
    frozen.commit()
    assert pay(sink, attempt(TOKENS[1]), other, "%s") == "done"


def test_waiting_is_bounded_for_the_transaction_unless_a_bound_is_set(connect: Connect) -> None:
    def bound(connection: psycopg.Connection[Any]) -> Any:
        return connection.execute("SHOW lock_timeout").fetchone()[0]

    plain, own = connect(), connect(options="-c lock_timeout=3s")
    for ask in (
        lambda connection: SqlSink().once(attempt(), connection),
        lambda connection: SqlSink().newest(attempt(), connection, "report"),
    ):
        ask(plain)
        assert bound(plain) == "10s"
        plain.commit()
        assert bound(plain) == "0"
        ask(own)
        assert bound(own) == "3s"
        own.rollback()


# -- newest -------------------------------------------------------------------------------------------------


def day(number: int) -> Context:
    return attempt(occurrence=f"s{number}", nominal=timedelta(days=-number))


def test_an_older_writer_waits_for_a_newer_one_and_then_leaves_its_work(
    connect: Connect, waiting: Callable[[int], None]
) -> None:
    sink, newer, older = SqlSink(), connect(), connect()
    assert sink.newest(day(0), newer, "report")
    newer.commit()
    assert sink.newest(day(2), newer, "report")
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(sink.newest, day(1), older, "report")
        waiting(1)
        newer.commit()
        assert answer.result(10) is False


def test_nobody_comes_between_what_a_writer_has_read_and_its_write(
    connect: Connect, waiting: Callable[[int], None]
) -> None:
    reached, go = Event(), Event()

    class Slow(psycopg.Cursor[Any]):
        def execute(self, query: Any, *rest: Any, **options: Any) -> Any:
            if query.startswith("UPDATE"):
                reached.set()
                assert go.wait(60)
            return super().execute(query, *rest, **options)

    sink, slow, other = SqlSink(), connect(cursor_factory=Slow), connect()
    assert sink.newest(day(0), other, "report")
    other.commit()
    with ThreadPoolExecutor(2) as threads:
        older = threads.submit(sink.newest, day(1), slow, "report")
        assert reached.wait(60)
        newer = threads.submit(sink.newest, day(2), other, "report")
        try:
            waiting(1)
        finally:
            go.set()
        assert older.result(10)
        slow.commit()
        assert newer.result(10)


def test_racing_writers_overwrite_in_the_order_of_nominal_time_and_token(dsn: str, connect: Connect) -> None:
    with connect() as setup:
        setup.execute("CREATE TABLE written (n BIGSERIAL, day INT, token BIGINT)")
    asked = [(day, token) for day in range(60) for token in TOKENS]
    random.Random(3).shuffle(asked)

    def write(pairs: list[tuple[int, int]]) -> None:
        sink = SqlSink()
        with closing(psycopg.connect(dsn)) as connection:
            for day, token in pairs:
                ctx = attempt(token, occurrence=f"s{day}", nominal=timedelta(days=-day))
                try:
                    if sink.newest(ctx, connection, "report"):
                        connection.execute("INSERT INTO written (day, token) VALUES (%s, %s)", (day, token))
                    connection.commit()
                except Fenced:
                    connection.rollback()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, [asked[n::4] for n in range(4)]))
    with connect() as reader:
        written = reader.execute("SELECT day, token FROM written ORDER BY n").fetchall()
    assert written == sorted(set(written))
    assert written[-1] == max(asked)


# -- connections --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel)[2:])
def test_a_stricter_isolation_fails_the_second_attempt_and_its_retry_finds_the_effect_done(
    connect: Connect, waiting: Callable[[int], None], level: psycopg.IsolationLevel
) -> None:
    first, second = connect(), connect()
    first.isolation_level = second.isolation_level = level
    sink = SqlSink()
    assert sink.once(attempt(TOKENS[0]), first)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(pay, sink, attempt(TOKENS[1]), second, "%s")
        waiting(1)
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            answer.result(10)
    assert pay(sink, attempt(TOKENS[2]), second, "%s") == "done"


def test_autocommit_is_refused_but_not_a_transaction_in_it(connect: Connect) -> None:
    sink, connection = SqlSink(), connect(autocommit=True)
    with pytest.raises(InvalidInput, match="autocommit"):
        sink.once(attempt(), connection)
    with connection.transaction():
        assert sink.once(attempt(), connection)
    with connection.transaction():
        assert not sink.once(attempt(), connection)


def test_rows_of_the_users_making_and_the_largest_token(connect: Connect) -> None:
    sink, connection = SqlSink(), connect(row_factory=dict_row)
    sink.once(attempt(TOKENS[3]), connection).keep([None])
    assert sink.once(attempt(TOKENS[3]), connection).result == [None]
    assert connection.execute("SELECT token FROM dueline_effects").fetchone() == {"token": 2**63 - 1}
    assert sink.newest(attempt(TOKENS[3]), connection, "report")
    connection.commit()
    with pytest.raises(Fenced):
        sink.once(attempt(TOKENS[3] - 1), connection)


@pytest.fixture
def url(dsn: str) -> sqlalchemy.URL:
    words = dict(word.split("=") for word in dsn.split())
    return sqlalchemy.URL.create(
        "postgresql+psycopg", words["user"], database=words["dbname"], query={"host": words["host"]}
    )


def test_sqlalchemy(url: sqlalchemy.URL) -> None:
    sink, engine = SqlSink(), sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        sink.once(attempt(TOKENS[1]), connection).keep("kept")
        assert sink.newest(attempt(TOKENS[1]), connection, "report")
    with orm.Session(engine) as session:
        assert sink.once(attempt(TOKENS[3]), session).result == "kept"
        assert sink.newest(attempt(TOKENS[3]), session, "report")
        session.commit()
    with pytest.raises(Fenced), engine.begin() as connection:
        sink.once(attempt(TOKENS[2]), connection)
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with loose.connect() as connection, pytest.raises(InvalidInput, match="autocommit"):
        sink.once(attempt(), connection)
    engine.dispose()


def test_asynchronous_sqlalchemy(url: sqlalchemy.URL) -> None:
    sink = SqlSink()

    async def handler() -> bool:
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                first = await connection.run_sync(lambda plain: sink.once(attempt(TOKENS[1]), plain).first)
            async with AsyncSession(engine) as session, session.begin():
                again = await session.run_sync(lambda plain: sink.once(attempt(TOKENS[2]), plain).first)
            return first and not again
        finally:
            await engine.dispose()

    assert asyncio.run(handler())


# -- tables -------------------------------------------------------------------------------------------------


def test_the_ddl_and_a_table_in_a_schema(connect: Connect) -> None:
    connection, sink = connect(), SqlSink("Billing.effects")
    connection.execute('CREATE SCHEMA "Billing"')
    for _ in range(2):
        connection.execute(sink.ddl("postgresql"))
        sink.create_table(connection)
    assert sink.once(attempt(), connection)
    assert sink.newest(attempt(), connection, "report")
    assert SqlSink().once(attempt(), connection)
    indexes = connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'Billing'").fetchall()
    assert {"effects_at", "effects_newest_at"} <= {name for (name,) in indexes}


def test_purge(connect: Connect) -> None:
    sink, connection = SqlSink(), connect()
    for age in (200, 300, 95, 5):
        assert sink.once(attempt(key=f"k{age}", fired=timedelta(days=age)), connection)
        assert sink.newest(attempt(fired=timedelta(days=age)), connection, f"r{age}")

    def left() -> list[str]:
        return [
            key
            for (key,) in connection.execute("SELECT idempotency_key FROM dueline_effects ORDER BY at DESC")
        ]

    assert sink.purge(connection, limit=1) == 1
    assert left() == ["k5", "k95", "k200"]
    assert [sink.purge(connection, limit=10) for _ in range(2)] == [3, 0]
    assert left() == ["k5", "k95"]
