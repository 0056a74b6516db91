"""A schedule as a form, with a live preview of what it will do."""

from __future__ import annotations

import json
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
from pipeline.server.console.payload import object_of
from pipeline.server.console.visit import Visit, problem_of, told
from pipeline.server.console.words import clean
from pipeline.server.schedule_changes import Stale

View = dict[str, Any]
TYPED_MS = 250
NOTHING: tuple[object, ...] = ("", "0ms", {})
MISFIRES = (("latest", "fire the latest"), ("none", "fire none"))
OVERLAPS = (
    ("skip", "skip the next one"), ("buffer_one", "let one wait"), ("cancel_other", "stop the one that runs"),
    ("allow", "run both"),
)  # fmt: skip


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
    await form.preview()


class _Form:
    def __init__(self, visit: Visit, view: View | None, now: int, names: Mapping[str, Sequence[str]]) -> None:
        """`names`: handlers and queues to choose from; others may be typed."""
        self._visit, self._view, self._now, self._names = visit, view, now, names
        self._spec: View = {} if view is None else dict(view["spec"])
        self._fields: dict[str, Field] = {}

    def draw(self) -> None:
        source = str(self._spec.get("source", ""))
        if source.startswith(("app:", "file:")):
            banner("Its source keeps it.", f"The next sync of {source} changes it back.", "warn")
        with Tag("div", classes="cols wide-left form"):
            with Tag("div", classes="stack"):
                self._draw_when()
                self._draw_what()
                self._problem = Tag("div")
                with Tag("div", classes="row"):
                    button("Save changes" if self._view else "Create", self._save, kind="main")
                    back = links.schedule(self._spec["id"]) if self._view else links.to("crontab")
                    link("Leave it", back, "btn")
            _, body, _ = block("Preview")
            with body:
                self._preview = Preview(self._visit, now=self._now)

    def _draw_when(self) -> None:
        _, body, _ = block("When")
        with body, Tag("div", classes="fields"):
            if self._view is None:
                hint = "Lower case, digits, . _ -; it cannot be changed"
                self._add("id", "Id", kind="mono", hint=hint, autofocus=True)
            self._add(
                "cron", "Cron expression", kind="mono", hint="Five fields, six with seconds first, or @daily"
            )
            self._add("every", "Or every", kind="mono", hint="Instead of an expression, such as 90s or 2h")
            self._add("tz", "Zone", hint="IANA name; empty is UTC", suggestions=sorted(zone_names()))
            gaps = (("run_after", "run it right after"), ("skip", "skip it"))
            self._add("dst_gap", "What the clock skips", kind="select", options=gaps)
            twice = (("first", "the first pass only"), ("both", "both passes"))
            self._add("dst_overlap", "An hour that comes twice", kind="select", options=twice)
            self._add("jitter", "Jitter", hint="Put each off by up to so long, such as 30s")
            self._add("start", "Start", kind="mono", hint="No occurrence before; RFC 3339")
            self._add("end", "End", kind="mono", hint="None at or after; RFC 3339")

    def _draw_what(self) -> None:
        _, body, _ = block("What")
        with body, Tag("div", classes="fields"):
            handlers, queues = (self._names.get(name, ()) for name in ("handler", "queue"))
            self._add("handler", "Handler", kind="mono", hint="Such as report.daily", suggestions=handlers)
            self._add("queue", "Queue", kind="mono", hint="Empty is the default", suggestions=queues)
            payload = (
                json.dumps(self._spec["payload"], indent=2, ensure_ascii=False)
                if self._spec.get("payload")
                else ""
            )
            with Tag("div", classes="all"):
                self._add(
                    "payload",
                    "Payload",
                    kind="area",
                    value=payload,
                    hint="A JSON object, handed to the handler",
                )
            self._add(
                "misfire",
                "Of those missed",
                kind="select",
                options=_with(MISFIRES, self._spec.get("misfire")),
            )
            self._add(
                "overlap", "While one runs", kind="select", options=_with(OVERLAPS, self._spec.get("overlap"))
            )
            self._add("max_attempts", "Attempts at most", hint="Empty: the handler's own")
            self._add("timeout", "Time-out of an attempt", hint="Empty: the handler's own; such as 30s")
            with Tag("div", classes="all"):
                self._add("note", "Note", hint="For whoever looks at it")

    def _add(self, name: str, label: str, *, kind: str = "text", **more: Any) -> None:
        given = self._before(name)
        options = more.get("options")
        value = more.pop("value", None) or str(
            given if given is not None else options[0][0] if options else ""
        )
        slow = 0 if kind == "select" else TYPED_MS
        self._fields[name] = Field(label, kind=kind, value=value, slow=slow, changed=self._changed, **more)

    async def _changed(self) -> None:
        await self.preview()

    # -- what stands in it -----------------------------------------------------------------------------------------

    def _options(self) -> View:
        """By the names of docs/schedules.md; None: its default. InvalidInput naming the field."""
        options: View = {
            name: each.text or None for name, each in self._fields.items() if name not in ("id", "payload")
        }
        attempts = options["max_attempts"]
        if attempts is not None:
            if not attempts.isdecimal() or len(attempts) > 9:
                raise InvalidInput("max_attempts", f"{attempts!r:.40} is no whole number")
            options["max_attempts"] = int(attempts)
        payload = self._fields["payload"].text
        options["payload"] = (object_of(payload) or None) if payload else None
        return options

    def _timing(self) -> View:
        names = ("cron", "every", "tz", "dst_gap", "dst_overlap", "jitter", "start", "end")
        given = {name: self._fields[name].text for name in names}
        kept: View = {name: self._spec[name] for name in ("exclude", "phase", "after") if name in self._spec}
        own = kept | {name: value for name, value in given.items() if value}
        named = self._fields["id"].text if "id" in self._fields else self._spec["id"]
        return own | ({"id": named} if named else {})

    async def preview(self) -> None:
        for each in self._fields.values():
            each.blame("")
        timing = self._timing()
        if "cron" in timing or "every" in timing:
            self._blame(await self._preview.show(timing))

    def _blame(self, error: DuelineError | None) -> bool:
        """Whether a field of this page is to blame."""
        if not isinstance(error, InvalidInput):
            return False
        field = self._fields.get(error.field.partition(".")[0])
        if field is not None:
            field.blame(error.problem)
        return field is not None

    # -- saving ----------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        self._problem.clear()
        for each in self._fields.values():
            each.blame("")
        try:
            outcome, schedule_id = await self._stored(self._options())
        except Stale as error:
            self._say(problem_of(error))
            with self._problem:
                link("Open it as it is now", links.to("schedule/edit", id=self._spec["id"]))
            return
        except DuelineError as error:
            if not self._blame(error):
                self._say(problem_of(error))
            return
        if outcome in ("created", "accepted", "updated"):
            self._visit.go(links.schedule(schedule_id))
        else:
            self._say(told(outcome))

    async def _stored(self, options: Mapping[str, Any]) -> tuple[str, str]:
        visit, actions = self._visit, self._visit.actions
        who = await visit.ask(lambda who: who)
        if self._view is None:
            schedule_id = self._fields["id"].text
            given = {name: value for name, value in options.items() if value is not None}
            done = await actions.create_schedule(who, schedule_id, given)
        else:
            schedule_id = self._spec["id"]
            changed = {name: value for name, value in options.items() if value != self._before(name)}
            done = await actions.update_schedule(who, schedule_id, changed, etag=self._view.get("etag"))
        for position in done.positions:
            await visit.ask(lambda _, position=position: visit.questions.wait_for(position, 2_000))  # type: ignore[misc]
        return str(done.view["outcome"]), schedule_id

    def _before(self, name: str) -> Any:
        """None where it is nothing, which a length has as 0ms."""
        given = self._spec.get(name)
        return None if given in NOTHING else given

    def _say(self, text: str) -> None:
        with self._problem:
            banner("It was not saved.", clean(text, 300), "bad")


def _with(options: tuple[tuple[str, str], ...], given: object) -> tuple[tuple[str, str], ...]:
    """With what it has now, such as `all(20)`, if that is none of the common ones."""
    known = {value for value, _ in options}
    return options if not isinstance(given, str) or given in known else (*options, (given, given))
