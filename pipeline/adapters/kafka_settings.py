# ruff: noqa: SLF001 - librdkafka's own error codes have names that begin with an underscore
"""Settings of the Kafka clients that the protocol depends on, and what their errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from pipeline.config import KAFKA_PREFIX
from pipeline.core.errors import DuelineError, InvalidInput, NotFound, StoreUnreachable

log = logging.getLogger("pipeline.kafka")
log.addHandler(logging.NullHandler())  # not on a terminal unless somebody asks for it

RESERVED = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",  # a static member comes back with the same generation: no fencing (H19)
        "group.protocol",
        "isolation.level",
        "partition.assignment.strategy",
        "transactional.id",
    }
)
"""librdkafka settings that nobody may override: the proofs of DESIGN §5 and §7 rest on them."""

RECORD_LIMIT = 4 * 1024 * 1024 + 64 * 1024
"""Largest request of a producer: the 4 MiB that `acks` and `dead` accept, and its framing."""

COME_BACK = {"reconnect.backoff.max.ms": 1_000}
"""The library waits up to 10 s before it tries a broker again that was gone for a while. Heartbeats so late after a
restart of the store made a worker that lives look dead, and its runs spend an attempt. Who sets the shortest wait sets
the longest too."""

UNAPPENDABLE = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""Delivery errors that no repetition mends."""

CALLBACK_ERRORS = (KafkaException, SystemError)
"""What poll, flush and close raise when the client turned fatal. The library sets the exception and goes on
to call further callbacks, so it may arrive as the SystemError of one of those, with the real one as cause."""
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL})
"""What becomes of the records that a producer has queued when it turns fatal, or is told to drop them."""
FENCED = KafkaError._FENCED
_FENCINGS = frozenset({FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
END_OF_PARTITION = KafkaError._PARTITION_EOF
NO_POSITION = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
"""The log does not hold the offset asked for, or holds another record under it."""

LEADERLESS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""Passing: the client refreshes its metadata meanwhile."""
PASSING = LEADERLESS | {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,
    KafkaError._WAIT_CACHE,
}
"""So is a connection that was lost: the client makes another one, to a broker that it may know anew."""

ABSENT = frozenset(
    {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
"""No such topic or partition, as far as the asked broker knows; one that has just been restarted knows none."""
_SILENT = PASSING | {KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._RESOLVE}
"""What should have passed and did not: nobody answers who could."""


def settings(bootstrap: str, client: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, Any]:
    """`client` (the user's librdkafka settings) over `own` defaults, the reserved ones ours.

    InvalidInput names a reserved setting. The library's log lines and client-wide errors go to the logger
    `pipeline.kafka`: they tell what it is waiting through and ask nothing of the caller.
    """
    for key in client:
        if key in RESERVED:
            raise InvalidInput(key, "is set by the protocol and cannot be changed")
    back = {} if "reconnect.backoff.ms" in client else COME_BACK
    return {**back, **own, **client, "bootstrap.servers": bootstrap, "error_cb": _noticed, "logger": log}


@contextmanager
def constructing() -> Iterator[None]:
    """Around the construction of a client: a value that the library refuses is InvalidInput."""
    try:
        yield
    except KafkaException as exception:
        error = error_of(exception)
        if error.code() == KafkaError._INVALID_ARG:
            raise bad_setting(error) from exception
        raise


_PROPERTY = re.compile(r'(?:property:?|value for) "([a-z0-9._]+)"|\b([a-z0-9]+(?:\.[a-z0-9]+)+) failed')


def bad_setting(error: KafkaError) -> InvalidInput:
    """Names the variable that set the property the library complains of, as far as it says which."""
    found = _PROPERTY.search(error.str())
    name = (found[1] or found[2]).upper().replace(".", "_") if found else "*"
    return InvalidInput(f"{KAFKA_PREFIX}{name}", " ".join(error.str().split()))


def _noticed(error: KafkaError) -> None:
    log.info("client: %s", error, extra={"action": "kafka.noticed", "error": error.name()})


def error_of(exception: KafkaException) -> KafkaError:
    """The KafkaError that a KafkaException carries."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def is_fatal(error: KafkaError) -> bool:
    """Whether the client is dead for good. A fatal error that comes as a message's has the code and not the flag:
    taken for a passing one, it left a process a member of nothing for ever (H17)."""
    return error.fatal() or error.code() == KafkaError._FATAL


def fatal_of(exception: BaseException) -> KafkaError:
    """Of what poll and flush raise of a client that turned fatal, see `CALLBACK_ERRORS`: why it did. Anything else is
    raised again: a callback's own error."""
    found = exception if isinstance(exception, KafkaException) else exception.__cause__
    if isinstance(found, KafkaException) and is_fatal(error := error_of(found)):
        return error
    raise exception


def is_fenced(exception: BaseException) -> bool:
    """Whether this came of another producer with the same transactional.id."""
    cause: BaseException | None = exception
    while cause is not None:
        if isinstance(cause, KafkaException) and error_of(cause).code() in _FENCINGS:
            return True
        cause = cause.__cause__
    return False


def translate(error: KafkaError, subject: str) -> DuelineError:
    """The error for a caller outside any group, named by what the caller must do."""
    text = f"{subject}: {error.str()}"
    if error.code() in ABSENT:
        return NotFound(text)
    if error.code() in UNAPPENDABLE:
        return InvalidInput("record", text)
    if error.code() in _SILENT:
        return StoreUnreachable(text)
    return DuelineError(text)
