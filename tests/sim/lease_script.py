"""Scripts of the lease simulation: what happens to a queue and its workers, as a list that can be cut down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from sim.lease_hands import Hands
from sim.lease_watch import ACKS, QUEUE, WORK
from sim.lease_world import (
    COMPACTION_LAG_MS,
    DRAIN_MS,
    KINDS,
    PLACES,
    RETENTION_MS,
    LeaseWorld,
    Process,
)
from sim.script import SAME, Script, shortest
from sim.world import NAMES

from pipeline import codec
from pipeline.adapters.memory import CommitFault
from pipeline.core import acks, keys, offset_metadata
from pipeline.core.job import Event, Run
from pipeline.ports import Put
from pipeline.stops import MARGIN_MS
from pipeline.worker import Worker

WEIGHTS = {
    "step_one": 26, "step_all": 22, "tick": 8, "pause": 6, "work": 14, "minute": 0.7,
    "fire": 13, "fire_serial": 5, "fire_few": 3, "fire_unknown": 1, "garbage": 1, "stop": 2, "lift": 0.6,
    "kill": 1.5, "freeze": 2, "block": 1, "hang": 0.6, "thaw": 4, "cut": 1.2, "heal": 3, "expire": 2, "deafen": 0.7,
    "grow": 4, "shrink": 2, "rebuild": 1, "fault": 2, "lose_append": 0.7, "strike": 2.5, "compact": 0.7,
    "come_back": 2, "rest": 0.15,
}  # fmt: skip
STORM = WEIGHTS | {
    "fire": 8, "fire_few": 1, "fire_serial": 3, "cut": 4, "freeze": 5, "expire": 5, "thaw": 7, "heal": 6, "work": 24,
    "kill": 0.7, "strike": 4, "step_one": 18, "minute": 0.2,
}  # fmt: skip
"""Every other script: fewer runs, and leases that move all the time."""
EVENTS = 110
MARGIN = offset_metadata.BROKER_LIMIT - acks.WINDOW_LIMIT
NARROW = 400
"""Bytes of offset metadata at which the window closes, in one script of four."""


def script(seed: int, events: int = EVENTS) -> Script:
    chance = Random(seed)
    weights = STORM if seed % 2 else WEIGHTS
    names = chance.choices(list(weights), list(weights.values()), k=events)
    return [(name, chance.getrandbits(16)) for name in names]


class Play:
    """One queue, its workers and its watch, and the events of a script done to them."""

    def __init__(self, slots: int = 2, partitions: int = 2, deaths: int = 1_000) -> None:
        self.world = world = LeaseWorld(slots, partitions, deaths)
        self.watch, self.random = world.watch, world.random
        for slot in range(slots - 1):
            world.start(slot)
        self.events: dict[str, Callable[[], None]] = {name: getattr(self, name) for name in WEIGHTS}

    def happen(self, name: str, salt: int) -> None:
        self.random.seed(salt)
        self.events[name]()
        self.check()

    def check(self) -> None:
        self.watch.check(self.world.cluster.group(NAMES.worker_group(QUEUE), WORK).committed)

    def _some(self) -> Process | None:
        return self.world.any()

    # -- time ---------------------------------------------------------------------------------------------------

    def step_one(self) -> None:
        if (process := self._some()) is not None:
            self.world.step(process)

    def step_all(self) -> None:
        for process in self.random.sample(self.world.up, len(self.world.up)):
            self.world.step(process)

    def tick(self) -> None:
        self.world.advance(self.random.randrange(40))

    def pause(self) -> None:
        self.world.advance(self.random.randrange(900))

    def work(self) -> None:
        self.world.go_on(self.random.choice([100, 500, 4_000]), self.random.choice([25, 100, 250]))

    def minute(self) -> None:
        self.world.go_on(self.random.choice([10_000, 40_000]), 800)

    # -- runs ---------------------------------------------------------------------------------------------------

    def fire(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 6])):
            self._fire(self.random.choice(["plain", "plain", "coro", "pool", "brief", "fresh"]))

    def fire_serial(self) -> None:
        for _ in range(self.random.choice([1, 3])):
            self._fire(self.random.choice(["plain", "coro"]), serial=self.random.choice(["s", "t"]))

    def fire_few(self) -> None:
        for _ in range(self.random.choice([1, 4])):
            self._fire("few")

    def fire_unknown(self) -> None:
        self._fire("nobody")

    def _fire(self, handler: str, serial: str | None = None) -> None:
        id_, now, chance = self.world.new_id(), self.world.clock.now(), self.random
        payload = {
            "ms": chance.choice([0, 0, 30, 400, 3_000, 9_000, 20_000 if chance.random() < 0.9 else 600_000]),
            "ends": [chance.choice(["ok", "ok", "ok", "ok", "fail", "retry", "snooze", "cancel", "dead", "exit"])],
            "outputs": [kind for kind in KINDS if chance.random() < 0.3],
            "polite": chance.random() < 0.5,
        }  # fmt: skip
        self.world.put_run(
            Run(
                job_id=id_,
                occurrence_id=id_,
                due_at=now,
                run=1,
                queue=QUEUE,
                handler=handler,
                created_at=now,
                nominal_at=now,
                idempotency_key=id_,
                payload=json.dumps(payload).encode(),
                serial=serial,
            )
        )

    def garbage(self) -> None:
        partition = self.random.randrange(self.world.partitions)
        key = self.random.choice([b"", b"\xff", b"x"])
        self.world.cluster.append(Put(WORK, partition, key, self.random.choice([b"", b"\0", b"{}"])))

    def stop(self) -> None:
        """Stop some run that has not ended, at the partition on which it stands."""
        going = [fired for fired in self.watch.fired.values() if fired.acked is None]
        if going:
            fired = self.random.choice(going)
            id_, now = fired.run.occurrence_id, self.world.clock.now()
            event = Event(id=id_, kind="stopped", at=now, occurrence_id=id_, run=fired.run.run)
            self.world.cluster.append(
                Put(ACKS, fired.partition, keys.stopped_key(id_), codec.EVENT.encode(event))
            )

    def lift(self) -> None:
        if self.watch.fired:
            fired = self.random.choice(list(self.watch.fired.values()))
            key = keys.stopped_key(fired.run.occurrence_id)
            self.world.cluster.append(Put(ACKS, fired.partition, key, None))

    # -- faults -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        if (process := self._some()) is not None:
            self.world.kill(process)

    def freeze(self) -> None:
        """SIGSTOP: neither its loop nor its handlers nor its heartbeats go on. Its session may end meanwhile."""
        if (process := self._some()) is not None:
            process.frozen = True
            if process.log is not None and self.random.random() < 0.6:
                process.log.expire()

    def block(self) -> None:
        """The loop does not come round; handlers and heartbeats go on, and the group may lose patience."""
        if (process := self._some()) is not None:
            process.blocked = True
            if process.log is not None and self.random.random() < 0.5:
                process.log.expire()

    def hang(self) -> None:
        """As `block`, and nobody hears of it either."""
        if (process := self._some()) is not None:
            process.blocked = process.mute = True

    def thaw(self) -> None:
        for process in self.world.up:
            if self.random.random() < 0.7:
                process.frozen = process.blocked = process.mute = False

    def cut(self) -> None:
        if (process := self._some()) is not None:
            process.wire.cut = True
            if process.log is not None and self.random.random() < 0.6:
                process.log.expire()

    def heal(self) -> None:
        for process in self.world.up:
            if self.random.random() < 0.7:
                self.world.mend(process)

    def expire(self) -> None:
        """A lost session of a process that lives."""
        if (process := self._some()) is not None and process.log is not None:
            process.log.expire()

    def deafen(self) -> None:
        """The same, and it does not hear of it for a while."""
        if (process := self._some()) is not None and process.log is not None:
            process.log.expire()
            process.log.deaf = True

    def grow(self) -> None:
        down = [slot for slot, process in enumerate(self.world.slots) if process is None]
        if down:
            self.world.start(self.random.choice(down))

    def shrink(self) -> None:
        """SIGTERM: it drains, then leaves."""
        process = self._some()
        if process is None or process.live is None or process.leaving is not None:
            return
        if not (process.frozen or process.blocked):
            self.world.drain(process, self.random.choice([0, DRAIN_MS, 10 * DRAIN_MS]))

    def rebuild(self) -> None:
        """A fatal client error."""
        process = self._some()
        if process is not None and not (process.frozen or process.blocked):
            self.world.rebuild(process)

    def fault(self) -> None:
        """The next commit of a process is refused, or its outcome unknown."""
        if (process := self._some()) is not None and process.log is not None:
            process.log.faults.append(self.random.choice(list(CommitFault)))

    def lose_append(self) -> None:
        if (process := self._some()) is not None:
            process.appender.faults.append(self.random.choice(["refused", "unsure"]))

    def strike(self) -> None:
        """Kill or freeze a process at some place inside one of its next steps."""
        if (process := self._some()) is not None:
            place = (self.random.choice(PLACES), process.id)
            if self.random.random() < 0.5:
                self.world.kill_at = place
            else:
                self.world.freeze_at = place

    def come_back(self) -> None:
        """A holder that was given up goes on at the worst of times: while its attempt is being replaced."""
        self.world.revenant = True

    def compact(self) -> None:
        for number in range(self.world.partitions):
            self.world.cluster.partition(ACKS, number).clean(
                self.world.clock.now(), lag_ms=COMPACTION_LAG_MS, retention_ms=RETENTION_MS
            )

    # -- rest ---------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        self.world.settle()
        self.watch.check_rest(lambda run: json.loads(run.payload).get("outputs", []))
        self.check()

    def finish(self) -> None:
        """All is settled; then all starts once more, and finds nothing to do. So too after the loss of the group."""
        self.random.seed(0)
        self.rest()
        self.world.go_on(MARGIN_MS + 5_000, 1_000)
        self.rest()
        for process in self.world.up:
            assert process.live is not None
            assert not (left := left_in(process.live, process.hands)), f"left in {process.name}: {left}"
        for process in self.world.up:
            self.world.kill(process)
        self.world.start(0)
        self.world.go_on(10_000, 1_000)
        self.rest()
        self.world.lose_group()
        self.world.start(0)
        self.world.go_on(10_000, 1_000)
        self.rest()


def left_in(worker: Worker, hands: Hands) -> dict[str, object]:
    """What a worker still keeps though it has nothing to do."""
    leases = worker._leases
    kept: dict[str, object] = {
        "airborne": worker._airborne,
        "letters": worker._intake._letters, "cleared": worker._starts.cleared, "dropped": worker._dropped,
        "load": +worker._quotas._load, "-load": -worker._quotas._load, "ledger": len(worker._ledger),
        "sending": leases._outbox._sending, "parted": leases._outbox._parted, "restarts": leases._restarts,
        "calls": not hands.idle,
    }  # fmt: skip
    for number, lane in worker._lanes.items():
        kept |= {
            f"{name} of {number}": getattr(lane, name)
            for name in (
                "waiting", "waiting_bytes", "parked", "flights", "held", "reclaimed", "offers", "released",
                "_busy_serials",
            )
        }  # fmt: skip
        kept[f"stops of {number}"] = len(lane.stops)
        kept[f"unfinished of {number}"] = lane.tracker.unfinished
    return {name: what for name, what in kept.items() if what}


@contextmanager
def _narrow(limit: int) -> Iterator[None]:
    """Offset metadata of fewer bytes: a few dozen runs meet its limit."""
    before = acks.WINDOW_LIMIT, offset_metadata.BROKER_LIMIT
    acks.WINDOW_LIMIT, offset_metadata.BROKER_LIMIT = limit, limit + MARGIN
    try:
        yield
    finally:
        acks.WINDOW_LIMIT, offset_metadata.BROKER_LIMIT = before


def crew(seed: int) -> tuple[int, int, int]:
    """(slots, partitions, worker deaths that end a run)."""
    return 2 + seed % 3, 1 + seed // 3 % 4, 3 if seed % 5 == 4 else 1_000


def play(events: Script, seed: int) -> Play:
    """AssertionError, or whatever the product raised, if a promise is broken."""
    with _narrow(NARROW if seed % 4 == 3 else acks.WINDOW_LIMIT):
        here = Play(*crew(seed))
        for name, salt in events:
            here.happen(name, salt)
        here.finish()
        return here


def failure(events: Script, seed: int) -> str | None:
    """What goes wrong when the script is played."""
    try:
        play(events, seed)
    except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
        return f"{type(error).__name__}: {error}"
    return None


def report(seed: int, found: str) -> str:
    """What a failing seed says of itself: how to repeat it, and the shortest script that fails in the same way."""
    short = shortest(script(seed), lambda events: (failure(events, seed) or "")[:SAME] == found[:SAME])
    return (
        f"seed {seed} fails; repeat: DUELINE_LEASE_SEED={seed} pytest tests/sim/test_leases.py\n{found[:3_000]}\n"
        f"shortest script found, {len(short)} events with (slots, partitions, deaths) = {crew(seed)}:\n"
        f"{json.dumps(short)}\nwhich says: {(failure(short, seed) or '')[:3_000]}"
    )
