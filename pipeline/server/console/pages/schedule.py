"""One schedule: where it stands, its last and next instants, its definition."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.names import unknown
from pipeline.server.console.pages.crontab import wall
from pipeline.server.console.parts.basic import (
    Tag,
    banner,
    block,
    button,
    copy_button,
    counts,
    empty,
    facts,
    instant,
    link,
)
from pipeline.server.console.parts.json_view import JsonView
from pipeline.server.console.parts.table import Cell, Column, Row, Table, acts, at, lines, status, text
from pipeline.server.console.schedule_fields import said
from pipeline.server.console.schedule_verbs import act
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import length, number

View = dict[str, Any]


async def schedule(visit: Visit) -> None:
    schedule_id = visit.query("id")
    frame = Frame(visit, schedule_id or "Schedule", current="crontab", crumb=("Crontab", links.to("crontab")))
    page = _Schedule(visit, frame, schedule_id)

    def ask(who: Principal) -> View:
        view = visit.questions.schedule(schedule_id)
        spec = view["spec"]
        who.require_queue(spec["queue"])
        return {**view, "unknown": unknown(visit.questions.queues(), spec["handler"], spec["queue"])}

    await frame.live(ask, page.show, missing="No such schedule")


class _Schedule:
    def __init__(self, visit: Visit, frame: Frame, schedule_id: str) -> None:
        self._visit, self._frame, self._id = visit, frame, schedule_id
        self._built = False
        self._shown: View = {}

    def show(self, view: View) -> None:
        if not self._built:
            self._build()
        self._recent.show([_recent(run) for run in view["recent"]])
        self._no_recent.mark_as("hidden" if view["recent"] else "empty")
        self._next.show([_next(each) for each in view["next"]])
        self._no_next.mark_as("hidden" if view["next"] else "empty")
        self._no_next.say(_NO_NEXT.get(view["state"], "Nothing to come"))
        self._last.show([_last(each) for each in view["last"]])
        self._no_last.mark_as("hidden" if view["last"] else "empty")
        self._backfills.show([self._backfill(each) for each in view["backfills"]])
        self._backfill_block.mark_as("block" if view["backfills"] else "hidden")
        self._show_stands(view)
        self._show_spec(view["spec"])

    def _build(self) -> None:
        self._built = True
        if self._visit.operates:
            self._verbs = Tag("div", classes="row")
            self._verbs.move(self._frame.head.tools, target_index=0)
        with Tag("div", classes="cols wide-left facts-first"):
            with Tag("div", classes="stack"):
                self._build_instants()
            with Tag("div", classes="stack"):
                _, self._stands, _ = block("Summary")
                _, self._spec, _ = block("Definition")

    def _build_instants(self) -> None:
        _, body, _ = block("Next", flush=True)
        with body:
            columns = [
                Column(label="In its zone", head=True),
                Column(label="Instant"),
                Column(label="After jitter"),
            ]
            self._next = Table(columns, caption="Next instants")
            self._no_next = Tag("div", "", "hidden")
        self._backfill_block, body, _ = block("Backfills", flush=True)
        with body:
            names = ("Backfill", "Progress", "Range", "Reached")
            columns = [Column(label=name, head=name == "Backfill") for name in names]
            columns += [Column(label="Actions", bare=True)] if self._visit.operates else []
            self._backfills = Table(columns, caption="Backfills", act=self._cancel_backfill)
        _, body, _ = block("Recent runs", flush=True)
        with body:
            columns = [
                Column(label="Due, and nominal", head=True),
                Column(label="Outcome"),
                Column(label="Lateness", kind="num"),
            ]
            columns += [Column(label="Duration", kind="num"), Column(label="Job")]
            self._recent = Table(columns, caption="Recent runs")
            self._no_recent = empty("It has not run yet")
        _, body, _ = block("Latest decisions", flush=True)
        with body:
            columns = [
                Column(label="In its zone", head=True),
                Column(label="Kind"),
                Column(label="Outcome"),
                Column(label="Decided"),
            ]
            self._last = Table(columns, caption="Latest decisions")
            self._no_last = empty("Nothing has been decided yet")

    def _show_stands(self, view: View) -> None:
        stands = {name: each for name, each in view.items() if name not in ("next", "last", "recent", "spec")}
        if stands == self._shown.get("stands"):
            return
        self._shown["stands"] = stands
        self._stands.clear()
        with self._stands:
            _stands(view, self._visit.who.queues is None)
        if self._visit.operates:
            self._verbs.clear()
            with self._verbs:
                self._buttons(view)

    def _buttons(self, view: View) -> None:
        run = partial(act, self._visit, self._id, tz=view["tz"])
        button("Run now", lambda: run("trigger"))
        flip = ("resume", "Resume") if view["state"] == "paused" else ("pause", "Pause")
        button(flip[1], lambda: run(flip[0]))
        button("Backfill", lambda: run("backfill"))
        link("Edit", links.to("schedule/edit", id=self._id), "btn")
        button("Delete", lambda: run("delete"), kind="danger")

    def _show_spec(self, spec: View) -> None:
        if spec == self._shown.get("spec"):
            return
        self._shown["spec"] = spec
        self._spec.clear()
        with self._spec:
            source = spec.get("source")
            kept = source and partial(link, source, links.to("crontab", source=source))
            facts([*said(spec), ("Kept by", kept), ("Version", spec.get("version"))])
            if "payload" in spec:
                written = json.dumps(spec["payload"], ensure_ascii=False)
                with Tag("div", classes="row").style("margin-top: 12px"):
                    Tag("h3", "Payload")
                    copy_button(written, "payload")
                JsonView(written, label="Payload")

    def _backfill(self, each: View) -> Row:
        done = each["fired"] / each["total"] if each["total"] else 0
        told = f"{each['fired']:,} of {each['total']:,}"
        cells: list[Cell] = [
            text(each["id"][:8], mono=True),
            {"bar": done, "text": told},
            lines(at(each["from"], "plain"), at(each["to"], "plain")),
            at(each["cursor"], "plain"),
        ]
        if self._visit.operates:
            cells.append(acts(("cancel", "Cancel", f"Cancel backfill {each['id']}")))
        return Row(id=each["id"], cells=cells)

    async def _cancel_backfill(self, backfill: str, _: str) -> None:
        cancel = self._visit.actions.cancel_backfill
        await self._visit.change(lambda who: cancel(who, self._id, backfill))


_NO_NEXT = {
    "paused": "Paused: nothing fires until it is resumed.",
    "ended": "Ended: nothing fires any more.",
}


def _stands(view: View, everything: bool) -> None:
    """`everything`: whoever looks may see what is changed on all queues."""
    counters = view["counters"]
    named = ("fired", "succeeded", "dead", "cancelled", "triggered", "backfilled", "missed", "overlapped")

    def state() -> None:
        kind = {"active": "good", "paused": "warn"}.get(view["state"], "off")
        Tag("span", view["state"], f"st {kind}")
        if view["overdue"]:
            Tag("span", "overdue", "st bad")

    if view["unknown"]:
        banner(view["unknown"], kind="warn")
    facts(
        (
            ("In words", view["words"]),
            ("Time zone", view["tz"]),
            ("State", state),
            ("Reason", view["paused"] or None),
            ("Paused", _at(view["paused_at"])),
            ("Ended by", view["ended"]),
            ("Last success", _at(view["last_success_at"]) or "never"),
            ("Dead in a row", number(view["failures_in_row"])),
            ("Totals", counts({name: counters[name] for name in named})),
            ("Skipped", counts(counters["skipped"])),
            ("Open runs", partial(_open, view["open"]) if view["open"] else None),
            ("Waiting", number(len(view["waiting"])) if view["waiting"] else None),
            ("Changed", _at(view["changed_at"])),
            ("Created", _at(view["created_at"])),
            ("Revision", number(view["revision"])),
            (
                "Changes",
                partial(link, "who changed it", links.to("activity", schedule=view["id"]))
                if everything
                else None,
            ),
        )
    )


def _at(value: str | None) -> Any:
    return None if value is None else partial(instant, value)


def _open(runs: list[View]) -> None:
    for run in runs[:5]:
        with Tag("div"):
            link(run["id"], links.job(run["id"]), "mono")


def _next(each: View) -> Row:
    due = None if each["due_at"] == each["nominal_at"] else at(each["due_at"], "time")
    return Row(
        id=each["nominal_at"], cells=[text(wall(each["local"]), mono=True), at(each["nominal_at"]), due]
    )


def _last(each: View) -> Row:
    cells = [text(wall(each["local"]), mono=True), each["kind"], status(each["outcome"]), at(each["at"])]
    return Row(id=f"{each['nominal_at']}/{each['kind']}/{each['at']}", cells=cells)


def _recent(run: View) -> Row:
    late, took = (None if run[name] is None else length(run[name]) for name in ("lateness_ms", "took_ms"))
    due, nominal = run["due_at"], run.get("nominal_at")
    when = at(due) if nominal in (None, due) else lines(at(due), at(nominal, "full"))
    job = text(run["occurrence"], href=links.job(run["occurrence"]), mono=True, clip=True)
    return Row(
        id=run["occurrence"],
        cells=[when, lines(status(run["outcome"] or "running")), late, took, job],
    )
