"""An installation of its own on the real broker: dispatcher processes to be struck, jobs that come due meanwhile,
readers that wait for them, and what the topics say afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from history import Anomaly, Ended, Fired, anomalies, worst_lateness

from pipeline import Dueline, codec
from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.config import Settings, load_settings
from pipeline.core.topics import Wish

WISH = Wish(shards=2, ring=4, bucket_width_ms=250, queues={"default": 4})
"""Few partitions, so that an installation is made quickly; narrow buckets, so that all are in use at once."""
PARTITIONS = 8
WORK_PARTITIONS = 4
JOB = b"j/"
KILL_POINT, NEGATIVE_CONTROL = "DUELINE_KILL_POINT", "DUELINE_NEGATIVE_CONTROL"


def until(condition: Callable[[], object], what: str, timeout: float = 40.0) -> None:
    """Wait for a condition; AssertionError saying what did not come true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Probe:
    """A consumer that waits on every partition of the work topic, as a worker does, and notes when it saw what."""

    def __init__(self, bootstrap: str, topic: str, isolation: str) -> None:
        self.seen: dict[str, int] = {}
        """Instant (ms) at which each occurrence came first."""
        self.records = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "probe",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(WORK_PARTITIONS)])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="probe", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.records += 1
                    self.seen.setdefault((message.key() or b"").decode(), now_ms())

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)
        self._consumer.close()


class Actor:
    """A dispatcher process; its events are read from its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def running(self) -> set[int]:
        """Partitions that it fires for, as far as it has said."""
        owned: set[int] = set()
        for event in self.events():
            match event["action"]:
                case "running":
                    owned |= {*event["partitions"]}
                case "revoked" | "lost":
                    owned -= {*event["partitions"]}
                case "rebuild":
                    owned.clear()
        return owned

    def assigned(self) -> bool:
        return any(event["action"] == "assigned" and event["partitions"] for event in self.events())

    def frozen(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def killed(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")


class Stage:
    def __init__(self, bootstrap: str, home: Path) -> None:
        prefix = f"n{uuid.uuid4().hex[:12]}"
        home.mkdir(parents=True, exist_ok=True)
        self._bootstrap, self._home = bootstrap, home
        self.settings: Settings = load_settings(
            bootstrap_servers=bootstrap, prefix=prefix, state_dir=home / "state", store_timeout_ms=20_000
        )
        ensure_topics(self.settings, wish=WISH)
        self.created: dict[str, int] = {}
        self.actors: list[Actor] = []
        self._client = Dueline(bootstrap_servers=bootstrap, prefix=prefix, state_dir=str(home / "state"))
        self._reader = KafkaReader(bootstrap)
        self.work = self.settings.names.work("default")
        self.committed = Probe(bootstrap, self.work, "read_committed")
        self.appended = Probe(bootstrap, self.work, "read_uncommitted")

    def dispatcher(self, name: str, *, point: str = "", control: str = "") -> Actor:
        log = self._home / f"{name}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DUELINE_", "COVERAGE_"))}
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "dispatcher"],
                cwd=Path(__file__).parents[2],
                env={
                    **inherited,
                    "DUELINE_BOOTSTRAP_SERVERS": self._bootstrap,
                    "DUELINE_PREFIX": self.settings.prefix,
                    "DUELINE_STATE_DIR": str(self.settings.state_dir),
                    KILL_POINT: point,
                    NEGATIVE_CONTROL: control,
                },
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        self.actors.append(Actor(process, log))
        return self.actors[-1]

    def covered(self, *actors: Actor) -> bool:
        """Whether these run all partitions between them, each at least one."""
        owned = [actor.running() for actor in actors]
        return all(owned) and set().union(*owned) == set(range(PARTITIONS))

    def create(self, count: int, *, first_in_ms: int, apart_ms: int) -> None:
        """Jobs due one after another (or at one instant), acknowledged when this returns."""
        first = now_ms() + first_in_ms
        dues = [first + n * apart_ms for n in range(count)]
        jobs = [
            {"handler": "h", "payload": {}, "at": datetime.fromtimestamp(due / 1000, UTC)} for due in dues
        ]
        refs = self._client.schedule_many(jobs)
        self.created |= {ref.id: due for ref, due in zip(refs, dues, strict=True)}

    def seen(self, due_before: int | None = None) -> bool:
        """Whether the waiting reader has had every job, or every one due before that instant."""
        return all(
            job in self.committed.seen
            for job, due in self.created.items()
            if due_before is None or due < due_before
        )

    def in_hand(self) -> int:
        """Records on the work topic, undecided ones too; exact before the first transaction on it has ended."""
        return sum(self._ends(self.work, WORK_PARTITIONS, "read_uncommitted"))

    def finish(self) -> None:
        """All processes leave in order; none has a transaction open then."""
        for actor in self.actors:
            if actor.process.poll() is None:
                actor.process.terminate()
        for actor in self.actors:
            actor.process.wait(30)
        until(self._decided, "no transaction is open")

    def _decided(self) -> bool:
        return all(
            stable == end
            for topic, count in ((self.work, WORK_PARTITIONS), (self.settings.names.jobs, PARTITIONS))
            for stable, end in zip(
                self._ends(topic, count, "read_committed"),
                self._ends(topic, count, "read_uncommitted"),
                strict=True,
            )
        )

    def _ends(self, topic: str, count: int, isolation: str) -> list[int]:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "probe", "isolation.level": isolation}
        )
        try:
            return [consumer.get_watermark_offsets(TopicPartition(topic, n), 10)[1] for n in range(count)]
        finally:
            consumer.close()

    # -- what the topics say ------------------------------------------------------------------------------

    def anomalies(self) -> list[Anomaly]:
        return anomalies(self.created, self._fired(), self._ended())

    def worst_lateness(self) -> int:
        return worst_lateness(self.created, self.committed.seen)

    def _fired(self) -> Iterator[Fired]:
        for partition in range(WORK_PARTITIONS):
            for record in self._reader.read(self.work, partition):
                run = codec.RUN.decode(record.value() or b"")
                yield Fired(
                    occurrence=run.occurrence_id,
                    run=run.run,
                    due_at=run.due_at,
                    appended_at=record.timestamp()[1],
                    place=f"default/{partition}",
                )

    def _ended(self) -> Iterator[Ended]:
        for partition in range(PARTITIONS):
            for record in self._reader.read(self.settings.names.jobs, partition):
                key = record.key() or b""
                if record.value() is None and key.startswith(JOB):
                    headers = {name: (value or b"").decode() for name, value in record.headers() or ()}
                    yield Ended(
                        occurrence=key[len(JOB) :].decode(),
                        end=headers.get("end", ""),
                        place=headers.get("work", ""),
                    )

    def close(self) -> None:
        for actor in self.actors:
            if actor.process.poll() is None:
                actor.process.kill()
                actor.process.wait(10)
        for closing in (self.committed, self.appended, self._client, self._reader):
            closing.close()

    def logs(self) -> str:
        return "\n".join(f"--- {actor.process.args}\n{actor.log()}" for actor in self.actors)


@contextmanager
def stage(bootstrap: str, home: Path) -> Iterator[Stage]:
    built = Stage(bootstrap, home)
    try:
        yield built
    except AssertionError as failed:
        failed.add_note(built.logs())
        raise
    finally:
        built.close()
