"""Scripts: what happens to an installation, as a list that can be cut down.

Each event carries the number its own choices are drawn from, so leaving some out leaves the others as they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from random import Random
from typing import Any

from sim.clients import Clients
from sim.watch import KEYS, Watch
from sim.world import DAY_MS, HOUR_MS, NAMES, World

from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.partition import Partition
from pipeline.ports import Action

Script = list[tuple[str, int]]

WEIGHTS = {
    "step_one": 40, "step_all": 14, "advance": 16, "hour": 0.3, "day": 0.15, "week": 0.1, "rest": 0.2,
    "create": 6, "create_by_command": 2, "create_keyed": 7, "cancel": 3, "reschedule": 5, "update": 2, "requeue": 1.5,
    "release": 0.7, "resend": 3, "end_run": 7, "garbage": 2.5, "poison": 0.7,
    "strike": 4, "fault": 2, "cut_off": 1, "heal": 4, "expire": 0.7, "lose_index": 0.7, "save_index": 0.5,
    "old_index": 0.5, "compact": 0.7, "stop": 3,
}  # fmt: skip
EVENTS = 160
SAME = 24
"""So much of what two failures say must be equal for them to be of one kind."""


def script(seed: int, events: int = EVENTS) -> Script:
    chance = Random(seed)
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=events)
    return [(name, chance.getrandbits(16)) for name in names]


class Play:
    """One installation, its clients and its watch, and the events of a script done to them."""

    weights = WEIGHTS
    watching: type[Watch] = Watch
    asking: type[Clients] = Clients

    def __init__(self, dispatchers: int = 2, workers: int = 0, world: type[World] = World) -> None:
        self.world = world(dispatchers, workers)
        self.watch = self.watching(self.world.clock.now)
        self.world.cluster.saw = self.watch.saw
        self.clients = self.asking(self.world, self.watch)
        self.starts: list[tuple[str, int, int]] = []
        self.world.handle = self._handle
        self.world.heal()
        here: list[Any] = [self, self.clients, self.world]
        self.events: dict[str, Callable[[], None]] = {
            name: next(getattr(part, name) for part in here if hasattr(part, name)) for name in self.weights
        }

    def _handle(self, ctx: Any, **payload: Any) -> None:
        self.starts.append((ctx.occurrence_id, ctx.run, ctx.token))
        if ctx.run == 1 and payload["n"] % 5 == 0:
            raise ValueError("the first run fails")

    def happen(self, name: str, salt: int) -> None:
        self.world.random.seed(salt)
        self.events[name]()
        self.watch.check()

    # -- events that concern more than one part ---------------------------------------------------------------

    def hour(self) -> None:
        self.world.pass_time(HOUR_MS)

    def day(self) -> None:
        if not self.clients.unsettled:
            self.world.pass_time(DAY_MS + HOUR_MS)

    def week(self) -> None:
        if not self.clients.unsettled:
            self.world.pass_time(4 * DAY_MS)

    def rest(self) -> None:
        self.world.settle()
        self.watch.check_rest()
        self.check_index()

    def finish(self) -> None:
        self.world.random.seed(0)
        self.rest()
        while self.clients.end_all():
            self.rest()
        held = self.watch.keys
        assert not held, f"keys not freed: {held}"
        self.check_acks()

    # -- what must hold at rest -------------------------------------------------------------------------------

    def check_index(self) -> None:
        """canonical(index) = canonical(fold(log)), and nothing is left that the owner owes."""
        for process in self.world.dispatchers:
            for number in process.live.states:
                entries, facts = _canonical(process.index, number)
                rebuilt = MemoryIndex()
                log = self.world.cluster.partition(NAMES.jobs, number)
                partition = Partition(number, site=self.world.site, index=rebuilt)
                partition.ingest(log.read(0, log.end + 1)[0], log.end, self.world.clock.now())
                folded = _canonical(rebuilt, number)
                assert (entries, facts) == folded, f"index {entries, facts}, folded anew {folded}"
                owed = [e for e in entries if e.action not in (Action.EXPIRE, Action.HOLD)]
                assert not owed, f"left undone: {owed}"

    def check_acks(self) -> None:
        """Every emitted run was acked once, under a token of its own."""
        if not self.world.workers:
            return
        runs = {(job.occurrence, run) for job in self.watch.jobs.values() for run in job.runs}
        acks = self.watch.acks
        assert set(acks) == runs, f"acked {acks}, emitted {runs}"
        assert all(len(tokens) == 1 for tokens in acks.values()), f"acked twice: {acks}"
        tokens: dict[str, list[int]] = {}
        for occurrence, _, token in self.starts:
            tokens.setdefault(occurrence, []).append(token)
        for occurrence, seen in tokens.items():
            assert len(set(seen)) == len(seen), f"a token came twice: {occurrence} {seen}"
        for (occurrence, run), (token,) in acks.items():
            later = [t for (o, r), (t,) in acks.items() if o == occurrence and r > run]
            # 0: stopped before it was started
            assert all(t > token for t in later if t), f"tokens of {occurrence} do not grow"


def _canonical(index: Any, number: int) -> tuple[list[Any], dict[bytes, bytes | None]]:
    holders = [keys.holder_key(keyed_id(key).encode()) for key in (*KEYS, "foreign")]
    # Nobody asks for the offset of a highest run, so its owner does not read it back.
    entries = [
        entry._replace(offset=0) if entry.record_key.startswith(keys.HIGHEST) else entry
        for entry in index.entries(number, None, 10**6)
    ]
    return entries, {key: index.fact(number, key) for key in holders}


def play(events: Script, dispatchers: int, workers: int, world: type[World] = World) -> None:
    """AssertionError, or whatever the product raised, if a promise is broken."""
    here = Play(dispatchers, workers, world)
    for name, salt in events:
        here.happen(name, salt)
    here.finish()


def crew(seed: int) -> tuple[int, int]:
    """(dispatchers, workers): most seeds are about dispatchers alone."""
    return 1 + seed % 3, (1 + seed % 2 if seed % 10 == 7 else 0)


def failure(events: Script, dispatchers: int, workers: int, world: type[World] = World) -> str | None:
    """What goes wrong when the script is played."""
    try:
        play(events, dispatchers, workers, world)
    except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
        return f"{type(error).__name__}: {error}"
    return None


def shortest(events: Script, fails: Callable[[Script], bool], seconds: float = 30.0) -> Script:
    """Events left out, while what is left still fails: first large pieces, then single ones."""
    deadline = time.monotonic() + seconds
    size = len(events) // 2
    while size and time.monotonic() < deadline:
        before, start = len(events), 0
        while start < len(events) and time.monotonic() < deadline:
            shorter = events[:start] + events[start + size :]
            if fails(shorter):
                events = shorter
            else:
                start += size
        size = size // 2 if len(events) == before or size > 1 else 1
    return events


def report(seed: int, found: str, world: type[World] = World) -> str:
    """What a failing seed says of itself: how to repeat it, and the shortest script that fails in the same way."""
    here, kind = crew(seed), found[:SAME]
    short = shortest(script(seed), lambda events: (failure(events, *here, world) or "")[:SAME] == kind)
    return (
        f"seed {seed} fails; repeat: DUELINE_SIM_SEED={seed} pytest tests/sim/test_world.py\n"
        f"{found[:3_000]}\nshortest script found, {len(short)} events with {here[0]} dispatchers and {here[1]} workers:"
        f"\n{json.dumps(short)}\nwhich says: {(failure(short, *here, world) or '')[:3_000]}"
    )
