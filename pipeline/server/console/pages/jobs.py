"""Jobs: looking for some, and cancelling or running again those that were chosen or all that match."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.readmodel.questions import Count, JobsWanted, Page
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.names import known_names
from pipeline.server.console.parts.basic import Tag, banner, button, counts, empty, link
from pipeline.server.console.parts.confirm import confirm
from pipeline.server.console.parts.pager import filled, pager, search_form
from pipeline.server.console.parts.search_box import SearchBox
from pipeline.server.console.parts.table import Column, Row, Table, at, lines, status, tags, text
from pipeline.server.console.search import ORDERS, meanings, parse, written
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import plural

View = dict[str, Any]
ROWS = 50
COUNTED = 100_000
"""Jobs of one bulk change at most; each is counted and confirmed before."""
TO_COME = frozenset({JobStatus.PENDING, JobStatus.RETRYING})
"""Of these one wants to see the next; of others the last."""
VERBS = {"cancel": "Cancel", "requeue": "Run again"}


async def jobs(visit: Visit) -> None:
    frame = Frame(visit, "Jobs", current="jobs")
    search, cursor = visit.query("q"), visit.query("after")
    try:
        wanted = parse(search, now=time.time_ns() // 1_000_000)
    except InvalidInput as error:
        with frame.body:
            _search(visit, search, None)
            banner("This search has no meaning.", error.problem, "warn")
        return
    with frame.body:
        _search(visit, search, wanted)
        page = _Jobs(visit, search, wanted, cursor)
        page.draw_bulk()

    def ask(who: Principal) -> Page:
        theirs = _theirs(wanted, who)
        return filled(lambda n, at: visit.questions.jobs(theirs, limit=n, cursor=at), ROWS, cursor or None)

    await frame.live(ask, page.show)


def _theirs(wanted: JobsWanted, who: Principal) -> JobsWanted:
    """Of these jobs those on queues that concern them."""
    return replace(wanted, queues=who.queues)


def _search(visit: Visit, search: str, wanted: JobsWanted | None) -> None:
    with Tag("div", classes="toolbar"), search_form("jobs"):
        SearchBox(
            search,
            label="Search jobs",
            placeholder="handler:email.send status:dead due>-1d",
            filters=[("due>" if name == "due" else f"{name}:", told) for name, told in meanings().items()],
            known={"status": list(JobStatus), "order": ORDERS},
            more=partial(known_names, visit),
        )
    with Tag("div", classes="toolbar"):
        if wanted is not None:
            _draw_pills(wanted)
        with Tag("details"):
            Tag("summary", "How to search")
            with Tag("dl", classes="facts"):
                for name, meaning in meanings().items():
                    Tag("dt", name, "mono")
                    Tag("dd", meaning)
                Tag("dt", "any word")
                Tag("dd", "part of an id, key or handler; values with spaces stand in double quotes")


def _draw_pills(wanted: JobsWanted) -> None:
    with Tag("nav", classes="pills", aria_label="By status"):
        _pill("all", replace(wanted, statuses=frozenset(), order="due"), not wanted.statuses)
        for each in JobStatus:
            order = "due" if each in TO_COME else "-due"
            _pill(
                each.value,
                replace(wanted, statuses=frozenset({each}), order=order),
                wanted.statuses == {each},
            )
    with Tag("nav", classes="pills", aria_label="Order"):
        for order, label in (("due", "soonest first"), ("-due", "latest first")):
            _pill(label, replace(wanted, order=order), wanted.order == order)


def _pill(label: str, wanted: JobsWanted, current: bool) -> None:
    pill = link(label, links.jobs(written(wanted)), "pill")
    if current:
        pill.props["aria-current"] = "true"


class _Jobs:
    def __init__(self, visit: Visit, search: str, wanted: JobsWanted, cursor: str) -> None:
        self._visit, self._search, self._wanted, self._cursor = visit, search, wanted, cursor
        self._chosen: list[str] = []
        self._table: Table | None = None
        self._next: object = False

    def draw_bulk(self) -> None:
        if not self._visit.operates:
            return
        with Tag("div", classes="toolbar", role="group", aria_label="Change several"):
            self._said = Tag("span", "None chosen", "muted", role="status")
            for verb, name in VERBS.items():
                button(f"{name} chosen", partial(self._change_chosen, verb), kind="small")
            for verb, name in VERBS.items():
                button(f"{name} all that match", partial(self._change_all, verb), kind="small")

    def show(self, page: Page) -> None:
        if self._table is None:
            choose = self._choose if self._visit.operates else None
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_COLUMNS, caption="Jobs", choose=choose)
                self._none = empty(*(_NO_MATCH if self._search else _NO_JOB))
                self._pager = Tag("div", classes="pager")
        self._none.mark_as("empty" if not page.rows and page.cursor is None else "hidden")
        self._table.show([_row(view) for view in page.rows])
        if (page.cursor, len(page.rows)) != self._next:
            self._next = (page.cursor, len(page.rows))
            pager(self._pager, "jobs", page, at_first=not self._cursor, q=self._search)

    # -- several at once -------------------------------------------------------------------------------------------

    def _choose(self, ids: list[str]) -> None:
        self._chosen = ids
        self._said.say(f"{plural(len(ids), 'job')} chosen" if ids else "None chosen")

    async def _change_chosen(self, verb: str) -> None:
        ids = list(self._chosen)
        if not ids:
            self._visit.tell("Choose some first: the boxes at the left of the rows.", good=False)
            return
        title = f"{VERBS[verb]} {plural(len(ids), 'job')}?"
        if (
            await confirm(self._visit.client, title, _MEANING[verb], verb=title[:-1], danger=verb == "cancel")
            is not None
        ):
            change = self._visit.actions.change_jobs
            await self._report(await self._visit.change(lambda who: change(who, verb, ids=ids)))
            assert self._table is not None
            self._table.unchoose()

    async def _change_all(self, verb: str) -> None:
        visit, wanted = self._visit, self._wanted
        count: Count | None = await visit.look(
            lambda who: visit.questions.count(_theirs(wanted, who), at_most=COUNTED)
        )
        if count is None:
            return
        if count.capped:
            told = f"More than {count.number:,} jobs match: narrow the search, by due time for example."
            visit.tell(told, good=False)
            return
        if not count.number:
            visit.tell("No job matches.", good=False)
            return
        title = f"{VERBS[verb]} {plural(count.number, 'job')}?"
        told = f"All that match {self._search or 'no filter at all'}, as they stand when it is done. {_MEANING[verb]}"
        sure = await confirm(
            visit.client, title, told, verb=title[:-1], danger=verb == "cancel", typed=count.number
        )
        if sure is not None:
            change = visit.actions.change_jobs
            limit = min(COUNTED, count.number + count.number // 10 + 10)  # not many more than were seen
            await self._report(
                await visit.change(lambda who: change(who, verb, wanted=_theirs(wanted, who), limit=limit))
            )

    async def _report(self, done: Any) -> None:
        if done is None:
            return
        view: Mapping[str, Any] = done.view
        failed = view.get("errors") or ()
        first = f"; the first problem: {failed[0]['message']}" if failed else ""
        left = f"; {view['left']:,} were not come to in time: ask again" if view.get("left") else ""
        self._visit.tell(
            f"{plural(view['matched'], 'job')}: {counts(view['counts'])}{left}{first}",
            good=not failed and not left,
        )


_NO_MATCH = "No job matches", "Try fewer words, or another status."
_NO_JOB = "No job yet", "Make one with dueline job create, over HTTP with POST /api/v1/jobs, or in Python."
_MEANING = {
    "cancel": "What is pending will not fire; what has fired is left alone.",
    "requeue": "Each that has ended gets one further run, under its own idempotency key.",
}
_COLUMNS = [
    *(Column(label="Job", head=True), Column(label="Status"), Column(label="Due"), Column(label="Handler")),
    *(Column(label="Run", kind="num"), Column(label="Key and labels"), Column(label="What became of it")),
]


def _row(view: View) -> Row:
    ended = view.get("ended_at")
    return Row(
        id=view["id"],
        cells=[
            text(view["id"], href=links.job(view["id"]), mono=True, clip=True),
            status(view["status"]),
            lines(at(view["due_at"], "plain"), at(view["due_at"], "rel")),
            lines(text(view["handler"], mono=True), view["queue"]),
            lines(str(view["run"]), plural(view["failures"], "failure") if view["failures"] else None),
            lines(text(view["key"], mono=True, clip=True), tags(view["labels"])),
            lines(at(ended, "plain"), text(view.get("error"), clip=True)),
        ],
    )
