"""Real processes of an installation on the real broker, and what the topics say afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from decided import decided

from pipeline import Dueline, codec
from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.config import Settings, load_settings
from pipeline.core.job import Ack, Run
from pipeline.ports import Record


class Fleet:
    """Dispatchers and workers as subprocesses, one state directory, one prefix. Events of all go to one file."""

    def __init__(self, bootstrap: str, prefix: str, home: Path, app: str) -> None:
        self.settings: Settings = load_settings(
            bootstrap_servers=bootstrap, prefix=prefix, state_dir=home / "state", store_timeout_ms=20_000
        )
        ensure_topics(self.settings)
        self.home = home
        (home / "shop.py").write_text(app)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = (home / "fleet.log").open("ab")
        self._environment = {
            **os.environ,
            "DUELINE_BOOTSTRAP_SERVERS": bootstrap,
            "DUELINE_PREFIX": prefix,
            "DUELINE_STATE_DIR": str(home / "state"),
        }
        self.client = Dueline(bootstrap_servers=bootstrap, prefix=prefix, state_dir=str(home / "state"))
        self.reader = KafkaReader(bootstrap)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            cwd=self.home,
            env={**self._environment, **environment},
            stdout=self._log,
            stderr=self._log,
        )
        self._processes.append(process)
        return process

    def dispatcher(self) -> subprocess.Popen[bytes]:
        return self.start("dispatcher")

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start("worker", "--app", "shop:app", *arguments)

    def patient(self) -> dict[str, str]:
        """The environment of a process whose transactions stay open for up to a minute and not ten seconds, within
        which a busy machine may not come to anything. No user can set that."""
        place = self.home / "patient"
        place.mkdir()
        (place / "sitecustomize.py").write_text(
            "from pipeline.adapters import kafka_txn\nkafka_txn.TRANSACTION_TIMEOUT_MS = 60_000\n"
        )
        return {"PYTHONPATH": str(place)}

    def log(self) -> str:
        return (self.home / "fleet.log").read_text("utf-8", "replace")

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        self.client.close()
        self.reader.close()

    # -- what the topics say --------------------------------------------------------------------------------

    def records(self, topic: str) -> list[Record]:
        partitions = range(self.reader.partitions(topic))
        return [record for n in partitions for record in self.reader.read(topic, n)]

    def decided(self, *topics: str) -> None:
        """Wait until what was committed on these can be read: the markers of a transaction follow its commit, on each
        partition in its own time."""
        for topic in topics:
            decided(self.settings.require_bootstrap(), topic, *range(self.reader.partitions(topic)))

    def work(self) -> list[tuple[Run, int]]:
        """(run, LogAppendTime) of all committed work records."""
        records = self.records(self.settings.names.work("default"))
        return [(codec.RUN.decode(r.value() or b""), r.timestamp()[1]) for r in records]

    def acks(self, kind: bytes) -> list[Ack]:
        records = self.records(self.settings.names.acks("default"))
        return [codec.ACK.decode(r.value() or b"") for r in records if (r.key() or b"").startswith(kind)]

    def outcomes(self) -> Counter[str]:
        return Counter(str(ack.state) for ack in self.acks(b"t/"))


@contextmanager
def fleet(bootstrap: str, prefix: str, home: Path, app: str) -> Iterator[Fleet]:
    made = Fleet(bootstrap, prefix, home, app)
    try:
        yield made
    finally:
        made.close()


Eventually = Callable[..., Any]
