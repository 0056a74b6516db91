"""Jobs: looking for some, and cancelling or requeuing those that were selected or all that match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.times import format_instant, parse_instant
from pipeline.readmodel.questions import Count, JobsWanted, Page
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.pages.jobs_search import AT_FIRST, search_bar
from pipeline.server.console.parts.basic import Tag, banner, button, counts, empty, link
from pipeline.server.console.parts.confirm import confirm
from pipeline.server.console.parts.pager import Gathered, Gathering, Pager
from pipeline.server.console.parts.table import Column, Row, Table, at, lines, status, tags, text
from pipeline.server.console.search import parse, relative
from pipeline.server.console.visit import Visit, now_ms
from pipeline.server.console.words import plural

View = dict[str, Any]
ROWS = 50
COUNTED = 100_000
"""Jobs of one bulk change at most; each is counted and confirmed before."""
VERBS = {"cancel": "Cancel", "requeue": "Requeue"}


async def jobs(visit: Visit) -> None:
    frame = Frame(visit, "Jobs", current="jobs")
    if visit.operates:
        with frame.head.tools:
            link("New job", links.to("job/new"), "btn main")
    begun = "q" not in visit.request.query_params
    search, cursor = AT_FIRST if begun else visit.query("q"), visit.query("after")
    try:
        wanted = parse(search, now=now_ms())
    except InvalidInput as error:
        with frame.body:
            search_bar(visit, search, None)
            banner("There is a mistake in this search.", error.problem, "warn")
        return
    with frame.body:
        search_bar(visit, search, wanted)
        page = _Jobs(visit, search, begun=begun, at_first=not cursor)
        page.draw_bulk()
    as_of = _instant(visit.query("now"))

    gathering = Gathering(ROWS, cursor or None)

    def ask(who: Principal) -> Gathered:
        def some(now: int, count: int, at: str | None) -> Page:
            theirs = _theirs(parse(search, now=now), who)
            return visit.questions.jobs(theirs, limit=count, cursor=at)

        return gathering.more(now_ms() if as_of is None else as_of, some)

    await frame.live(ask, page.show)


def _instant(text: str) -> int | None:
    try:
        return parse_instant("now", text) if text else None
    except InvalidInput:
        return None  # a mistyped address counts from now


def _theirs(wanted: JobsWanted, who: Principal) -> JobsWanted:
    """Of these jobs those on queues that concern them."""
    return replace(wanted, queues=who.queues)


class _Jobs:
    def __init__(self, visit: Visit, search: str, *, begun: bool, at_first: bool) -> None:
        """`begun`: nobody has searched yet; `at_first`: it is the first page of what is found."""
        self._visit, self._search, self._begun, self._at_first = visit, search, begun, at_first
        self._relative = relative(search)
        self._chosen: list[str] = []
        self._table: Table | None = None

    def draw_bulk(self) -> None:
        if not self._visit.operates:
            return
        with Tag("div", classes="toolbar", role="group", aria_label="Change several"):
            self._said = Tag("span", "None selected", "muted", role="status")
            for verb, name in VERBS.items():
                button(f"{name} selected", partial(self._change_chosen, verb), kind="small")
            for verb, name in VERBS.items():
                button(f"{name} all matching", partial(self._change_all, verb), kind="small")

    def show(self, answer: Gathered) -> None:
        page = answer.page
        if self._table is None:
            choose = self._choose if self._visit.operates else None
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_COLUMNS, caption="Jobs", choose=choose)
                self._none = empty(*(_NONE_DUE if self._begun else _NO_MATCH if self._search else _NO_JOB))
                self._pager = Pager("jobs", at_first=self._at_first, q=self._search)
        self._none.mark_as("empty" if not page.rows and page.cursor is None else "hidden")
        self._table.show([_row(view) for view in page.rows])
        self._pager.show(page, **({"now": format_instant(answer.now)} if self._relative else {}))

    # -- several at once -------------------------------------------------------------------------------------------

    def _choose(self, ids: list[str]) -> None:
        self._chosen = ids
        self._said.say(f"{plural(len(ids), 'job')} selected" if ids else "None selected")

    async def _change_chosen(self, verb: str) -> None:
        ids = list(self._chosen)
        if not ids:
            self._visit.tell("Select some jobs first, with the boxes to the left of the rows.", good=False)
            return
        title = f"{VERBS[verb]} {plural(len(ids), 'job')}?"
        if (
            await confirm(self._visit.client, title, _MEANING[verb], verb=title[:-1], danger=verb == "cancel")
            is not None
        ):
            change = self._visit.actions.change_jobs
            self._visit.tell(f"{_DOING[verb]} {plural(len(ids), 'job')} …")
            await self._report(await self._visit.change(lambda who: change(who, verb, ids=ids)))
            assert self._table is not None
            self._table.unchoose()

    async def _change_all(self, verb: str) -> None:
        visit, wanted = self._visit, parse(self._search, now=now_ms())
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
            visit.tell("No jobs match.", good=False)
            return
        title = f"{VERBS[verb]} {plural(count.number, 'job')}?"
        which = f"Every job that matches {self._search}" if self._search else "Every job there is"
        told = f"{which} when this is carried out. {_MEANING[verb]}"
        sure = await confirm(
            visit.client, title, told, verb=title[:-1], danger=verb == "cancel", typed=count.number
        )
        if sure is not None:
            change = visit.actions.change_jobs
            visit.tell(f"{_DOING[verb]} {plural(count.number, 'job')} …")
            limit = min(COUNTED, count.number + count.number // 10 + 10)  # not many more than were seen
            await self._report(
                await visit.change(lambda who: change(who, verb, wanted=_theirs(wanted, who), limit=limit))
            )

    async def _report(self, done: Any) -> None:
        if done is None:
            return
        view: Mapping[str, Any] = done.view
        failed = view.get("errors") or ()
        first = f"; first problem: {failed[0]['message']}" if failed else ""
        left = f"; {view['left']:,} were not reached in time: try again" if view.get("left") else ""
        self._visit.tell(
            f"{plural(view['matched'], 'job')}: {counts(view['counts'])}{left}{first}",
            good=not failed and not left,
            stays=True,
        )


_NONE_DUE = (
    "Nothing has come due yet",
    "For jobs that are still to come, choose \u201cto come\u201d above.",
)
_NO_MATCH = "No jobs match", "Try fewer words, another status or another due time."
_NO_JOB = "No jobs yet", "Create one with dueline job create, with POST /api/v1/jobs, or in Python."
_DOING = {"cancel": "Cancelling", "requeue": "Requeuing"}
_MEANING = {
    "cancel": "Pending jobs will not fire; jobs that have fired are left alone, and so is what a schedule has still"
    " to come.",
    "requeue": "Each job that has ended gets one more run, under its own idempotency key.",
}
_COLUMNS = [
    *(Column(label="Job", head=True), Column(label="Status"), Column(label="Due"), Column(label="Handler")),
    *(Column(label="Run", kind="num"), Column(label="Key and labels"), Column(label="Ended")),
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
