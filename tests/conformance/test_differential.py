"""One script of random operations, played on the in-memory log and on the real broker: every outcome must be the
same, so that what the simulation proves on the one holds on the other (protocol notes F1 to F6).

Offsets are not compared, since markers take some; sequences of records are, as soon as both have come to rest.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaException, Producer

from pipeline.adapters.memory_cluster import MemoryCluster, Outcome
from pipeline.core.errors import OwnerError, RebuildClients, RetryStep
from pipeline.ports import CommittedOffset, Membership, Put

pytestmark = pytest.mark.slow

PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))
REST_S = 30.0
REFUSED = 3
"""So often in a row makes a refusal: the real client has some of its own, e.g. in the commit after a poisoned one."""
Step = tuple[str, int]


class Foreign(Protocol):
    """Somebody else's transactional producer."""

    def begin(self, puts: Sequence[Put]) -> None: ...
    def end(self, *, commit: bool) -> str: ...


class MemoryForeign:
    def __init__(self, cluster: MemoryCluster, id_: str) -> None:
        self._cluster, self._id = cluster, id_
        self._epoch = cluster.init_transactions(id_)

    def begin(self, puts: Sequence[Put]) -> None:
        self._cluster.begin(self._id, self._epoch)
        for put in puts:
            self._cluster.transactional_append(self._id, self._epoch, put)

    def end(self, *, commit: bool) -> str:
        try:
            self._cluster.end(self._id, self._epoch, Outcome.COMMITTED if commit else Outcome.ABORTED)
        except RebuildClients:
            return "fenced"
        return "done"


