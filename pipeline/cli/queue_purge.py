"""`dueline queue purge`: what waits in a queue at this moment ends as cancelled, by its workers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.output import emit, note
from pipeline.cli.queue_show import left_of
from pipeline.core.errors import Refused, Undecodable
from pipeline.core.job import AckState
from pipeline.core.queues import Purge, purge_reason
from pipeline.core.times import parse_duration, parse_instant
from pipeline.follower import shown_instant

if TYPE_CHECKING:
    from pipeline.cli.queue import Desk

LOOK_S = 0.5


@click.command("purge", short_help="Cancel what waits in a queue.")
@click.argument("name", metavar="QUEUE")
@click.option("--before", metavar="RFC3339", help="Only what was emitted before this time.")
@click.option("--yes", is_flag=True, help="Do it; without it only the number is told.")
@click.option("--wait", metavar="D", default="30s", show_default=True, help="Wait so long for its end.")
def purge(name: str, before: str | None, yes: bool, wait: str) -> None:
    """End every run that waits in QUEUE now as cancelled: nothing that runs, and nothing that comes later.

    Retries that wait for their time, and jobs that are not due, are not in the queue: cancel those with `job cancel`.
    Each run ends by its owner, with an ack that names the purge; its key is free then, and its schedule goes on. A
    purge goes on without this command, also over restarts of workers, and cannot be taken back. Without --yes exit code
    4 tells how many runs it would be. The queue may be paused meanwhile.
    """
    from pipeline.cli.queue import desk, me
    from pipeline.queues import ends_of, waiting

    until = None if before is None else parse_instant("--before", before)
    patience_s = parse_duration("--wait", wait) / 1000
    with desk() as here:
        names, partitions = here.store.parts.names, here.store.layout.queues[here.known(name)]
        ends = ends_of(here.scan, names.work(name), partitions, until)
        found = waiting(here.scan, names, name, partitions, ends)
        if not found.count:
            emit(_view(name, None, "nothing", 0, 0, 0), lambda _: f"nothing waits in {name}")
            return
        if not yes:
            raise Refused(
                f"{found.count} runs wait in {name}, the oldest since {shown_instant(found.oldest or 0)}: cancel them"
                " with --yes"
            )
        wanted = Purge(
            id=secrets.token_hex(6),
            by=me(),
            at=here.now(),
            before=until,
            topic_id=here.queues.topic_id(name),
            ends=ends,
            waiting=found.count,
        )
        begin = ends_of(here.scan, names.acks(name), partitions)
        there = here.queues.purge(name, wanted)
        served = any(name in seen.heartbeat.queues for seen in here.store.follower.processes(here.now()))
        left = _await_end(here, name, there, patience_s if served else 0)
        cancelled = _cancelled(here, name, there, begin)
    outcome = "purging" if left else "purged"
    emit(
        _view(name, there, outcome, found.count, cancelled, left),
        lambda _: f"{outcome} {name}: {cancelled} runs cancelled, {left} wait still",
    )
    if left:
        who = (
            "its workers go on with it" if served else "no worker serves it: the next one that does ends them"
        )
        note(f"{who}; `dueline queue list` shows how far it is")


def _view(
    queue: str, purge: Purge | None, outcome: str, waiting: int, cancelled: int, left: int
) -> dict[str, Any]:
    before = None if purge is None or purge.before is None else shown_instant(purge.before)
    return {
        "queue": queue,
        "outcome": outcome,
        "id": None if purge is None else purge.id,
        "before": before,
        "waiting": waiting,
        "cancelled": cancelled,
        "left": left,
    }


def _await_end(here: Desk, queue: str, purge: Purge, patience_s: float) -> int:
    """Wait until nothing that it means waits any more, for so long at most. How much does."""
    deadline = time.monotonic() + patience_s
    while (left := left_of(here, queue, purge)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return left


def _cancelled(here: Desk, queue: str, purge: Purge, begin: tuple[int, ...]) -> int:
    """How many runs ended by this purge, by the acks since these offsets."""
    acks = here.store.parts.names.acks(queue)
    return sum(
        _ended_by(value, purge_reason(purge))
        for number, start in enumerate(begin)
        for value in _terminal(here, acks, number, start)
    )


def _terminal(here: Desk, acks: str, number: int, start: int) -> Iterator[bytes]:
    end = here.scan.span(acks, number).end
    for batch in here.scan.batches(acks, number, start, end):
        for record in batch:
            if (record.key() or b"").startswith(b"t/") and (value := record.value()) is not None:
                yield value


def _ended_by(value: bytes, reason: str) -> bool:
    from pipeline import codec

    try:
        ack = codec.ACK.decode(value)
    except Undecodable:
        return False
    return ack.state is AckState.CANCELLED and ack.error is not None and ack.error.message == reason
