"""Now: what will run, what ran late, what is stuck, at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.core.times import format_instant, parse_instant
from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, banner, block, empty, link
from pipeline.server.console.parts.chart import Chart, Line
from pipeline.server.console.parts.table import Column, Row, Table, status, text
from pipeline.server.console.search import DUE_BY_NOW
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import NOTHING, length, number, plural

View = dict[str, Any]
LATE_MS = 60_000
"""A backlog older than that is shown as bad, and one older than a sixth of it as a warning."""
SHOWN = 12
MINUTE_MS = 60_000


class Notice(NamedTuple):
    """What wants somebody; of a queue, or of all."""

    title: str
    text: str
    queue: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    overview: View
    queues: list[View]
    fleet: View


async def now(visit: Visit) -> None:
    frame = Frame(visit, "Now", current="")
    page = _Now()

    def ask(who: Principal) -> Answer:
        who.require_all_queues()
        questions = visit.questions
        return Answer(overview=questions.overview(), queues=list(questions.queues()), fleet=questions.fleet())

    await frame.live(ask, page.show)


class _Now:
    def __init__(self) -> None:
        self._built = False

    def show(self, answer: Answer) -> None:
        if not self._built:
            self._build()
        view = answer.overview
        self._show_notices(notices(answer))
        self._figures.show(answer)
        self._show_charts(view)
        self._show_overdue(view["schedules"])
        handlers = sorted(view["handlers"], key=_troubled, reverse=True)[:SHOWN]
        self._handlers.show([_handler(each) for each in handlers])
        self._no_handlers.mark_as("hidden" if handlers else "empty")
        self._queues.show([_queue(each) for each in answer.queues])

    def _build(self) -> None:
        self._built = True
        self._notices = Tag("div")
        self._noticed: list[Notice] = []
        self._figures = _Figures()
        with Tag("div", classes="cols"):
            _, body, _ = block("Throughput", aside="runs per minute, last hour")
            with body:
                bars = (("succeeded", "green"), ("failed, will retry", "orange"), ("dead", "red"))
                ended = [Line(name=name, colour=colour, bars=True) for name, colour in bars]
                self._rates = Chart([Line(name="fired", colour="teal"), *ended], label="Runs per minute")
            _, body, _ = block("Lateness", aside="ms, last hour")
            with body:
                late = [Line(name="p50", colour="teal"), Line(name="p99", colour="violet")]
                self._lateness = Chart(late, label="Lateness by minute", logarithmic=True)
        with Tag("div", classes="cols"):
            with Tag("div", classes="stack"):
                _, body, _ = block("Handlers", aside="last hour, most failures first", flush=True)
                with body:
                    self._handlers = Table(_HANDLERS, caption="Handlers in the last hour", wide=True)
                    self._no_handlers = empty("No runs ended in the last hour")
            with Tag("div", classes="stack"):
                _, body, self._overdue_aside = block("Overdue schedules", flush=True)
                with body:
                    self._overdue = Table(
                        [Column(label="Schedule", head=True)], caption="Overdue schedules", wide=True
                    )
                    self._no_overdue = empty("No schedules are overdue")
                _, body, beside = block("Queues", flush=True)
                with beside:
                    link("all queues", links.to("queues"))
                with body:
                    self._queues = Table(_QUEUES, caption="Queues", wide=True)

    def _show_notices(self, notices: list[Notice]) -> None:
        if notices == self._noticed:
            return
        self._noticed = notices
        self._notices.clear()
        with self._notices:
            for each in notices:
                with banner(each.title, each.text, "warn"):
                    if each.queue is not None:
                        link("Look at the queue", links.to("queues"))

    def _show_charts(self, view: View) -> None:
        times, minutes = _hour(view)
        rates = ("fired", "succeeded", "failed", "dead")
        parts = [
            {**minute, "failed": minute["failed"] - minute["dead"]} if minute else {} for minute in minutes
        ]
        self._rates.show(times, [[part.get(name, 0) for part in parts] for name in rates])
        late = ("lateness_p50_ms", "lateness_p99_ms")
        self._lateness.show(times, [[_at_least_1(minute.get(name)) for minute in minutes] for name in late])

    def _show_overdue(self, schedules: View) -> None:
        ids = list(schedules["overdue"])
        self._overdue.show(
            [Row(id=each, cells=[text(each, href=links.schedule(each), mono=True)]) for each in ids[:SHOWN]]
        )
        self._no_overdue.mark_as("hidden" if ids else "empty")
        more = f", {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        self._overdue_aside.say(f"{len(ids)} of {schedules['count']:,}{more}")


class _Figures:
    """The row of large numbers."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Tag, Tag, Tag]] = {}
        with Tag("dl", classes="figures"):
            for name in (
                "Pending",
                "Backlog age",
                "Lateness p50",
                "Lateness p99",
                "Failures",
                "Workers",
                "Owners",
                "Schedules",
            ):
                with Tag("div", classes="figure") as box:
                    Tag("dt", name)
                    self._shown[name] = (box, Tag("dd", NOTHING), Tag("dd", "", "small"))

    def show(self, answer: Answer) -> None:
        view = answer.overview
        self._put("Pending", number(view["pending"]), "jobs and retries to come")
        self._backlog(view)
        self._put("Lateness p50", _length(view["lateness"]["p50_ms"]), "in the last hour")
        self._put("Lateness p99", _length(view["lateness"]["p99_ms"]), "in the last hour")
        failed = sum(minute["failed"] for minute in view["minutes"])
        dead = sum(minute["dead"] for minute in view["minutes"])
        self._put("Failures", number(failed), f"{number(dead)} dead, in the last hour", "bad" if dead else "")
        if view["freshness"].get("problem"):  # heartbeats are not heard, which says nothing of who sends them
            for name in ("Workers", "Owners"):
                self._put(name, NOTHING, "unknown at the moment")
        else:
            self._workers(answer)
            self._owners(answer.fleet)
        schedules = view["schedules"]
        overdue = len(schedules["overdue"])
        told = (
            f"{overdue} overdue, {schedules['paused']} paused" if overdue else f"{schedules['paused']} paused"
        )
        self._put("Schedules", number(schedules["count"]), told, "bad" if overdue else "")

    def _backlog(self, view: View) -> None:
        if view["oldest_overdue"] is None:
            self._put("Backlog age", "none", "nothing is overdue")
            return
        age = max(
            0, parse_instant("at", view["at"]) - parse_instant("oldest_overdue", view["oldest_overdue"])
        )
        kind = "bad" if age >= LATE_MS else "warn" if age >= LATE_MS // 6 else ""
        self._put("Backlog age", length(age), f"{number(view['overdue'])} overdue", kind)

    def _workers(self, answer: Answer) -> None:
        workers = {each["process"] for each in answer.fleet["processes"] if each["role"] == "worker"}
        runs = answer.fleet["runs"]
        stuck = sum(run["stuck"] for run in runs)
        told = f"{plural(len(runs), 'run')} in flight" + (f", {stuck} stuck" if stuck else "")
        self._put("Workers", number(len(workers)), told, "bad" if not workers or stuck else "")

    def _owners(self, fleet: View) -> None:
        parts = [part for part in fleet["partitions"] if part["topic"].endswith(".jobs")]
        alone = sum(part["owner"] is None for part in parts)
        owners = {part["owner"] for part in parts if part["owner"] is not None}
        told = (
            f"{plural(alone, 'partition')} without an owner"
            if alone
            else f"of {plural(len(parts), 'partition')}"
        )
        self._put("Owners", number(len(owners)), told, "bad" if alone else "")

    def _put(self, name: str, value: str, told: str, kind: str = "") -> None:
        box, large, small = self._shown[name]
        box.mark_as(f"figure {kind}".strip())
        large.say(value)
        small.say(told)


