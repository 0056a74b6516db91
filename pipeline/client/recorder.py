"""Many jobs to records: what `Requests.run`, the codec and `Layout.home` make of a request, a few times cheaper.

What repeats from job to job (handler, queue, limits) is checked and encoded once and then known by its value;
what is not known yet is checked as for a single job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from pipeline.client.request import JobOptions, Requests, due_of_request, pairs_of, text_of
from pipeline.codec.run_wire import Fixed, assemble, fixed
from pipeline.codec.wire import EMPTY, NULL, SOME, write_bytes, write_instant, write_map, write_string
from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.jobref import JobRef
from pipeline.core.keys import ANONYMOUS
from pipeline.core.minting import Mint
from pipeline.ports import Put

REMEMBERED = 1024
"""Shapes, and combinations of what repeats in one shape, that are remembered at most."""

_REPEATED = frozenset({"handler", "queue", "max_attempts", "timeout"})
_NUMBERS = frozenset({"max_attempts", "timeout"})
_VARYING = frozenset({"serial", "idempotency_key", "labels", "headers"})
_OWN = frozenset({"handler", "payload", "at", "in_"}) | _REPEATED | _VARYING
_ASKED = frozenset({"handler", "payload", *JobOptions.__annotations__})
_KEY = ANONYMOUS[0]
_ID_SIZE = write_string("j" * 27)[:1]

# Exact between the years 2000 and 2200, and quicker than to add milliseconds up.
_instant = datetime.fromtimestamp
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_tuple = tuple.__new__  # a named tuple's own is a call more


class _Shape:
    """Requests with the same names. `known` = what is fixed in their records, by the values that repeat."""

    __slots__ = ("alone", "foreign", "known", "take")

    def __init__(self, names: tuple[str, ...]) -> None:
        repeated = [name for name in names if name in _REPEATED]
        self.foreign = "handler" not in names or not _OWN.issuperset(names)
        self.alone = _VARYING.isdisjoint(names)
        self.known: dict[Any, Fixed] = {}
        self.take = _taker(repeated)


def _taker(names: list[str]) -> Callable[[Mapping[str, Any]], Any]:
    take: Callable[[Mapping[str, Any]], Any] = itemgetter(*names) if names else lambda _job: None
    if _NUMBERS.isdisjoint(names):
        return take
    # By type too: True is 1, and 1.0 is 1, but no number of attempts.
    return lambda job: (values := take(job), tuple(map(type, values)))


class Recorder:
    """Makes the records of new anonymous jobs. `admit(queue)` raises InvalidInput if it is unknown.

    One thread at a time.
    """

    def __init__(self, requests: Requests, topic: str, mint: Mint, admit: Callable[[str], None]) -> None:
        self._requests = requests
        self._payload = requests.payload
        self._topic = topic
        self._mint = mint.mint
        self._admit = admit
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._now, self._created = 0, b""

    def record(self, job: Mapping[str, Any], now: int) -> tuple[JobRef, Put] | None:
        """The record of a job created at `now`, the store's clock; None if it asks for what only the way of a
        single job knows. InvalidInput naming the option."""
        names = tuple(job)
        shape = self._shapes.get(names) or self._shape(names)
        if shape.foreign:
            return None
        try:
            same = shape.known.get(shape.take(job)) or self._learn(shape, job)
        except TypeError:  # unhashable: no legal value is
            same = self._learn(shape, job)
        get = job.get
        at = get("at")
        if (
            type(at) is datetime
            and at.tzinfo is UTC
            and get("in_") is None
            and not at.microsecond % 1000
            and EARLIEST <= (given := -((_EPOCH - at) // _MILLISECOND)) <= LATEST
        ):  # nearly always in bulk: the reference can have it as it was given
            due_at = given
        else:
            due_at = due_of_request(at, get("in_"), now)
            at = _instant(due_at / 1000, UTC)
        payload = write_bytes(self._payload(get("payload")))
        if now != self._now:
            self._now, self._created = now, write_instant(now)
        id_, home = self._mint(due_at)
        name = id_.encode()
        sized = _ID_SIZE + name
        due = write_instant(due_at)
        serial, key, labels, headers = (NULL, sized, EMPTY, EMPTY) if shape.alone else _varying(job, sized)
        value = assemble(same, sized, sized, due, self._created, serial, due, key, labels, headers, payload)
        ref = _tuple(JobRef, (id_, "created", at))
        return ref, _tuple(Put, (self._topic, home, _KEY + name, value, None))

    def _shape(self, names: tuple[str, ...]) -> _Shape:
        shape = _Shape(names)
        if _ASKED.issuperset(names):  # not what somebody makes up, of any length
            _make_room(self._shapes)
            self._shapes[names] = shape
        return shape

    def _learn(self, shape: _Shape, job: Mapping[str, Any]) -> Fixed:
        run = self._requests.run(job)
        self._admit(run.queue)
        _make_room(shape.known)
        made = shape.known[shape.take(job)] = fixed(run)
        return made


def _make_room(memory: dict[Any, Any]) -> None:
    if len(memory) >= REMEMBERED:
        memory.clear()


def _varying(job: Mapping[str, Any], id_: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Serial group, idempotency key, labels and headers, encoded; `id_` is the default of the second."""
    get = job.get
    key = text_of("idempotency_key", get("idempotency_key"))
    serial = text_of("serial", get("serial"))
    return (
        NULL if serial is None else SOME + write_string(serial),
        id_ if key is None else write_string(key),
        write_map(pairs_of("labels", get("labels"))),
        write_map(pairs_of("headers", get("headers"))),
    )
