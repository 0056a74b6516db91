"""`dueline token`: who may use the HTTP API and the console, and what they may."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pipeline.cli.output import emit, json_wanted, note, table

if TYPE_CHECKING:
    from pipeline.client.connection import Connection
    from pipeline.ports import Put
    from pipeline.server.tokens import Tokens

EXIT_FLUSH_MS = 5_000
WRITE_MS = 10_000


@click.group("token")
def token() -> None:
    """Create, list and revoke tokens of the HTTP API and the console.

    A token has a role: a viewer reads, an operator changes jobs, schedules, replays and queues, an admin may do
    everything. What is stored of it is a hash: nobody can show it again.
    """


class Place(NamedTuple):
    connection: Connection
    tokens: Tokens


@contextmanager
def _tokens() -> Iterator[Place]:
    """Those there are, as the store has them now. Raises StoreUnreachable; Refused if its topics are missing."""
    from pipeline.cli.store import kafka_settings
    from pipeline.client import parts
    from pipeline.client.connection import Connection
    from pipeline.server.tokens import Tokens

    settings = kafka_settings()
    connection = Connection(parts.connect(settings), settings)
    outside = connection.parts

    def write(puts: Sequence[Put]) -> None:
        for put in puts:
            outside.appender.append(put)
        outside.appender.flush(WRITE_MS)

    try:
        tokens = Tokens(topic=settings.names.meta, reader=outside.reader, write=write, now=outside.clock.now)
        tokens.read()
        yield Place(connection, tokens)
    finally:
        connection.close(EXIT_FLUSH_MS)


@token.command("create", short_help="Make a token; it is shown once.")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    required=True,
    help="What it may do.",
)
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Of this queue only; may be repeated.")
@click.option(
    "--expires-in", metavar="DURATION", help="How long it is good for, e.g. 90d. Default: for ever."
)
def create(name: str, role: str, queues: tuple[str, ...], expires_in: str | None) -> None:
    """Make a token with a NAME by which the audit calls its owner, and show it: this once and never again.

    \b
    dueline token create billing --role operator --queue billing --expires-in 90d
    """
    from pipeline.core.errors import InvalidInput
    from pipeline.core.times import parse_duration
    from pipeline.server.access import Role, TokenRecord, new_secret
    from pipeline.server.tokens import checked_name, checked_queues, token_view

    checked_name(name)
    limited = checked_queues(queues)
    lasts = None if expires_in is None else parse_duration("--expires-in", expires_in)
    if lasts == 0:
        raise InvalidInput("--expires-in", "must be longer than zero")
    with _tokens() as (connection, tokens):
        for queue in limited or ():
            connection.require_queue(queue)
        now = connection.parts.clock.now()
        id_, secret, digest = new_secret("dl")
        record = TokenRecord(
            id=id_,
            name=name,
            role=Role.of(role),
            queues=limited,
            digest=digest,
            created_at=now,
            created_by=_me(),
            expires_at=None if lasts is None else now + lasts,
        )
        tokens.put(record)
        _audit(connection, "token.create", "created", id_, name)
    emit({**token_view(record), "token": str(secret)}, _created)
    note("it is shown this once; a server knows it within a second")


def _created(view: Mapping[str, Any]) -> str:
    return str(view["token"])


@token.command("list", short_help="List tokens, without their secrets.")
def list_() -> None:
    """List tokens, the oldest first. With --json, one object a line."""
    from pipeline.server.tokens import token_view

    with _tokens() as (_, tokens):
        views = [token_view(record) for record in tokens.all()]
    if not views:
        note("no token: a server serves its own machine alone, and whoever is on it may do everything")
    elif json_wanted():
        emit(iter(views), str)
    else:
        emit(views, _table)


def _table(views: Sequence[Mapping[str, Any]]) -> str:
    columns = ("id", "name", "role", "queues", "created_at", "by", "expires_at")
    rows = [
        (
            each["id"],
            each["name"],
            each["role"],
            ", ".join(each["queues"] or ["all"]),
            each["created_at"],
            each["created_by"],
            each["expires_at"] or "never",
        )
        for each in views
    ]
    return table(columns, rows)


@token.command("revoke", short_help="Make a token good for nothing.")
@click.argument("id_", metavar="ID")
def revoke(id_: str) -> None:
    """Make a token good for nothing, on every server within a second, and end the sessions made with it. Exit code 3 if
    there is none of this id.

    Once the last token is revoked, a server that serves its own machine alone trusts everybody on it again.
    """
    from pipeline.core.errors import NotFound

    with _tokens() as (connection, tokens):
        record = tokens.find(id_)
        if record is None or record.parent is not None:
            raise NotFound(f"no token {id_!r:.60} is known: `dueline token list` shows them")
        tokens.remove(id_)
        _audit(connection, "token.revoke", "revoked", id_, record.name)
    emit({"id": id_, "outcome": "revoked"}, lambda view: f"revoked {view['id']}")


def _me() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _audit(connection: Connection, verb: str, outcome: str, token_id: str, name: str) -> None:
    from pipeline.server.access import Principal, Role
    from pipeline.server.audit import audit_put

    outside = connection.parts
    put = audit_put(
        Principal(name=_me(), role=Role.ADMIN),
        verb,
        topic=outside.names.events,
        layout=connection.layout,
        at=outside.clock.now(),
        outcome=outcome,
        about={"token_id": token_id, "name": name},
    )
    outside.appender.append(put)
    outside.appender.flush(WRITE_MS)
