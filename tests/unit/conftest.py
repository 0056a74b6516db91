"""A store in memory for the client, the read model and the command line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline import Dueline, codec
from pipeline.adapters.memory import MemoryClock, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster, MemoryRecord
from pipeline.adapters.memory_feed import MemoryFeed
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.client import Parts
from pipeline.core import keys
from pipeline.core.errors import StoreUnreachable
from pipeline.core.job import Ack, AckState, Command, Event, Heartbeat, Run
from pipeline.core.layout import Layout, default_layout
from pipeline.core.names import Names
from pipeline.follower import Follower
from pipeline.ports import GroupProgress, Put

T0 = 1_800_000_000_000
"""2027-01-15T08:00:00Z."""

Report = Callable[[Exception | None, int, int], None]


class FakeAppender:
    """An `Appender` that any thread may use, as the real one; reports wait for a `poll`, and for `silent`."""

    def __init__(self, cluster: MemoryCluster, seen: Callable[[MemoryRecord], None]) -> None:
        self._seen = seen
        self.silent = False
        self.closed = False
        self.refused: Exception | None = None
        self._cluster = cluster
        self._news = threading.Condition()
        self._reports: deque[Callable[[], None]] = deque()

    def append(self, put: Put, done: Report | None = None) -> None:
        with self._news:
            offset, at = -1, -1
            if self.refused is None:
                record = self._cluster.append(put)
                self._seen(record)
                offset, at = record.offset(), record.timestamp()[1]
            if done is not None:
                error = self.refused
                self._reports.append(lambda: done(error, offset, at))
            self._news.notify_all()

    def poll(self, timeout_ms: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._reports and not self.silent, timeout_ms / 1000)
            due = [] if self.silent else [self._reports.popleft() for _ in range(len(self._reports))]
        for report in due:
            report()

    def flush(self, timeout_ms: int) -> None:
        if self.silent:
            raise StoreUnreachable("silent")
        self.poll(0)

    def close(self) -> None:
        self.closed = True
        self.refused = RuntimeError("closed")


class Store:
    """An installation in memory, with what its dispatchers and workers would write to it."""

    def __init__(self) -> None:
        self.names = Names("unit")
        self.layout = default_layout(queues={"default": 3})
        self.clock = MemoryClock(T0)
        self.cluster = MemoryCluster(self.clock.now)
        self.appenders: list[FakeAppender] = []
        self.commands: list[Command] = []
        self.owner: Callable[[Command], Mapping[str, Any] | None] = lambda _command: None
        """Answers a command with the fields of its event, or with None not at all."""
        self.cluster.create_topic(self.names.jobs, self.layout.partitions)
        self.cluster.create_topic(self.names.events, self.layout.partitions)
        self.cluster.create_topic(self.names.fleet, 2)
        self.add_queues({"default": 3})

    def add_queues(self, queues: Mapping[str, int]) -> None:
        self.layout = default_layout(queues={**self.layout.queues, **queues})
        for queue, count in queues.items():
            self.cluster.create_topic(self.names.work(queue), count)
            self.cluster.create_topic(self.names.acks(queue), count)

    def connect(self, _settings: object = None) -> Parts:
        self.appenders.append(FakeAppender(self.cluster, self._asked))
        reader = MemoryReader(self.cluster)
        return Parts(
            appender=self.appenders[-1],
            clock=self.clock,
            reader=reader,
            names=self.names,
            load_layout=self._load_layout,
            finder=lambda layout: Follower(reader=reader, names=self.names, layout=layout),
            open_feed=lambda: MemoryFeed(self.cluster, self.names.events),
            group_progress=self._progress,
            open_scan=lambda: MemoryScan(self.cluster),
        )

    def _asked(self, record: MemoryRecord) -> None:
        """An owner that executes every command at once."""
        value = record.value()
        if not record.key().startswith(b"c/") or value is None:
            return
        command = codec.COMMAND.decode(value)
        assert record.key() == keys.command_key(command.command_id)
        self.commands.append(command)
        fields = self.owner(command)
        if fields is not None:
            self.tell(record.partition(), command.command_id, **fields)

    def tell(self, partition: int, command_id: str, **fields: Any) -> None:
        """An answer on `events`."""
        values = {
            "id": command_id,
            "kind": "answer",
            "at": self.clock.now(),
            "command_id": command_id,
            **fields,
        }
        self._append(self.names.events, partition, command_id.encode(), codec.EVENT.encode(Event(**values)))

    def _progress(self, group: str, topic: str, partitions: int) -> list[GroupProgress]:
        committed = self.cluster.group(group, topic).committed
        logs = [self.cluster.partition(topic, number) for number in range(partitions)]
        offsets = (committed.get(number) for number in range(partitions))
        return [
            GroupProgress(committed=offset and offset.offset, low=log.start, end=log.end)
            for offset, log in zip(offsets, logs, strict=True)
        ]

    def _load_layout(self) -> Layout:
        if not self.cluster.reachable:
            raise StoreUnreachable("no broker can be reached")
        return self.layout

    @property
    def follower(self) -> Follower:
        return Follower(reader=MemoryReader(self.cluster), names=self.names, layout=self.layout)

    def jobs(self) -> list[MemoryRecord]:
        """Every record on `jobs`, partition after partition."""
        return [
            record
            for partition in range(self.layout.partitions)
            for record in self.cluster.partition(self.names.jobs, partition).read(0, 100_000)[0]
        ]

    def runs(self) -> list[Run]:
        return [codec.RUN.decode(value) for record in self.jobs() if (value := record.value()) is not None]

    # -- what owners write ----------------------------------------------------------------------------------

    def put(self, run: Run) -> None:
        """The record of a pending job, or of a retry."""
        key = keys.job_key(run.job_id) if run.run == 1 else keys.retry_key(run.occurrence_id, run.run - 1)
        self._append(self.names.jobs, self.layout.home(run.job_id), key, codec.RUN.encode(run))

    def end(self, run: Run, end: str, *, place: str | None = None) -> None:
        """The tombstone of that record."""
        key = keys.job_key(run.job_id) if run.run == 1 else keys.retry_key(run.occurrence_id, run.run - 1)
        headers = [("end", end.encode()), ("run", b"%d" % run.run)]
        if place is not None:
            headers.append(("work", place.encode()))
        self.cluster.append(Put(self.names.jobs, self.layout.home(run.job_id), key, None, headers))

    def fire(self, run: Run) -> None:
        partition = self._work(run)
        key = run.occurrence_id.encode()
        self._append(self.names.work(run.queue), partition, key, codec.RUN.encode(run))
        self.end(run, "fired", place=f"{run.queue}/{partition}")

    def ack(self, run: Run, state: AckState, attempt: int = 1, **more: Any) -> None:
        token = run.run * 1000 + attempt
        ack = Ack(
            job_id=run.job_id,
            occurrence_id=run.occurrence_id,
            run=run.run,
            attempt=attempt,
            token=token,
            worker="w1",
            handler=run.handler,
            state=state,
            at=self.clock.now(),
            **{"work_offset": 0, **more},
        )
        key = (
            keys.terminal_key(run.occurrence_id, run.run, attempt)
            if state.terminal
            else keys.started_key(run.occurrence_id, run.run, token)
        )
        self._append(self.names.acks(run.queue), self._work(run), key, codec.ACK.encode(ack))

    def beat(self, process: str, **fields: Any) -> None:
        heartbeat = Heartbeat(
            process=process,
            **{
                "role": "worker",
                "version": "0",
                "host": "h",
                "pid": 1,
                "started_at": T0,
                "generation": 1,
                **fields,
            },
        )
        self._append(self.names.fleet, 0, process.encode(), codec.HEARTBEAT.encode(heartbeat))

    def leave(self, process: str) -> None:
        self._append(self.names.fleet, 0, process.encode(), None)

    def _work(self, run: Run) -> int:
        return self.layout.work_partition(run.queue, run.serial or run.job_id)

    def _append(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        self.cluster.append(Put(topic, partition, key, value))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def app(store: Store, tmp_path: Path) -> Iterator[Dueline]:
    """A client of `store`."""
    app = Dueline(connect=store.connect, state_dir=str(tmp_path))
    yield app
    app.close()
