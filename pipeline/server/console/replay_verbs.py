"""Running a window of due time again: what would run is counted before anything does."""

from __future__ import annotations

from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.server.console import links
from pipeline.server.console.parts.basic import Tag, button, counts, facts
from pipeline.server.console.parts.confirm import Sheet
from pipeline.server.console.parts.field import Field
from pipeline.server.console.visit import Visit, problem_of
from pipeline.server.console.words import length, number, plural

MOST = 10_000_000
"""Occurrences of one replay that can be asked for here; each is counted and confirmed before."""
ONLY = (
    ("failed", "failed and dead"),
    ("dead", "dead only"),
    ("unacked", "lost: fired but never ended"),
    ("all", "everything that has ended, successes too"),
)


async def replay_window(visit: Visit, begin: str = "", end: str = "") -> None:
    """Ask for a window, survey it, and replay it once what would run was seen."""
    sheet = Sheet(visit.client, "Replay a window of due time", wide=True)
    with sheet:
        form = _Form(visit, sheet)
        form.draw(begin, end)
    if await sheet.answer() is None:
        return
    asked = form.asked()
    done = await visit.change(lambda who: visit.actions.start_replay(who, limit=MOST, **asked))
    if done is not None and done.view.get("id"):
        visit.go(links.to("replay", id=done.view["id"]))


class _Form:
    def __init__(self, visit: Visit, sheet: Sheet) -> None:
        self._visit, self._sheet = visit, sheet
        self._counted = False

    def draw(self, begin: str, end: str) -> None:
        with Tag("div", classes="fields"):
            self._from = Field("From (inclusive)", kind="instant", value=begin, changed=self._changed)
            self._to = Field(
                "To (exclusive)", kind="instant", value=end, hint="Default: now", changed=self._changed
            )
            self._only = Field("Which", kind="select", value="failed", options=ONLY, changed=self._changed)
            self._handler = Field("Handler", kind="mono", hint="Default: all", changed=self._changed)
            self._queue = Field("Queue", kind="mono", hint="Default: all", changed=self._changed)
            self._rate = Field("Limit per second", hint="Default: no limit", changed=self._changed)
        self._said = Tag("div", role="status")
        with self._said:
            Tag("p", "Do a dry run first: it counts what would run, and starts nothing.", "muted")
        with Tag("div", classes="ends"):
            button("Go back", lambda: self._sheet.submit(None))
            button("Dry run", self._count)
            self._start = button("Replay", self._started, kind="main", disabled=True)

    def asked(self) -> dict[str, Any]:
        """InvalidInput('rate')."""
        return {
            "from_": self._from.text,
            "to": self._to.text or None,
            "only": self._only.text,
            "handler": self._handler.text or None,
            "queue": self._queue.text or None,
            "rate": _rate(self._rate.text),
            "force": self._only.text == "all",
        }

    def _changed(self) -> None:
        self._counted = False
        self._start.put("disabled", True)

    def _started(self) -> None:
        if self._counted:
            self._sheet.submit("start")

    async def _count(self) -> None:
        fields = {
            "from": self._from,
            "to": self._to,
            "rate": self._rate,
            "handler": self._handler,
            "queue": self._queue,
        }
        for each in fields.values():
            each.blame("")
        self._said.clear()
        try:
            who = await self._visit.ask(lambda who: who)
            done = await self._visit.actions.start_replay(who, limit=MOST, dry_run=True, **self.asked())
        except DuelineError as error:
            field = fields.get(error.field) if isinstance(error, InvalidInput) else None
            if field is not None and isinstance(error, InvalidInput):
                field.blame(error.problem)
            else:
                with self._said:
                    Tag("p", problem_of(error), "st bad")
            return
        with self._said:
            _counted(done.view)
        self._counted = bool(done.view["matched"])
        self._start.put("disabled", None if self._counted else True)


def _counted(view: dict[str, Any]) -> None:
    Tag("p", f"{plural(view['matched'], 'occurrence')} would run again.")
    seconds = view["estimated_seconds"]
    facts(
        (
            ("In this window", counts(view["outcomes"])),
            ("Still with workers", f"{number(view['waiting'])} have a run waiting, and are not replayed"),
            ("Estimated time", None if seconds is None else length(seconds * 1000)),
            (
                "Expired",
                None
                if view["gone_until"] is None
                else f"records of what was due before {view['gone_until']} may be gone",
            ),
        )
    )


def _rate(text: str) -> float | None:
    try:
        rate = float(text) if text else None
    except ValueError:
        rate = -1
    if rate is not None and not 0.01 <= rate <= 1e9:
        raise InvalidInput("rate", f"{text!r:.40} is not a number of runs per second")
    return rate
