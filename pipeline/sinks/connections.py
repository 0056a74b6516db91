"""The connections a user may hand in, brought to one shape without importing a driver: DB-API 2.0 (PEP 249),
SQLAlchemy, Django. Whatever came from a user's connection is its own; nothing here commits or rolls back.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.sinks.statements import Dialect

Parameters = Mapping[str, object]

_DRIVERS = {
    "sqlite3": Dialect.SQLITE,
    "pysqlite3": Dialect.SQLITE,
    "psycopg": Dialect.POSTGRESQL,
    "psycopg2": Dialect.POSTGRESQL,
    "pg8000": Dialect.POSTGRESQL,
    "MySQLdb": Dialect.MYSQL,
    "pymysql": Dialect.MYSQL,
    "mysql": Dialect.MYSQL,
    "mariadb": Dialect.MYSQL,
}
_PARAMETER = re.compile(r":([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement did: rows touched, and the first row it returned, if it returns rows."""

    count: int
    row: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Channel:
    """A connection of any kind. `run(sql, parameters)` takes SQL with `:name` for each parameter."""

    dialect: Dialect
    run: Callable[[str, Parameters], Answer]


def channel_of(connection: Any, *, transaction: bool = True) -> Channel:
    """The channel to a user's connection or session. InvalidInput naming `connection` if it is none that can be
    used, or (unless `transaction` is False) if what is done on it commits by itself, statement by statement."""
    alchemy = _sqlalchemy(connection)
    if alchemy is not None:
        return _alchemy_channel(alchemy, transaction)
    if hasattr(connection, "vendor") and hasattr(connection, "in_atomic_block"):
        return _django_channel(connection, transaction)
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise _unusable(connection, "is asynchronous: with SQLAlchemy's, call through its run_sync()")
    root = next((name for name in _roots(connection) if name in _DRIVERS), None)
    if root is None or not hasattr(connection, "cursor"):
        raise _unusable(
            connection, f"is no connection of SQLAlchemy, Django, or one of {', '.join(sorted(_DRIVERS))}"
        )
    dialect = _DRIVERS[root]
    if transaction and _commits_itself(connection, dialect):
        raise _autocommit()
    return Channel(dialect, partial(_execute, connection, _paramstyle(connection)))


# -- SQLAlchemy and Django ----------------------------------------------------------------------------------


def _sqlalchemy(connection: Any) -> Any | None:
    """SQLAlchemy's connection behind a connection or session of it; None if it is neither."""
    alchemy: Any = sys.modules.get("sqlalchemy")  # not loaded: then it cannot be one of its objects
    if alchemy is None:
        return None
    if isinstance(connection, alchemy.Engine):
        raise _unusable(
            connection, "is an engine, which has no transaction: `with engine.begin() as connection`"
        )
    orm: Any = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        return connection.connection()
    return connection if isinstance(connection, alchemy.Connection) else None


def _alchemy_channel(connection: Any, transaction: bool) -> Channel:
    try:
        dialect = Dialect("mysql" if connection.dialect.name == "mariadb" else connection.dialect.name)
    except ValueError:
        raise _unusable(connection, f"speaks {connection.dialect.name}, not {_known()}") from None
    if transaction and _commits_itself(connection.connection.dbapi_connection, dialect):
        raise _autocommit()
    text: Any = sys.modules["sqlalchemy"].text  # type: ignore[attr-defined,unused-ignore]

    def run(sql: str, parameters: Parameters) -> Answer:
        answer = connection.execute(text(sql), {name: parameters[name] for name in _names(sql)})
        row = answer.first() if answer.returns_rows else None
        return Answer(answer.rowcount, None if row is None else tuple(row))

    return Channel(dialect, run)


def _django_channel(connection: Any, transaction: bool) -> Channel:
    try:
        dialect = Dialect(connection.vendor)
    except ValueError:
        raise _unusable(connection, f"speaks {connection.vendor}, not {_known()}") from None
    if transaction and not connection.in_atomic_block:
        raise _autocommit()
    return Channel(dialect, partial(_execute, connection, "format"))


