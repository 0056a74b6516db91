"""Handlers that need no code: `http`, `script` and `kafka`. Every worker has them (docs/handlers.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.config import Settings, running_dev_store
from pipeline.core.context import Context
from pipeline.core.handler import Registry
from pipeline.handlers.kafka import KafkaHandler
from pipeline.handlers.process import Limits
from pipeline.handlers.script import ScriptHandler

if TYPE_CHECKING:
    from pipeline.handlers.http import HttpHandler

__all__ = ["builtin", "with_builtin"]

SCRIPT_TIMEOUT = "1h"
"""Of a script whose job names no time-out."""


def builtin(settings: Settings) -> Registry:
    """The built-in handlers, as these settings allow them."""
    return with_builtin(Registry(), settings)


def with_builtin(own: Registry, settings: Settings) -> Registry:
    """The handlers of an application, and those of the built-in ones whose names it does not use itself."""
    both = Registry(seconds=time.monotonic)
    both.include(own)
    if both.get("http") is None:
        both.add("http", _http(settings))  # its time-out is its own
    if both.get("kafka") is None:
        both.add("kafka", KafkaHandler(allow=settings.topic_allow).run)
    if both.get("script") is None:
        both.add("script", _script(settings).run, timeout=SCRIPT_TIMEOUT)
    return both


def _http(settings: Settings) -> Callable[[Context, Any], Awaitable[Any]]:
    """httpx is a quarter of a second of imports: the first run that needs it pays, and not on the event loop."""

    @cache
    def made() -> HttpHandler:
        from pipeline.handlers.http import http_handler

        return http_handler(settings, loopback=_in_development(settings))

    async def http(ctx: Context, payload: Any) -> Any:
        if not made.cache_info().currsize:
            await asyncio.to_thread(made)
        return await made().run(ctx, payload)

    return http


def _in_development(settings: Settings) -> bool:
    """Whether the store is that of a `dueline dev` on this machine: then what is tried out runs here too."""
    found = running_dev_store(settings.state_dir)
    return found is not None and settings.bootstrap_servers in (None, found)


def _script(settings: Settings) -> ScriptHandler:
    return ScriptHandler(
        allow=settings.script_allow,
        variables=settings.script_env,
        limits=Limits(
            cpu_s=settings.script_cpu_ms // 1000,
            memory=settings.script_memory_mb * 1024 * 1024,
            files=settings.script_files,
        ),
    )
