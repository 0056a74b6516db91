"""What can be done with a schedule: run now, pause with a note, resume, backfill after a count, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.server.console import links
from pipeline.server.console.parts.basic import Tag, button
from pipeline.server.console.parts.confirm import REASON, Sheet, confirm
from pipeline.server.console.parts.field import Field
from pipeline.server.console.visit import Visit, problem_of
from pipeline.server.console.words import plural

MOST = 100_000
"""Occurrences of one backfill that can be asked for here; each is counted and confirmed before."""


async def act(visit: Visit, schedule_id: str, name: str, tz: str) -> None:
    """`tz`: its zone. Carry out what a button says, after asking where it cannot be taken back."""
    actions = visit.actions
    match name:
        case "trigger":
            title, told = (
                f"Run {schedule_id} now?",
                "Fires one extra occurrence now. Its regular times stay as they are.",
            )
            if await confirm(visit.client, title, told, verb="Run now") is not None:
                fired = {"fired": "One extra occurrence has fired."}
                await visit.change(partial(actions.trigger_schedule, schedule_id=schedule_id), fired)
        case "pause":
            title, told = (
                f"Pause {schedule_id}?",
                "It will not fire until it is resumed; what comes due meanwhile is skipped.",
            )
            note = await confirm(visit.client, title, told, verb="Pause", note=REASON)
            if note is not None:
                await visit.change(partial(actions.pause_schedule, schedule_id=schedule_id, note=note))
        case "resume":
            await visit.change(partial(actions.resume_schedule, schedule_id=schedule_id))
        case "backfill":
            await backfill(visit, schedule_id, tz)
        case "delete":
            title, told = (
                f"Delete {schedule_id}?",
                "It is removed together with its counters. Runs that have fired carry on.",
            )
            if await confirm(visit.client, title, told, verb="Delete", danger=True) is not None:
                done = await visit.change(partial(actions.delete_schedule, schedule_id=schedule_id))
                if done is not None and done.view["outcome"] == "deleted":
                    visit.go(links.to("crontab"), saying=f"{schedule_id} was deleted")


async def backfill(visit: Visit, schedule_id: str, tz: str) -> None:
    """Ask for a range, count it, and start it once the count was seen."""
    sheet = Sheet(visit.client, f"Backfill {schedule_id}", wide=True)
    with sheet:
        Tag("p", "Fires the instants of its grid in a past range, each as a separate occurrence.")
        form = _Form(visit, schedule_id, tz, sheet.submit)
        form.draw()
    if await sheet.answer() is not None:
        asked = form.asked()
        await visit.change(lambda who: visit.actions.backfill_schedule(who, schedule_id, limit=MOST, **asked))


class _Form:
    def __init__(self, visit: Visit, schedule_id: str, tz: str, submit: Callable[[str | None], None]) -> None:
        self._visit, self._id, self._tz, self._submit = visit, schedule_id, tz, submit
        self._counted = False

    def draw(self) -> None:
        hint = f"A date, a time or an instant; in {self._tz} unless it says otherwise"
        with Tag("div", classes="fields"):
            own = partial(Field, kind="instant", hint=hint, changed=self._changed, tz=self._tz)
            self._from = own("From (inclusive)", autofocus=True)
            self._to = own("To (exclusive)")
            words = (
                ("allow", "run all at once"),
                ("buffer_all", "one after another"),
                ("skip", "skip while one is running"),
            )
            self._overlap = Field(
                "Where they overlap", kind="select", value="allow", options=words, changed=self._changed
            )
            self._rate = Field("Limit per minute", hint="Default: no limit", changed=self._changed)
            self._reverse = Field("Newest first", kind="check", value=False, changed=self._changed)
        self._said = Tag(
            "p", "Count first: nothing starts before you have seen the number.", "muted", role="status"
        )
        with Tag("div", classes="ends"):
            button("Go back", lambda: self._submit(None))
            button("Count", self._count)
            self._start = button("Start", self._started, kind="main", disabled=True)

    def asked(self) -> dict[str, Any]:
        """InvalidInput('rate')."""
        rate = self._rate.text
        if rate and not rate.isdecimal():
            raise InvalidInput("rate", f"{rate!r:.40} is not a whole number of occurrences per minute")
        return {
            "from_": self._from.text,
            "to": self._to.text,
            "overlap": self._overlap.text,
            "rate": int(rate) if rate else None,
            "reverse": self._reverse.value is True,
        }

    def _changed(self) -> None:
        self._counted = False
        self._start.put("disabled", True)

    def _started(self) -> None:
        if self._counted:
            self._submit("start")

    async def _count(self) -> None:
        fields = {"from": self._from, "to": self._to, "rate": self._rate}
        for each in fields.values():
            each.blame("")
        try:
            asked = self.asked()
            who = await self._visit.ask(lambda who: who)
            done = await self._visit.actions.backfill_schedule(
                who, self._id, limit=MOST, dry_run=True, **asked
            )
        except DuelineError as error:
            blamed = fields.get(error.field) if isinstance(error, InvalidInput) else None
            if blamed is not None and isinstance(error, InvalidInput):
                blamed.blame(error.problem)
            self._said.say("" if blamed is not None else problem_of(error))
            return
        total = int(done.view["total"] or 0)
        self._said.say(f"{plural(total, 'occurrence')} in this range will run.")
        self._counted = bool(total)
        self._start.put("disabled", None if total else True)