def _known() -> str:
    return ", ".join(Dialect)


# -- DB-API -------------------------------------------------------------------------------------------------


def _execute(connection: Any, style: str, sql: str, parameters: Parameters) -> Answer:
    cursor = connection.cursor()
    try:
        _plain_rows(cursor)
        cursor.execute(_styled(sql, style), _bound(sql, style, parameters))
        row = cursor.fetchone() if cursor.description else None
        return Answer(cursor.rowcount, None if row is None else _values(row, cursor.description))
    finally:
        cursor.close()


def _plain_rows(cursor: Any) -> None:
    """Whatever rows the user's connection makes, this cursor makes tuples."""
    if hasattr(cursor, "row_factory"):
        psycopg: Any = sys.modules.get("psycopg.rows")
        cursor.row_factory = psycopg.tuple_row if psycopg and "psycopg" in _roots(cursor) else None


def _values(row: Any, description: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    # Some drivers make mappings of rows by a setting of the connection.
    return tuple(row[column[0]] for column in description) if isinstance(row, Mapping) else tuple(row)


def _names(sql: str) -> list[str]:
    return _PARAMETER.findall(sql)


@lru_cache(maxsize=256)
def _styled(sql: str, style: str) -> str:
    """SQL with the parameters written as a driver of this paramstyle wants them."""
    count = iter(range(1, sql.count(":") + 1))
    match style:
        case "qmark":
            return _PARAMETER.sub("?", sql)
        case "numeric":
            return _PARAMETER.sub(lambda _: f":{next(count)}", sql)
        case "format":
            return _PARAMETER.sub("%s", sql)
        case "pyformat":
            return _PARAMETER.sub(r"%(\1)s", sql)
        case _:
            return sql


def _bound(sql: str, style: str, parameters: Parameters) -> object:
    names = _names(sql)
    if style in ("named", "pyformat"):
        return {name: parameters[name] for name in names}
    return tuple(parameters[name] for name in names)


def _paramstyle(connection: Any) -> str:
    """As the driver's module says; drivers in a package of a package say it in an inner one."""
    for module in _modules(connection):
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            style = getattr(sys.modules.get(".".join(parts[:end])), "paramstyle", None)
            if isinstance(style, str):
                return style
    raise _unusable(connection, "comes from a module without paramstyle (PEP 249)")


def _modules(instance: Any) -> Iterator[str]:
    # By __class__, which wrappers pass on; over its bases, since a user may have derived a class.
    return (cls.__module__ for cls in instance.__class__.__mro__)


def _roots(instance: Any) -> list[str]:
    return [module.partition(".")[0] for module in _modules(instance)]


# -- transactions -------------------------------------------------------------------------------------------


def _commits_itself(raw: Any, dialect: Dialect) -> bool:
    """Whether the next statement would commit at once. Drivers that cannot say are taken to open a transaction,
    as PEP 249 wants it."""
    if dialect is Dialect.SQLITE:
        # `autocommit` is -1 for the rules before Python 3.12, where isolation_level decides.
        itself = getattr(raw, "isolation_level", "") is None or getattr(raw, "autocommit", False) is True
    elif callable(getattr(raw, "get_autocommit", None)):
        itself = bool(raw.get_autocommit())
    else:
        itself = getattr(raw, "autocommit", False) is True
    return itself and not _in_transaction(raw)


def _in_transaction(raw: Any) -> bool:
    status = getattr(getattr(raw, "info", None), "transaction_status", 0)  # libpq's: 0 = idle
    return bool(status) or getattr(raw, "in_transaction", False) is True


def _autocommit() -> InvalidInput:
    return InvalidInput(
        "connection",
        "is in autocommit mode, but key and effect must commit together: begin a transaction first",
    )


def _unusable(connection: Any, problem: str) -> InvalidInput:
    return InvalidInput("connection", f"{type(connection).__qualname__} {problem}")
