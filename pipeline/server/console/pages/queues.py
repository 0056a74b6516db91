"""Queues: how far their workers are; pausing, resuming and purging them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, empty
from pipeline.server.console.parts.table import Cell, Column, Row, Table, acts, at, lines, status, text
from pipeline.server.console.queue_verbs import act, verbs_of
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import number, plural

View = dict[str, Any]
SHOWN = 6
"""Handlers of a queue that are named."""


async def queues(visit: Visit) -> None:
    frame = Frame(visit, "Queues", current="queues")
    page = _Queues(visit)

    def ask(who: Principal) -> Sequence[View]:
        return [view for view in visit.questions.queues() if who.sees(view["queue"])]

    await frame.live(ask, page.show)


class _Queues:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._table: Table | None = None

    def show(self, views: Sequence[View]) -> None:
        if self._table is None:
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_columns(self._visit), caption="Queues", act=self._act)
                self._none = empty("No queues yet", "dueline topics create makes the first one.")
        self._none.mark_as("hidden" if views else "empty")
        self._table.show([self._row(view) for view in views])

    def _row(self, view: View) -> Row:
        cells = _cells(view)
        if self._visit.operates:
            verbs = verbs_of(self._visit.who.role, view.get("paused"))
            cells.append(acts(*((name, shown, f"{shown} {view['queue']}") for name, shown in verbs)))
        return Row(id=view["queue"], cells=cells)

    async def _act(self, queue: str, name: str) -> None:
        await act(self._visit, queue, name)


def _cells(view: View) -> list[Cell]:
    return [
        text(view["queue"], href=links.jobs(f"queue:{view['queue']}"), mono=True),
        lines(*_pause(view), *_purge(view["purge"])),
        number(view["lag"]),
        at(view["oldest_unacked"]),
        lines(f"{number(view.get('started_per_min'))} started", f"{number(view.get('ended_per_min'))} ended"),
        number(view["workers"]),
        number(view["in_flight"]),
        lines(number(view["held"]), plural(view["parked"], "parked run") if view["parked"] else None),
        _some(view["handlers"]),
    ]


def _some(handlers: Sequence[str]) -> Cell:
    more = [f"and {len(handlers) - SHOWN} more"] if len(handlers) > SHOWN else []
    return {"tags": [*handlers[:SHOWN], *more]} if handlers else None


_COLUMNS = [
    *(Column(label="Queue", head=True), Column(label="State"), Column(label="Waiting", kind="num")),
    *(
        Column(label="Oldest unacked"),
        Column(label="Per minute", kind="num"),
        Column(label="Workers", kind="num"),
    ),
    *(Column(label="In flight", kind="num"), Column(label="Held", kind="num"), Column(label="Handlers")),
]


def _columns(visit: Visit) -> list[Column]:
    return _COLUMNS + ([Column(label="Actions", bare=True)] if visit.operates else [])


def _pause(view: View) -> list[Cell]:
    pause = view["paused"]
    if pause is None:
        return [status("active") if view["workers"] else status("no live worker", kind="warn")]
    return [status("paused"), pause["reason"], f"by {pause['by']}" if pause["by"] else None]


def _purge(purge: View | None) -> list[Cell]:
    """How far it is, while it goes on."""
    if purge is None or purge["left"] == 0:
        return []
    by, left = f"by {purge['by']}", purge["left"]
    if left is None:  # asked for a moment ago, or this server was started a moment ago
        return [f"purge {by}", at(purge["at"], "rel")]
    waiting = max(left, purge["waiting"] or 0)
    told = f"{number(left)} of {number(waiting)} left"
    return [status("purging"), {"bar": 1 - left / waiting, "text": told}, by]
