"""The search of the jobs page: its box, shortcuts by status, due time and order, and a range of instants."""

from __future__ import annotations

from functools import partial

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.readmodel.questions import JobsWanted
from pipeline.server.console import links
from pipeline.server.console.names import known_names
from pipeline.server.console.parts.basic import Tag, button, link
from pipeline.server.console.parts.field import Field
from pipeline.server.console.parts.pager import search_form
from pipeline.server.console.parts.search_box import SearchBox
from pipeline.server.console.search import (
    DUE_BY_NOW,
    DUE_LATER,
    ORDERS,
    TO_COME,
    due_words,
    instead,
    meanings,
    parse,
    quoted,
)
from pipeline.server.console.visit import Visit

AT_FIRST = DUE_BY_NOW
"""Of the page without a search: what has come due, the latest first. Whoever comes without a question wants to know
what has just happened; jobs to come are of interest later, and the oldest ones seldom."""


def search_bar(visit: Visit, search: str, wanted: JobsWanted | None) -> None:
    """`wanted`: what the search means; None: nothing, and there is nothing to narrow."""
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
        _draw_pills("" if wanted is None else search, wanted)
    with Tag("div", classes="toolbar folded"):
        if wanted is not None:
            _Range(visit, search).draw()
        _draw_help()


def _draw_help() -> None:
    with Tag("details"):
        Tag("summary", "How to search")
        with Tag("dl", classes="facts"):
            for name, meaning in meanings().items():
                Tag("dt", name, "mono")
                Tag("dd", meaning)
            Tag("dt", "any other word")
            Tag("dd", "part of an id, key or handler; put values with spaces in double quotes")


def _draw_pills(search: str, wanted: JobsWanted | None) -> None:
    with Tag("nav", classes="pills", aria_label="By status"):
        _pill("any status", instead(search, ("status", "order")), wanted is not None and not wanted.statuses)
        for each in JobStatus:
            _pill(each.value, _of_status(search, each), wanted is not None and wanted.statuses == {each})
    said = due_words(search)
    with Tag("nav", classes="pills", aria_label="By due time"):
        for label, words in (("due by now", [DUE_BY_NOW]), ("to come", [DUE_LATER]), ("any time", [])):
            _pill(label, instead(search, ("due", "order"), *words), wanted is not None and said == words)
    with Tag("nav", classes="pills", aria_label="Order"):
        for order, label in (("due", "soonest first"), ("-due", "latest first")):
            _pill(
                label,
                instead(search, ("order",), f"order:{order}"),
                wanted is not None and wanted.order == order,
            )


def _of_status(search: str, status: JobStatus) -> str:
    """What is still to come is not looked for among what has come due, where the page begins."""
    begun = status in TO_COME and due_words(search) == [DUE_BY_NOW]
    names = ("status", "order", "due") if begun else ("status", "order")
    return instead(search, names, f"status:{status.value}")


def _pill(label: str, search: str, current: bool) -> None:
    pill = link(label, links.jobs(search), "pill")
    if current:
        pill.props["aria-current"] = "true"


class _Range:
    """Two instants to be picked or typed, which become part of the search."""

    def __init__(self, visit: Visit, search: str) -> None:
        self._visit, self._search = visit, search

    def draw(self) -> None:
        with Tag("details", classes="range"):
            Tag("summary", "Due between …")
            with Tag("div", classes="fields"):
                self._from = Field("Due from (inclusive)", kind="instant", hint="Leave empty for no limit")
                self._to = Field("Due to (exclusive)", kind="instant", hint="Leave empty for no limit")
            with Tag("div", classes="ends"):
                button("Apply", self._apply, kind="main")

    def _apply(self) -> None:
        words = []
        for field, sign in ((self._from, ">="), (self._to, "<")):
            field.blame("")
            if field.text:
                words.append(f"due{sign}{quoted(field.text)}")
                if problem := _problem(words[-1]):
                    field.blame(problem)
                    return
        self._visit.go(links.jobs(instead(self._search, ("due",), *words)))


def _problem(word: str) -> str:
    try:
        parse(word, now=0)
    except InvalidInput as error:
        return error.problem.removeprefix(f"{word}: ")
    return ""
