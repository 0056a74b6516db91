"""Crontab: every schedule as a row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from pipeline.follower import WantedSchedules
from pipeline.follower.schedules import STANDINGS
from pipeline.readmodel.questions import Page
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, empty, link
from pipeline.server.console.parts.looks import kind_of
from pipeline.server.console.parts.pager import Gathering, Pager, search_field, search_form
from pipeline.server.console.parts.table import Cell, Column, Row, Table, acts, at, lines, status, text
from pipeline.server.console.schedule_verbs import act
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import clean, length, sendable

View = dict[str, Any]
ROWS = 50


async def crontab(visit: Visit) -> None:
    frame = Frame(visit, "Crontab", current="crontab")
    wanted, standing, source, cursor = (visit.query(name) for name in ("q", "state", "source", "after"))
    with frame.head.tools:
        if visit.operates:
            link("New schedule", links.to("schedule/edit"), "btn main")
    with frame.body, Tag("div", classes="toolbar"):
        with search_form("crontab"):
            search_field(wanted, label="Find by id or handler", placeholder="part of an id or handler")
            for name, kept in (("state", standing), ("source", source)):
                if kept:
                    Tag("input", type="hidden", name=name).props["^value"] = sendable(kept)
        _pills(wanted, standing, source)
    page = _Crontab(visit, wanted, standing, source, cursor)

    gathering = Gathering(ROWS, cursor or None)

    def ask(who: Principal) -> Page:
        those = WantedSchedules(
            text=wanted or None, state=standing or None, source=source or None, queues=who.queues
        )
        schedules = partial(visit.questions.schedules, those)
        return gathering.more(0, lambda _, n, at: schedules(limit=n, cursor=at)).page

    await frame.live(ask, page.show)


def _pills(wanted: str, standing: str, source: str) -> None:
    with Tag("nav", classes="pills", aria_label="By state"):
        for word in ("", *STANDINGS):
            at = links.to("crontab", q=wanted, state=word, source=source)
            pill = link(word or "any state", at, "pill")
            if word == standing:
                pill.props["aria-current"] = "true"
    if source:
        with Tag("nav", classes="pills", aria_label="By source"):
            link("any source", links.to("crontab", q=wanted, state=standing), "pill")
            kept = link(
                f"from {source}", links.to("crontab", q=wanted, state=standing, source=source), "pill"
            )
            kept.props["aria-current"] = "true"


class _Crontab:
    def __init__(self, visit: Visit, wanted: str, standing: str, source: str, cursor: str) -> None:
        self._visit, self._wanted, self._standing, self._cursor = visit, wanted, standing, cursor
        self._source = source
        self._table: Table | None = None
        self._zones: dict[str, str] = {}

    def show(self, page: Page) -> None:
        if self._table is None:
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_columns(self._visit), caption="Schedules", act=self._act)
                self._none = _nothing(self._wanted, self._standing, self._source)
                both = {"state": self._standing, "source": self._source}
                asked = {name: value for name, value in both.items() if value}
                self._pager = Pager("crontab", at_first=not self._cursor, q=self._wanted, **asked)
        self._none.mark_as("empty" if not page.rows and page.cursor is None else "hidden")
        self._table.show([self._row(view) for view in page.rows])
        self._zones = {view["id"]: view["tz"] for view in page.rows}
        self._pager.show(page)

    def _row(self, view: View) -> Row:
        cells: list[Cell] = [
            lines(
                text(view["id"], href=links.schedule(view["id"]), mono=True, clip=True),
                text(view["handler"], mono=True),
            ),
            lines(text(view["expression"], mono=True), _without_zone(view["words"], view["tz"]), view["tz"]),
            _next(view),
            _runs(view),
            _state(view),
        ]
        if self._visit.operates:
            flip = ("resume", "Resume") if view["state"] == "paused" else ("pause", "Pause")
            verbs = (("trigger", "Run now"), flip, ("backfill", "Backfill"))
            cells.append(acts(*((name, shown, f"{shown} {view['id']}") for name, shown in verbs)))
        return Row(id=view["id"], cells=cells)

    async def _act(self, schedule_id: str, name: str) -> None:
        await act(self._visit, schedule_id, name, self._zones.get(schedule_id, "UTC"))


def _columns(visit: Visit) -> list[Column]:
    kinds = {"When": "mid", "Next": "long", "State": "mid"}
    names = ("Schedule", "When", "Next", "Recent runs", "State")
    columns = [Column(label=name, head=name == "Schedule", kind=kinds.get(name, "")) for name in names]
    return columns + ([Column(label="Actions", bare=True)] if visit.operates else [])


def _without_zone(words: str, tz: str) -> str:
    """The zone stands below, whole."""
    return words.replace(f" {tz.rpartition('/')[2].replace('_', ' ')}", "", 1)


def _nothing(wanted: str, standing: str, source: str) -> Tag:
    if wanted or standing or source:
        named = f"has {wanted!r:.80} in its id or handler" if wanted else ""
        stands = f"is {clean(standing, 40)}" if standing else ""
        comes = f"comes from {clean(source, 80)}" if source else ""
        return empty("No schedules match", f"None {' and '.join(filter(None, (stands, comes, named)))}.")
    return empty(
        "No schedules yet", "Create one here, with dueline cron create, or with @app.cron in your code."
    )


def _next(view: View) -> Cell:
    upcoming = list(view.get("upcoming") or ())
    if view["next_at"] is None:
        return {"then": upcoming[:2], "before": "if resumed: "} if upcoming else None
    local = wall(view["next_local"]) if view["next_local"] else None
    following = upcoming[1:3]
    return lines(at(view["next_at"]), local, {"then": following, "before": "then "} if following else None)


def wall(local: str) -> str:
    """`Sun 2027-03-28 02:30 +01:00` of an instant with offset; seconds only where there are any."""
    at = datetime.fromisoformat(local)
    seconds = ":%S" if at.second else ""
    return f"{at:%a %Y-%m-%d %H:%M{seconds}} {at.isoformat()[-6:]}"


def _runs(view: View) -> Cell:
    recent: Cell = {"runs": [_bar(run) for run in reversed(view["recent"])]}
    if view["last_at"] is None:
        return recent
    return lines(recent, status(view["last_outcome"]), at(view["last_at"], "rel"))


def _state(view: View) -> Cell:
    if view["state"] == "paused":
        return lines(status("paused"), view["paused"] or None)
    return lines(status(view["state"]), status("overdue") if view["overdue"] else None)


def _bar(run: Mapping[str, Any]) -> View:
    said = None if run["took_ms"] is None else f"took {length(run['took_ms'])}"
    own = {"at": run["due_at"], "outcome": run["outcome"], "took": run["took_ms"], "said": said}
    return {**own, "kind": kind_of(run["outcome"] or "running")}
