"""Asks a live cluster for what the doctor looks at. Each question ends within its deadline; what is not answered is
kept with the reason, and the others are asked all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    ConfigResource,
    MemberDescription,
    OffsetSpec,
    TopicDescription,
)

from pipeline import __version__, codec
from pipeline.adapters.kafka_io import READER_GROUP, TAILED, KafkaReader
from pipeline.adapters.kafka_meta import GUARD, asking, quiet
from pipeline.adapters.kafka_settings import constructing
from pipeline.adapters.kafka_settings import settings as client_settings
from pipeline.adapters.kafka_topics import cluster
from pipeline.adapters.local_checkup import local_state
from pipeline.adapters.store_clock import kafka_clock
from pipeline.config import Settings, running_dev_store
from pipeline.core import keys
from pipeline.core.errors import DuelineError, Refused, StoreUnreachable, Undecodable
from pipeline.core.topics import LiveTopic, plan
from pipeline.core.zones import zone_data_version
from pipeline.doctor.facts import Copies, Ends, Facts, Member, Place, Share, Undecided
from pipeline.doctor.topics import INTERNAL
from pipeline.heartbeat import read_fleet
from pipeline.queues import states_of

T = TypeVar("T")

REMEMBERED_MS = 600_000
"""For how long a process that went silent is still looked for: its transaction may be open."""
UNKNOWN = frozenset({"UNKNOWN_TOPIC_OR_PART", "GROUP_ID_NOT_FOUND"})
"""By name, as librdkafka spells them: there is none, which is an answer."""
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
SETTINGS = (
    "group.min.session.timeout.ms",
    "group.max.session.timeout.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.max.session.timeout.ms",
    "offsets.retention.minutes",
    "offset.metadata.max.bytes",
    "transaction.max.timeout.ms",
    "log.cleaner.enable",
)
"""Of a broker's own settings."""


