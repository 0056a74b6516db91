"""Attempts as a worker would hand them to a handler, and an effect that can be counted."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from sides import Quiet

from pipeline.core.context import Context
from pipeline.core.token import make_token
from pipeline.sinks import Fenced, SqlSink

NOW = datetime.now(UTC).replace(microsecond=0)
TOKENS = [
    make_token(1, 1, 7, 1),
    make_token(1, 1, 8, 2),
    make_token(1, 2, 8, 1),
    make_token(255, 65535, 2**31 - 1, 255),
]
"""Of one occurrence: an attempt, its takeover, its retry, and the last that can be."""
LOG = logging.getLogger("dueline.job.pay")
LOG.addHandler(logging.NullHandler())  # a racer of its own process need not print what it is refused
EFFECTS = "CREATE TABLE paid (key TEXT NOT NULL, token BIGINT NOT NULL)"


def attempt(
    token: int = TOKENS[0],
    *,
    key: str = "invoice-55",
    occurrence: str = "j1",
    fired: timedelta = timedelta(0),
    nominal: timedelta = timedelta(0),
) -> Context:
    """An attempt with this token; fired and nominal times are so long ago."""
    return Context(
        job_id=occurrence,
        occurrence_id=occurrence,
        handler="pay",
        payload=None,
        due_at=NOW - nominal,
        nominal_at=NOW - nominal,
        fired_at=NOW - fired,
        run=1,
        attempt=1,
        idempotency_key=key,
        token=token,
        side=Quiet(),
    )


def pay(sink: SqlSink, ctx: Context, connection: Any, mark: str) -> str:
    """A handler: one transaction with the key and one row of `paid`. `mark` is the driver's for a parameter."""
    try:
        effect = sink.once(ctx, connection)
        if effect:
            insert = f"INSERT INTO paid (key, token) VALUES ({mark}, {mark})"
            connection.cursor().execute(insert, (ctx.idempotency_key, ctx.token))
            effect.keep({"by": str(ctx.token)})
        connection.commit()
        return "paid" if effect else "done"
    except Fenced:
        connection.rollback()
        return "fenced"
    except BaseException:
        connection.rollback()
        raise
