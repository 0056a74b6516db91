"""One job: its way in time, every run and attempt, its payload, and why it stands where it stands."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from nicegui import ui

from pipeline.core.errors import DuelineError, InvalidInput, NotFound
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.job_verbs import act, verbs_of
from pipeline.server.console.parts.basic import Tag, block, button, copy_button, empty, facts, instant, link
from pipeline.server.console.parts.json_view import JsonView
from pipeline.server.console.parts.looks import kind_of
from pipeline.server.console.search import DUE_BY_NOW
from pipeline.server.console.timeline import ENDED, shares, timeline
from pipeline.server.console.visit import Visit, now_ms, problem_of
from pipeline.server.console.words import clean, instants_in, length, plural, size

View = dict[str, Any]
NEVER_RAN = ("skipped",)
"""Ended, and why is asked for."""


async def job(visit: Visit) -> None:
    job_id = visit.query("id")
    frame = Frame(visit, job_id or "Job", current="jobs", crumb=("Jobs", links.to("jobs")))
    frame.head.title.classes("mono")
    page = _Job(visit, frame, job_id)

    def ask(who: Principal) -> View:
        view = _found(visit, job_id)
        who.require_queue(view["queue"])
        running = view["status"] == "running"
        return {**view, "flight": _flight(visit.questions.fleet()["runs"], job_id) if running else None}

    await frame.live(ask, page.show, missing="No such job")


def _found(visit: Visit, job_id: str) -> View:
    """NotFound, of what cannot be an id of a job too."""
    try:
        return visit.questions.job(job_id)
    except InvalidInput as error:
        raise NotFound(error.problem) from None


def _flight(runs: list[View], job_id: str) -> View | None:
    """What its worker tells of it."""
    return next((run for run in runs if job_id in (run["job"], run["occurrence"])), None)


class _Job:
    def __init__(self, visit: Visit, frame: Frame, job_id: str) -> None:
        self._visit, self._frame, self._id = visit, frame, job_id
        self._view: View | None = None

    def show(self, view: View) -> None:
        if view == self._view:  # and what somebody opened or marked stays as it is
            if view["status"] not in ENDED:
                self._draw_way(view)
            return
        if self._view is None:
            self._build()
        before, self._view = self._view, view
        self._draw_way(view)
        self._facts.clear()
        with self._facts:
            _facts(self._id, self._visit.who.queues is None, view)
        self._draw_runs(view)
        if (
            before is None
            or before.get("payload") != view.get("payload")
            or before["result"] != view["result"]
        ):
            self._payload.clear()
            with self._payload:
                _payload(view)
        if self._visit.operates:
            self._draw_verbs(view)
        if view["status"] in ENDED and view["status"] not in NEVER_RAN:
            self._why_block.mark_as("hidden")
        elif before is None or {**before, "flight": None} != {**view, "flight": None}:
            ui.timer(0.01, self._ask_why, once=True)

    def _draw_way(self, view: View) -> None:
        self._way.clear()
        with self._way:
            _way(view)

    def _build(self) -> None:
        with self._frame.head.titles_row:
            copy_button(self._id, "the id")
        if self._visit.operates:
            self._verbs = Tag("div", classes="row")
            self._verbs.move(self._frame.head.tools, target_index=0)
        with Tag("div", classes="cols wide-left"):
            with Tag("div", classes="stack"):
                self._why_block, self._why, beside = block("Why it is in this state")
                with beside:
                    button("Check again", self._ask_why, kind="small")
                with self._why:
                    self._why_said = Tag("p", "", "muted", role="status")
                    self._said("Asking the store …")
                _, self._way, _ = block("Timeline")
                _, self._runs, self._runs_aside = block("Runs and attempts")
            with Tag("div", classes="stack"):
                _, self._facts, _ = block("Details")
                _, self._payload, _ = block("Payload")

    async def _ask_why(self) -> None:
        try:
            view = await self._visit.ask(lambda _: self._visit.questions.why(self._id))
            self._said(str(view["sentence"]))
        except DuelineError as error:
            self._said(f"The store did not answer: {problem_of(error)}")

    def _said(self, sentence: str) -> None:
        """With its instants as all others of the page are shown."""
        self._why_said.clear()
        with self._why_said:
            for text, at in instants_in(sentence):
                Tag("span", text)
                if at:
                    instant(at, "full")

    def _draw_verbs(self, view: View) -> None:
        self._verbs.clear()
        with self._verbs:
            for name, label in verbs_of(view):
                kind = "danger" if name in ("cancel", "stop") else ""
                button(label, partial(act, self._visit, view, name), kind=kind)

    def _draw_runs(self, view: View) -> None:
        attempts = sum(len(run["attempts"]) for run in view["runs"])
        self._runs_aside.say(
            f"{plural(len(view['runs']), 'run')}, {plural(attempts, 'attempt')}" if view["runs"] else ""
        )
        self._runs.clear()
        with self._runs:
            if not view["runs"]:
                if view["status"] in ENDED:
                    empty("It never fired")
                else:
                    empty("It has not fired yet", "Runs are listed here once it has.")
            for run in reversed(view["runs"]):
                _run(run)


def _way(view: View) -> None:
    steps = timeline(view, now_ms())
    parts = shares(steps)
    if parts:
        with Tag("div", classes="span", aria_hidden="true"):
            for number, share in parts:
                Tag("i", classes=f"w{number}").style(f"width: {100 * share:.3f}%")
    with Tag("ol", classes="steps"):
        for step in steps:
            with Tag("li", classes="bad" if step.bad else "todo" if step.at is None else ""):
                Tag("span", step.name)
                with Tag("div"):
                    if step.at is None:
                        Tag("span", "not yet", "muted")
                    else:
                        instant(step.at, "full")
                    if step.wait_ms is not None:
                        with Tag("div", classes="wait"):
                            Tag("span", "", f"key w{step.colour}")
                            Tag("span", f"{length(step.wait_ms)} {step.wait}")


def _facts(job_id: str, everything: bool, view: View) -> None:
    """`everything`: whoever looks may see what is changed on all queues."""
    schedule, labels = view.get("schedule"), view.get("labels") or {}

    def tags() -> None:
        for name, value in labels.items():
            Tag("span", f"{name}={value}", "tag", title=f"{name}={value}")

    def _changes() -> None:
        link("who changed it", links.to("activity", job=job_id))

    def key() -> None:
        Tag("span", view["key"], "mono")
        copy_button(view["key"], "the key")

    facts(
        (
            ("Status", lambda: Tag("span", view["status"], f"st {kind_of(view['status'])}")),
            (
                "Handler",
                lambda: (
                    link(view["handler"], links.jobs(f"handler:{view['handler']} {DUE_BY_NOW}"), "mono")
                    if view["handler"]
                    else Tag("span", "no longer kept")
                ),
            ),
            ("Why skipped", view.get("reason")),
            ("Progress", partial(_progress, view["flight"]) if view["flight"] else None),
            ("Queue", view["queue"]),
            ("Key", key if view["key"] is not None else None),
            ("Schedule", (lambda: link(schedule, links.schedule(schedule), "mono")) if schedule else None),
            ("Labels", tags if labels else None),
            ("Due", partial(instant, view["due_at"], "full")),
            ("Created", partial(instant, view.get("created_at"), "full")),
            ("Changes", _changes if everything else None),
        )
    )


def _progress(flight: View) -> None:
    """Of the run that is under way, as its worker tells every second."""
    done = flight["progress"]
    with Tag("div", classes="row"):
        if done is not None:
            with Tag("span", classes="bar", aria_hidden="true"):
                Tag("i").style(f"width: {100 * done:.0f}%")
        Tag("span", "not reported" if done is None else f"{100 * done:.0f} %")
    if flight["note"]:
        Tag("div", clean(flight["note"], 400), "muted")


def _run(run: View) -> None:
    with Tag("div", classes="run"):
        with Tag("div", classes="row"):
            Tag("h3", f"Run {run['run']}")
            Tag("span", "fired", "muted")
            instant(run["fired_at"], "full")
        if not run["attempts"]:
            Tag("p", "No worker has started it.", "muted")
        for attempt in run["attempts"]:
            _attempt(attempt)


def _attempt(attempt: View) -> None:
    outcome = attempt["outcome"] or "running"
    with Tag("div", classes="attempt"):
        with Tag("div", classes="row"):
            Tag("span", f"Attempt {attempt['attempt']}")
            Tag("span", outcome, f"st {kind_of(outcome)}")
            if attempt["started_at"] is not None:
                with Tag("span"):
                    Tag("span", "started ", "muted")
                    instant(attempt["started_at"], "time")
            if attempt["finished_at"] is not None:
                with Tag("span"):
                    Tag("span", "ended ", "muted")
                    instant(attempt["finished_at"], "time")
        with Tag("div", classes="row muted"):
            with Tag("span"):
                Tag("span", "worker ")
                Tag("span", attempt["worker"], "mono")
            with Tag("span"):
                Tag("span", "token ")
                Tag("span", attempt["token"], "mono")
                copy_button(attempt["token"], "the token")
        if attempt["error"] is not None:
            _error(attempt["error"])
        if attempt.get("log"):
            with Tag("details"):
                Tag("summary", "Last log lines")
                Tag("pre", clean(attempt["log"], 64_000), "text", tabindex="0")


def _error(error: View) -> None:
    Tag("p", f"{error['type']}: {clean(error['message'], 2_000)}", "st bad").style(
        "white-space: pre-wrap; align-items: baseline"
    )
    if error["trace"]:
        with Tag("details"):
            Tag("summary", "Stack trace")
            with Tag("div", classes="row"):
                copy_button(error["trace"], "the trace")
            Tag("pre", clean(error["trace"], 64_000), "text", tabindex="0")


def _payload(view: View) -> None:
    payload = view.get("payload")
    if payload is None and view.get("skipped"):
        empty("None", "It did not fire, so nothing was passed to a worker.")
    elif payload is None:
        empty("Not kept", "Its records are gone from the topics; only what became of it is still known.")
    else:
        _json(payload, "payload")
    if view["result"] is not None:
        Tag("h3", "Result").style("margin-top: 12px")
        _json(json.dumps(view["result"], ensure_ascii=False), "result")


def _json(text: str, what: str) -> None:
    with Tag("div", classes="row"):
        Tag("span", size(len(text.encode("utf-8", "replace"))), "muted")
        copy_button(text, f"the {what}")
    try:
        JsonView(text, label=what.capitalize())
    except ValueError:
        Tag("pre", clean(text, 64_000), "text", tabindex="0")
