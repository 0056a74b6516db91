"""The two tables of a SQL sink and every statement on them, per dialect. Parameters are written `:name`.

Statements are kept to what all dialects can do: claim a row, lock and read it, change it. What follows from what was
read is decided in Python, under the lock of the row.
"""
# ruff: noqa: S608 - the only text put into SQL is a table's name that `check_table` let pass, and our own columns

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from pipeline.core.errors import InvalidInput

TABLE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}")
"""A table's name, a schema before it if need be; short enough that the names derived from it fit PostgreSQL's 63."""


class Dialect(StrEnum):
    """The SQL that is spoken."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True)
class TableSql:
    """What is done to one table. `claim` touches one row if the key was free, else none, and waits for another
    transaction that has claimed it; `read` locks the row."""

    ddl: tuple[str, ...]
    claim: str
    read: str
    change: str
    purge: str


@dataclass(frozen=True, slots=True)
class Statements:
    """`effects` has a row for each effect that was done, `newest` one for each resource with its last writer."""

    effects: TableSql
    keep: str
    newest: TableSql


def check_table(name: object) -> str:
    """`name` itself; InvalidInput if it could be anything but a name."""
    if not isinstance(name, str) or TABLE.fullmatch(name) is None:
        raise InvalidInput("table", f"{name!r} does not match {TABLE.pattern}")
    return name


def dialect_of(name: str) -> Dialect:
    """The dialect of this name; InvalidInput if there is none."""
    try:
        return Dialect(name)
    except ValueError:
        raise InvalidInput("dialect", f"{name!r} is not one of {', '.join(Dialect)}") from None


@lru_cache(maxsize=64)
def statements(table: str, dialect: Dialect) -> Statements:
    """All statements for a table of a checked name."""
    effects = _Writer(table, dialect, ("idempotency_key", "effect"), ("occurrence_id", "token", "at"))
    newest = _Writer(
        f"{table}_newest", dialect, ("resource",), ("nominal_at", "occurrence_id", "token", "at")
    )
    keep = f"UPDATE {effects.name} SET result = :result WHERE {effects.found}"
    return Statements(effects.all("result"), keep, newest.all())


_KEY = {
    # MySQL compares text without regard to case, and to spaces at the end, unless it is binary.
    "idempotency_key": {"mysql": "VARBINARY(512)"},
    "effect": {"mysql": "VARBINARY(200)"},
    "resource": {"mysql": "VARBINARY(512)"},
    "occurrence_id": {"mysql": "VARCHAR(255) CHARACTER SET utf8mb4"},
    "result": {"mysql": "MEDIUMTEXT CHARACTER SET utf8mb4"},
}
_NUMBER = {"sqlite": "INTEGER"}

# Waiting for another transaction must end, or an attempt would wait as long as a frozen one holds its transaction
# open. Set with the claim itself, for this transaction, and only where nobody has set another limit.
_BOUNDED = (
    "(SELECT count(set_config('lock_timeout', '10s', true)) AS n FROM"
    " (SELECT 1 WHERE current_setting('lock_timeout') = '0') AS unset) AS bounded WHERE n >= 0"
)


class _Writer:
    """Writes the SQL of one table."""

    def __init__(self, table: str, dialect: Dialect, key: tuple[str, ...], rest: tuple[str, ...]) -> None:
        self._dialect = dialect
        self._key = key
        self._rest = rest
        self._base = table.rpartition(".")[2]
        self.name = ".".join(self._quoted(part) for part in table.split("."))
        self.found = " AND ".join(f"{column} = :{column}" for column in key)

    def all(self, *optional: str) -> TableSql:
        read = f"SELECT {', '.join((*self._rest, *optional))} FROM {self.name} WHERE {self.found}"
        sets = ", ".join(f"{column} = :{column}" for column in self._rest)
        return TableSql(
            ddl=self._ddl(optional),
            claim=self._claim(),
            read=read if self._dialect is Dialect.SQLITE else f"{read} FOR UPDATE",
            change=f"UPDATE {self.name} SET {sets} WHERE {self.found}",
            purge=self._purge(),
        )

    def _claim(self) -> str:
        columns = (*self._key, *self._rest)
        into = f"INTO {self.name} ({', '.join(columns)})"
        values = ", ".join(f":{column}" for column in columns)
        match self._dialect:
            case Dialect.POSTGRESQL:
                typed = ", ".join(f"CAST(:{column} AS {self._type(column)})" for column in columns)
                return f"INSERT {into} SELECT {typed} FROM {_BOUNDED} ON CONFLICT DO NOTHING"
            case Dialect.SQLITE:
                return f"INSERT {into} VALUES ({values}) ON CONFLICT DO NOTHING"
            case Dialect.MYSQL:
                return f"INSERT IGNORE {into} VALUES ({values})"

    def _purge(self) -> str:
        if self._dialect is Dialect.MYSQL:
            return f"DELETE FROM {self.name} WHERE at < :before ORDER BY at LIMIT :most"
        key = ", ".join(self._key)
        old = f"SELECT {key} FROM {self.name} WHERE at < :before ORDER BY at LIMIT :most"
        return f"DELETE FROM {self.name} WHERE ({key}) IN ({old})"

    def _ddl(self, optional: tuple[str, ...]) -> tuple[str, ...]:
        lines = [f"{column} {self._type(column)} NOT NULL" for column in (*self._key, *self._rest)]
        lines += [f"{column} {self._type(column)}" for column in optional]
        lines.append(f"PRIMARY KEY ({', '.join(self._key)})")
        index = self._quoted(f"{self._base}_at")
        if self._dialect is Dialect.MYSQL:
            lines.append(f"INDEX {index} (at)")
        body = ",\n  ".join(lines)
        end = " WITHOUT ROWID" if self._dialect is Dialect.SQLITE else ""
        table = f"CREATE TABLE IF NOT EXISTS {self.name} (\n  {body}\n){end}"
        match self._dialect:
            case Dialect.POSTGRESQL:
                return table, f"CREATE INDEX IF NOT EXISTS {index} ON {self.name} (at)"
            case Dialect.SQLITE:
                # An index is named with the schema, its table without.
                schema = self.name.removesuffix(self._quoted(self._base))
                return (
                    table,
                    f"CREATE INDEX IF NOT EXISTS {schema}{index} ON {self._quoted(self._base)} (at)",
                )
            case Dialect.MYSQL:
                return (table,)

    def _type(self, column: str) -> str:
        types = _KEY.get(column)
        return _NUMBER.get(self._dialect, "BIGINT") if types is None else types.get(self._dialect, "TEXT")

    def _quoted(self, name: str) -> str:
        mark = "`" if self._dialect is Dialect.MYSQL else '"'
        return f"{mark}{name}{mark}"
