"""A new job as a form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.server.access import Role, Unauthenticated
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.job_fields import LABELS, WHEN, Problems, field_of, request_of
from pipeline.server.console.names import known_names, unknown_handler
from pipeline.server.console.parts.basic import Tag, banner, block, button, empty, link
from pipeline.server.console.parts.field import Field
from pipeline.server.console.sessions import watch_session
from pipeline.server.console.visit import Visit, problem_of, told
from pipeline.server.console.words import clean

TYPED_MS = 250
HINTS = {
    "handler": "What runs",
    "queue": "Default: the installation's own",
    "in": "A time such as 90s, 10m or 1h30m",
    "at": "A date, a time or an instant",
    "key": "At most one job at a time has this key. Default: none",
    "payload": "A JSON object, passed to the handler. Default: {}",
}
EXAMPLES = {
    "handler": "email.send",
    "queue": "default",
    "in": "10m",
    "at": "2030-01-31T09:30:00Z",
    "key": "invoice-42",
    "payload": '{"to": "board"}',
}
KINDS = {"when": "select", "at": "instant", "payload": "area"}


async def job_form(visit: Visit) -> None:
    frame = Frame(visit, "New job", current="jobs", crumb=("Jobs", links.to("jobs")))
    if not visit.operates:
        with frame.body, Tag("section", classes="block"):
            empty("Not allowed", f"Creating jobs needs the {Role.OPERATOR.word} role.")
        return
    form = _Form(visit, await known_names(visit))
    with frame.body:
        form.draw()


class _Form:
    def __init__(self, visit: Visit, names: Mapping[str, Sequence[str]]) -> None:
        """`names`: handlers and queues to choose from; others may be typed."""
        self._visit, self._names = visit, names
        self._fields: dict[str, Field] = {}
        self._tried = False
        self._blames = False
        """Whether what is said beside the buttons is about fields, and goes with what is wrong there."""

    def draw(self) -> None:
        _, body, _ = block("Job")
        with body:
            with Tag("div", classes="fields"):
                for name, label in LABELS.items():
                    self._draw(name, label)
            self._problem = Tag("div").style("margin-top: 12px")
            watch_session(self._visit, self._problem)
            with Tag("div", classes="row"):
                button("Create", self._create, kind="main")
                link("Go back", links.to("jobs"), "btn")
        self._show_when()

    def _draw(self, name: str, label: str) -> None:
        field = self._fields[name] = Field(
            label,
            kind=KINDS.get(name, "mono"),
            value="now" if name == "when" else "",
            hint=HINTS.get(name, ""),
            placeholder=EXAMPLES.get(name, ""),
            options=WHEN if name == "when" else (),
            suggestions=self._names.get(name, ()),
            slow=0 if name == "when" else TYPED_MS,
            changed=self._changed,
            autofocus=name == "handler",
        )
        if name == "payload":
            field.classes("all")

    def _texts(self) -> dict[str, str]:
        return {name: field.text for name, field in self._fields.items()}

    def _show_when(self) -> None:
        """Of the two fields for a time the one that counts."""
        when = self._fields["when"].text
        for name in ("in", "at"):
            self._fields[name].classes(**{"remove" if name == when else "add": "hidden"})

    async def _changed(self) -> None:
        self._show_when()
        texts = self._texts()
        if self._tried:
            problems = request_of(texts)[1]
            self._blame(problems)
            if self._blames and not problems:
                self._problem.clear()
                self._blames = False
        warning = await unknown_handler(self._visit, texts["handler"], texts["queue"])
        if texts == self._texts():
            self._fields["handler"].warn(warning)

    def _blame(self, problems: Problems) -> None:
        for name, field in self._fields.items():
            field.blame(clean(problems.get(name, ""), 200))

    async def _create(self) -> None:
        self._problem.clear()
        self._tried, self._blames = True, False
        request, problems = request_of(self._texts())
        self._blame(problems)
        if problems:
            self._check(problems)
            return
        try:
            done = await self._visit.actions.create_job(await self._visit.ask(lambda who: who), request)
        except InvalidInput as error:
            self._refused(error)
        except Unauthenticated:
            self._visit.leave()
        except StoreUnreachable as error:
            self._say(
                f"{problem_of(error)}. Look among the jobs whether it is there before you press Create again."
            )
        except DuelineError as error:
            self._say(problem_of(error))
        else:
            if done.view["status"] == "existing":
                self._visit.tell(told("existing"), good=False)
            self._visit.go(links.job(str(done.view["id"])))

    def _refused(self, error: InvalidInput) -> None:
        field = field_of(error)
        if field in LABELS:
            self._blame({field: error.problem})
            self._check({field: error.problem})
        else:
            self._say(str(error))

    def _check(self, problems: Problems) -> None:
        self._blames = True
        self._say(f"Check {', '.join(LABELS[name] for name in LABELS if name in problems)}")

    def _say(self, text: str) -> None:
        with self._problem:
            banner("It was not created.", clean(text, 300), "bad")
