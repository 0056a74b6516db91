"""A real single-node Kafka (KRaft) as a child process: the development store (DESIGN §10).

It writes to `kafka/` in its state directory (`data/` is kept between runs; `kafka.log` is this run's), and
`dev.json` beside it, by which others find it (`pipeline.dev.running`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.dev import jars, running
from pipeline.dev.archive import ClassArchive
from pipeline.dev.process import describe_exit, spawn, stop
from pipeline.dev.settings import LOG4J, server_properties

HOST = "127.0.0.1"
PREFERRED_PORT = 29092
READY_TIMEOUT_S = 60.0
FORMAT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
LAST_LINES = 4
LONGEST_LINE = 300
PROBLEM = re.compile(r"^Caused by|Exception|\b(ERROR|FATAL)\b")
PORT_TRIES = 3

JVM_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
# C1 and the serial collector halve the CPU time of a start; this broker is for development.
QUICK_FLAGS = ("-XX:TieredStopAtLevel=1",)
RUN_FLAGS = (
    "-XX:+ExitOnOutOfMemoryError",
    "--sun-misc-unsafe-memory-access=allow",
)
# They would change the JVM's flags behind our back, and with them void the archive.
FOREIGN_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


class PortTaken(StoreUnreachable):
    """Somebody took the port between our look and the broker's bind: choose another one."""


