"""Three real brokers (KRaft, each also a controller) for what one alone cannot show: that one of them dies."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from ports import free_port

from pipeline.dev import jars
from pipeline.dev.broker import HOST, JVM_FLAGS, QUICK_FLAGS, RUN_FLAGS
from pipeline.dev.process import spawn
from pipeline.dev.settings import FIXED, LOG4J

NODES = (1, 2, 3)
READY_S = 90.0
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class Cluster:
    """Use as a context manager; `bootstrap` names all three."""

    def __init__(self, home: Path) -> None:
        self._home = home
        ports = [free_port() for _ in range(2 * len(NODES))]
        self._ports = dict(zip(NODES, zip(ports[::2], ports[1::2], strict=True), strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port, _ in self._ports.values())

    def __enter__(self) -> Self:
        cluster_id = "a" + urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()[1:]
        try:
            for node in NODES:
                self._format(node, cluster_id)
            for node in NODES:
                self.start(node)
            self.wait_until(set(NODES))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _format(self, node: int, cluster_id: str) -> None:
        home = self._home / str(node)
        home.mkdir(parents=True)
        (home / "log4j2.properties").write_text(LOG4J)
        (home / "server.properties").write_text(self._properties(node))
        config = str(home / "server.properties")
        done = self._java(node, ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config])
        assert done.wait(READY_S) == 0, (home / "out").read_text()

    def _properties(self, node: int) -> str:
        port, controller = self._ports[node]
        voters = ",".join(f"{n}@{HOST}:{ports[1]}" for n, ports in self._ports.items())
        settings = {
            **FIXED,
            **REPLICATED,
            "node.id": str(node),
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._home / str(node) / "data"),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _java(self, node: int, command: list[str]) -> subprocess.Popen[bytes]:
        home = self._home / str(node)
        class_path = ":".join(map(str, jars.ensure(jars.cache_dir())))
        argv = [
            *(str(jars.java()), *JVM_FLAGS, *QUICK_FLAGS, *RUN_FLAGS),
            f"-Ddueline.log={home / 'kafka.log'}",
            f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
            *("-cp", class_path, *command),
        ]
        with (home / "out").open("ab") as output:
            return spawn(argv, env={}, cwd=home, stdout=output, stderr=output)

    def start(self, node: int) -> None:
        config = str(self._home / str(node) / "server.properties")
        self.processes[node] = self._java(node, ["kafka.Kafka", config])

    def kill(self, node: int) -> None:
        """kill -9."""
        self.processes[node].kill()
        self.processes[node].wait()

    def wait_until(self, nodes: set[int]) -> None:
        """Until exactly these are brokers of the cluster."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + READY_S
        while self._seen(client) != nodes:
            assert time.monotonic() < deadline, f"no cluster of {nodes} within {READY_S:.0f} s"
            time.sleep(0.1)

    @staticmethod
    def _seen(client: AdminClient) -> set[int]:
        try:
            return set(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return set()

    def leader(self, topic: str, partition: int) -> int:
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return int(client.list_topics(topic, timeout=10.0).topics[topic].partitions[partition].leader)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self._home, ignore_errors=True)
