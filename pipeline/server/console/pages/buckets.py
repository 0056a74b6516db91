"""Buckets: a map of due jobs over time, past and to come; and running a bucket again after an outage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.times import format_instant, parse_instant
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, block, button, counts, link
from pipeline.server.console.parts.heat import HeatMap
from pipeline.server.console.parts.table import Column, Row, Table, acts, at, status, text
from pipeline.server.console.replay_verbs import replay_window
from pipeline.server.console.visit import Visit, now_ms
from pipeline.server.console.words import number, plural

View = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A map of `rows` rows, each of `columns` buckets of `width_ms`; `past` of the rows lie before now's."""

    label: str
    width_ms: int
    columns: int
    rows: int
    past: int

    @property
    def row_ms(self) -> int:
        return self.width_ms * self.columns

    def begin(self, around: int) -> int:
        return (around // self.row_ms - self.past) * self.row_ms

    def heads(self) -> list[str]:
        """The unit, then what each column adds to the start of its row, since a zone may be half an hour off."""
        unit, name = (3_600_000, "h") if self.width_ms >= 3_600_000 else (60_000, "min")
        return [name, *(f"+{place * self.width_ms // unit}" for place in range(self.columns))]


SCALES = {
    "minutes": Scale(label="Minutes", width_ms=60_000, columns=10, rows=12, past=8),
    "hours": Scale(label="Five minutes", width_ms=300_000, columns=12, rows=12, past=8),
    "days": Scale(label="Hours", width_ms=3_600_000, columns=24, rows=10, past=6),
}
BAD = ("dead",)
_TO_COME = (
    "Of each schedule only the next instant is a job yet: what it fires after that is not on this map. Crontab"
    " shows it."
)
TROUBLED = 12


async def buckets(visit: Visit) -> None:
    frame = Frame(visit, "Buckets", current="buckets")
    scale = SCALES.get(visit.query("scale"), SCALES["hours"])
    chosen = next(name for name, each in SCALES.items() if each is scale)
    around = _around(visit.query("at"))
    page = _Buckets(visit, scale)
    with frame.body:
        with Tag("div", classes="toolbar"):
            _pills(chosen, around)
        Tag("p", _TO_COME, "muted").style("margin: 12px 0")

    def ask(who: Principal) -> tuple[int, int, Sequence[View]]:
        who.require_all_queues()
        now = now_ms()
        begin = scale.begin(now if around is None else around)
        return now, begin, visit.questions.buckets(begin, begin + scale.rows * scale.row_ms, scale.width_ms)

    await frame.live(ask, page.show, every=10.0)


def _around(given: str) -> int | None:
    try:
        return parse_instant("at", given) if given else None
    except InvalidInput:
        return None  # a mistyped address shows what is now


def _pills(chosen: str, around: int | None) -> None:
    when = None if around is None else format_instant(around)
    with Tag("nav", classes="pills", aria_label="Width of a bucket"):
        for name, each in SCALES.items():
            pill = link(each.label, links.to("buckets", scale=name, at=when), "pill")
            if name == chosen:
                pill.props["aria-current"] = "true"
    scale = SCALES[chosen]
    middle = now_ms() if around is None else around
    step = scale.row_ms * (scale.rows - 2)
    with Tag("nav", classes="pills", aria_label="Time"):
        link("Earlier", links.to("buckets", scale=chosen, at=format_instant(middle - step)), "pill")
        now = link("Now", links.to("buckets", scale=chosen), "pill")
        if around is None:
            now.props["aria-current"] = "true"
        link("Later", links.to("buckets", scale=chosen, at=format_instant(middle + step)), "pill")


class _Buckets:
    def __init__(self, visit: Visit, scale: Scale) -> None:
        self._visit, self._scale = visit, scale
        self._map: HeatMap | None = None
        self._span = (0, 0)

    def show(self, answer: tuple[int, int, Sequence[View]]) -> None:
        now, begin, views = answer
        self._span = begin, begin + self._scale.rows * self._scale.row_ms
        if self._map is None:
            self._build()
        assert self._map is not None
        found: dict[int, View] = {parse_instant("from", view["from"]): view for view in views}
        most = max((sum(view["counts"].values()) for view in views), default=0)
        self._map.show(
            self._scale.heads(), [self._row(begin, row, found, most, now) for row in range(self._scale.rows)]
        )
        total = sum(sum(view["counts"].values()) for view in views)
        self._aside.say(
            f"{plural(total, 'job')} due in {number(len(views))} buckets; the fullest has {number(most)}"
        )
        self._show_troubled(views)

    def _build(self) -> None:
        _, body, self._aside = block("Jobs by due time")
        with body:
            with Tag("div", classes="scroll", tabindex="0", role="region", aria_label="Map of buckets"):
                self._map = HeatMap(caption="Jobs by due time; each cell leads to its jobs")
            _legend()
        _, body, self._troubled_aside = block("Buckets with trouble", flush=True)
        with body:
            columns = [
                Column(label="From", head=True),
                Column(label="Jobs", kind="num"),
                Column(label="By status"),
            ]
            columns += [Column(label="Late", kind="num")]
            columns += [Column(label="Actions", bare=True)] if self._visit.operates else []
            self._troubled = Table(columns, caption="Buckets with dead or late jobs", act=self._replay)
            self._none = Tag("div", "None of these buckets has dead or late jobs.", "empty")
        if self._visit.operates:
            with Tag("div", classes="row"):
                button("Replay a window", lambda: replay_window(self._visit, *self._window()))

    def _window(self) -> tuple[str, str]:
        """All that is shown and past."""
        begin, end = self._span
        return format_instant(begin), _ended(end)

    async def _replay(self, begin: str, _: str) -> None:
        end = parse_instant("from", begin) + self._scale.width_ms
        await replay_window(self._visit, begin, _ended(end))

    def _show_troubled(self, views: Sequence[View]) -> None:
        some = [view for view in views if view["late"] or any(view["counts"].get(word) for word in BAD)]
        worst = sorted(some, key=_trouble, reverse=True)[:TROUBLED]
        self._troubled.show([self._line(view) for view in worst])
        self._none.mark_as("hidden" if worst else "empty")
        self._troubled_aside.say(f"{len(some)}, worst first" if some else "")

    def _line(self, view: View) -> Row:
        begin = parse_instant("from", view["from"])
        search = _search(begin, begin + self._scale.width_ms)
        total = number(sum(view["counts"].values()))
        cells = [at(view["from"], "full"), text(total, href=links.jobs(search)), counts(view["counts"])]
        late = status("late", shown=number(view["late"]), kind="warn") if view["late"] else "0"
        own = (
            [acts(("replay", "Replay", f"Replay the bucket {view['from']}"))] if self._visit.operates else []
        )
        return Row(id=view["from"], cells=[*cells, late, *own])

    def _row(self, begin: int, row: int, found: Mapping[int, View], most: int, now: int) -> View:
        first = begin + row * self._scale.row_ms
        starts = [first + place * self._scale.width_ms for place in range(self._scale.columns)]
        cells = [cell_of(start, self._scale.width_ms, found.get(start), most, now) for start in starts]
        return {"at": format_instant(first), "how": "short", "cells": cells}


def _ended(end: int) -> str:
    """Empty, which is now, for what has not ended."""
    return format_instant(end) if end <= now_ms() else ""


def cell_of(start: int, width: int, view: View | None, most: int, now: int) -> View:
    current = start <= now < start + width
    if view is None:
        return {"title": "nothing is due", "now": current}
    total = sum(view["counts"].values())
    dead = sum(view["counts"].get(word, 0) for word in BAD)
    level = 1 + min(3, int(3.999 * (total / most) ** 0.5))  # the root shows the small beside the large
    mark = " failed" if dead else " late" if view["late"] else ""
    late = f", {view['late']:,} late" if view["late"] else ""
    return {
        "href": links.jobs(_search(start, start + width)),
        "text": short(total),
        "title": f"{view['from']}: {plural(total, 'job')}: {counts(view['counts'])}{late}",
        "kind": f"h{level}{mark}",
        "now": current,
    }


def _search(begin: int, end: int) -> str:
    return f"due>={format_instant(begin)} due<{format_instant(end)}"


def short(count: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.0f}{unit}" if count >= 10 * size else f"{count / size:.1f}{unit}"
    return str(count)


def _trouble(view: View) -> tuple[int, int]:
    return sum(view["counts"].get(word, 0) for word in BAD), view["late"]


def _legend() -> None:
    with Tag("div", classes="legend").style("margin-top: 10px"):
        for level, label in ((1, "few"), (2, ""), (3, ""), (4, "many")):
            with Tag("span"):
                Tag("i", classes=f"h{level}")
                Tag("span", label)
        for colour, label in (("bad", "some are dead"), ("warn", "some fired late")):
            with Tag("span"):
                Tag("i").style(f"box-shadow: inset 0 -3px 0 var(--{colour})")
                Tag("span", label)
        with Tag("span"):
            Tag("i").style("outline: 2px solid var(--accent)")
            Tag("span", "now")
