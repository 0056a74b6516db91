"""Records that foreign producers may put on `jobs`: one row of `CASES` is how one looks and what becomes of it.

`docs/bad-input.md` says the same in words, in the same order.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Event, Highest, KeyState, Run, Takeover
from pipeline.core.layout import Layout
from pipeline.core.topics import Wish

MIB = 1024 * 1024
YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_000
INT_MAX = 2**31 - 1
BUCKET_MS = 50
SPREAD = Wish(shards=4, ring=6, bucket_width_ms=BUCKET_MS)
"""Narrow buckets, so that all partitions are in use at once."""
JSON = {"content-type": b"application/json"}


# -- what becomes of a record ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dead:
    """A dead letter that holds the record, and a tombstone of it, unless that would be too long. What has the record
    key of a command is answered `refused` as well."""

    reason: str
    tombstone: bool = True
    answered: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer to a command."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Dropped:
    """Tombstoned, with an event that says why."""

    reason: str


@dataclass(frozen=True)
class Fires:
    """It is a job, or moves one: the occurrence is emitted once as this run."""

    run: int = 1


@dataclass(frozen=True)
class Kept:
    """Stays where it is; nothing follows from it."""


@dataclass(frozen=True)
class Ignored:
    """Consumed without a word: it changes nothing."""


@dataclass(frozen=True)
class Refused:
    """The broker does not take it."""


Outcome = Dead | Answer | Dropped | Fires | Kept | Ignored | Refused


def in_words(outcome: Outcome) -> str:
    """The outcome as `docs/bad-input.md` has it."""
    match outcome:
        case Dead(reason, tombstone, answered):
            told = "; answered `refused`" if answered else ""
            return f"dead letter, `{reason}`" + ("" if tombstone else "; no tombstone") + told
        case Answer(said, reason):
            return f"answered `{said}`" + (f", `{reason}`" if reason else "")
        case Dropped(reason):
            return f"dropped with an event, `{reason}`"
        case Fires(run):
            return "fires once" if run == 1 else f"fires as run {run}"
        case Kept():
            return "kept where it is"
        case Ignored():
            return "changes nothing"
        case Refused():
            return "the broker refuses it"


# -- how it looks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A record as put: `value` None is a tombstone, `partition` None the one of the row."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)
    partition: int | None = None
    compressed: bool = False
    raw_header: bytes = b""
    """The name of a header that is no text."""


class Place:
    """A partition for a row, and ids that have their home there."""

    def __init__(self, partition: int, layout: Layout, now: int) -> None:
        self.partition, self.layout, self.now = partition, layout, now
        self.due, self.id = self._new_id()
        """The job that the row is about."""
        self.uuid = str(uuid.uuid4())
        self.key = next(k for k in self._keys() if layout.home(keyed_id(k)) == partition)

    def _new_id(self) -> tuple[int, str]:
        """The next instant in a bucket of this partition, and an id with it."""
        for due in count(self.now, BUCKET_MS):
            id_ = anonymous_id(due, int.from_bytes(os.urandom(10), "big"))
            if self.layout.home(id_) == self.partition:
                return due, id_
        raise AssertionError

    @staticmethod
    def _keys() -> Iterator[str]:
        while True:
            yield f"key-{os.urandom(4).hex()}"

    @property
    def other(self) -> int:
        return (self.partition + 1) % self.layout.partitions

    def run(self, **changes: Any) -> Run:
        run = Run(
            job_id=self.id,
            occurrence_id=self.id,
            due_at=self.due,
            run=1,
            queue="default",
            handler="h",
            created_at=self.now,
            nominal_at=self.due,
            idempotency_key=self.id,
            payload=b"{}",
        )
        return replace(run, **changes)

    def state(self, **changes: Any) -> KeyState:
        state = KeyState(
            incarnation=5, phase="pending", highest_run=0, unique="finished", changed_at=self.now, run=None
        )
        return replace(state, **changes)

    def event(self) -> bytes:
        return codec.EVENT.encode(Event(id=self.id, kind="done", at=self.now, job_id=self.id))


Make = Callable[[Place], Sequence[Sent]]


def job(*, partition: Callable[[Place], int] = lambda at: at.partition, **changes: Any) -> Make:
    return lambda at: [
        Sent(
            key=keys.job_key(at.id),
            value=codec.RUN.encode(at.run(**changes)),
            partition=partition(at),
        )
    ]


def value(data: bytes | Callable[[Place], bytes], key: Callable[[Place], bytes] | None = None) -> Make:
    """These bytes under the record key of a new job, or another key."""
    return lambda at: [
        Sent(key=key(at) if key else keys.job_key(at.id), value=data(at) if callable(data) else data)
    ]


def key(data: bytes | None) -> Make:
    """The bytes of a good job under this record key."""
    return lambda at: [Sent(key=data, value=codec.RUN.encode(at.run()))]


def said(at: Place) -> bytes:
    return codec.RUN.encode(at.run())


def command(text: Callable[[Place], dict[str, Any]]) -> Make:
    """A command as JSON, sound as far as it says nothing else."""

    def make(at: Place) -> Sequence[Sent]:
        return raw_command(json.dumps({"command_id": at.uuid} | text(at)).encode())(at)

    return make


def raw_command(data: bytes) -> Make:
    return lambda at: [Sent(key=keys.command_key(at.uuid), value=data, headers=JSON)]


def create(**fields: Any) -> Make:
    return command(lambda at: {"verb": "create", "handler": "h"} | fields)


def about(verb: str, **fields: Any) -> Make:
    return command(lambda at: {"verb": verb, "job_id": at.id} | fields)


def keyed(**fields: Any) -> Make:
    return command(lambda at: {"verb": "create", "handler": "h", "key": at.key} | fields)


def owners(make: Callable[[Place], tuple[bytes, bytes]]) -> Make:
    """A record that only owners write."""
    return lambda at: [Sent(key=make(at)[0], value=make(at)[1])]


def keyed_state(**changes: Any) -> Make:
    return owners(lambda at: (keys.keyed_key(at.key), codec.KEY_STATE.encode(at.state(**changes))))


def keyed_run(**changes: Any) -> Make:
    """A forged pending job of a key, as its owner would have written it."""

    def make(at: Place) -> Sequence[Sent]:
        id_ = keyed_id(at.key)
        run = at.run(job_id=id_, occurrence_id=f"{id_}.5", key=at.key)
        state = at.state(run=replace(run, **changes))
        return [Sent(key=keys.keyed_key(at.key), value=codec.KEY_STATE.encode(state))]

    return make


def then(*makes: Make) -> Make:
    return lambda at: [sent for make in makes for sent in make(at)]


def with_headers(make: Make, **headers: bytes | None) -> Make:
    return lambda at: [replace(sent, headers={**sent.headers, **headers}) for sent in make(at)]


def raw_header(make: Make) -> Make:
    return lambda at: [replace(sent, raw_header=b"n\xff\xfe") for sent in make(at)]


def compressed(make: Make) -> Make:
    return lambda at: [replace(sent, compressed=True) for sent in make(at)]


def tombstone(of: Callable[[Place], bytes]) -> Make:
    return lambda at: [Sent(key=of(at), value=None)]


def retry(after: int, **changes: Any) -> Make:
    return owners(lambda at: (keys.retry_key(at.id, after), codec.RUN.encode(at.run(**changes))))


def noise(count: int) -> bytes:
    return Random(count).randbytes(count)


def highest(run: int) -> Make:
    fact = Highest(run=run, queue="default", work_partition=0)
    return owners(lambda at: (keys.highest_key(at.id), codec.HIGHEST.encode(fact)))


def taken_over(partition: Callable[[Place], int]) -> Make:
    forged = Takeover(process="x", transactional_ids=("no-id",), generation=9, nonce="n", at=0)
    return owners(lambda at: (keys.takeover_key(partition(at)), codec.TAKEOVER.encode(forged)))


UNKNOWN, ANNOUNCED = b"\xc3\x01" + bytes(range(8)), b"\xc3\x01" + bytes(range(8, 16))
CASES: dict[str, tuple[Make, Outcome]] = {
    # -- bytes
    "garbage": (value(b"\x00\xff garbage"), Dead("undecodable")),
    "JSON where Avro belongs": (value(b'{"job_id": 7}'), Dead("undecodable")),
    "a frame and nothing in it": (value(b"\xc3\x01"), Dead("undecodable")),
    "an unknown schema": (value(UNKNOWN + b"rest"), Dead("unknown_schema")),
    "the schema of something else": (value(Place.event), Dead("undecodable")),
    "a job cut off within its head": (value(lambda at: said(at)[:50]), Dead("undecodable")),
    "a job cut off within its payload": (value(lambda at: said(at)[:-4]), Fires()),
    "an empty value": (value(b""), Dead("undecodable")),
    "a megabyte of noise": (value(noise(MIB)), Dead("undecodable")),
    "garbage as a retry": (value(b"x", lambda at: keys.retry_key(at.id, 1)), Dead("undecodable")),
    "garbage as a changed job": (value(b"x", lambda at: keys.changed_key(at.id)), Dead("undecodable")),
    "garbage as a done fact": (value(b"x", lambda at: keys.done_key(at.id, 1)), Dead("undecodable")),
    "garbage as a highest run": (value(b"x", lambda at: keys.highest_key(at.id)), Dead("undecodable")),
    "garbage as a stop": (value(b"x", lambda at: keys.stopped_key(at.id)), Dead("undecodable")),
    "garbage as a key": (value(b"x", lambda at: keys.keyed_key(at.key)), Dead("undecodable")),
    "garbage as a takeover": (value(b"x", lambda at: keys.takeover_key(at.partition)), Dead("undecodable")),
    "garbage as a command": (
        value(b"x", lambda at: keys.command_key(at.uuid)),
        Dead("undecodable", answered=True),
    ),
    "a schedule that nobody can read": (
        value(b"x", lambda at: b"s/nightly-" + at.id.encode()),
        Dead("undecodable"),
    ),
    # -- record keys
    "no record key": (key(None), Refused()),
    "an empty record key": (key(b""), Dead("undecodable")),
    "a record key of no kind": (key(b"z/what"), Dead("undecodable")),
    "a record key that is no UTF-8": (key(b"\xff\xfe"), Dead("undecodable")),
    "a record key of 100 kB": (key(b"k" * 100_000), Dead("undecodable")),
    "a record key of 8 MiB that compression hides": (
        lambda at: [Sent(key=bytes(8 * MIB), value=b"x", compressed=True)],
        Dead("undecodable", tombstone=False),
    ),
    "an id too short": (key(b"j/short"), Dead("undecodable")),
    "an id in capitals": (key(b"j/j" + b"A" * 26), Dead("forged")),
    "a retry of run 0": (key(b"r/j" + b"0" * 26 + b"/0"), Dead("undecodable")),
    "a retry of run 10^20": (key(b"r/j" + b"0" * 26 + b"/1" + b"0" * 20), Dead("undecodable")),
    "a command without a uuid": (key(b"c/7"), Dead("undecodable")),
    # -- jobs
    "a forged run number": (job(run=7), Dead("forged")),
    "run 0": (job(run=0), Dead("forged")),
    "the id of another job inside": (job(job_id="j" + "0" * 26), Dead("forged")),
    "another occurrence inside": (job(occurrence_id="other"), Dead("forged")),
    "due in the year 1": (job(due_at=YEAR_1), Dead("due_at")),
    "due in the year 9999": (job(due_at=YEAR_9999), Dead("due_at")),
    "due before the epoch": (job(due_at=-1), Dead("due_at")),
    "due beyond 48 bits": (job(due_at=2**48), Dead("due_at")),
    "due at the end of 64 bits": (job(due_at=2**63 - 1), Dead("due_at")),
    "due in seconds for milliseconds": (job(due_at=1_790_000_000), Dead("due_at")),
    "due at another time than its id says": (job(due_at=1_600_000_000_000), Fires()),
    "created long ago": (job(created_at=1_600_000_000_000), Dead("too_old")),
    "created before the epoch": (job(created_at=-1), Dead("too_old")),
    "created in the future": (job(created_at=YEAR_9999), Fires()),
    "an unknown queue": (job(queue="nowhere"), Dead("unknown_queue")),
    "an illegal queue": (job(queue="../etc"), Dead("queue")),
    "a queue of 70 kB": (job(queue="q" * 70_000), Dead("queue")),
    "an illegal handler": (job(handler="rm -rf /"), Dead("handler")),
    "no handler": (job(handler=""), Dead("handler")),
    "a payload that is no JSON": (job(payload=b"\xff"), Fires()),
    "JSON nested 100,000 deep": (job(payload=b"[" * 100_000), Fires()),
    "a payload of 1 MiB": (job(payload=noise(MIB)), Fires()),
    "a payload of 1.9 MiB": (job(payload=noise(19 * MIB // 10)), Fires()),
    "labels of half a MiB": (job(labels={"a": "b" * (MIB // 2)}), Fires()),
    "20 MiB that compression hides": (compressed(job(payload=bytes(20 * MIB))), Dead("unappendable")),
    "3 MiB that compression hides": (compressed(job(payload=bytes(3 * MIB))), Fires()),
    "8 MiB of garbage that compression hides": (compressed(value(bytes(8 * MIB))), Dead("undecodable")),
    "the wrong partition": (job(partition=lambda at: at.other), Fires()),
    "the wrong partition, forged": (job(partition=lambda at: at.other, run=7), Dead("forged")),
    "ids that collide": (then(job(), job(payload=b'"another"')), Fires()),
    "a tombstone of no job": (tombstone(lambda at: keys.job_key(at.id)), Ignored()),
    "a tombstone of nonsense": (tombstone(lambda at: b"nonsense"), Ignored()),
    "a job after its tombstone": (
        then(tombstone(lambda at: keys.job_key(at.id)), job()),
        Dropped("duplicate"),
    ),
    # -- headers
    "a header that is no UTF-8": (with_headers(job(), n=b"\xff\xfe"), Fires()),
    "a header name that is no UTF-8": (raw_header(job()), Fires()),
    "a command with a header name that is no UTF-8": (
        raw_header(create()),
        Dead("undecodable", answered=True),
    ),
    "a header of half a MiB": (with_headers(job(), big=bytes(MIB // 2)), Fires()),
    "a header without a value": (with_headers(job(), moved=None), Fires()),
    "an unknown content type": (
        with_headers(create(), **{"content-type": b"\xff"}),
        Dead("undecodable", answered=True),
    ),
    # -- what only owners write
    "a forged change of a pending job": (
        then(job(), owners(lambda at: (keys.changed_key(at.id), said(at)))),
        Fires(),
    ),
    "a forged change of a job to come": (
        then(owners(lambda at: (keys.changed_key(at.id), said(at))), job()),
        Fires(),
    ),
    "a forged change with another run": (
        owners(lambda at: (keys.changed_key(at.id), codec.RUN.encode(at.run(run=2)))),
        Dead("forged"),
    ),
    "a retry of a job nobody knows": (retry(1, run=2), Fires(run=2)),
    "a retry that does not fit its key": (retry(1, run=7), Dead("forged")),
    "a retry after run 70,000": (retry(70_000, run=70_001), Dead("token_exhausted")),
    "a retry after the last run of 32 bits": (retry(INT_MAX - 1, run=INT_MAX), Dead("token_exhausted")),
    "a forged highest run": (then(highest(9), retry(1, run=2)), Dropped("superseded")),
    "a requeue after a forged highest run": (
        then(highest(INT_MAX), about("requeue", handler="h")),
        Answer("refused", "run"),
    ),
    "a done fact of a job nobody knows": (
        owners(lambda at: (keys.done_key(at.id, 1), at.event())),
        Ignored(),
    ),
    "a forged stop": (
        then(owners(lambda at: (keys.stopped_key(at.id), at.event())), retry(1, run=2)),
        Dropped("stopped"),
    ),
    "a forged takeover": (taken_over(lambda at: at.partition), Kept()),
    "a takeover of another partition": (taken_over(lambda at: at.other), Dead("forged")),
    "a forged state of a key": (keyed_state(unique="banana"), Dead("forged")),
    "a state of a key before time": (keyed_state(changed_at=-1), Dead("forged")),
    "a key that was given up": (keyed_state(changed_at=0, unique="started"), Ignored()),
    "a keyed job with another's run": (keyed_run(job_id="k" + "0" * 26), Dead("forged")),
    "a keyed job due in the year 9999": (keyed_run(due_at=YEAR_9999), Dead("due_at")),
    "a keyed job for an unknown queue": (keyed_run(queue="nowhere"), Dead("unknown_queue")),
    # -- commands
    "a command of wrong types": (create(due_at={}), Dead("undecodable", answered=True)),
    "a command that is a list": (raw_command(b"[]"), Dead("undecodable", answered=True)),
    "a command nested 100,000 deep": (raw_command(b"[" * 100_000), Dead("undecodable", answered=True)),
    "a command with a number of 10,000 digits": (
        raw_command(b'{"verb":"create","due_at":' + b"9" * 10_000 + b"}"),
        Dead("undecodable", answered=True),
    ),
    "half a surrogate pair": (create(key="\ud800"), Dead("undecodable", answered=True)),
    "a command with another's id": (create(command_id=str(uuid.UUID(int=7))), Dead("forged", answered=True)),
    "an unknown verb": (about("explode"), Answer("refused", "verb")),
    "a verb of 100 kB": (about("v" * 100_000), Answer("refused", "verb")),
    "a cancel of an unknown job": (about("cancel"), Answer("not_found")),
    "a reschedule of an unknown job": (about("reschedule", delay_ms=5), Answer("not_found")),
    "an update of an unknown job": (about("update", payload={}), Answer("not_found")),
    "a release of an unknown job": (about("release"), Answer("not_found")),
    "a requeue of an unknown job": (about("requeue", handler="h"), Answer("not_found")),
    "a requeue of what only the sender has seen": (
        about("requeue", handler="h", seen_run=4),
        Answer("requeued"),
    ),
    "a requeue that has seen run 2^31": (
        about("requeue", handler="h", seen_run=INT_MAX),
        Answer("refused", "run"),
    ),
    "a requeue that has seen run -5": (about("requeue", handler="h", seen_run=-5), Answer("requeued")),
    "a cancel of nothing": (command(lambda at: {"verb": "cancel"}), Answer("refused", "job_id")),
    "a cancel of nonsense": (about("cancel", job_id="what"), Answer("refused", "id")),
    "a reschedule to the year 1": (about("reschedule", due_at=YEAR_1), Answer("refused", "due_at")),
    "a time that is none": (about("reschedule", due_at="tomorrow"), Dead("undecodable", answered=True)),
    "a create in the year 9999": (create(due_at=YEAR_9999), Answer("refused", "due_at")),
    "a create long before its time": (create(delay_ms=-(2**62)), Answer("refused", "delay_ms")),
    "a create for ever later": (create(delay_ms=2**62), Answer("refused", "due_at")),
    "a create for an unknown queue": (create(queue="nowhere"), Answer("refused", "unknown_queue")),
    "a create without a handler": (create(handler=None), Answer("refused", "handler")),
    "a create with no attempts": (create(attempt_limit=0), Answer("refused", "attempt_limit")),
    "a create with 3 MiB that compression hides": (
        compressed(create(payload="x" * 3 * MIB)),
        Answer("refused", "payload"),
    ),
    "a create with labels of 8 MiB that compression hides": (
        compressed(create(labels={"a": "x" * 8 * MIB})),
        Answer("refused", "labels"),
    ),
    "a create with labels of 1.9 MiB": (
        create(labels={"a": "x" * (19 * MIB // 10)}),
        Answer("refused", "labels"),
    ),
    "a keyed create of nonsense": (keyed(unique="banana"), Answer("refused", "unique")),
    "a keyed create with a conflict of nonsense": (
        keyed(on_conflict="banana"),
        Answer("refused", "conflict"),
    ),
    "a keyed create at the wrong partition": (
        lambda at: [replace(sent, partition=at.other) for sent in keyed(delay_ms=3_600_000)(at)],
        Answer("created"),
    ),
}