class KafkaForeign:
    def __init__(self, bootstrap: str, id_: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": id_})
        self._producer.init_transactions(10)

    def begin(self, puts: Sequence[Put]) -> None:
        self._producer.begin_transaction()
        for put in puts:
            self._producer.produce(put.topic, put.value, put.key, put.partition)
        self._producer.flush(10)

    def end(self, *, commit: bool) -> str:
        try:
            if commit:
                self._producer.commit_transaction(10)
            else:
                self._producer.abort_transaction(10)
        except KafkaException as error:
            return "fenced" if error.args[0].fatal() else str(error)
        return "done"


class Driver:
    """Plays a script on one world. What is drawn is drawn from the step's own number, never from an outcome."""

    def __init__(self, world: Any, listener: type[Any]) -> None:
        self.world, self.listener = world, listener
        self.a = world.joined(world.log())
        self.b: Any = None
        self.reader: Any = None
        self.kept: Membership = self.a.membership()
        self.foreign: Foreign | None = None
        self.open = False
        self.named = 0
        self.rest_s = 0.8 if hasattr(world, "bootstrap") else 0.0

    def play(self, script: Sequence[Step]) -> list[object]:
        return [self._step(name, Random(salt)) for name, salt in script]

    def _step(self, name: str, draw: Random) -> object:
        self._serve()
        operation: Callable[[Random], object] = getattr(self, name)
        return name, operation(draw)

    def _serve(self) -> None:
        """Members poll, as owners do: the real client would leave the group otherwise."""
        for log in (self.a, self.b):
            if log is not None:
                log.poll(100, 0)

    def _puts(self, draw: Random) -> list[Put]:
        """Some records, tombstones among them, over both topics."""
        return [self._put(draw) for _ in range(draw.randrange(4))]

    def _put(self, draw: Random) -> Put:
        topic, partitions = draw.choice([(self.world.topic, PARTITIONS), (self.world.other, 2)])
        value = draw.choice([None, b"v%d" % draw.getrandbits(16), b""])
        return Put(topic, draw.randrange(partitions), b"k%d" % draw.randrange(5), value)

    def _commit(self, puts: Sequence[Put], membership: Membership, draw: Random) -> str:
        """Offsets of any partition: the coordinator does not look at who owns it (F3)."""
        number = draw.randrange(PARTITIONS)
        offsets = {number: CommittedOffset(draw.randrange(100), draw.choice(["", "m" * 30]))}
        outcome = ""
        for _ in range(REFUSED):
            try:
                self.a.commit(puts, offsets, membership._replace(owned=ALL))
            except RetryStep:
                outcome = "refused"
            except OwnerError as error:
                return type(error).__name__
            else:
                return "committed"
        return outcome

    # -- operations -------------------------------------------------------------------------------------------

    def produce(self, draw: Random) -> None:
        self.world.append(*self._puts(draw))

    def commit(self, draw: Random) -> str:
        return self._commit(self._puts(draw), self.a.membership(), draw)

    def commit_a_poison(self, draw: Random) -> str:
        huge = Put(self.world.topic, 3, b"huge", draw.randbytes(3 * 1024 * 1024))
        return self._commit([*self._puts(draw), huge], self.a.membership(), draw)

    def keep(self, draw: Random) -> None:
        self.kept = self.a.membership()

    def commit_with_what_was_kept(self, draw: Random) -> str:
        """Stale as soon as the group has changed since."""
        return self._commit(self._puts(draw), self.kept, draw)

    def commit_as_the_other(self, draw: Random) -> str | None:
        """Another member's metadata, of the generation that is (F3)."""
        return None if self.b is None else self._commit(self._puts(draw), self.b.membership(), draw)

    def commit_as_nobody(self, draw: Random) -> str:
        """Generation -1 of no member: what old clients send, and a classic group lets through (F4, H3)."""
        return self._commit(self._puts(draw), self._forged(-1, ""), draw)

    def commit_as_a_stranger(self, draw: Random) -> str:
        generation = self.a.membership().generation + draw.choice([0, 1])
        return self._commit(self._puts(draw), self._forged(generation, "stranger"), draw)

    def _forged(self, generation: int, member: str) -> Membership:
        mine = self.a.membership()
        opaque: Any = (member, generation)
        if isinstance(mine.opaque, bytes):
            group = mine.opaque[11:].split(b"\0")[0]
            opaque = b"CGMDv2:" + struct.pack("=i", generation) + group + b"\0" + member.encode() + b"\0\x01"
        return Membership(generation, member, opaque, ALL)

    def join(self, draw: Random) -> None:
        if self.b is None:
            self.b = self.world.log(self.listener({}), ids=("b",))
            self._gather()

    def leave(self, draw: Random) -> None:
        if self.b is not None:
            self.world.opened.remove(self.b)
            self.b.close()
            self.b = None
            self._gather()

    def usurp(self, draw: Random) -> str:
        """Another producer takes our transactional id: we are fenced, and begin anew (H17)."""
        self._foreign(self.a.transactional_ids[0])
        outcome = self._commit(self._puts(draw), self.a.membership(), draw)
        self.world.opened.remove(self.a)
        self.a.close()
        self.a = self.world.log()
        self._gather()
        return outcome

    def _gather(self) -> None:
        """Poll until every member has its share, and the generation has stood still for longer than a heartbeat:
        the real group may go through some more before it rests."""
        members = [log for log in (self.a, self.b) if log is not None]
        rests: list[tuple[int, float]] = [(-1, 0.0)]

        def at_rest() -> bool:
            if [self.world.owned(log) for log in members] != [PARTITIONS // len(members)] * len(members):
                return False
            now, generations = time.monotonic(), {log.membership().generation for log in members}
            if generations != {rests[0][0]}:
                rests[0] = (max(generations), now)
            return len(generations) == 1 and now - rests[0][1] >= self.rest_s

        self.world.eventually(at_rest, *members)

    def begin_foreign(self, draw: Random) -> None:
        """An open transaction: what follows it on its partitions is hidden (F6)."""
        if not self.open:
            self.named += 1
            self.foreign = self._foreign(f"{self.world.prefix}.foreign{self.named}")
            self.foreign.begin([self._put(draw) for _ in range(3)])
            self.open = True

    def _foreign(self, id_: str) -> Foreign:
        if hasattr(self.world, "bootstrap"):
            return KafkaForeign(self.world.bootstrap, id_)
        return MemoryForeign(self.world.cluster, id_)

    def end_foreign(self, draw: Random) -> str | None:
        return self._end(commit=draw.random() < 0.5)

    def _end(self, *, commit: bool) -> str | None:
        if self.foreign is None or not self.open:
            return None
        self.open = False
        return self.foreign.end(commit=commit)

    def fence_foreign(self, draw: Random) -> str | None:
        if not self.open:
            return None
        self.a.fence(f"{self.world.prefix}.foreign{self.named}")
        return self._end(commit=True)

    def committed(self, draw: Random) -> object:
        return sorted(self.a.committed(sorted(ALL), 5_000).items())

    # -- what is read ------------------------------------------------------------------------------------------

    def seen(self) -> dict[tuple[str, int], list[tuple[bytes, bytes | None]]]:
        """What a read_committed reader has of every partition."""
        self.reader = self.reader or self.world.reader()
        places = [("jobs", self.world.topic, n) for n in range(PARTITIONS)]
        places += [("work", self.world.other, n) for n in range(2)]
        return {
            (name, number): [(r.key() or b"", r.value()) for r in self.reader.read(topic, number)]
            for name, topic, number in places
        }


WEIGHTS = {
    "produce": 10, "commit": 10, "commit_a_poison": 1, "keep": 3, "commit_with_what_was_kept": 4,
    "commit_as_the_other": 4, "commit_as_nobody": 2, "commit_as_a_stranger": 2, "join": 1.2, "leave": 0.8, "usurp": 0.3,
    "begin_foreign": 4, "end_foreign": 4, "fence_foreign": 2, "committed": 2,
}  # fmt: skip
STEPS, PIECE = 60, 10


def script(seed: int) -> list[Step]:
    chance = Random(seed)
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    return [(name, chance.getrandbits(32)) for name in names]


@pytest.mark.parametrize("seed", range(3))
def test_the_in_memory_log_and_the_real_broker_agree(
    memory: Any, kafka: Any, listener: type[Any], seed: int
) -> None:
    mine, real = Driver(memory, listener), Driver(kafka, listener)
    steps = script(seed)
    for start in range(0, STEPS, PIECE):
        piece = steps[start : start + PIECE]
        assert mine.play(piece) == real.play(piece), f"seed {seed}, steps from {start}"
        expected, deadline = mine.seen(), time.monotonic() + REST_S
        while (found := real.seen()) != expected:  # markers follow their commit
            assert time.monotonic() < deadline, (
                f"seed {seed}, after {steps[: start + PIECE]}: {found}, {expected}"
            )
    with contextlib.suppress(AssertionError):
        real.end_foreign(Random(0))
