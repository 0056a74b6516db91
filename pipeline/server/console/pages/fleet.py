"""The fleet: who owns which partition, which processes live, what they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline.server.access import Principal
from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import block, empty
from pipeline.server.console.parts.table import Cell, Column, Row, Table, at, lines, status, text
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import length, number, plural

View = dict[str, Any]


async def fleet(visit: Visit) -> None:
    frame = Frame(visit, "Fleet", current="fleet")
    page = _Fleet("Nothing is running" if visit.who.queues is None else "Nothing is running on your queues")

    def ask(who: Principal) -> View:
        view = visit.questions.fleet()
        return {**view, "runs": [run for run in view["runs"] if who.sees(run["queue"])]}

    await frame.live(ask, page.show)


class _Fleet:
    def __init__(self, nothing: str) -> None:
        self._nothing = nothing
        self._built = False

    def show(self, view: View) -> None:
        if not self._built:
            self._build()
        parts, processes, runs = view["partitions"], view["processes"], view["runs"]
        self._runs.show([_run(run) for run in runs])
        self._no_runs.mark_as("hidden" if runs else "empty")
        held = sum(run["held"] for run in runs)
        self._runs_aside.say(f"{plural(len(runs), 'run')}, {held} held, oldest first")
        self._processes.show([_process(each) for each in processes])
        self._no_processes.mark_as("hidden" if processes else "empty")
        self._processes_aside.say(f"{plural(len(processes), 'process', 'processes')} alive")
        alone = [part for part in parts if part["owner"] is None]
        self._parts.show(_owned(parts))
        told = f"{plural(len(alone), 'partition')} without an owner" if alone else "all owned"
        self._parts_aside.say(f"{plural(len(parts), 'partition')}, {told}")

    def _build(self) -> None:
        self._built = True
        _, body, self._runs_aside = block("Runs in flight", flush=True)
        with body:
            self._runs = Table(_RUNS, caption="Runs in flight")
            self._no_runs = empty(self._nothing, "No live worker reports a run.")
        _, body, self._processes_aside = block("Processes", flush=True)
        with body:
            self._processes = Table(_PROCESSES, caption="Processes")
            self._no_processes = empty(
                "No processes are alive", "No heartbeat has arrived in the last few seconds."
            )
        _, body, self._parts_aside = block("Partitions", flush=True)
        with body:
            self._parts = Table(_PARTITIONS, caption="Partitions")


_RUNS = [
    *(
        Column(label="Job", head=True),
        Column(label="Handler"),
        Column(label="Worker"),
        Column(label="Age", kind="num"),
    ),
    *(
        Column(label="Progress"),
        Column(label="State"),
        Column(label="Run", kind="num"),
        Column(label="Attempt", kind="num"),
    ),
]
_PROCESSES = [
    *(
        Column(label="Process", head=True),
        Column(label="Role"),
        Column(label="Host"),
        Column(label="Version"),
    ),
    *(Column(label="Up since"), Column(label="Last seen"), Column(label="Generation", kind="num")),
    *(Column(label="Owns", kind="num"), Column(label="In flight", kind="num"), Column(label="Queues")),
]
_PARTITIONS = [
    *(
        Column(label="Owner", head=True),
        Column(label="Topic"),
        Column(label="Partitions"),
        Column(label="State"),
    ),
    *(Column(label="Generation", kind="num"), Column(label="Era", kind="num")),
]


def _owned(parts: list[View]) -> list[Row]:
    """A row for each owner and topic; what nobody owns comes first."""
    groups: dict[tuple[bool, str, str], list[View]] = {}
    for part in parts:
        groups.setdefault((part["owner"] is not None, part["owner"] or "", part["topic"]), []).append(part)
    return [_group(owner, topic, groups[owned, owner, topic]) for owned, owner, topic in sorted(groups)]


def _run(run: View) -> Row:
    progress: Cell = None
    if run["progress"] is not None:
        progress = {"bar": run["progress"], "text": f"{100 * run['progress']:.0f} %"}
    word = "stuck" if run["stuck"] else "held" if run["held"] else "running"
    return Row(
        id=f"{run['occurrence']}/{run['run']}/{run['attempt']}",
        cells=[
            text(run["job"], href=links.job(run["job"]), mono=True, clip=True),
            lines(text(run["handler"], mono=True), run["queue"]),
            text(run["worker"], mono=True, clip=True),
            length(run["age_ms"]),
            lines(progress, text(run["note"], clip=True)),
            status(word),
            run["run"],
            run["attempt"],
        ],
    )


def _process(each: View) -> Row:
    return Row(
        id=f"{each['process']}/{','.join(each['queues'])}",
        cells=[
            text(each["process"], mono=True, clip=True),
            each["role"],
            lines(text(each["host"], clip=True), f"pid {each['pid']}"),
            each["version"],
            at(each["started_at"]),
            at(each["seen_at"], "rel"),
            each["generation"],
            each["owned"],
            each["in_flight"],
            {"tags": list(each["queues"])} if each["queues"] else None,
        ],
    )


def _group(owner: str, topic: str, parts: list[View]) -> Row:
    numbers = spans(sorted(part["partition"] for part in parts))
    states = Counter(part["state"] for part in parts)
    generations = sorted({part["generation"] for part in parts if part["generation"] is not None})
    eras = sorted({part["era"] for part in parts if part.get("era") is not None})
    return Row(
        id=f"{owner}/{topic}",
        cells=[
            text(owner, mono=True, clip=True) if owner else status("no owner", kind="bad"),
            text(topic, mono=True),
            numbers,
            lines(*(_state(word, count, len(parts)) for word, count in states.items())) if owner else None,
            ", ".join(map(number, generations)) or None,
            ", ".join(map(number, eras)) or None,
        ],
    )


def spans(numbers: Sequence[int]) -> str:
    """Of ascending numbers, those that follow each other together: `0-5, 7`."""
    ends = [n for n in numbers if n + 1 not in numbers]
    begins = [n for n in numbers if n - 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}\N{EN DASH}{b}" for a, b in zip(begins, ends, strict=True))


def _state(word: str | None, count: int, of: int) -> Cell:
    if word is None:
        return None
    shown = word if count == of else f"{count} {word}"
    return status(word, shown=shown, kind="good" if word == "running" else None)
