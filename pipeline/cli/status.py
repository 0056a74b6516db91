"""`dueline status`: who owns what, what waits, which handlers have a worker, and what those are doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from pipeline.cli.fleet import queues_view
from pipeline.cli.output import emit, harmless, table
from pipeline.cli.queue_show import paused_words
from pipeline.cli.store import Store, following
from pipeline.core.backup import HoldState
from pipeline.follower import shown_instant
from pipeline.follower.fleet import held_view, partitions_view, process_view, runs_view, schedules_view
from pipeline.heartbeat import Seen


@click.command("status")
@click.option(
    "--fast", is_flag=True, help="Do not count what is pending or waits in queues, which reads all of it."
)
def status(fast: bool) -> None:
    """Show the owner of every partition, what is pending, the queues, and the live processes with their runs.

    A running server is asked (DUELINE_URL, or that of `dueline dev`), else the topics are read; which, is said on
    stderr. Processes are known by their heartbeats of the last 5 seconds. A run is marked as stuck when it has been in
    flight for longer than its time-out, or than 10 minutes if it has none.
    """
    from pipeline.cli.served import running_server, status_of

    with running_server() as server:
        if server is not None:
            emit(status_of(server), _text)
            return
    with following() as store:
        emit(read_status(store, count=not fast), _text)


def read_status(store: Store, *, count: bool) -> dict[str, Any]:
    """The JSON of `dueline status` (schemas/cli/status.json)."""
    from pipeline.core.zones import zone_data_version

    now = store.parts.clock.now()
    processes = store.follower.processes(now)
    holdings = [store.follower.holdings(n) for n in range(store.layout.partitions)] if count else []
    backlogs = [backlog for backlog, _ in holdings]
    oldest = min((b.oldest_due for b in backlogs if b.oldest_due is not None), default=None)
    overdue = oldest is not None and oldest <= now
    return {
        "prefix": store.parts.names.prefix,
        "at": shown_instant(now),
        "held": held_view(store.follower.hold()),
        "pending": sum(backlog.pending for backlog in backlogs) if count else None,
        "oldest_overdue": shown_instant(oldest) if overdue and oldest is not None else None,
        "schedules": schedules_view((s for _, states in holdings for s in states), now) if count else None,
        "tzdata": zone_data_version(),
        "partitions": _partitions(store, processes, [backlog.pending for backlog in backlogs]),
        "queues": queues_view(store, processes, count=count),
        "processes": [process_view(seen) for seen in processes],
        "runs": runs_view(processes, now),
        "handlers": sorted({name for seen in processes for name in seen.heartbeat.handlers}),
    }


def _partitions(store: Store, processes: Sequence[Seen], pending: Sequence[int]) -> list[dict[str, Any]]:
    """`pending`: by partition of `jobs`; empty if they are not counted."""
    names = store.parts.names
    return [
        {**view, "pending": pending[view["partition"]] if pending and view["topic"] == names.jobs else None}
        for view in partitions_view(names, store.layout, processes)
    ]


SHOWN_CHARS = 80
"""Of a handler's note."""
SHOWN_RUNS = 20
"""Of the oldest runs in flight, for a person; JSON has them all."""


def _text(view: Mapping[str, Any]) -> str:
    pending = "not counted" if view["pending"] is None else view["pending"]
    overdue = f", overdue since {view['oldest_overdue']}" if view["oldest_overdue"] else ""
    parts = [f"{view['prefix']} at {view['at']}: pending {pending}{overdue}", _schedules(view), ""]
    if view["held"]:
        parts[:0] = [_held(view["held"]), ""]
    owned = ("topic", "partition", "owner", "state", "generation")
    counted = any(
        part["pending"] is not None for part in view["partitions"]
    )  # a server does not count by partition
    parts.append(_rows(view["partitions"], (*owned, "pending") if counted else owned))
    columns = ("queue", "lag", "oldest_unacked", "workers", "in_flight", "held", "parked", "paused")
    queues = [{**queue, "paused": paused_words(queue["paused"])} for queue in view["queues"]]
    parts += ["", _rows(queues, columns)]
    if view["processes"]:
        parts += ["", _processes(view["processes"])]
    else:
        parts += ["", "No process is alive: start `dueline dispatcher` and `dueline worker`."]
    if view["runs"]:
        parts += ["", _runs(view["runs"])]
    return "\n".join(parts)


def _held(held: Mapping[str, Any]) -> str:
    if held["state"] == HoldState.RESTORING:
        what = "is not finished: run `dueline restore` of the same backup again"
    else:
        what = "is there: run `dueline release` to let it fire"
    return f"HELD: nothing fires since {held['since']}; the restore of backup {held['backup']} {what}"


def _schedules(view: Mapping[str, Any]) -> str:
    """With the zone data that this command, not the dispatchers, computes with."""
    if view["schedules"] is None:
        return f"schedules not counted; zone data {view['tzdata']}"
    count, overdue = view["schedules"]["count"], view["schedules"]["overdue"]
    late = f", {len(overdue)} overdue: {' '.join(overdue[:SHOWN_RUNS])}" if overdue else ""
    return f"schedules {count}{late}; zone data {view['tzdata']}"


def _processes(views: Iterable[Mapping[str, Any]]) -> str:
    shown = [{**view, **{name: " ".join(view[name]) for name in ("queues", "handlers")}} for view in views]
    columns = (
        "role",
        "process",
        "host",
        "pid",
        "version",
        "owned",
        "queues",
        "in_flight",
        "handlers",
        "seen_at",
    )
    return _rows(shown, columns)


def _runs(views: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        {
            **view,
            "age": f"{view['age_ms'] / 1000:.0f} s",
            "progress": "" if view["progress"] is None else f"{view['progress']:.0%}",
            "note": harmless(view["note"] or "", SHOWN_CHARS),
            "": " ".join(name for name in ("stuck", "held") if view[name]),
        }
        for view in views[:SHOWN_RUNS]
    ]
    columns = ("job", "handler", "queue", "worker", "run", "attempt", "age", "progress", "note", "")
    stuck = sum(view["stuck"] for view in views)
    more = (
        f" (the oldest {SHOWN_RUNS} of {len(views)}, {stuck} stuck in all)" if len(views) > SHOWN_RUNS else ""
    )
    return f"runs in flight{more}:\n{_rows(shown, columns)}"


def _rows(views: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    return table(columns, [[view[name] for name in columns] for view in views])