class Checkup:
    """The questions, over one set of clients. Use as a context manager. StoreUnreachable if no store is known."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._names = settings, settings.names
        self._config = settings.client_config()
        self._bootstrap = self._config["bootstrap.servers"]
        self._timeout_s = settings.store_timeout_ms / 1000
        with asking("starting the client", self._config):
            self._admin = AdminClient(quiet(self._config))
        self._reader = KafkaReader(self._bootstrap, settings.kafka)
        self._clock = kafka_clock(self._bootstrap, self._names.fleet, settings.kafka)

    def __enter__(self) -> Checkup:
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.close()
        self._reader.close()

    def facts(self) -> Facts:
        """Everything. Raises StoreUnreachable if no broker answers at all, Refused if none may be asked."""
        settings = self._settings
        brokers = cluster(self._config, self._names, self._timeout_s).brokers
        facts = Facts(
            names=self._names,
            bootstrap=self._bootstrap,
            development=running_dev_store(settings.state_dir) == self._bootstrap,
            session_timeout_ms=settings.session_timeout_ms,
            group_protocol=settings.group_protocol,
            version=__version__,
            zone_data=zone_data_version(),
            written=frozenset(codec.fingerprints()),
            brokers=frozenset(brokers),
        )
        return self._asked(facts, {**_LASTING, **_PASSING})

    def again(self, facts: Facts) -> Facts:
        """What changes from one moment to the next, asked anew; the rest stays."""
        return self._asked(facts, _PASSING)

    def _asked(self, facts: Facts, questions: Mapping[str, Question]) -> Facts:
        """Every question with the facts so far; the first one is for the layout, without which there is no other."""
        for names, question in questions.items():
            fields = names.split()
            missing = {name: why for name, why in facts.missing.items() if name not in fields}
            try:
                facts = replace(facts, **question(self, facts), missing=missing)
            except DuelineError as problem:
                facts = replace(facts, missing=missing | dict.fromkeys(fields, str(problem)))
            if facts.layout is None:
                break
        return facts

    # -- what stands on `meta` ------------------------------------------------------------------------------

    def meta(self, facts: Facts) -> Mapping[str, Any]:
        """Layout, era and guards; nothing if the topic does not exist."""
        values: dict[bytes, bytes] = {}
        if not self._described([self._names.meta]):
            return {}
        for record in self._reader.read(self._names.meta, 0):
            key, value = record.key() or b"", record.value()
            values.pop(key, None)
            if value is not None:
                values[key] = value
        layout, era, hold = (values.get(key) for key in (keys.LAYOUT_KEY, keys.ERA_KEY, keys.HOLD_KEY))
        try:
            found = None if layout is None else codec.LAYOUT.decode(layout)
            return {
                "layout": found,
                "era": None if era is None else codec.ERA.decode(era).era,
                "hold": None if hold is None else codec.HOLD.decode(hold),
                "queues": states_of(values),
                "guards": {share: codec.GROUP_GUARD.decode(value) for share, value in _guards(values)},
                "known": frozenset(one for one in (found.fingerprints if found else ()) if codec.known(one)),
            }
        except Undecodable as error:
            raise Refused(f"{self._names.meta}: a record cannot be read ({error})") from error

    # -- topics and brokers ---------------------------------------------------------------------------------

    def topics(self, facts: Facts) -> Mapping[str, Any]:
        assert facts.layout is not None
        planned = [topic.name for topic in plan(self._names, facts.layout, len(facts.brokers))]
        found = self._described([*planned, *INTERNAL])
        settings = self._configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in found])
        return {
            "topics": {name: _live(topic, settings.get(name, {})) for name, topic in found.items()},
            "topic_ids": {name: str(topic.topic_id) for name, topic in found.items()},
            "copies": {
                Place(name, partition.id): Copies(
                    leader=None if partition.leader is None else partition.leader.id,
                    replicas=len(partition.replicas),
                    in_sync=len(partition.isr),
                )
                for name, topic in found.items()
                for partition in topic.partitions
            },
        }

    def brokers(self, facts: Facts) -> Mapping[str, Any]:
        """The client takes one broker a call."""
        return {
            "broker_settings": {
                broker: {
                    name: value for name, value in told.items() if name in SETTINGS and value is not None
                }
                for broker in sorted(facts.brokers)
                for told in self._configs([ConfigResource(ConfigResource.Type.BROKER, str(broker))]).values()
            }
        }

    def local(self, facts: Facts) -> Mapping[str, Any]:
        assert facts.layout is not None
        return {"local": local_state(self._settings.state_dir, facts.layout.partitions)}

    # -- what passes ----------------------------------------------------------------------------------------

    def time(self, facts: Facts) -> Mapping[str, Any]:
        return {"now": self._clock.now(), "clocks": self._clock.readings}

    def fleet(self, facts: Facts) -> Mapping[str, Any]:
        since = self._clock.now() - REMEMBERED_MS
        return {"fleet": tuple(read_fleet(self._reader, self._names.fleet, since))}

    def members(self, facts: Facts) -> Mapping[str, Any]:
        groups = [group for group, *_ in facts.shared()]
        with asking("describing groups", self._config):
            futures = self._admin.describe_consumer_groups(groups, request_timeout=self._timeout_s)
            found = {group: self._known(future) for group, future in futures.items()}
        return {
            "members": {
                group: tuple(_member(member) for member in told.members)
                for group, told in found.items()
                if told is not None
            }
        }

    def committed(self, facts: Facts) -> Mapping[str, Any]:
        """The client takes one group a call."""
        found: dict[Share, int] = {}
        for group, topic, _, _ in facts.shared():
            with asking(f"reading the offsets of {group}", self._config):
                wish = [ConsumerGroupTopicPartitions(group)]
                futures = self._admin.list_consumer_group_offsets(wish, request_timeout=self._timeout_s)
                told = self._known(futures[group])
            found |= {
                Share(group, place.partition): place.offset
                for place in (told.topic_partitions if told is not None else ())
                if place.topic == topic and place.offset >= 0
            }
        return {"committed": found}

    def ends(self, facts: Facts) -> Mapping[str, Any]:
        """Of every partition of ours that has a leader. The end first: what is decided later is no gap."""
        _had(facts, "copies")
        places = [
            place
            for place, of in facts.copies.items()
            if of.leader is not None and place.topic not in INTERNAL
        ]
        last = self._offsets(places, LATEST, IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(places, LATEST, IsolationLevel.READ_COMMITTED)
        first = self._offsets(places, EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        return {"ends": {place: Ends(first[place], stable[place], last[place]) for place in places}}

    def undecided(self, facts: Facts) -> Mapping[str, Any]:
        """The first records of what is open. By the time they are read it may be decided: their age tells."""
        _had(facts, "ends")
        starts = {place: ends.stable for place, ends in facts.ends.items() if ends.stable < ends.last}
        return {"undecided": tuple(self._first_records(starts)) if starts else ()}

    def unacked(self, facts: Facts) -> Mapping[str, Any]:
        """Markers of transactions take offsets too, and nobody acks them: only a record counts."""
        _had(facts, "ends", "committed")
        found: dict[Place, int] = {}
        for group, topic, role, count in facts.shared():
            for place in (Place(topic, number) for number in range(count if role == "worker" else 0)):
                ends, offset = facts.ends.get(place), facts.committed.get(Share(group, place.partition), 0)
                if ends is not None and max(offset, ends.first) < ends.stable:
                    for record in self._reader.tail(*place, max(offset, ends.first), 1):
                        found[place] = record.timestamp()[1]
        return {"unacked": found}

    # -- the clients ----------------------------------------------------------------------------------------

    def _described(self, names: list[str]) -> dict[str, Any]:
        """Those of the topics that exist."""
        with asking("describing topics", self._config):
            wish = TopicCollection(names)
            futures = self._admin.describe_topics(wish, request_timeout=self._timeout_s)
            found = {name: self._known(future) for name, future in futures.items()}
        return {name: topic for name, topic in found.items() if topic is not None}

    def _configs(self, resources: list[ConfigResource]) -> dict[str, dict[str, str]]:
        if not resources:
            return {}
        with asking("describing settings", self._config):
            futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
            found = {resource.name: self._known(future) for resource, future in futures.items()}
        return {
            name: {setting: entry.value for setting, entry in entries.items()}
            for name, entries in found.items()
            if entries is not None
        }

    def _offsets(self, places: list[Place], spec: OffsetSpec, isolation: IsolationLevel) -> dict[Place, int]:
        if not places:
            return {}
        with asking("asking for the ends of logs", self._config):
            futures = self._admin.list_offsets(
                {TopicPartition(*place): spec for place in places},
                isolation_level=isolation,
                request_timeout=self._timeout_s,
            )
            found = {
                Place(p.topic, p.partition): self._result(future).offset for p, future in futures.items()
            }
        if wrong := [f"{place.topic}/{place.partition}" for place, offset in found.items() if offset < 0]:
            # After a change of leaders the client may answer so, as a success.
            raise StoreUnreachable(f"no end is known of {', '.join(wrong[:3])}")
        return found

    def _first_records(self, starts: Mapping[Place, int]) -> Iterator[Undecided]:
        """Of all at once; what is fetched beyond the first is dropped."""
        own = {
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 20,
            **TAILED,
        }
        with constructing():
            consumer = Consumer(client_settings(self._bootstrap, self._settings.kafka, own))
        left = set(starts)
        deadline = time.monotonic() + self._timeout_s
        try:
            consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
            while left:
                message = consumer.poll(max(0.0, deadline - time.monotonic()))
                if message is None:
                    raise StoreUnreachable(f"{'/'.join(map(str, min(left)))}: no record came in time")
                place = Place(message.topic() or "", message.partition() or 0)
                if (problem := message.error()) is not None:
                    raise StoreUnreachable(f"{place.topic}/{place.partition}: {problem.str()}")
                if place in left:
                    left.remove(place)
                    yield _undecided(place, message)
        finally:
            consumer.close()

    def _result(self, future: Future[T]) -> T:
        return future.result(self._timeout_s + 1)  # the client's own time-out comes first and says more

    def _known(self, future: Future[T]) -> T | None:
        """The answer, or None if there is no such topic or group."""
        try:
            return self._result(future)
        except KafkaException as error:
            if error.args[0].name() not in UNKNOWN:
                raise
            return None


def _had(facts: Facts, *names: str) -> None:
    """DuelineError with the reason, if a fact that a question stands on could not be had."""
    for name in names:
        if name in facts.missing:
            raise DuelineError(facts.missing[name])


Question = Callable[[Checkup, Facts], Mapping[str, Any]]
_META = "layout era hold guards known"
_LASTING: Mapping[str, Question] = {
    _META: Checkup.meta,
    "topics topic_ids copies": Checkup.topics,
    "broker_settings": Checkup.brokers,
    "local": Checkup.local,
}
"""By the names of the facts that a question is for, in their order: later ones need what earlier ones found."""
_PASSING: Mapping[str, Question] = {
    _META: Checkup.meta,
    "now clocks": Checkup.time,
    "fleet": Checkup.fleet,
    "members": Checkup.members,
    "committed": Checkup.committed,
    "ends": Checkup.ends,
    "undecided": Checkup.undecided,
    "unacked": Checkup.unacked,
}


def _guards(values: Mapping[bytes, bytes]) -> Iterator[tuple[Share, bytes]]:
    for key, value in values.items():
        if key.startswith(GUARD):
            group, _, partition = key.removeprefix(GUARD).decode("utf-8", "replace").rpartition("/")
            if partition.isdecimal():
                yield Share(group, int(partition)), value


def _live(topic: TopicDescription, settings: Mapping[str, str]) -> LiveTopic:
    return LiveTopic(
        name=topic.name,
        partitions=len(topic.partitions),
        replication=min((len(partition.replicas) for partition in topic.partitions), default=0),
        settings=settings,
    )


def _undecided(place: Place, message: Message) -> Undecided:
    return Undecided(
        place=place,
        offset=message.offset() or 0,
        key=message.key() or b"",
        value=message.value(),
        at=message.timestamp()[1],
    )


def _member(told: MemberDescription) -> Member:
    places = told.assignment.topic_partitions if told.assignment is not None else []
    return Member(
        id=told.member_id,
        client=told.client_id,
        host=told.host,
        partitions=frozenset(place.partition for place in places),
        static=bool(told.group_instance_id),
    )
