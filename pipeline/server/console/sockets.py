"""What a browser may say over its socket: of its own page, and in the form in which the page's script says it.

Anything else is made up by somebody. NiceGUI would leave a traceback of it in the log, and lets pages write lines of
their own there; here it is not heard.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import core
from socketio.exceptions import ConnectionRefusedError as Closed  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)
MADE_UP = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What NiceGUI trips with over what is not as it should be."""
OF_A_PAGE = ("event", "javascript_response", "ack")
Hear = Callable[..., Any]
_theirs: dict[str, Hear] = {}
"""NiceGUI's own handlers, which are there once in a process."""


def listen() -> None:
    """From now on sockets are heard as said above. Doing it again changes nothing."""
    core.app._exception_handlers[:] = [_told]  # noqa: SLF001 -- its own is `log.exception`, and can only be added to
    handlers = core.sio.handlers["/"]
    if not _theirs:
        _theirs.update(handlers)
    handlers["log"] = lambda *_: None
    handlers["connect"] = _connecting(_theirs["connect"])
    handlers["handshake"] = _shaking_hands(_theirs["handshake"])
    for name in OF_A_PAGE:
        handlers[name] = _of_a_page(_theirs[name])


def _told(error: Exception) -> None:
    """Of a page's own code."""
    logger.error("console: %s: %s", type(error).__name__, error, extra={"action": "console.failed"})


def _of_a_page(theirs: Hear) -> Hear:
    def heard(sid: str, said: Any = None, *_: Any) -> None:
        try:
            if said["client_id"] in core.sio.rooms(sid):
                theirs(sid, said)
        except MADE_UP:
            _drop()

    return heard


def _connecting(theirs: Callable[..., Awaitable[None]]) -> Hear:
    async def heard(sid: str, environ: Any, *_: Any) -> None:
        try:
            await theirs(sid, environ)
        except MADE_UP:
            raise Closed("it was not asked for as a page asks") from None

    return heard


def _shaking_hands(theirs: Callable[..., Awaitable[bool]]) -> Hear:
    async def heard(sid: str, said: Any = None, *_: Any) -> bool:
        try:
            return await theirs(sid, said)
        except MADE_UP:
            return False

    return heard


def _drop() -> None:
    logger.debug("console: a socket said what no page says", extra={"action": "console.made_up"})