def notices(answer: Answer) -> list[Notice]:
    """What stands still until somebody does something, first what holds up most."""
    found = []
    if held := answer.overview.get("held"):
        told = f"Restored from backup {held['backup']}, {held['state']} since {held['since']}."
        found.append(
            Notice("Dispatch is on hold.", f"{told} Nothing fires until it is released with dueline release.")
        )
    if not answer.overview["freshness"].get("problem"):
        found += _without_owner(answer.fleet)
    for queue in answer.queues:
        name, waiting = queue["queue"], queue["lag"] or 0
        stand = f"{plural(waiting, 'run')} waiting." if waiting else ""
        if pause := queue["paused"]:
            why = f"{pause['reason']}." if pause["reason"] else ""
            found.append(Notice(f"Queue {name} is paused.", f"{why} {stand}".strip(), name))
        elif answer.overview["freshness"].get("problem"):
            continue  # whose workers are not heard is not known to be without
        elif waiting and not queue["workers"]:
            found.append(Notice(f"Queue {name} has no live worker.", stand, name))
        elif queue["parked"]:
            told = f"{plural(queue['parked'], 'run')} parked until one is there."
            found.append(Notice(f"Queue {name} has a handler that no live worker knows.", told, name))
    return found


def _without_owner(fleet: View) -> list[Notice]:
    """Of partitions of jobs: of work each queue tells."""
    parts = [each for each in fleet.get("partitions", ()) if each["topic"].endswith(".jobs")]
    idle = sum(each["owner"] is None for each in parts)
    if not idle:
        return []
    if idle == len(parts):
        return [Notice("No dispatcher is alive.", "Nothing fires until one is: start dueline dispatcher.")]
    told = "What is due there fires once a dispatcher has taken them; look at Fleet if none does."
    return [Notice(f"{idle} of {plural(len(parts), 'partition')} of jobs have no owner.", told)]


_HANDLERS = [
    Column(label="Handler", head=True),
    *(Column(label=label, kind="num") for label in ("Succeeded", "Failed, retried", "Dead")),
]
_QUEUES = [
    *(Column(label="Queue", head=True), Column(label="State")),
    *(Column(label=label, kind="num") for label in ("Waiting", "In flight", "Workers")),
]


def _hour(view: View) -> tuple[list[str], list[View]]:
    """Each minute of the last hour; one in which nothing happened is empty."""
    there = {minute["at"]: minute for minute in view["minutes"]}
    end = parse_instant("at", view["at"]) // MINUTE_MS
    times = [format_instant(minute * MINUTE_MS) for minute in range(end - 59, end + 1)]
    return times, [there.get(each, {}) for each in times]


def _troubled(each: View) -> tuple[int, int, int]:
    return each["dead"], each["failed"], each["succeeded"]


def _handler(each: View) -> Row:
    name = each["handler"]
    dead = text(number(each["dead"]), href=links.jobs(f"handler:{name} status:dead")) if each["dead"] else "0"
    cells = [text(name, href=links.jobs(f"handler:{name} {DUE_BY_NOW}"), mono=True)]
    retried = number(each["failed"] - each["dead"])
    return Row(id=name, cells=[*cells, number(each["succeeded"]), retried, dead])


def _queue(each: View) -> Row:
    state = status("paused") if each.get("paused") else status("active")
    figures = [number(each[name]) for name in ("lag", "in_flight", "workers")]
    return Row(id=each["queue"], cells=[text(each["queue"], mono=True), state, *figures])


def _at_least_1(ms: int | None) -> int | None:
    """A logarithmic axis has no 0."""
    return None if ms is None else max(1, ms)


def _length(ms: int | None) -> str:
    return NOTHING if ms is None else length(ms)
