"""The topic `meta`: layout, era and group guards of an installation, written once at a time (DESIGN §3)."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from pipeline import codec
from pipeline.adapters.kafka_settings import bad_setting, constructing
from pipeline.core.backup import Hold
from pipeline.core.errors import DuelineError, Refused, StoreUnreachable, Undecodable, UnknownFingerprint
from pipeline.core.job import GroupGuard
from pipeline.core.keys import ERA_KEY, HOLD_KEY, LAYOUT_KEY, QUEUE
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.site import Standing
from pipeline.core.token import LAST_ERA

T = TypeVar("T")
FIRST_ERA = 1
GUARD = b"g/"
FORGOTTEN_S = 86_400.0
"""After so long the guards are read from the beginning: tombstones met a week late may be compacted away."""
WRITER_KEY = b"writer"
"""Tombstones by which a writer knows that it has read all that any writer before it can have written."""
_NONCE = "nonce"
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0
"""Between two tries of a writer that another has overtaken."""
# By name, as librdkafka spells them; a leading _ marks the client's own.
_FORBIDDEN = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "POLICY_VIOLATION",
        "INVALID_CONFIG",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_PARTITIONS",
    }
)
_UNREACHABLE = frozenset(
    {
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_MSG_TIMED_OUT",
        "_RESOLVE",
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "REQUEST_TIMED_OUT",
    }
)


@contextmanager
def asking(what: str, config: Mapping[str, str]) -> Iterator[None]:
    """Turn the client library's errors into ours: what the caller must do, and what was being done."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise translated(error, what, config["bootstrap.servers"]) from error


def translated(error: Exception, what: str, servers: str) -> DuelineError:
    """What the caller must do about an error of the client library."""
    cause = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    if cause is None or cause.name() in _UNREACHABLE:
        return StoreUnreachable(
            f"cannot reach Kafka at {servers}: {what}: {cause.str() if cause else 'timed out'}"
        )
    if cause.name() == "_INVALID_ARG":
        return bad_setting(cause)
    if cause.name() in _FORBIDDEN:
        return Refused(f"Kafka refuses: {what}: {cause.str()}")
    return DuelineError(f"{what}: {cause.str()}")


