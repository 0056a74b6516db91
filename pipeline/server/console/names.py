"""Names to choose from, where one would have to know them by heart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import DuelineError
from pipeline.server.console.visit import Visit


async def known_names(visit: Visit) -> Mapping[str, Sequence[str]]:
    """`queue`: those that concern them; `handler`: those that live workers of these know. Neither while they cannot be
    asked for."""
    try:
        queues = await visit.ask(lambda who: [q for q in visit.questions.queues() if who.sees(q["queue"])])
    except DuelineError:
        return {}
    handlers = {name for each in queues for name in each["handlers"]}
    return {"queue": [each["queue"] for each in queues], "handler": sorted(handlers)}


async def unknown_handler(visit: Visit, handler: str, queue: str) -> str:
    """A warning if no live worker of this queue (empty: the default one) knows the handler; empty if one does, and
    while that is not known."""
    if not handler:
        return ""
    try:
        queues = await visit.ask(lambda _: visit.questions.queues())
    except DuelineError:
        return ""
    return unknown(queues, handler, queue or visit.actions.default_queue)


def unknown(queues: Sequence[Mapping[str, Any]], handler: str, queue: str) -> str:
    """As `unknown_handler`, of these queues. Of a queue that is not there its own field tells."""
    known = next((each["handlers"] for each in queues if each["queue"] == queue), None)
    if known is None or handler in known:
        return ""
    return f"No live worker on queue {queue} knows {handler}; runs wait until one does."
