"""A schedule as a form, with a live preview of what it will do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput, NotFound, StoreUnreachable
from pipeline.core.zones import zone_names
from pipeline.server.access import Role, Unauthenticated
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.names import known_names, unknown_handler
from pipeline.server.console.parts.basic import Tag, banner, block, button, empty, link
from pipeline.server.console.parts.conflict import draw_conflict
from pipeline.server.console.parts.field import Field
from pipeline.server.console.parts.preview import Preview
from pipeline.server.console.schedule_conflict import differences
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
from pipeline.server.console.sessions import watch_session
from pipeline.server.console.visit import Visit, now_ms, problem_of, told
from pipeline.server.console.words import clean
from pipeline.server.schedule_changes import Stale

View = dict[str, Any]
TYPED_MS = 250
CHANGED_LOOKS, CHANGED_PAUSE_S = 20, 0.1
"""How often, and how far apart, a change by somebody else is looked for: its owner knows it before this server does."""


async def schedule_form(visit: Visit) -> None:
    schedule_id = visit.query("id")
    title = f"Edit {schedule_id}" if schedule_id else "New schedule"
    frame = Frame(visit, title, current="crontab", crumb=("Crontab", links.to("crontab")))
    if not visit.operates:
        with frame.body, Tag("section", classes="block"):
            empty("Not allowed", f"Changing schedules needs the {Role.OPERATOR.word} role.")
        return
    try:
        view = await visit.ask(lambda _: visit.questions.schedule(schedule_id)) if schedule_id else None
        if view is not None:
            visit.who.require_queue(view["spec"]["queue"])
    except DuelineError as error:
        with frame.body, Tag("section", classes="block"):
            empty(
                "Not found" if isinstance(error, NotFound) else "It cannot be read at the moment",
                problem_of(error),
            )
        return
    form = _Form(visit, view, now_ms(), await known_names(visit))
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
        self._verb = "Save changes" if view else "Create"
        self._tried = False
        self._blames = False
        """Whether what is said beside the buttons is about fields, and goes with what is wrong there."""

    def draw(self) -> None:
        source = str(self._spec.get("source", ""))
        if source.startswith(("app:", "file:")):
            banner(
                f"This schedule is kept by {source}.", "The next sync undoes what is changed here.", "warn"
            )
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
                watch_session(self._visit, self._problem)
                with Tag("div", classes="row"):
                    self._button = button(self._verb, self._save, kind="main")
                    back = links.schedule(self._spec["id"]) if self._view else links.to("crontab")
                    link("Go back", back, "btn")

    def _draw_what(self) -> None:
        _, body, _ = block("What")
        with body:
            self._draw(WHAT)
            nothing = written({})
            is_set = any(self._before[name] != nothing[name] for name in MORE)
            with Tag("details", open=is_set or None):
                Tag("summary", "More: exclusions, limits, catching up, groups, labels")
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
                    tz=self._before["tz"] or "UTC",
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
        for name in ("start", "end"):
            self._fields[name].in_zone(self._fields["tz"].text or "UTC")
        values, problems = await asyncio.to_thread(read, self._texts(), whole=self._tried)
        if mine == self._asked:
            problems = await self._meant(values, problems) | problems
        if mine == self._asked:
            self._blame(problems)
            if self._blames and not problems:
                self._problem.clear()
                self._blames = False
            await self._warn(mine)
        return values, problems

    async def _warn(self, mine: int) -> None:
        handler, queue = self._fields["handler"], self._fields["queue"]
        warning = await unknown_handler(self._visit, handler.text, queue.text)
        if mine == self._asked:
            handler.warn(warning)

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
                self._preview.clear(
                    "The interval counts from the end of each run, so its instants are not known in advance."
                )
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
            self._blames = True
            return
        self._button.say("Saving …")
        self._button.put("disabled", True)
        try:
            outcome, schedule_id = await self._stored(now, values)
        except Stale:
            await self._stale(now)
        except InvalidInput as error:
            self._blame(_blamed(error))
            self._say(_told(_blamed(error)))
        except Unauthenticated:
            self._visit.leave()
        except StoreUnreachable:
            self._say(
                "The store did not answer, so it may or may not be saved. Look at the crontab before you try again.",
                title="It was not confirmed.",
            )
        except DuelineError as error:
            self._say(problem_of(error))
        else:
            if outcome in ("created", "accepted", "updated"):
                self._visit.go(links.schedule(schedule_id))
            else:
                self._say(told(outcome))
        finally:
            self._button.say(self._verb)
            self._button.put("disabled", None)

    async def _stale(self, yours: Texts) -> None:
        """Somebody else has changed it: show what differs, and go on from what is stored now."""
        try:
            view = await self._changed()
        except DuelineError as error:
            self._say(problem_of(error))
            return
        if view is None:
            self._say("Somebody else has just changed it, and this server has not heard how yet. Try again.")
            return
        before, self._view, self._spec = self._before, view, dict(view["spec"])
        self._before = written(self._spec)
        for name, field in self._fields.items():
            if yours[name] == before[name] != self._before[name]:
                field.show(self._before[name])
        with self._problem:
            draw_conflict(view, differences(before, yours, self._before), self._choose)
        await self.check()

    async def _changed(self) -> View | None:
        """As it is now; None: not known in time."""
        for _ in range(CHANGED_LOOKS):
            view = await self._visit.ask(lambda _: self._visit.questions.schedule(self._spec["id"]))
            if self._view is None or view["etag"] != self._view["etag"]:
                return view
            await asyncio.sleep(CHANGED_PAUSE_S)
        return None

    async def _choose(self, texts: Texts) -> None:
        for name, text in texts.items():
            self._fields[name].show(text)
        await self.check()

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

    def _say(self, text: str, title: str = "It was not saved.") -> None:
        with self._problem:
            banner(title, clean(text, 300), "bad")


def _blamed(error: InvalidInput) -> Problems:
    return {error.field.partition(".")[0]: error.problem}


def _told(problems: Problems) -> str:
    """Which fields to look at, since they may be far up; what is not about a field is told itself."""
    named = [ENTRIES[name].label for name in ENTRIES if name in problems]
    others = [f"{name}: {problem}" for name, problem in problems.items() if name not in ENTRIES]
    return "; ".join([*([f"Check {', '.join(named)}"] if named else []), *others])
