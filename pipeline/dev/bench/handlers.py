"""The application that the bench's workers run: `dueline worker --app pipeline.dev.bench.handlers:app`."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

from pipeline import Context, Dueline
from pipeline.dev.bench import marks
from pipeline.dev.bench.load import HANDLER

APP = "pipeline.dev.bench.handlers:app"
NOTHING, NOTHING_ASYNC, SLEEPING, SLOW = (
    "bench.nothing",
    "bench.nothing-async",
    "bench.sleeping",
    "bench.slow",
)
SLEEP_S = 0.001
"""Of `SLEEPING`."""

app = Dueline()
_marks = marks.of_environment()  # at import: two threads must not both begin a file


@app.job(HANDLER)
def marked(ctx: Context, payload: Any) -> None:
    """What the load of every shape asks for: keeps when it began."""
    _mark(ctx)


@app.job(NOTHING)
def nothing(ctx: Context, payload: Any) -> None:
    """Returns at once."""


@app.job(NOTHING_ASYNC)
async def nothing_async(ctx: Context, payload: Any) -> None:
    """Returns at once."""


@app.job(SLEEPING)
async def sleeping(ctx: Context, payload: Any) -> None:
    """A short call of something else."""
    await asyncio.sleep(SLEEP_S)


@app.job(SLOW)
def slow(ctx: Context, payload: dict[str, float]) -> None:
    """Takes as many seconds as its payload says."""
    _mark(ctx)
    time.sleep(payload["seconds"])


def _mark(ctx: Context) -> None:
    if _marks is not None:
        _marks.add(_ms(ctx.due_at), _ms(ctx.fired_at))


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
