"""Where it is measured: which Kafka, and an installation of its own for each shape."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipeline.adapters.kafka_admin import ensure_topics, topic_admin
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.store_clock import kafka_clock
from pipeline.client import Dueline
from pipeline.config import Settings, load_settings, running_dev_store
from pipeline.core.errors import InvalidInput
from pipeline.core.layout import Layout
from pipeline.dev import jars
from pipeline.dev.bench.handlers import APP
from pipeline.dev.bench.load import far, jobs
from pipeline.dev.bench.marks import VARIABLE, MarkReader
from pipeline.dev.bench.observer import Observer, due_of_anonymous
from pipeline.dev.bench.process import DispatcherProcess, OwnerProcess, ServerProcess, WorkerProcess
from pipeline.dev.broker import EmbeddedBroker
from pipeline.dev.demo.watch import store_ahead_ms

STORE_TIMEOUT_MS = 10_000
DELETE_TIMEOUT_S = 10.0
SERVER_RATE = 1_000_000
Tell = Callable[[str], None]
P = TypeVar("P", bound=OwnerProcess)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """`kind` is `embedded` (started here), `running` (of a `dueline dev`) or `external` (told)."""

    kind: str
    bootstrap: str


@contextmanager
def opened(told: str | None, directory: Path, tell: Tell) -> Iterator[Store]:
    """`told` wins over DUELINE_BOOTSTRAP_SERVERS, that over a running `dueline dev`, that over a broker of our
    own in `directory`, whose JVM may optimise. KAFKA_BOOTSTRAP_SERVERS is somebody's cluster."""
    shell = load_settings()
    if told is None and shell.source("bootstrap_servers") == "DUELINE_BOOTSTRAP_SERVERS":
        told = shell.bootstrap_servers
    found = told or running_dev_store(shell.state_dir)
    if found is not None:
        kind = "external" if told else "running"
        tell(f"store: {'the Kafka you named' if told else 'the Kafka of `dueline dev`'}, at {found}")
        try:
            topic_admin(load_settings(bootstrap_servers=found)).cluster_id()
        except InvalidInput as error:
            raise InvalidInput("store", error.problem) from error
        yield Store(kind=kind, bootstrap=found)
        return
    if not jars.complete(jars.cache_dir()):
        tell(f"fetching Kafka {jars.KAFKA_VERSION} (44 MB, once)")
    with EmbeddedBroker(directory / "broker", optimise=True) as broker:
        tell(f"store: Kafka {jars.KAFKA_VERSION}, started here, at {broker.bootstrap}")
        yield Store(kind="embedded", bootstrap=broker.bootstrap)


class Site:
    """One installation under a prefix that nobody else has, its client, its dispatchers and workers. Use from the
    main thread; what it opens is closed with `stack`, which also deletes its topics."""

    def __init__(self, store: Store, directory: Path, stack: ExitStack) -> None:
        prefix = f"bench-{secrets.token_hex(4)}"
        self.directory = directory / prefix
        self.directory.mkdir()
        kafka = load_settings().kafka if store.kind == "external" else {}
        self.settings = Settings(
            bootstrap_servers=store.bootstrap,
            prefix=prefix,
            state_dir=self.directory / "state",
            store_timeout_ms=STORE_TIMEOUT_MS,
            kafka=kafka,
        )
        stack.callback(_forget, self.settings)
        self.layout: Layout = ensure_topics(self.settings).layout
        self.app = stack.enter_context(
            closing(
                Dueline(
                    bootstrap_servers=store.bootstrap,
                    prefix=prefix,
                    state_dir=str(self.settings.state_dir),
                    store_timeout_ms=STORE_TIMEOUT_MS,
                    kafka=dict(kafka),
                )
            )
        )
        self.appender = stack.enter_context(closing(KafkaAppender(store.bootstrap, kafka)))
        self.store_ahead = store_ahead_ms(self.appender, self.settings.names.fleet)
        self._clock = stack.enter_context(
            closing(kafka_clock(store.bootstrap, self.settings.names.fleet, kafka))
        )
        self._stack = stack
        self._owners: list[OwnerProcess] = []
        self.create(far(1, self.now()))  # the client connects at first use, which is no part of any figure

    @property
    def work_partitions(self) -> int:
        return self.layout.queues[self.settings.queue]

    def now(self) -> int:
        """The store's time, epoch ms."""
        return self._clock.now()

    def create(self, dues: Iterable[int]) -> list[str]:
        """Store jobs due then; their ids. Each is acknowledged when this returns."""
        return [ref.id for ref in self.app.schedule_many(jobs(iter(dues)))]

    def create_blindly(self, dues: Iterable[int]) -> None:
        """`create` of more jobs than their ids would fit in memory."""
        for _ in self.app.schedule_many(jobs(iter(dues))):
            pass

    def dispatcher(self, *, state: Path | None = None) -> DispatcherProcess:
        """Start one; it is stopped with the site, if it still runs then. `state`: a directory of its own, so that it
        finds no index of an earlier one."""
        state = state or self.settings.state_dir
        process = DispatcherProcess(self.settings, state, self._log("dispatcher"))
        return self._kept(process)

    def worker(self, *, concurrency: int) -> WorkerProcess:
        """Start one of the bench's own handlers; it is stopped with the site, if it still runs then."""
        options = "--app", APP, "--concurrency", str(concurrency)
        marks = {VARIABLE: str(self.directory)}
        state = self.settings.state_dir
        return self._kept(WorkerProcess(self.settings, state, self._log("worker"), *options, more=marks))

    def server(self) -> ServerProcess:
        """Start one that limits nobody's rate; it is stopped with the site, if it still runs then."""
        rate, state = {"DUELINE_SERVER_RATE": str(SERVER_RATE)}, self.settings.state_dir
        return self._kept(ServerProcess(self.settings, state, self._log("server"), "--port", "0", more=rate))

    def _log(self, role: str) -> Path:
        return self.directory / f"{role}-{len(self._owners) + 1}.log"

    def _kept(self, process: P) -> P:
        self._owners.append(process)
        self._stack.callback(process.end)
        return process

    def end(self) -> None:
        """End all that were started here, in order: what they have begun is done then."""
        for process in self._owners:
            process.end()

    def marks(self) -> MarkReader:
        """When the handlers of this site's workers began."""
        return MarkReader(self.directory)

    def observer(self, due_in: Callable[[bytes], int] = due_of_anonymous) -> Observer:
        """Of the work topic, from its end on. `due_in` reads a due time from a record key."""
        return Observer(
            self.settings,
            self.settings.names.work(self.settings.queue),
            self.work_partitions,
            store_ahead=self.store_ahead,
            due_in=due_in,
        )


def _forget(settings: Settings) -> None:
    """Delete the topics and the groups of this prefix. What cannot be deleted stays: the figures are taken."""
    admin = AdminClient({**settings.client_config(), "log_level": 0})
    with suppress(KafkaException, TimeoutError):
        present = admin.list_topics(timeout=DELETE_TIMEOUT_S).topics
        topics = [topic for topic in present if topic.startswith(f"{settings.prefix}.")]
        futures = list(admin.delete_topics(topics, operation_timeout=DELETE_TIMEOUT_S).values())
        groups = [settings.names.dispatcher_group, settings.names.worker_group(settings.queue)]
        futures += admin.delete_consumer_groups(groups, request_timeout=DELETE_TIMEOUT_S).values()
        for future in futures:
            with suppress(KafkaException):  # a group that nobody joined
                future.result(DELETE_TIMEOUT_S)


@contextmanager
def site(store: Store, directory: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(store, directory, stack)
