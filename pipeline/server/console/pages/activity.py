"""Activity: who changed what, the latest first."""

from __future__ import annotations

from typing import Any

from pipeline.readmodel.questions import AuditWanted, Page
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, empty
from pipeline.server.console.parts.pager import Gathering, Pager
from pipeline.server.console.parts.table import Cell, Column, Row, Table, at, lines, status, text
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import sendable

View = dict[str, Any]
ROWS = 50
_WHAT = (
    "Changes that were made through a server: on these pages, or by its API. What the command line, a service or"
    " an app did through Kafka is not here."
)
FILTERS = (("by", "Who"), ("job", "Job"), ("schedule", "Schedule"))


async def activity(visit: Visit) -> None:
    frame = Frame(visit, "Activity", current="activity")
    asked = {name: visit.query(name) for name, _ in FILTERS}
    wanted = AuditWanted(**{name: value or None for name, value in asked.items()})
    cursor = visit.query("after")
    with frame.body:
        _filter(asked)
        Tag("p", _WHAT, "muted").style("margin: 12px 0")
    page = _Activity(asked, cursor)

    gathering = Gathering(ROWS, cursor or None)

    def ask(who: Principal) -> Page:
        who.require_all_queues()
        return gathering.more(0, lambda _, n, at: visit.questions.audit(wanted, n, at)).page

    await frame.live(ask, page.show)


def _filter(asked: dict[str, str]) -> None:
    with Tag("form", classes="search", method="get", action=links.to("activity"), role="search"):
        for name, label in FILTERS:
            box = Tag(
                "input", type="search", name=name, placeholder=label, aria_label=label, autocomplete="off"
            )
            box.props["^value"] = sendable(asked[name])
        Tag("button", "Filter", "btn", type="submit")


class _Activity:
    def __init__(self, asked: dict[str, str], cursor: str) -> None:
        self._asked, self._cursor = asked, cursor
        self._table: Table | None = None

    def show(self, page: Page) -> None:
        if self._table is None:
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_COLUMNS, caption="Activity")
                self._none = empty(
                    "No changes yet",
                    "What people and services change is listed here, with their token's name.",
                )
                self._pager = Pager("activity", at_first=not self._cursor, **self._asked)
        self._none.mark_as("empty" if not page.rows and page.cursor is None else "hidden")
        self._table.show([Row(id=str(number), cells=_cells(view)) for number, view in enumerate(page.rows)])
        self._pager.show(page)


def _cells(view: View) -> list[Cell]:
    job, schedule = view["job"], view["schedule"]
    return [
        text(view["verb"], mono=True),
        at(view["at"]),
        lines(text(view["by"], href=links.to("activity", by=view["by"]), clip=True), view["role"]),
        lines(
            text(job, href=job and links.job(job), mono=True, clip=True),
            text(schedule, href=schedule and links.schedule(schedule), mono=True, clip=True),
        ),
        status(view["outcome"] and view["outcome"].replace("_", " ")),
        lines(*(text(f"{name}: {value}", clip=True) for name, value in view["detail"].items())),
    ]


_COLUMNS = [
    Column(label="Change", head=True),
    Column(label="When"),
    Column(label="Who"),
    Column(label="Job or schedule"),
    Column(label="Outcome"),
    Column(label="Details"),
]
