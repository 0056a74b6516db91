"""Effects in a SQL database that happen once: the key of the effect commits with the effect (docs/effects.md)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.context import Context
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.handler import Duration, Fenced
from pipeline.core.times import instant_of, parse_duration
from pipeline.sinks.connections import Channel, channel_of
from pipeline.sinks.statements import Statements, check_table, dialect_of, statements

RESULT_LIMIT = 64 * 1024
"""Bytes of a kept result's JSON."""
EFFECT_LIMIT = 200
RESOURCE_LIMIT = 512
"""UTF-8 bytes of the name of an effect, and of a resource."""
LEAST_AGE_MS = 90 * 86_400_000
"""As long as a dead letter can be requeued; work can be replayed for 30 days."""


@dataclass(slots=True)
class Effect:
    """What `SqlSink.once` found, true if the effect is still to be done. `result` is what was kept with it."""

    first: bool
    result: Any = None
    _store: Callable[[str], None] | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.first

    def keep(self, result: Any) -> None:
        """Keep a result with the effect, for later attempts. InvalidInput naming `result` if it has no JSON, or
        more than 64 KiB of it; Refused if an earlier attempt did the effect."""
        if self._store is None:
            raise Refused("keep: the effect was done by an earlier attempt")
        self._store(_json(result))
        self.result = result


