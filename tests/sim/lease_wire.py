"""One process's connection to the cluster, with the faults that it may have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sim.lease_watch import ACKS
from sim.world import Killed

from pipeline.adapters.memory import MemoryAppender, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster, MemoryRecord
from pipeline.core.errors import StoreUnreachable
from pipeline.ports import Put, Record


class Wire:
    """One process's connection to the cluster; while `cut` it reaches nothing."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.cut = False

    @property
    def reachable(self) -> bool:
        return not self.cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


class LeaseLog(MemoryGroupLog):
    """Delivers late and little. While `deaf` it has not heard that its session is over, and goes on reading."""

    random: Random
    deaf = False

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        return super().poll(self.random.choice([0, 1, 5, limit]), timeout_ms)

    def _rebalance(self) -> None:
        if not self.deaf:
            super()._rebalance()

    def fence(self, *transactional_ids: str) -> None:
        if self._cluster.reachable:
            super().fence(*transactional_ids)

    def close(self) -> None:
        if self._cluster.reachable:
            super().close()


class LateAppender(MemoryAppender):
    """Now and then records wait for a while before they leave, in order. `faults`: the next record for acks is not
    taken ("refused"), or taken and reported as not taken ("unsure")."""

    def __init__(self, wire: Any, random: Callable[[], Random], strike: Callable[[Put], None]) -> None:
        super().__init__(wire)
        self._random, self._strike = random, strike
        self._stalled = False
        self.faults: list[str] = []

    def append(self, put: Put, done: Callable[[Exception | None, int, int], None] | None = None) -> None:
        if put.topic == ACKS:  # else a heartbeat, from a thread of its own
            self._strike(put)
        self._queue.append((put, done))
        self._stalled = self._stalled or self._random().random() < 0.2
        self._send()

    def _append_one(self, put: Put) -> tuple[Exception | None, int, int]:
        fault = self.faults.pop() if self.faults and put.topic == ACKS else None
        if fault != "refused":
            taken = super()._append_one(put)
        return taken if fault is None else (StoreUnreachable(f"{fault} by fault"), -1, -1)

    def _send(self) -> None:
        if not self._stalled:
            super()._send()

    def advance(self) -> None:
        """The client's own thread sends; reports come when they are asked for."""
        self._stalled = self._stalled and self._random().random() < 0.4
        self._send()

    def flush(self, timeout_ms: int) -> None:
        self._stalled = False
        super().flush(timeout_ms)


class Later:
    """An ack transaction made aside, a stage at a time: its process goes on between two of them, or waits for its end.
    Implements `ports.Pending`. It has a thread of its own, but only ever one thread runs: it goes on where `pause`
    was called, and whoever lets it waits until it comes there again."""

    def __init__(self, random: Callable[[], Random], call: Callable[[], None]) -> None:
        self._random, self._call = random, call
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._go, self._halt = threading.Semaphore(0), threading.Semaphore(0)
        self._over = self._killed = False
        self._raised: BaseException | None = None

    def _make(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - told by `result`
            self._raised = error
        self._over = True
        self._halt.release()

    def pause(self) -> None:
        """Called at each stage, by whoever is there."""
        if threading.current_thread() is self._thread:
            self._halt.release()
            self._go.acquire()
            if self._killed:
                raise Killed

    def _go_on(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._halt.acquire()
        if isinstance(self._raised, Killed) and not self._killed:
            raise self._raised

    def advance(self) -> None:
        """Its thread goes on when the loop of its process does not."""
        if not self._over and self._random().random() < 0.9:
            self._go_on()

    def done(self) -> bool:
        self.advance()
        return self._over

    def result(self) -> None:
        while not self._over:
            self._go_on()
        if self._raised is not None:
            raise self._raised

    def kill(self) -> None:
        """Its process is gone: what it has begun stays as it is."""
        self._killed = True
        while self._thread.ident is not None and not self._over:
            self._go_on()


class LeaseReader(MemoryReader):
    """Cut off, it mostly has nothing new; a question of its own fails."""

    random: Random

    def tail(self, topic: str, partition: int, start: int, limit: int) -> Sequence[MemoryRecord]:
        if not self._cluster.reachable and self.random.random() < 0.98:
            return []
        return super().tail(topic, partition, start, min(limit, self.random.choice([3, 20, limit])))