class EmbeddedBroker:
    """One broker over one state directory; use from the main thread, as a context manager or start/stop.

    `port` is preferred, another is chosen if it is taken; 0 = any free one. `fresh` forgets earlier data.
    `optimise` lets the JVM use its optimising compiler: slower to start, faster once warm.
    """

    def __init__(
        self, state_dir: Path, port: int = 0, fresh: bool = False, *, optimise: bool = False
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._home = self._state_dir / "kafka"
        self._preferred = port
        self._fresh = fresh
        self._flags = JVM_FLAGS if optimise else (*JVM_FLAGS, *QUICK_FLAGS)
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._archive: ClassArchive | None = None
        self._port = 0
        self._server: Mapping[str, str] | None = None
        self._class_path: list[Path] = []

    @property
    def bootstrap(self) -> str:
        """Address for clients, valid once started."""
        return f"{HOST}:{self._port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log_file(self) -> Path:
        return self._home / "kafka.log"

    @property
    def cluster_id(self) -> str:
        """As stored when the data was formatted; StoreUnreachable if that is damaged."""
        properties = self._data / "meta.properties"
        text = properties.read_text() if properties.exists() else ""
        stored = re.search(r"^cluster\.id=(.+)$", text, re.MULTILINE)
        if stored is None:
            raise StoreUnreachable(f"{self._data} is damaged: --fresh forgets it and starts anew")
        return stored[1].strip()

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def start(self) -> None:
        """Return when a client gets metadata from it.

        Raises StoreTaken (another process runs this directory's broker), DevExtraMissing, JarsUnavailable,
        Refused (changed jar), StoreUnreachable (did not start; its last log lines are in the text),
        DuelineError (a directory cannot be used).
        """
        try:
            running.make_private(self._state_dir)
            self._lock = running.hold_lock(self._state_dir)
            self._prepare()
            self._start_on_free_port()
        except OSError as error:
            self.stop()
            raise DuelineError(f"the embedded broker cannot start: {error}") from error
        except BaseException:
            self.stop()
            raise

    def respawn(self) -> subprocess.Popen[bytes]:
        """Start the died broker again on the same port, without waiting for it; the new process."""
        assert self._archive is not None
        self._spawn(self._archive.use_flags())
        self._publish()
        return self.process

    def tell_server(self, url: str | None, prefix: str) -> None:
        """Whoever finds this broker shall find the server beside it; None: there is none now."""
        self._server = None if url is None else {"url": url, "prefix": prefix}
        if self._process is not None:
            self._publish()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_TIMEOUT_S; leaves the data. Does nothing if not started."""
        if self._process is not None:
            running.withdraw(self._state_dir)  # first: nobody new shall find it
            stop(self._process, STOP_TIMEOUT_S)
            self._process = None
        if self._archive is not None:
            self._archive.finish()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        java = jars.java()
        self._class_path = jars.ensure(jars.cache_dir())
        self._archive = ClassArchive(self._class_path[0].parent, java, self._class_path, self._flags)
        running.withdraw(self._state_dir)  # a crashed owner's
        running.make_private(self._home)
        shutil.rmtree(self._home / "tmp", ignore_errors=True)
        (self._home / "tmp").mkdir()
        (self._home / "log4j2.properties").write_text(LOG4J)
        if self._fresh and self._data.exists():
            shutil.rmtree(self._data)
        if not self._data.exists():
            self._format()
        _ = self.cluster_id  # damage shows here, before a JVM is started in vain

    def _format(self) -> None:
        """Into a directory of its own, then renamed: a killed format leaves nothing half made."""
        unfinished = self._home / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        config = self._write_config("format.properties", unfinished, 1, 2)
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # A leading dash would be read as an option.
        cluster_id = cluster_id.replace("-", "a", 1) if cluster_id.startswith("-") else cluster_id
        arguments = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        self._process = self._java([], arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FORMAT_TIMEOUT_S)
        if self._process.returncode != 0:
            raise StoreUnreachable(self._failure("formatting its storage failed"))
        unfinished.rename(self._data)

    def _start_on_free_port(self) -> None:
        assert self._archive is not None
        for attempt in range(PORT_TRIES):
            self._port = free_port(self._preferred if attempt == 0 else 0)
            beside = free_port((self._port + 1) % 65_536)  # not any: it is to be free when it comes back, too
            self._write_config("server.properties", self._data, self._port, beside)
            self._spawn(self._archive.run_flags())
            try:
                self._wait_until_ready()
            except PortTaken:
                if attempt == PORT_TRIES - 1:
                    raise
            else:
                break
        self._publish()
        self._archive.pack()

    def _spawn(self, archive_flags: list[str]) -> None:
        self.log_file.unlink(missing_ok=True)
        properties = str(self._home / "server.properties")
        self._process = self._java([*RUN_FLAGS, *archive_flags], ["kafka.Kafka", properties])

    def _publish(self) -> None:
        store = running.RunningStore(
            bootstrap=self.bootstrap,
            pid=self.pid,
            started_at=time.time_ns() // 1_000_000,
            cluster_id=self.cluster_id,
            server=self._server,
        )
        running.publish(self._state_dir, store)

    def _wait_until_ready(self) -> None:
        # log_level 0: refused connections are what we wait through, not news.
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise self._start_failure()
            try:
                metadata = client.list_topics(timeout=0.5)
            except KafkaException:
                continue
            if str(metadata.cluster_id) == self.cluster_id and metadata.brokers:
                return
        raise StoreUnreachable(self._failure(f"not ready within {READY_TIMEOUT_S:.0f} s"))

    def _start_failure(self) -> StoreUnreachable:
        text = self._failure("it ended")
        return PortTaken(text) if "Address already in use" in text else StoreUnreachable(text)

    def _failure(self, what: str) -> str:
        code = self.process.poll()
        ending = f" ({describe_exit(code)})" if code is not None else ""
        lines = [line for path in (self.log_file, self._output) for line in _telling_lines(path)]
        return "\n  ".join([f"the embedded broker: {what}{ending}, see {self.log_file}", *lines])

    @property
    def _output(self) -> Path:
        return self._home / "kafka.out"

    def _java(self, flags: list[str], command: list[str]) -> subprocess.Popen[bytes]:
        assert self._archive is not None
        environment = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
        argv = [
            *(str(jars.java()), *self._flags, *(flags or self._archive.use_flags())),
            f"-Djava.io.tmpdir={self._home / 'tmp'}",
            f"-Ddueline.log={self.log_file}",
            f"-Dlog4j2.configurationFile={self._home / 'log4j2.properties'}",
            *("-cp", os.pathsep.join(map(str, self._class_path)), *command),
        ]
        with self._output.open("wb") as output:
            return spawn(argv, env=environment, cwd=self._home, stdout=output, stderr=output)

    def _write_config(self, name: str, data: Path, port: int, controller_port: int) -> Path:
        path = self._home / name
        path.write_text(server_properties(data=data, host=HOST, port=port, controller_port=controller_port))
        return path


def free_port(preferred: int) -> int:
    """`preferred` if nobody listens there, else one the system names."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, preferred))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _telling_lines(path: Path) -> list[str]:
    """The last lines of a log that name a problem, or just the last ones."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    telling = [line for line in lines if PROBLEM.search(line)] or lines
    return [line[:LONGEST_LINE] for line in telling[-LAST_LINES:]]
