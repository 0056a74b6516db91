"""What can be done with tokens: make one, which is shown once, and revoke one."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.server.access import Role, Unauthenticated
from pipeline.server.console.parts.basic import Tag, button, copy_button
from pipeline.server.console.parts.confirm import Sheet, confirm
from pipeline.server.console.parts.field import Field
from pipeline.server.console.visit import Visit, problem_of
from pipeline.server.console.words import clean

ROLES = (
    (Role.VIEWER.word, "viewer: reads"),
    (Role.OPERATOR.word, "operator: changes jobs, schedules, replays and queues"),
    (Role.ADMIN.word, "admin: purges queues and manages tokens too"),
)


async def revoke(visit: Visit, token_id: str, name: str, *, last: bool) -> None:
    """Ask, and make it good for nothing. `last`: there is no other."""
    told = "It stops working on every server within a second, and its sessions end. This cannot be undone."
    if token_id == visit.who.token:
        told += " You are signed in with it, and will be signed out."
    if last:
        told += (
            " It is the last one: a server that only its own machine reaches then takes anyone for an admin."
        )
    if await confirm(visit.client, f"Revoke {name}?", told, verb="Revoke", danger=True) is not None:
        await visit.change(partial(visit.actions.revoke_token, token_id=token_id))


async def create(visit: Visit) -> None:
    """Ask what it is to be, make it, and show it this once."""
    first = visit.console.access.open
    sheet = Sheet(visit.client, "New token", wide=True)
    with sheet:
        form = _Form(visit, sheet, first=first)
        form.draw()
    if await sheet.answer() is None:
        return
    visit.on_leave = lambda: None  # what is shown now is shown once: nothing takes it away
    try:
        await _show(visit, form.made, first=first)
    finally:
        visit.on_leave = None
    for again in visit.after_change:
        await again()


async def _show(visit: Visit, made: dict[str, Any], *, first: bool) -> None:
    sheet = Sheet(visit.client, f"Token for {made['name']}", wide=True)
    with sheet:
        Tag("p", "Copy it now: it is not shown again.")
        with Tag("div", classes="row"):
            Tag("code", made["token"], "secret", tabindex="0")
            copy_button(made["token"], "the token")
        if first:
            Tag("p", "It is the first one: you will be asked to sign in with it.")
        with Tag("div", classes="ends"):
            button("Done", lambda: sheet.submit("done"), kind="main")
    await sheet.answer()


class _Form:
    def __init__(self, visit: Visit, sheet: Sheet, *, first: bool) -> None:
        self._visit, self._sheet, self._first = visit, sheet, first
        self.made: dict[str, Any] = {}
        """The token, once it was made."""

    def draw(self) -> None:
        role = Role.ADMIN if self._first else Role.VIEWER
        with Tag("div", classes="fields"):
            self._fields = {
                "name": Field("Name", hint="Who or what uses it; the audit names it", autofocus=True),
                "expires_in": Field("Expires in", kind="mono", placeholder="90d", hint="Default: never"),
                "role": Field("Role", kind="select", value=role.word, options=ROLES),
                "queue": Field("Queues", kind="mono", hint="Names with commas between. Default: all"),
            }
            for name in ("role", "queue"):
                self._fields[name].classes("all")
        self._said = Tag("p", "", "st bad hidden", role="alert")
        with Tag("div", classes="ends"):
            button("Go back", lambda: self._sheet.submit(None))
            button("Create", self._create, kind="main")

    async def _create(self) -> None:
        for field in self._fields.values():
            field.blame("")
        self._say("")
        try:
            who = await self._visit.ask(lambda who: who)
            done = await self._visit.actions.create_token(who, **self._asked())
        except InvalidInput as error:
            self._blame(error)
        except Unauthenticated:
            self._visit.leave()
        except DuelineError as error:
            self._say(problem_of(error))
        else:
            self.made = done.view
            self._sheet.submit("made")

    def _asked(self) -> dict[str, Any]:
        texts = {name: field.text for name, field in self._fields.items()}
        return {
            "name": texts["name"],
            "role": texts["role"],
            "queues": tuple(filter(None, map(str.strip, texts["queue"].split(",")))),
            "expires_in": texts["expires_in"] or None,
        }

    def _blame(self, error: InvalidInput) -> None:
        field = self._fields.get(error.field)
        if field is None:
            self._say(str(error))
        else:
            field.blame(clean(error.problem, 200))

    def _say(self, text: str) -> None:
        self._said.say(text)
        self._said.mark_as("st bad" if text else "st bad hidden")
