"""The application of a storm of workers: handlers of every pool whose effects are held against the log afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from nemesis.worker_effects import Effects

from pipeline import Dead, Dueline, RetryPolicy
from pipeline.core.context import Context
from pipeline.sinks import Fenced, SqlSink

effects = Effects(os.environ.get("STORM_EFFECTS", ""))
guarded = os.environ.get("STORM_SINK", "on") == "on"
"""Off is the negative control: each handler just writes."""
sink = SqlSink()
app = Dueline()
in_pool = "pool_child" in " ".join(sys.orig_argv)
"""Whether this is a process of a worker's pool: so are all handlers that have ended two workers."""
WORKER = os.getppid() if in_pool else os.getpid()
SOON = RetryPolicy(base="200ms", cap="2s")


class AsAsked(Exception):
    """What the payload asks for."""


def begin(ctx: Context) -> None:
    effects.note("starts", ctx, WORKER)
    ctx.progress(0.1, "begun")


def act(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """The effect, and the failure that was asked for before or behind it."""
    failing = ctx.run <= payload["fails"]
    if failing and not payload["late"]:
        raise AsAsked("before the effect")
    try:
        with effects.transaction() as connection:
            first = not guarded or bool(sink.once(ctx, connection))
            if first:
                effects.put(connection, ctx, WORKER)
            if not guarded or sink.newest(ctx, connection, ctx.occurrence_id):
                effects.overwrite(connection, ctx)
    except Fenced:
        effects.note("refused", ctx, WORKER)
        raise
    if failing:
        raise AsAsked("behind the effect")
    if payload["child"]:
        ctx.schedule("storm.child", {"parent": ctx.occurrence_id}, in_="0s")
    return {"token": str(ctx.token), "first": first}


@app.job("storm.thread", max_attempts=60, retry=SOON, timeout="60s")
def thread(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    begin(ctx)
    time.sleep(payload["seconds"])
    return act(ctx, payload)


@app.job("storm.async", max_attempts=60, retry=SOON, timeout="60s")
async def coroutine(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.to_thread(begin, ctx)
    await asyncio.sleep(payload["seconds"])
    return await asyncio.to_thread(act, ctx, payload)


@app.job("storm.process", max_attempts=60, retry=SOON, timeout="60s", pool="process")
def process(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    begin(ctx)
    time.sleep(payload["seconds"])
    return act(ctx, payload)


@app.job("storm.doomed", max_attempts=3, retry=SOON)
def doomed(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """Dead after three failures, or at once, until somebody edits its payload."""
    begin(ctx)
    done = act(ctx, payload)
    if payload["dead"]:
        raise Dead("as asked")
    return done


@app.job("storm.child", max_attempts=60, retry=SOON)
def child(ctx: Context, parent: str) -> None:
    begin(ctx)
    with effects.transaction() as connection:
        if not guarded or sink.once(ctx, connection):
            effects.put(connection, ctx, WORKER)