def quiet(config: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """The client library logs a line for each refused connection; what it means is raised anyway."""
    return {**config} if "debug" in config else {"log_level": 2, **config}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What stands on the topic; None = not written yet."""

    layout: Layout | None = None
    era: int | None = None
    guards: Collection[bytes] = ()
    """Keys of the group guards."""
    hold: Hold | None = None
    queues: Mapping[bytes, bytes] = field(default_factory=dict)
    """What is said of queues, by record key, as it stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EraBump:
    """A new era was begun, and the guards of the one before were removed."""

    old: int
    new: int
    guards: int


class MetaTopic:
    """Reads and writes the layout and the era."""

    def __init__(self, config: Mapping[str, str], names: Names, *, timeout_ms: int) -> None:
        self._config = config
        self._topic = names.meta
        self._transactional_id = f"{names.prefix}.topics"
        self._timeout_s = timeout_ms / 1000

    def read(self) -> Meta:
        """What is committed now; StoreUnreachable if the end is not reached in time."""
        return self._read(None)[0]

    def update(self, change: Callable[[Layout | None], Layout]) -> Layout:
        """Replace the layout by `change(layout)`, and begin the first era if none has begun. Raises what `change`
        raises, with nothing written."""

        def decide(found: Meta) -> tuple[dict[bytes, bytes | None], Layout]:
            layout = change(found.layout)
            puts: dict[bytes, bytes | None] = {}
            if layout != found.layout:
                puts[LAYOUT_KEY] = codec.LAYOUT.encode(layout)
            if found.era is None:
                puts[ERA_KEY] = codec.ERA.encode(codec.Era(era=FIRST_ERA))
            return puts, layout

        return self.write(decide)

    def bump_era(self) -> EraBump:
        """Begin the next era and forget every group guard, in one transaction (H20). Refused past the last era,
        and if no era has begun."""

        def decide(found: Meta) -> tuple[dict[bytes, bytes | None], EraBump]:
            done = _next_era(self._topic, found)
            forgotten: dict[bytes, bytes | None] = dict.fromkeys(found.guards)
            return {ERA_KEY: codec.ERA.encode(codec.Era(era=done.new)), **forgotten}, done

        return self.write(decide)

    def write(self, decide: Callable[[Meta], tuple[Mapping[bytes, bytes | None], T]]) -> T:
        """Append what `decide` makes of what stands here, and answer what it answers, once everybody can read it
        (or after the time-out, if another's open transaction hides it).

        Writers exclude each other: one transactional.id, so each fences those before it (KIP-98), and each
        first reads back a record of its own, so it has seen all that they committed. Raises what `decide`
        raises, with nothing written. When the outcome is unknown that reading tells: what was made is not made
        twice, and for what was not `decide` is asked again.
        """
        tried: dict[bytes, T] = {}
        deadline, longest = time.monotonic() + self._timeout_s, LEAST_PAUSE_S
        while True:
            try:
                return self._write_once(decide, tried)
            except KafkaException as error:
                # Overtaken by another writer, or the outcome is unknown: read again, it may be done already.
                if time.monotonic() > deadline:
                    raise translated(
                        error, f"writing {self._topic}", self._config["bootstrap.servers"]
                    ) from error
                # Longer each time: else writers whose writes take longer than that overtake each other for ever.
                longest = min(2 * longest, MOST_PAUSE_S)
                time.sleep(random.uniform(LEAST_PAUSE_S, longest))

    def _write_once(
        self, decide: Callable[[Meta], tuple[Mapping[bytes, bytes | None], T]], tried: dict[bytes, T]
    ) -> T:
        """`tried`: by nonce, what earlier attempts would have answered; this one is added."""
        with constructing():
            producer = Producer(
                {
                    **quiet(self._config),
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": 10_000,
                    "message.timeout.ms": min(10_000, int(self._timeout_s * 1000)),
                }
            )
        producer.init_transactions(self._timeout_s)
        mark, nonce = uuid.uuid4().bytes, uuid.uuid4().bytes
        self._commit(producer, {WRITER_KEY: None}, mark)
        found, made = self._read(mark)
        for earlier in made & tried.keys():
            return tried[earlier]
        puts, answer = decide(found)
        if puts:
            tried[nonce] = answer
            self._commit(producer, puts, nonce)
            with suppress(DuelineError):  # it is committed, whatever hides it
                self._read(nonce)
        return answer

    def _commit(self, producer: Producer, puts: Mapping[bytes, bytes | None], nonce: bytes) -> None:
        producer.begin_transaction()
        for key, value in puts.items():
            producer.produce(self._topic, value, key, partition=0, headers=[(_NONCE, nonce)])
        producer.commit_transaction(self._timeout_s)

    def _read(self, nonce: bytes | None) -> tuple[Meta, set[bytes]]:
        """Fold the topic up to the record with `nonce`, or to its end; and the nonces of what was written. The end
        is the last stable offset: an undecided transaction hides what is after it, which is why a writer waits for
        a record of its own."""
        values: dict[bytes, bytes] = {}
        made: set[bytes] = set()
        with asking(f"reading {self._topic}", self._config), self._reading() as consumer:
            deadline = time.monotonic() + self._timeout_s
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                    if nonce is None:
                        return _meta(self._topic, values), made
                    continue
                key, value = message.key(), message.value()
                if key is not None and value is not None:
                    values[key] = value
                elif key is not None and key.startswith((GUARD, HOLD_KEY)):
                    values.pop(key, None)
                own = dict(message.headers() or ()).get(_NONCE)
                if nonce is not None and own == nonce:
                    return _meta(self._topic, values), made
                if isinstance(own, bytes) and key != WRITER_KEY:
                    made.add(own)
            raise TimeoutError

    @contextmanager
    def _reading(self) -> Iterator[Consumer]:
        consumer = _consumer(self._config, f"{self._transactional_id}.reader")
        try:
            # Not OFFSET_BEGINNING: asking where that is costs the client half a second, and it is 0 unless an
            # operator deleted records.
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            yield consumer
        finally:
            consumer.close()


def _consumer(config: Mapping[str, str], group: str) -> Consumer:
    """`group` is never joined: partitions are assigned."""
    with constructing():
        return Consumer(
            {
                **quiet(config),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )


class GuardReader:
    """Reads the guards of one group, by partition. Kept open: a takeover waits for it (DESIGN §7).

    Reads up to the last stable offset, which another owner's takeover may hold back. That hides only guards of
    the last seconds, and what matters was written before the group lost its generations. One thread.
    """

    def __init__(
        self, config: Mapping[str, str], names: Names, group: str, *, timeout_ms: int = 1_000
    ) -> None:
        self._config = config
        self._place = TopicPartition(names.meta, 0)
        self._prefix = f"g/{group}/".encode()
        self._timeout_s = timeout_ms / 1000
        self._consumer = _consumer(config, f"{names.prefix}.guards")
        self._forget()

    def _forget(self) -> None:
        self._next, self._read_at = 0, time.monotonic()
        self._values: dict[bytes, bytes] = {}
        self._standing: dict[bytes, bytes] = {}

    def __call__(self) -> Mapping[int, GroupGuard]:
        """What is committed now. StoreUnreachable after the time-out; Refused for a guard nobody can read."""
        self._read()
        return {
            int(key.removeprefix(self._prefix)): self._decoded(key, value)
            for key, value in self._values.items()
        }

    def standing(self) -> Standing:
        """Era and hold, as committed now. Raises as a call does."""
        self._read()
        era, hold = self._standing.get(ERA_KEY), self._standing.get(HOLD_KEY)
        with _refusing(self._place.topic, ERA_KEY):
            number = FIRST_ERA if era is None else codec.ERA.decode(era).era
        with _refusing(self._place.topic, HOLD_KEY):
            return Standing(number, None if hold is None else codec.HOLD.decode(hold))

    def _read(self) -> None:
        if time.monotonic() - self._read_at > FORGOTTEN_S:
            self._forget()
        with asking(f"reading {self._place.topic}", self._config):
            self._catch_up(time.monotonic() + self._timeout_s)
        self._read_at = time.monotonic()

    def _decoded(self, key: bytes, value: bytes) -> GroupGuard:
        with _refusing(self._place.topic, key, "run `dueline era bump`, which removes it"):
            return codec.GROUP_GUARD.decode(value)

    def _catch_up(self, deadline: float) -> None:
        _, end = self._consumer.get_watermark_offsets(self._place, self._timeout_s)
        if self._next >= end:
            return
        self._consumer.assign([TopicPartition(self._place.topic, 0, self._next)])
        try:
            while self._next < end:
                if time.monotonic() > deadline:
                    raise TimeoutError
                self._take(self._consumer.consume(1_000, 0.01))
        finally:
            self._consumer.unassign()

    def _take(self, batch: list[Message]) -> None:
        for message in batch:
            error, offset = message.error(), message.offset() or 0
            if error is None:
                self._fold(message.key() or b"", message.value())
                self._next = offset + 1
            elif error.name() == "_PARTITION_EOF":
                self._next = max(self._next, offset)  # past the last marker, where no record leads (H15)
            else:
                raise KafkaException(error)

    def _fold(self, key: bytes, value: bytes | None) -> None:
        """Decoded at the end: what nobody can read may be followed by its tombstone."""
        if key in (ERA_KEY, HOLD_KEY):
            values = self._standing
        elif key.startswith(self._prefix) and key.removeprefix(self._prefix).isdigit():
            values = self._values
        else:
            return
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def close(self) -> None:
        self._consumer.close()


def _next_era(topic: str, found: Meta) -> EraBump:
    if found.era is None:
        raise Refused(f"{topic} holds no era: run `dueline topics create`")
    if found.era >= LAST_ERA:
        raise Refused(f"era {found.era} is the last that fits a token: nothing was changed")
    return EraBump(old=found.era, new=found.era + 1, guards=len(found.guards))


def _meta(topic: str, values: Mapping[bytes, bytes]) -> Meta:
    """Raises Refused for a record that cannot be read: to guess a layout or an era would lose jobs."""
    layout, era, hold = (values.get(key) for key in (LAYOUT_KEY, ERA_KEY, HOLD_KEY))
    with _refusing(topic, LAYOUT_KEY):
        found = None if layout is None else codec.LAYOUT.decode(layout)
    with _refusing(topic, HOLD_KEY):
        held = None if hold is None else codec.HOLD.decode(hold)
    with _refusing(topic, ERA_KEY):
        return Meta(
            layout=found,
            era=None if era is None else codec.ERA.decode(era).era,
            guards=[key for key in values if key.startswith(GUARD)],
            hold=held,
            queues={key: value for key, value in values.items() if key.startswith(QUEUE)},
        )


AGAIN = "append the last good record under this key again, or choose another DUELINE_PREFIX"


@contextmanager
def _refusing(topic: str, key: bytes, remedy: str = AGAIN) -> Iterator[None]:
    try:
        yield
    except Undecodable as error:
        if isinstance(error, UnknownFingerprint):
            remedy = "upgrade this version of Dueline"
        raise Refused(
            f"{topic}: the record under {key.decode()!r} cannot be read ({error}): {remedy}"
        ) from error
