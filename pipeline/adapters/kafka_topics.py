"""Topics on a live cluster: described, made, altered. What is planned and what differs is decided in
`pipeline.core.topics`; here the cluster is asked and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    TopicDescription,
)

from pipeline.adapters.kafka_meta import Meta, MetaTopic, asking, quiet
from pipeline.adapters.kafka_settings import constructing
from pipeline.config import LOWEST_SESSION_MS
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.names import Names
from pipeline.core.topics import LiveTopic, TopicPlan

T = TypeVar("T")

STOCK_SESSION_MS = 6000
"""`group.min.session.timeout.ms` of a broker that was told nothing; for clusters that do not let us ask."""
STOCK_CONSUMER_SESSION_MS = 45_000
"""The same of `group.consumer.session.timeout.ms`, of the protocol `consumer`."""
SETTLE_S, LOOK_S = 2.0, 0.1
"""How long what should be there is looked for, and how often."""
GROUP_SESSION, GROUP_HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of one live topic."""

    topic_id: str
    partitions: int
    replication: int
    led: bool


class TopicAdmin:
    """Asks and tells one cluster about the topics of one installation. Every call ends within `timeout_ms`:
    StoreUnreachable if no broker answered, Refused if a broker forbids it."""

    def __init__(self, config: Mapping[str, str], names: Names, *, timeout_ms: int = 7_000) -> None:
        self._config = config
        self._names = names
        self._timeout_s = timeout_ms / 1000
        with asking("starting the client", config):
            self._client = AdminClient(quiet(config))
        self.meta = MetaTopic(config, names, timeout_ms=timeout_ms)

    # -- asking ---------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        return str(cluster(self._config, self._names, self._timeout_s).cluster_id)

    def brokers(self) -> int:
        """Number of live brokers."""
        return len(cluster(self._config, self._names, self._timeout_s).brokers)

    def topic_id(self, name: str) -> str:
        """Identity of a topic, another one after it was deleted and made anew (H13)."""
        return self._shape(name, self.shapes_expected([name])).topic_id

    def partitions(self, name: str) -> int:
        return self._shape(name, self.shapes([name])).partitions

    def lowest_session_timeout(self) -> int:
        """The shortest session that every broker allows, in ms, not under 3 s (DESIGN §10)."""
        return self._lowest("group.min.session.timeout.ms", LOWEST_SESSION_MS, STOCK_SESSION_MS)

    def _lowest(self, setting: str, least: int, stock: int) -> int:
        """The most that any broker asks for, at least `least`; `stock` where we may not ask."""
        ids = cluster(self._config, self._names, self._timeout_s).brokers
        brokers = [ConfigResource(ConfigResource.Type.BROKER, str(id_)) for id_ in ids]
        try:
            # The client takes one broker a call.
            answers = [answer for broker in brokers for answer in self._configs([broker]).values()]
        except Refused:
            return stock
        return max([least, *(int(answer[setting]) for answer in answers if setting in answer)])

    def consumer_session(self, group: str, wanted_ms: int | None) -> int:
        """Session of `group` under the protocol `consumer` in ms, where it is a setting of the group: made
        `wanted_ms`, else the lowest the brokers allow. Refused if they forbid what was wanted; where nothing was,
        the session stays as it is."""
        session = wanted_ms or self._lowest(
            "group.consumer.min.session.timeout.ms", LOWEST_SESSION_MS, STOCK_CONSUMER_SESSION_MS
        )
        heartbeat = self._lowest(
            "group.consumer.min.heartbeat.interval.ms", session // 6, STOCK_CONSUMER_SESSION_MS // 9
        )
        resource = ConfigResource(ConfigResource.Type.GROUP, group)
        wish = {GROUP_SESSION: str(session), GROUP_HEARTBEAT: str(heartbeat)}
        try:
            found = self._configs([resource]).get(group, {})
            if any(found.get(name) != value for name, value in wish.items()):
                self._alter(ConfigResource.Type.GROUP, group, wish)
        except Refused:
            if wanted_ms is not None:
                raise
            return STOCK_CONSUMER_SESSION_MS
        return session

    def shapes(self, names: Iterable[str]) -> dict[str, Shape]:
        """Those of the topics that exist."""
        with asking("describing topics", self._config):
            futures = self._client.describe_topics(
                TopicCollection(list(names)), request_timeout=self._timeout_s
            )
            found = {name: self._known(future) for name, future in futures.items()}
        return {name: _shape(topic) for name, topic in found.items() if topic is not None}

    def live(self, names: Iterable[str]) -> dict[str, LiveTopic]:
        """Those of the topics that exist, with all their settings."""
        shapes = self.shapes(names)
        settings = self._configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in shapes])
        return {
            name: LiveTopic(
                name=name,
                partitions=shape.partitions,
                replication=shape.replication,
                settings=settings[name],
            )
            for name, shape in shapes.items()
            if name in settings
        }

    def meta_if_present(self) -> Meta:
        """What stands on `meta`; nothing if the topic does not exist."""
        return self.meta.read() if self.shapes([self._names.meta]) else Meta()

    def meta_expected(self) -> Meta:
        """The same, of an installation that should be there."""
        return self._expected(self.meta_if_present, lambda meta: meta.layout is not None)

    def shapes_expected(self, names: Sequence[str]) -> dict[str, Shape]:
        """As `shapes`, of topics that should be there."""
        return self._expected(lambda: self.shapes(names), lambda found: len(found) == len(names))

    def _expected(self, look: Callable[[], T], complete: Callable[[T], bool]) -> T:
        """What `look` finds, looked for again for a while: a broker that has just come back knows no topic at first,
        and a process that is told so ends as refused."""
        deadline = time.monotonic() + SETTLE_S
        while not complete(found := look()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return found

    # -- telling --------------------------------------------------------------------------------------------

    def create(self, plans: Iterable[TopicPlan]) -> list[str]:
        """Create what is missing and wait until all of them have leaders; the names that were created here.
        What exists is left as it is."""
        plans = list(plans)
        present = self.shapes(plan.name for plan in plans)
        missing = [_new_topic(plan) for plan in plans if plan.name not in present]
        created: list[str] = []
        if missing:
            with asking("creating topics", self._config):
                futures = self._client.create_topics(missing, request_timeout=self._timeout_s)
                created = [name for name, future in futures.items() if self._created(future)]
        self._await_leaders([plan.name for plan in plans])
        return created

    def grow(self, name: str, partitions: int) -> None:
        with asking(f"growing {name}", self._config):
            wish = [NewPartitions(name, partitions)]
            self._result(self._client.create_partitions(wish, request_timeout=self._timeout_s)[name])
        self._await_leaders([name])

    def alter(self, name: str, settings: Mapping[str, str]) -> None:
        """Change these settings of a topic and no others."""
        self._alter(ConfigResource.Type.TOPIC, name, settings)

    def _alter(self, kind: Any, name: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        with asking(f"altering {name}", self._config):
            futures = self._client.incremental_alter_configs([resource], request_timeout=self._timeout_s)
            self._result(futures[resource])

    # -- the client -----------------------------------------------------------------------------------------

    def _shape(self, name: str, found: Mapping[str, Shape]) -> Shape:
        if name not in found:
            raise Refused(f"topic {name} is missing: run `dueline topics create`")
        return found[name]

    def _configs(self, resources: list[ConfigResource]) -> dict[str, dict[str, str]]:
        if not resources:
            return {}
        with asking("describing settings", self._config):
            futures = self._client.describe_configs(resources, request_timeout=self._timeout_s)
            found = {resource.name: self._known(future) for resource, future in futures.items()}
        return {
            name: {setting: entry.value for setting, entry in entries.items()}
            for name, entries in found.items()
            if entries is not None
        }

    def _await_leaders(self, names: list[str]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            shapes = self.shapes(names)
            waiting = [name for name in names if name not in shapes or not shapes[name].led]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise StoreUnreachable(f"no leader after {self._timeout_s:g} s: {', '.join(waiting)}")
            time.sleep(0.05)

    def _result(self, future: Future[T]) -> T:
        return future.result(self._timeout_s + 1)  # the client's own time-out comes first and says more

    def _known(self, future: Future[T]) -> T | None:
        """The answer, or None if the broker does not know the topic (yet: each learns of it by itself)."""
        try:
            return self._result(future)
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise
            return None

    def _created(self, future: Future[None]) -> bool:
        try:
            self._result(future)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
            return False  # another `topics create` was faster
        return True


def cluster(config: Mapping[str, str], names: Names, timeout_s: float) -> ClusterMetadata:
    """Its id and its live brokers, by number; StoreUnreachable if none is alive for so long.

    Asked by a consumer: the admin client's own question ends the process (an assertion of the C library) if the answer
    names no broker, which is what a store says whose only broker stood still for a moment.
    """
    with constructing():
        consumer = Consumer(
            {**quiet(config), "group.id": f"{names.prefix}.cluster", "enable.auto.commit": False}
        )
    deadline = time.monotonic() + timeout_s
    try:
        with asking("describing the cluster", config):
            while True:
                found: ClusterMetadata = consumer.list_topics(names.meta, timeout_s)
                if found.brokers:
                    return found
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(LOOK_S)
    finally:
        consumer.close()


def _new_topic(plan: TopicPlan) -> NewTopic:
    return NewTopic(
        plan.name,
        num_partitions=plan.partitions,
        replication_factor=plan.replication,
        config=dict(plan.settings),
    )


def _shape(topic: TopicDescription) -> Shape:
    partitions = topic.partitions
    return Shape(
        topic_id=str(topic.topic_id),
        partitions=len(partitions),
        replication=min((len(partition.replicas) for partition in partitions), default=0),
        led=bool(partitions) and all(partition.leader is not None for partition in partitions),
    )
