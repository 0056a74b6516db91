"""Tokens: who may open the API and the console. For admins."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.core.times import format_instant
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, banner, button, empty
from pipeline.server.console.parts.table import Cell, Column, Row, Table, acts, at, lines, status, text
from pipeline.server.console.token_verbs import create, revoke
from pipeline.server.console.visit import Visit, now_ms

View = dict[str, Any]


async def tokens(visit: Visit) -> None:
    frame = Frame(visit, "Tokens", current="tokens")
    page = _Tokens(visit, frame)

    def ask(who: Principal) -> list[View]:
        return visit.actions.listed_tokens(who)

    await frame.live(ask, page.show)


class _Tokens:
    def __init__(self, visit: Visit, frame: Frame) -> None:
        self._visit, self._frame = visit, frame
        self._table: Table | None = None
        self._names: dict[str, str] = {}

    def show(self, views: list[View]) -> None:
        if self._table is None:
            self._build()
        assert self._table is not None
        self._none.mark_as("hidden" if views else "empty")
        self._names = {view["id"]: view["name"] for view in views}
        self._table.show([_row(view) for view in views])

    def _build(self) -> None:
        """Nothing of it is there for who may not see tokens."""
        with self._frame.head.tools:
            new = button("New token", partial(create, self._visit), kind="main")
        new.move(self._frame.head.tools, target_index=0)
        if self._visit.console.access.open:
            told = "The first token closes it: from then on everyone signs in with one."
            banner("Anyone who can reach this server is an admin.", told, "warn")
        with Tag("section", classes="block"), Tag("div", classes="flush"):
            self._table = Table(_COLUMNS, caption="Tokens", act=self._act)
            self._none = empty("No tokens yet", "Create one here, or with dueline token create.")

    async def _act(self, token_id: str, _: str) -> None:
        name, last = self._names.get(token_id, token_id), len(self._names) == 1
        await revoke(self._visit, token_id, name, last=last)


_COLUMNS = [
    Column(label="Token", head=True),
    Column(label="Role"),
    Column(label="Queues"),
    Column(label="Created"),
    Column(label="Expires"),
    Column(label="Actions", bare=True),
]


def _row(view: View) -> Row:
    by = view["created_by"]
    return Row(
        id=view["id"],
        cells=[
            lines(
                text(view["name"], href=links.to("activity", by=view["name"]), clip=True),
                text(view["id"], mono=True),
            ),
            view["role"],
            "all" if view["queues"] is None else {"tags": view["queues"]},
            lines(at(view["created_at"]), text(f"by {by}", clip=True) if by else None),
            _expiry(view["expires_at"]),
            acts(("revoke", "Revoke", f"Revoke {view['name']}")),
        ],
    )


def _expiry(until: str | None) -> Cell:
    if until is None:
        return "never"
    return lines(at(until), status("expired", kind="off") if until <= format_instant(now_ms()) else None)
