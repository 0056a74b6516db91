"""The effects of a storm's handlers in a real database: what the sink guards, and beside it what nobody guards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from pipeline.core.context import Context
from pipeline.sinks import SqlSink

PATIENCE_S = 30
"""How long a writer waits for another: a frozen process may hold a lock for as long as it is frozen."""
TABLES = (
    # Unguarded: each start of a handler, each refusal of the sink.
    "CREATE TABLE starts (n {serial}, occurrence TEXT, run INT, token BIGINT, pid INT, at BIGINT)",
    "CREATE TABLE refused (n {serial}, occurrence TEXT, run INT, token BIGINT, pid INT, at BIGINT)",
    # Guarded: once by key, and one written over and over by all attempts of an occurrence.
    "CREATE TABLE effects (n {serial}, key TEXT, token BIGINT, pid INT, at BIGINT)",
    "CREATE TABLE written (n {serial}, occurrence TEXT, token BIGINT)",
)
SERIAL = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgres": "BIGSERIAL PRIMARY KEY"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Effects:
    """`store`: a file of SQLite, or the connection string of a PostgreSQL."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.kind = "postgres" if "dbname=" in store else "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection of its own: a killed process leaves nothing that another could trip over."""
        with closing(self._connect()) as connection, connection:
            yield connection

    def _connect(self) -> Any:
        if self.kind == "postgres":
            return psycopg.connect(self.store, options=f"-c lock_timeout={PATIENCE_S}s")
        connection = sqlite3.connect(self.store, timeout=PATIENCE_S)
        connection.execute("PRAGMA synchronous=OFF")  # what is tested is concurrency and not a power cut
        return connection

    def run(self, connection: Any, sql: str, *values: object) -> Any:
        return connection.execute(sql.replace("?", "%s") if self.kind == "postgres" else sql, values)

    def create(self) -> None:
        with self.transaction() as connection:
            for table in TABLES:
                connection.execute(table.format(serial=SERIAL[self.kind]))
            SqlSink().create_table(connection)

    def note(self, table: str, ctx: Context, pid: int) -> None:
        with self.transaction() as connection:
            self.run(
                connection,
                f"INSERT INTO {table} (occurrence, run, token, pid, at) VALUES (?, ?, ?, ?, ?)",
                *(ctx.occurrence_id, ctx.run, ctx.token, pid, now_ms()),
            )

    def put(self, connection: Any, ctx: Context, pid: int) -> None:
        self.run(
            connection,
            "INSERT INTO effects (key, token, pid, at) VALUES (?, ?, ?, ?)",
            *(ctx.idempotency_key, ctx.token, pid, now_ms()),
        )

    def overwrite(self, connection: Any, ctx: Context) -> None:
        self.run(
            connection, "INSERT INTO written (occurrence, token) VALUES (?, ?)", ctx.occurrence_id, ctx.token
        )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Without their numbers, in the order of those."""
        with self.transaction() as connection:
            return [row[1:] for row in connection.execute(f"SELECT * FROM {table} ORDER BY n")]
