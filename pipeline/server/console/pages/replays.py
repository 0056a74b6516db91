"""Replays: windows of due time that were run again, and each one by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.core.times import parse_instant
from pipeline.readmodel.questions import JobsWanted
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, block, button, counts, empty, facts, instant, link
from pipeline.server.console.parts.confirm import confirm
from pipeline.server.console.parts.looks import kind_of
from pipeline.server.console.parts.table import Column, Row, Table, at, lines, status, text
from pipeline.server.console.replay_verbs import replay_window
from pipeline.server.console.search import written
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import number, plural

View = dict[str, Any]


async def replays(visit: Visit) -> None:
    frame = Frame(visit, "Replays", current="replays")
    if visit.operates and visit.who.queues is None:
        with frame.head.tools:
            button("Replay a window", partial(replay_window, visit), kind="main")
    page = _Replays()

    def ask(who: Principal) -> Sequence[View]:
        who.require_all_queues()
        return visit.questions.replays()

    await frame.live(ask, page.show)


class _Replays:
    def __init__(self) -> None:
        self._table: Table | None = None

    def show(self, views: Sequence[View]) -> None:
        if self._table is None:
            with Tag("section", classes="block"), Tag("div", classes="flush"):
                self._table = Table(_COLUMNS, caption="Replays")
                self._none = empty(
                    "No replays yet", "After an outage, replay its window to run what failed or was lost."
                )
        self._none.mark_as("hidden" if views else "empty")
        self._table.show([_row(view) for view in views])


async def replay(visit: Visit) -> None:
    replay_id = visit.query("id")
    frame = Frame(visit, "Replay", current="replays", crumb=("Replays", links.to("replays")))
    page = _Replay(visit, frame)

    def ask(who: Principal) -> View:
        who.require_all_queues()
        return visit.questions.replay(replay_id)

    await frame.live(ask, page.show, every=2.0, missing="No such replay")


class _Replay:
    def __init__(self, visit: Visit, frame: Frame) -> None:
        self._visit, self._frame = visit, frame
        self._view: View | None = None

    def show(self, view: View) -> None:
        if self._view is None:
            _, self._body, _ = block("Summary")
            if self._visit.operates:
                self._verbs = Tag("div", classes="row")
                self._verbs.move(self._frame.head.tools, target_index=0)
        if view == self._view:
            return
        self._view = view
        self._body.clear()
        with self._body:
            _stands(view)
        if self._visit.operates:
            self._verbs.clear()
            with self._verbs:
                self._buttons(view)

    def _buttons(self, view: View) -> None:
        actions, visit = self._visit.actions, self._visit
        if view["state"] == "running":
            button("Cancel", self._cancel, kind="danger")
        if view["state"] == "interrupted":
            resume = partial(actions.resume_replay, replay_id=view["id"])
            button("Resume", lambda: visit.change(resume), kind="main")

    async def _cancel(self) -> None:
        assert self._view is not None
        told = "What has been replayed stays replayed; the rest is left alone."
        if (
            await confirm(
                self._visit.client, "Cancel this replay?", told, verb="Cancel the replay", danger=True
            )
            is not None
        ):
            await self._visit.change(partial(self._visit.actions.cancel_replay, replay_id=self._view["id"]))


def _stands(view: View) -> None:
    done = sum(view["counts"].values())
    facts(
        (
            ("Id", lambda: Tag("span", view["id"], "mono")),
            ("State", lambda: Tag("span", view["state"], f"st {kind_of(view['state'])}")),
            ("Progress", lambda: _bar(done, view["matched"])),
            ("From", partial(instant, view["from"], "full")),
            ("To", partial(instant, view["to"], "full")),
            ("Which", ", ".join(view["only"])),
            ("Limited to", _narrowed(view) or None),
            ("Rate", "no limit" if view["rate"] is None else f"{number(view['rate'])} a second"),
            ("Totals", counts(view["counts"])),
            ("Of these now", _now(view["outcomes"])),
            ("Jobs", partial(link, "see how they stand now", links.jobs(_search(view)))),
            ("Requested by", view["requested_by"]),
            ("Run by", view["runner"]),
            ("Resumed", plural(view["resumed"], "time") if view["resumed"] else None),
            ("Reason", view["reason"]),
            ("Started", partial(instant, view["created_at"], "full")),
            ("Last update", partial(instant, view["updated_at"], "full")),
        )
    )


def _now(outcomes: View) -> str:
    """How what it has emitted stands."""
    more = "; there are more, which are not counted" if outcomes["capped"] else ""
    return counts(outcomes["counts"]) + more


def _search(view: View) -> str:
    """The jobs of its window and filter; those that were left alone are among them."""
    instants = (None if view[name] is None else parse_instant(name, view[name]) for name in ("from", "to"))
    begin, end = instants
    wanted = JobsWanted(
        handler=view["handler"], queue=view["queue"], schedule=view["schedule"], labels=view["labels"],
        key_prefix=view["key_prefix"], due_from=begin, due_to=end,
    )  # fmt: skip
    return written(wanted)


def _bar(done: int, matched: int) -> None:
    share = done / matched if matched else 1.0
    with Tag("span"):
        with Tag("span", classes="bar", aria_hidden="true"):
            Tag("i").style(f"width: {100 * min(1.0, share):.1f}%")
        Tag("span", f"{done:,} of {matched:,}")


def _narrowed(view: View) -> str:
    named = [f"{name} {view[name]}" for name in ("handler", "schedule", "queue") if view[name]]
    named += [f"key {view['key_prefix']}*"] if view["key_prefix"] else []
    return ", ".join([*named, *(f"{name}={value}" for name, value in view["labels"].items())])


_COLUMNS = [
    *(
        Column(label="Replay", head=True),
        Column(label="State"),
        Column(label="Window"),
        Column(label="Which"),
    ),
    *(
        Column(label="Progress"),
        Column(label="Totals"),
        Column(label="Requested by"),
        Column(label="Started"),
    ),
]


def _row(view: View) -> Row:
    done = sum(view["counts"].values())
    share = min(1.0, done / view["matched"]) if view["matched"] else 1.0
    return Row(
        id=view["id"],
        cells=[
            text(view["id"][:8], href=links.to("replay", id=view["id"]), mono=True),
            status(view["state"]),
            lines(at(view["from"]), at(view["to"])),
            lines(", ".join(view["only"]), _narrowed(view) or None),
            {"bar": share, "text": f"{done:,} of {view['matched']:,}"},
            counts(view["counts"]),
            view["requested_by"],
            at(view["created_at"]),
        ],
    )
