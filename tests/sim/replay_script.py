"""Scripts in which clients replay what they have seen fire, in bulk, beside all else that happens to the jobs."""

from __future__ import annotations

import uuid
from collections import Counter
from random import Random
from typing import Any

from sim.clients import Clients
from sim.script import WEIGHTS as BASE
from sim.script import Play, Script
from sim.watch import Job, Watch
from sim.world import LAYOUT, World

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core import keys
from pipeline.core.job import Command, Event, ReplayBatch
from pipeline.portion import REPLAY, REPLAY_HEADER

WEIGHTS = {**BASE, "replay": 8, "step_one": 60}
SPREAD = 12


class ReplayWatch(Watch):
    """Of one replay, an occurrence has one run, however often it is asked for, and whatever index is lost."""

    def __init__(self, now: Any) -> None:
        super().__init__(now)
        self.values: dict[str, list[bytes]] = {}
        """Runs that were seen, by occurrence, as they stand on the work topic."""
        self._of: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()

    def _work(self, record: MemoryRecord) -> None:
        super()._work(record)
        value = record.value() or b""
        run = codec.RUN.decode(value)
        self.values.setdefault(run.occurrence_id, []).append(value)
        replay = run.headers.get(REPLAY_HEADER)
        if replay is not None:
            self._of[run.occurrence_id, replay] += 1
            self.expect(self._of[run.occurrence_id, replay] == 1, f"replayed twice by {replay}: {run}")
            first = codec.RUN.decode(self.values[run.occurrence_id][0])
            self.expect(run.idempotency_key == first.idempotency_key, f"{run} after {first}")

    def _command(self, record: MemoryRecord, headers: dict[str, bytes]) -> None:
        """A replay is a backlog: commands that came after it are executed before it."""
        command = self.commands.get(record.key()[2:].decode("utf-8", "replace"))
        if command is None or command.verb != REPLAY:
            super()._command(record, headers)

    def _replayed(self, command: Command, event: Event, job: Job | None) -> None:
        batch = codec.REPLAY_BATCH.decode(command.payload or b"")
        told = {n: int(t) for n, t in event.detail.items() if n not in ("verb", REPLAY, "requested_by")}
        self.expect(sum(told.values()) == len(batch.runs), f"{event} of {len(batch.runs)} runs")
        self.counts.update(told)


class ReplayClients(Clients):
    watch: ReplayWatch

    def replay(self) -> None:
        """Ask for what was seen of some occurrences of one home, now or a while ago; now and then a second time under
        the same replay, as somebody who was killed and resumed."""
        latest = list(self.watch.values)[-SPREAD:]
        if not latest:
            return
        home = LAYOUT.home(self.random.choice(latest).partition(".")[0])
        id_ = str(uuid.UUID(int=self.world.ids.getrandbits(128), version=4))
        resumed = self.random.random() < 0.5
        replay = f"replay-{self.random.randrange(4)}" if resumed else id_
        # What was emitted since a replay began is not what it is about.
        runs = [
            self.watch.values[occurrence][0] if resumed else self.random.choice(self.watch.values[occurrence])
            for occurrence in latest
            if LAYOUT.home(occurrence.partition(".")[0]) == home
        ]
        batch = ReplayBatch(runs=tuple(runs), dead=self.random.random() < 0.5)
        command = Command(
            command_id=id_, verb=REPLAY, payload=codec.REPLAY_BATCH.encode(batch), detail={REPLAY: replay}
        )
        self.watch.commands[id_] = command
        partition = self.random.randrange(LAYOUT.partitions) if self.random.random() < 0.1 else home
        self._send(self.put(partition, keys.command_key(id_), codec.COMMAND.encode(command)))


class ReplayPlay(Play):
    weights = WEIGHTS
    watching = ReplayWatch
    asking = ReplayClients
    watch: ReplayWatch


def write(seed: int, events: int = 160) -> Script:
    chance = Random(f"replay {seed}")
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=events)
    return [(name, chance.getrandbits(16)) for name in names]


def play(seed: int, world: type[World] = World) -> ReplayPlay:
    """AssertionError, or whatever the product raised, if a promise is broken."""
    here = ReplayPlay(1 + seed % 3, 0, world)
    for name, salt in write(seed):
        here.happen(name, salt)
    here.finish()
    return here
