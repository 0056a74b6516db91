"""Names to choose from, where one would have to know them by heart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
