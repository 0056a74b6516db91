"""Dead letters: what gave up, why, and requeuing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.follower import WantedLetters
from pipeline.follower.letter_groups import joined
from pipeline.readmodel.questions import LIST_LIMIT, Page
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.letter_verbs import requeue_edited, requeue_letters
from pipeline.server.console.parts.basic import Tag, block, button, copy_button, empty, facts, instant, link
from pipeline.server.console.parts.confirm import Sheet, confirm
from pipeline.server.console.parts.looks import kind_of
from pipeline.server.console.parts.pager import Gathering, Pager
from pipeline.server.console.parts.table import Cell, Column, Row, Table, acts, at, lines, text
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import clean, number, plural, sendable, size

View = dict[str, Any]
ROWS = 50
MOST_GROUPS, SHOWN_GROUPS = 1_000, 12
"""Groups that are put together, of all stretches of letters, and that are shown."""
CHOICES = ("handler", "queue", "reason", "error", "group")
"""What the address may choose by."""


async def dead(visit: Visit) -> None:
    frame = Frame(visit, "Dead letters", current="dead")
    chosen = {name: value for name in CHOICES if (value := visit.query(name))}
    cursor = visit.query("after")
    page = _Dead(visit, chosen, cursor)
    with frame.body:
        _filter(chosen)

    groups, letters = Gathering(MOST_GROUPS, None), Gathering(ROWS, cursor or None)
    questions = visit.questions

    def ask(who: Principal) -> tuple[Page, Page]:
        wanted = replace(_wanted(chosen), queues=who.queues)
        of_all = partial(questions.letter_groups, replace(wanted, group=None))
        of_these = partial(questions.letters, wanted)
        return (
            groups.more(0, lambda _, n, at: of_all(limit=min(n, LIST_LIMIT), cursor=at)).page,
            letters.more(0, lambda _, n, at: of_these(limit=n, cursor=at)).page,
        )

    await frame.live(ask, page.show)


def _filter(chosen: Mapping[str, str]) -> None:
    with Tag("form", classes="search", method="get", action=links.to("dead"), role="search"):
        for name in CHOICES[:-1]:
            box = Tag(
                "input",
                type="search",
                name=name,
                placeholder=name,
                aria_label=f"Filter by {name}",
                autocomplete="off",
            )
            box.props["^value"] = sendable(chosen.get(name, ""))
        Tag("button", "Filter", "btn", type="submit")
        if "group" in chosen:
            link("All groups", links.to("dead", **{**chosen, "group": None}))


def _wanted(chosen: Mapping[str, str]) -> WantedLetters:
    return WantedLetters(**chosen)  # type: ignore[arg-type]  # texts all


class _Dead:
    def __init__(self, visit: Visit, chosen: Mapping[str, str], cursor: str) -> None:
        self._visit, self._chosen_by, self._cursor = visit, chosen, cursor
        self._views: dict[str, View] = {}
        self._chosen: list[str] = []
        self._table: Table | None = None
        self._groups = _Groups(visit, chosen, self._requeue_all)

    def _draw_bulk(self) -> None:
        if not self._visit.operates:
            return
        with Tag("div", classes="toolbar", role="group", aria_label="Change several"):
            self._said = Tag("span", "None selected", "muted", role="status")
            button("Requeue selected", self._requeue_chosen, kind="small")
            which = "all that match" if self._chosen_by else "all"
            button(f"Requeue {which}", partial(self._requeue_all, self._chosen_by), kind="small")

    def show(self, found: tuple[Page, Page]) -> None:
        groups, page = found
        self._groups.show(groups)
        if self._table is None:
            self._draw_bulk()
            choose = self._choose if self._visit.operates else None
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_COLUMNS, caption="Dead letters", choose=choose, act=self._act)
                self._none = empty("No dead letters", "Nothing has given up, or all of it was requeued.")
                self._pager = Pager("dead", at_first=not self._cursor, **self._chosen_by)
        self._views = {_id(view): view for view in page.rows}
        self._none.mark_as("empty" if not page.rows and page.cursor is None else "hidden")
        self._table.show([self._row(view) for view in page.rows])
        self._pager.show(page)

    def _row(self, view: View) -> Row:
        job: Cell = (
            text(view["id"], href=links.job(view["id"]), mono=True, clip=True)
            if view["id"]
            else "unreadable record"
        )
        buttons = [("look", "Details", f"Details of {view['id'] or 'the unreadable record'}")]
        if self._visit.operates and view["id"]:
            buttons.append(("requeue", "Requeue", f"Requeue {view['id']}"))
        cells: list[Cell] = [
            job,
            at(view["at"]),
            lines(text(view["reason"].replace("_", " ")), text(view["detail"], clip=True)),
            lines(text(view["handler"], mono=True), view["queue"]),
            None if view["run"] is None else view["run"],
            len(view["attempts"]),
            acts(*buttons),
        ]
        return Row(id=_id(view), cells=cells)

    def _choose(self, ids: list[str]) -> None:
        self._chosen = [each for each in ids if each in self._views and self._views[each]["id"]]
        self._said.say(
            f"{plural(len(self._chosen), 'dead letter')} selected" if self._chosen else "None selected"
        )

    async def _act(self, row: str, name: str) -> None:
        view = self._views.get(row)
        if view is None:
            return
        if name == "look":
            if await _look(self._visit, view) == "mend":
                await self._mend(view["id"])
            return
        told = "It gets one more run, under its own idempotency key."
        if await confirm(self._visit.client, "Requeue this job?", told, verb="Requeue") is not None:
            await self._requeue([view["id"]])

    async def _mend(self, job_id: str) -> None:
        job = await self._visit.look(lambda _: self._visit.questions.job(job_id))
        if job is not None:
            await requeue_edited(self._visit, job)

    async def _requeue_chosen(self) -> None:
        ids = [self._views[each]["id"] for each in self._chosen if each in self._views]
        if not ids:
            self._visit.tell(
                "Select some dead letters first, with the boxes to the left of the rows.", good=False
            )
            return
        title, told = (
            f"Requeue {plural(len(ids), 'job')}?",
            "Each gets one more run, under its own idempotency key.",
        )
        if await confirm(self._visit.client, title, told, verb="Requeue") is not None:
            await self._requeue(ids)
            assert self._table is not None
            self._table.unchoose()

    async def _requeue_all(self, chosen: Mapping[str, str]) -> None:
        wanted, everything = _wanted(chosen), not chosen
        requeue = self._visit.actions.requeue_letters
        counted = await self._visit.change(
            partial(requeue, wanted=wanted, everything=everything, dry_run=True)
        )
        if counted is None:
            return
        matched = int(counted.view["matched"])
        if not matched:
            self._visit.tell("There is none of them any more.", good=False)
            return
        what = ", ".join(f"{name} {value}" for name, value in chosen.items())
        told = f"Every dead letter{' of ' if what else ''}{what}, on all queues that you may change."
        title = f"Requeue {plural(matched, 'job')}?"
        if await confirm(self._visit.client, title, told, verb="Requeue", typed=matched) is not None:
            await requeue_letters(self._visit, wanted, everything=everything)

    async def _requeue(self, ids: Iterable[str]) -> None:
        await requeue_letters(self._visit, WantedLetters(ids=frozenset(ids)))


class _Groups:
    """How many letters are alike: each group leads to its letters, and can be requeued as a whole."""

    def __init__(
        self, visit: Visit, chosen: Mapping[str, str], requeue: Callable[[Mapping[str, str]], Awaitable[None]]
    ) -> None:
        self._visit, self._chosen, self._requeue = visit, chosen, requeue
        self._table: Table | None = None

    def show(self, page: Page) -> None:
        found = joined(page.rows)
        if self._table is None:
            self._whole, body, self._beside = block("By handler and error", flush=True)
            with body:
                self._table = Table(
                    _GROUP_COLUMNS, caption="Dead letters by handler and error", act=self._act
                )
        self._whole.mark_as("block" if found else "hidden")
        said = plural(len(found), "group")
        if len(found) > SHOWN_GROUPS:
            said = f"the {SHOWN_GROUPS} largest of {said}"
        if page.cursor is not None:
            said += (
                f" in the latest {plural(sum(group['count'] for group in found), 'letter')}; there are more"
            )
        self._beside.say(said)
        self._table.show([self._row(group) for group in found[:SHOWN_GROUPS]])

    def _row(self, group: View) -> Row:
        name, here = group["error"] or group["reason"].replace("_", " "), self._chosen.get("group")
        href = (
            None if group["group"] == here else links.to("dead", **{**self._chosen, "group": group["group"]})
        )
        told = f"{plural(group['count'], 'letter')} of {group['handler']}: {name}"
        cells: list[Cell] = [
            lines(text(clean(name), href=href), text(group["message"], clip=True)),
            group["count"],
            text(group["handler"], mono=True),
            at(group["oldest"]),
            at(group["newest"]),
            acts(("requeue", "Requeue these", f"Requeue {told}")) if self._may_requeue(group) else None,
        ]
        return Row(id=group["group"], cells=cells)

    def _may_requeue(self, group: View) -> bool:
        return self._visit.operates and group["handler"] is not None

    async def _act(self, group: str, _: str) -> None:
        await self._requeue({**self._chosen, "group": group})


def _id(view: View) -> str:
    source = view["source"]
    return f"{source['topic']}/{source['partition']}/{source['offset']}"


async def _look(visit: Visit, view: View) -> str | None:
    """The letter with the history of its attempts. "mend": its payload is to be edited."""
    sheet = Sheet(visit.client, "Dead letter", wide=True)
    with sheet:
        job = (
            partial(link, view["id"], links.job(view["id"]), "mono")
            if view["id"]
            else "a record that could not be read"
        )
        facts(
            (
                ("Job", job),
                ("Died", partial(instant, view["at"], "full")),
                ("Reason", view["reason"].replace("_", " ")),
                ("Detail", clean(view["detail"], 4_000)),
                ("Record", _id(view)),
                ("Run", number(view["run"])),
                ("Payload", size(view["payload_bytes"])),
            )
        )
        with Tag("div", classes="scroll", tabindex="0", role="region", aria_label="Attempts").style(
            "max-height: 50vh"
        ):
            for attempt in reversed(view["attempts"]):
                _attempt(attempt)
        with Tag("div", classes="ends"):
            button("Close", lambda: sheet.submit(None))
            if visit.operates and view["id"]:
                button("Edit and requeue", lambda: sheet.submit("mend"))
    return await sheet.answer()


def _attempt(attempt: View) -> None:
    with Tag("div", classes="attempt"):
        with Tag("div", classes="row"):
            Tag("span", f"Run {attempt['run']}, attempt {attempt['attempt']}")
            Tag("span", attempt["outcome"], f"st {kind_of(attempt['outcome'])}")
            instant(attempt["at"], "full")
        with Tag("div", classes="row muted"):
            Tag("span", attempt["worker"], "mono")
            Tag("span", f"token {attempt['token']}", "mono")
        error = attempt["error"]
        if error is not None:
            Tag("p", f"{error['type']}: {clean(error['message'], 2_000)}", "st bad").style(
                "white-space: pre-wrap"
            )
            if error["trace"]:
                with Tag("details"):
                    Tag("summary", "Stack trace")
                    copy_button(error["trace"], "the trace")
                    Tag("pre", clean(error["trace"], 16_000), "text", tabindex="0")


_COLUMNS = [
    *(Column(label="Job", head=True), Column(label="Died"), Column(label="Reason"), Column(label="Handler")),
    *(
        Column(label="Run", kind="num"),
        Column(label="Attempts", kind="num"),
    ),
    Column(label="Actions", bare=True),
]
_GROUP_COLUMNS = [
    Column(label="Error", head=True),
    *(Column(label="Letters", kind="num"), Column(label="Handler")),
    *(Column(label="First died"), Column(label="Last died")),
    Column(label="Actions", bare=True),
]