class SqlSink:
    """Keeps, in a table of the user's database, which effects were done and by which attempt.

    Every method takes the user's connection: of DB-API 2.0 (sqlite3, psycopg, psycopg2, pg8000, MySQL's), of
    SQLAlchemy (a session too), or of Django; it must be in a transaction, or open one by itself, and the user commits.
    One sink serves all handlers and threads. `fenced` counts the attempts it has refused in this process.
    """

    def __init__(self, table: str = "dueline_effects") -> None:
        """`table` is a plain name, at most 48 characters, `schema.name` if need be. InvalidInput otherwise."""
        self._table = check_table(table)
        self._lock = threading.Lock()
        self.fenced = 0

    # -- in a handler ---------------------------------------------------------------------------------------

    def once(self, ctx: Context, connection: Any, *, effect: str = "") -> Effect:
        """Claim the effect of this run in the open transaction: true if it is to be done now, in that transaction.

        False: it has been done, and `result` is what was kept. Unique by `ctx.idempotency_key`, and by `effect` for a
        handler with more than one. Fenced if a newer attempt of the occurrence was here before. Waits while another
        transaction holds the key (PostgreSQL: 10 s, unless a lock_timeout is set); then the database's error.
        """
        channel, sql = self._on(connection)
        key = {"idempotency_key": ctx.idempotency_key, "effect": _name("effect", effect, EFFECT_LIMIT)}
        row = {**key, "occurrence_id": ctx.occurrence_id, "token": ctx.token, "at": _at(ctx)}
        if channel.run(sql.effects.claim, row).count == 1:
            return Effect(True, None, lambda result: _keep(channel, sql, key, result))
        occurrence, token, at, result = _locked(channel.run(sql.effects.read, key).row)
        # Tokens of different occurrences say nothing about each other.
        if _text(occurrence) == ctx.occurrence_id:
            self._check(ctx, token, f"effect {effect!r}" if effect else "its effect")
            channel.run(sql.effects.change, {**row, "at": max(at, row["at"])})
        return Effect(False, None if result is None else json.loads(_text(result)))

    def newest(self, ctx: Context, connection: Any, resource: str) -> bool:
        """Whether this run may overwrite `resource` in the open transaction: nothing from a later nominal time, or a
        newer attempt, is in place. If so it is on record as the last writer, and the resource locked until the commit.

        False: what is in place is newer, so leave it. Fenced if it is from a newer attempt of the same occurrence.
        Waits as `once`. InvalidInput naming `resource` if it is empty, has a NUL, or over 512 bytes.
        """
        channel, sql = self._on(connection)
        key = {"resource": _name("resource", resource, RESOURCE_LIMIT, least=1)}
        ours = instant_of("nominal_at", ctx.nominal_at), ctx.token
        writer = {"nominal_at": ours[0], "occurrence_id": ctx.occurrence_id, "token": ctx.token}
        row = {**key, **writer, "at": _at(ctx)}
        if channel.run(sql.newest.claim, row).count == 1:
            return True
        nominal_at, occurrence, token, at = _locked(channel.run(sql.newest.read, key).row)
        if _text(occurrence) == ctx.occurrence_id:
            self._check(ctx, token, f"resource {resource!r}")
        if (nominal_at, token) > ours:
            return False
        channel.run(sql.newest.change, {**row, "at": max(at, row["at"])})
        return True

    def _check(self, ctx: Context, token: int, what: str) -> None:
        if token <= ctx.token:
            return
        with self._lock:
            self.fenced += 1
        problem = f"fenced at {what}: attempt {token} was there before {ctx.token}"
        told = {"action": "sink_fenced", "occurrence": ctx.occurrence_id, "token": ctx.token, "newest": token}
        ctx.logger.warning(problem, extra=told)
        raise Fenced(problem)

    # -- around it ------------------------------------------------------------------------------------------

    def ddl(self, dialect: str = "postgresql") -> str:
        """The SQL that makes the tables, for a migration. InvalidInput if the dialect is not postgresql, sqlite or
        mysql."""
        sql = statements(self._table, dialect_of(dialect))
        return "".join(f"{statement};\n" for statement in (*sql.effects.ddl, *sql.newest.ddl))

    def create_table(self, connection: Any) -> None:
        """Make the tables if they are not there."""
        channel, sql = self._on(connection, transaction=False)
        for statement in (*sql.effects.ddl, *sql.newest.ddl):
            channel.run(statement, {})

    def purge(self, connection: Any, *, older_than: Duration = "100d", limit: int = 10_000) -> int:
        """Delete up to `limit` rows of runs that fired longer ago than that, the oldest first; returns how many.

        An effect whose key is gone would be done again by a replay or a requeue, so `older_than` is at least 90 days;
        give more if retries are put off for longer. InvalidInput otherwise, or if `limit` is not positive.
        """
        age = parse_duration("older_than", older_than)
        if age < LEAST_AGE_MS:
            raise InvalidInput("older_than", "must be at least 90d: until then a dead letter can be requeued")
        if limit < 1:
            raise InvalidInput("limit", f"{limit} is less than 1")
        channel, sql = self._on(connection, transaction=False)
        before = int(time.time() * 1000) - age
        count = channel.run(sql.effects.purge, {"before": before, "most": limit}).count
        return count + channel.run(sql.newest.purge, {"before": before, "most": limit - count}).count

    def _on(self, connection: Any, *, transaction: bool = True) -> tuple[Channel, Statements]:
        channel = channel_of(connection, transaction=transaction)
        return channel, statements(self._table, channel.dialect)


def _keep(channel: Channel, sql: Statements, key: dict[str, str], result: str) -> None:
    channel.run(sql.keep, {**key, "result": result})


def _locked(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:  # purged between two statements
        raise RuntimeError("the row of this key was deleted just now; the next attempt will claim it anew")
    return row


def _at(ctx: Context) -> int:
    # By the store's clock; a machine's could be far off, and a key purged too early.
    return instant_of("fired_at", ctx.fired_at)


def _name(field_name: str, value: object, limit: int, *, least: int = 0) -> str:
    if isinstance(value, str) and "\0" not in value and least <= len(value) and _fits(value, limit):
        return value
    raise InvalidInput(field_name, f"{value!r:.80} is no name: text of {least} to {limit} bytes, without NUL")


def _fits(text: str, limit: int) -> bool:
    try:
        return len(text.encode()) <= limit
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _json(result: Any) -> str:
    try:
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("result", f"has no JSON: {error}") from None
    if len(text) > RESULT_LIMIT:
        raise InvalidInput("result", f"has {len(text)} bytes of JSON, the limit is {RESULT_LIMIT}")
    return text
