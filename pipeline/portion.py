"""How much of a replay is done, and how much of it comes next.

A replay arrives as commands of many runs each (schemas/replay_batch.avsc). Its owner settles such a command in
portions, so that none is larger than the lane of a backlog, the catch-up rate and the rate of its queue allow. How far
it is stands in the index only: after a rebuild the command begins anew, and what it has emitted by then is superseded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from pipeline import codec
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Command, ReplayBatch
from pipeline.core.names import legal
from pipeline.core.topics import DEFAULT_QUEUE
from pipeline.ports import Action, Entry

REPLAY = "replay"
"""The verb; of its command's `detail`, the replay that it belongs to."""
REPLAY_HEADER = "dueline-replay"
"""Header of a run: the replay that emitted it, or an earlier run of which this is a retry."""
RUNS_LIMIT, ID_LIMIT = 1_000, 80
"""Runs in one command at most, and characters of the id of a replay: each run carries it."""


class Portion(NamedTuple):
    """What the index keeps of a replay beside the command itself, in the detail of its entry."""

    queue: str
    left: int
    """Runs that are not settled."""
    take: int
    """How many of them are to be emitted next at most."""
    counts: Mapping[str, int]
    """What became of those that are settled."""
    problem: str = ""
    """Of the first that was refused."""

    @classmethod
    def of(cls, detail: str) -> Self:
        queue, left, take, counted, problem = detail.split(" ", 4)
        pairs = (each.split("=") for each in counted.split(",") if each)
        return cls(queue, int(left), int(take), {name: int(n) for name, n in pairs}, problem)

    @property
    def detail(self) -> str:
        counted = ",".join(f"{name}={n}" for name, n in self.counts.items())
        return f"{self.queue} {self.left} {self.take} {counted} {self.problem}"


def batch_of(command: Command) -> ReplayBatch:
    """The runs that the command `replay` is about. InvalidInput naming what is wrong with it."""
    if command.payload is None:
        raise InvalidInput("payload", "missing: the runs to emit once more")
    try:
        batch = codec.REPLAY_BATCH.decode(command.payload)
    except Undecodable as error:
        raise InvalidInput("payload", str(error)) from error
    if not 1 <= len(batch.runs) <= RUNS_LIMIT:
        raise InvalidInput("payload", f"{len(batch.runs)} runs, must be 1 to {RUNS_LIMIT}")
    if not legal(queue_of(command)):
        raise InvalidInput("queue", "illegal name")
    if len(command.detail.get(REPLAY, "")) > ID_LIMIT:
        raise InvalidInput("detail", f"{REPLAY}: is longer than {ID_LIMIT}")
    return batch


def queue_of(command: Command) -> str:
    return command.queue or DEFAULT_QUEUE


def replaying(key: bytes, offset: int, value: bytes, queue: str, runs: int, at: int) -> Entry:
    """The entry of a replay that was asked for at log time `at`: no command that is owed at once, but a backlog behind
    what was due before it."""
    portion = Portion(queue=queue, left=runs, take=runs, counts={})
    return Entry(key, at, offset, Action.REPLAY, value, portion.detail)


def at_most(entry: Entry, runs: int) -> Entry:
    """The entry of a replay, to take no more than so many runs of it next."""
    portion = Portion.of(entry.detail)
    return entry._replace(detail=portion._replace(take=min(portion.take, runs)).detail)


def weight(entries: Iterable[Entry]) -> int:
    """How many entries these are worth: a replay as many as the runs that are taken of it."""
    return sum(Portion.of(e.detail).take if e.action == Action.REPLAY else 1 for e in entries)
