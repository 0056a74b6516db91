"""A schedule as a form, with a live preview of what it will do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput, NotFound
from pipeline.core.zones import zone_names
from pipeline.server.access import Role
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.names import known_names
from pipeline.server.console.parts.basic import Tag, banner, block, button, empty, link
from pipeline.server.console.parts.field import Field
from pipeline.server.console.parts.preview import Preview
from pipeline.server.console.schedule_fields import (
    ENTRIES,
    ID,
    MORE,
    TIMING,
    WHAT,
    WHEN,
    Entry,
    Problems,
    Texts,
    Values,
    changed,
    read,
    written,
)
from pipeline.server.console.visit import Visit, problem_of, told
from pipeline.server.console.words import clean
from pipeline.server.schedule_changes import Stale

View = dict[str, Any]
TYPED_MS = 250


async def schedule_form(visit: Visit) -> None:
    schedule_id = visit.query("id")
    title = f"Edit {schedule_id}" if schedule_id else "New schedule"
    frame = Frame(visit, title, current="crontab", crumb=("Crontab", links.to("crontab")))
    if not visit.operates:
        with frame.body, Tag("section", classes="block"):
            empty("Not for you", f"Changing schedules needs the role {Role.OPERATOR.word}.")
        return
    try:
        view = await visit.ask(lambda _: visit.questions.schedule(schedule_id)) if schedule_id else None
        if view is not None:
            visit.who.require_queue(view["spec"]["queue"])
    except DuelineError as error:
        with frame.body, Tag("section", classes="block"):
            empty("Not found" if isinstance(error, NotFound) else "It cannot be read now", problem_of(error))
        return
    form = _Form(visit, view, time.time_ns() // 1_000_000, await known_names(visit))
    with frame.body:
        form.draw()
    await form.check()


class _Form:
    def __init__(self, visit: Visit, view: View | None, now: int, names: Mapping[str, Sequence[str]]) -> None:
        """`names`: handlers and queues to choose from; others may be typed."""
        self._visit, self._view, self._now = visit, view, now
        self._names = {**names, "tz": sorted(zone_names())}
        self._spec: View = {} if view is None else dict(view["spec"])
        self._before = written(self._spec)
        self._fields: dict[str, Field] = {}
        self._asked = 0
        self._tried = False

    def draw(self) -> None:
        source = str(self._spec.get("source", ""))
        if source.startswith(("app:", "file:")):
            banner("Its source keeps it.", f"The next sync of {source} changes it back.", "warn")
        with Tag("div", classes="cols wide-left form"):
            _, body, _ = block("When")
            with body:
                self._draw(WHEN if self._view else {"id": ID, **WHEN})
            _, body, _ = block("Preview")
            with body:
                self._preview = Preview(self._visit, now=self._now)
            with Tag("div", classes="stack"):
                self._draw_what()
                self._problem = Tag("div")
                with Tag("div", classes="row"):
                    button("Save changes" if self._view else "Create", self._save, kind="main")
                    back = links.schedule(self._spec["id"]) if self._view else links.to("crontab")
                    link("Leave it", back, "btn")

    def _draw_what(self) -> None:
        _, body, _ = block("What")
        with body:
            self._draw(WHAT)
            nothing = written({})
            is_set = any(self._before[name] != nothing[name] for name in MORE)
            with Tag("details", open=is_set or None):
                Tag("summary", "More: what is left out, limits, catching up, groups, labels")
                self._draw(MORE)

    def _draw(self, entries: Mapping[str, Entry]) -> None:
        with Tag("div", classes="fields"):
            for name, entry in entries.items():
                field = self._fields[name] = Field(
                    entry.label,
                    kind=entry.kind,
                    value=self._before[name],
                    hint=entry.hint,
                    placeholder=entry.example,
                    options=entry.options,
                    suggestions=self._names.get(name, ()),
                    slow=0 if entry.options else TYPED_MS,
                    changed=self.check,
                    autofocus=name == "id",
                )
                if entry.wide:
                    field.classes("all")

    # -- what stands in it -----------------------------------------------------------------------------------------

    def _texts(self) -> dict[str, str]:
        return {name: field.text for name, field in self._fields.items()}

    async def check(self) -> tuple[Values, Problems]:
        """Show what the fields mean, and all that is wrong with them."""
        self._asked += 1
        mine = self._asked
        values, problems = await asyncio.to_thread(read, self._texts(), whole=self._tried)
        if mine == self._asked:
            problems = await self._meant(values, problems) | problems
        if mine == self._asked:
            self._blame(problems)
        return values, problems

    def _blame(self, problems: Problems) -> None:
        for name, field in self._fields.items():
            field.blame(problems.get(name, ""))

    async def _meant(self, values: Values, problems: Problems) -> Problems:
        """Draw the preview; what is wrong with fields that are well each alone."""
        timing = {name: values[name] for name in TIMING if values.get(name) is not None}
        if problems.keys() & TIMING or not timing.keys() & {"cron", "every"}:
            self._preview.clear()
            return {}
        named = values.get("id") or self._spec.get("id")
        error = await self._preview.show(timing | ({"id": named} if named else {}))
        match error:
            case InvalidInput(field="after") if "every" in timing:
                self._preview.clear("It counts from the end of each run: its instants are not known before.")
                return {}
            case InvalidInput():
                return _blamed(error)
            case _:
                return {}

    # -- saving ----------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        self._problem.clear()
        self._tried = True
        now = self._texts()
        values, problems = await self.check()
        if problems:
            self._say(_told(problems))
            return
        try:
            outcome, schedule_id = await self._stored(now, values)
        except Stale as error:
            self._say(problem_of(error))
            with self._problem:
                link("Open it as it is now", links.to("schedule/edit", id=self._spec["id"]))
        except InvalidInput as error:
            self._blame(_blamed(error))
            self._say(_told(_blamed(error)))
        except DuelineError as error:
            self._say(problem_of(error))
        else:
            if outcome in ("created", "accepted", "updated"):
                self._visit.go(links.schedule(schedule_id))
            else:
                self._say(told(outcome))

    async def _stored(self, now: Texts, values: Values) -> tuple[str, str]:
        visit, actions = self._visit, self._visit.actions
        who = await visit.ask(lambda who: who)
        if self._view is None:
            schedule_id = str(values["id"])
            given = {name: value for name, value in values.items() if value is not None and name != "id"}
            done = await actions.create_schedule(who, schedule_id, given)
        else:
            schedule_id = self._spec["id"]
            given = changed(self._before, now, values)
            done = await actions.update_schedule(who, schedule_id, given, etag=self._view.get("etag"))
        for position in done.positions:
            await visit.ask(lambda _, position=position: visit.questions.wait_for(position, 2_000))  # type: ignore[misc]
        return str(done.view["outcome"]), schedule_id

    def _say(self, text: str) -> None:
        with self._problem:
            banner("It was not saved.", clean(text, 300), "bad")


def _blamed(error: InvalidInput) -> Problems:
    return {error.field.partition(".")[0]: error.problem}


def _told(problems: Problems) -> str:
    """Which fields to look at, since they may be far up; what is not about a field is told itself."""
    named = [ENTRIES[name].label for name in ENTRIES if name in problems]
    others = [f"{name}: {problem}" for name, problem in problems.items() if name not in ENTRIES]
    return "; ".join([*([f"Look at {', '.join(named)}"] if named else []), *others])
