"""`dueline queue`: what waits in each queue, and pausing, resuming and purging one (docs/queues.md)."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pipeline.cli.job_input import named_as_options
from pipeline.cli.output import emit, harmless, json_wanted, note
from pipeline.cli.queue_purge import purge
from pipeline.cli.queue_show import DANGEROUS, queue_table, queue_views, spoken
from pipeline.cli.store import Store, following, kafka_settings
from pipeline.core.errors import NotFound
from pipeline.core.names import check_name
from pipeline.core.queues import Pause
from pipeline.follower import shown_instant

if TYPE_CHECKING:
    from pipeline.adapters.kafka_queues import KafkaQueues
    from pipeline.ports import Scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What queues are seen and changed with. `rates` = of queues, in the environment of this command."""

    store: Store
    scan: Scan
    queues: KafkaQueues
    rates: Mapping[str, float]

    def now(self) -> int:
        return self.store.parts.clock.now()

    def known(self, queue: str) -> str:
        """The name itself. InvalidInput, NotFound."""
        if check_name("QUEUE", queue) not in self.store.layout.queues:
            there = ", ".join(sorted(self.store.layout.queues))
            raise NotFound(f"there is no queue {queue}: there are {there}")
        return queue


@contextmanager
def desk() -> Iterator[Desk]:
    """Connected to the store that the settings name. StoreUnreachable; Refused if its topics are missing."""
    from pipeline.adapters.kafka_queues import KafkaQueues

    settings = kafka_settings()
    with following() as store, closing(store.parts.open_scan()) as scan:
        yield Desk(store=store, scan=scan, queues=KafkaQueues(settings), rates=settings.queue_rates)


def me() -> str:
    """Who asks, as others will read it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


@click.group("queue")
def queue() -> None:
    """See what waits in the queues; pause, resume or purge one."""


queue.add_command(purge)


@queue.command("list", short_help="What waits and runs in each queue.")
def list_() -> None:
    """Show every queue: what was emitted and waits for its start, since when, what runs, who serves it, and whether it
    is paused, by whom and why.

    Reads all that waits. `rate` is what DUELINE_QUEUES__<QUEUE>__RATE says in the environment of this command; that of
    the dispatchers counts.
    """
    with desk() as here:
        views = queue_views(here)
    if json_wanted():
        emit(iter(views), str)
    else:
        emit(views, queue_table)
    for view in views:
        if view["paused"] and view["age_ms"] and view["age_ms"] >= DANGEROUS * (view["kept_ms"] or 1 << 62):
            note(
                f"warning: {view['queue']} is paused, its oldest run has waited for {spoken(view['age_ms'])}, and its"
                f" topic forgets it after {spoken(view['kept_ms'])}: resume the queue, or purge it"
            )


@queue.command("pause", short_help="Let nothing of a queue start.")
@click.argument("name", metavar="QUEUE")
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever asks.")
def pause(name: str, reason: str) -> None:
    """Let no run of QUEUE start until `dueline queue resume`; workers know within two seconds, what runs finishes.

    What comes due is emitted all the same and waits, for as long as its topic keeps it (30 days); then it is lost. Jobs
    may be created, cancelled and stopped. It holds through restarts, deploys and backups. Pausing a queue that is
    paused changes nothing, and shows who paused it.
    """
    with named_as_options(), desk() as here:
        wanted = Pause(by=me(), at=here.now(), reason=reason)
        state = here.queues.pause(here.known(name), wanted)
    there = state.pause or wanted
    if there != wanted:
        why = f": {harmless(there.reason, 80)}" if there.reason else ""
        note(f"it was paused already, by {there.by} at {shown_instant(there.at)}{why}")
    data = {
        "queue": name,
        "outcome": "paused",
        "by": there.by,
        "at": shown_instant(there.at),
        "reason": there.reason,
    }
    emit(data, lambda view: f"paused {view['queue']}: nothing of it starts, what runs finishes")


@queue.command("resume", short_help="Let a paused queue start again.")
@click.argument("name", metavar="QUEUE")
def resume(name: str) -> None:
    """Let runs of QUEUE start again: what has waited starts at once, as fast as its workers take it.

    To spread a backlog, start fewer workers, or with less concurrency. Resuming a queue that is not paused changes
    nothing.
    """
    with desk() as here:
        state = here.queues.resume(here.known(name), me(), here.now())
    data = {
        "queue": name,
        "outcome": "running",
        "by": None if state is None else state.by,
        "at": None if state is None else shown_instant(state.at),
    }
    emit(data, lambda view: f"running {view['queue']}")
