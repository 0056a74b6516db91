"""A run and what surrounds it: the values that travel through the topics, as the code sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from pipeline.core.spec import ScheduleSpec

Millis = NewType("Millis", int)
"""Milliseconds: an instant since the epoch (UTC) or a duration, as the name says."""

EARLIEST = Millis(946_684_800_000)
"""2000-01-01: anything before is malformed; also catches seconds handed over as milliseconds (DESIGN §6)."""
LATEST = Millis(7_258_118_400_000)
"""2200-01-01."""
PAYLOAD_LIMIT = 1024 * 1024
"""Bytes of a payload by default."""
KEY_LIMIT = 512
"""Bytes of a job's key at most."""
PAYLOAD_CEILING = 1_900_000
"""Bytes of a payload at most: leaves room for the rest of a Run below the 2 MiB messages of `jobs` and `work`."""


class JobStatus(StrEnum):
    """What `job get` answers. `queued` = fired, not started."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    SKIPPED = "skipped"


class AckState(StrEnum):
    """State of one attempt on the acks topic. STARTED and RELEASED open or give back, the others are terminal."""

    STARTED = "started"
    RELEASED = "released"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRYING = "retrying"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self not in (AckState.STARTED, AckState.RELEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed, as data: never an object to be unpickled."""

    type: str
    message: str
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt in the history of an occurrence, which runs and dead letters carry.

    `worker` "" and `token` 0: not known. `at` = when it ended, epoch ms. `outcome`: an AckState, or "lost".
    """

    run: int
    attempt: int
    worker: str
    token: int
    at: int
    outcome: str
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One emission of an occurrence: the value of `j/` and `r/` records and of the work topic (schemas/run.avsc).

    Times are epoch milliseconds. `due_at` is when this run is due (a retry's is later than its job's),
    `nominal_at` when the occurrence was meant. `attempt_limit` None = the handler's own. `history` has the attempts
    of earlier runs, oldest first, cut short; a requeue begins a new one.
    """

    job_id: str
    occurrence_id: str
    due_at: int
    run: int
    queue: str
    handler: str
    created_at: int
    nominal_at: int
    idempotency_key: str
    payload: bytes
    serial: str | None = None
    schedule_id: str | None = None
    key: str | None = None
    failures: int = 0
    attempt_limit: int | None = None
    timeout_ms: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    history: tuple[AttemptRecord, ...] = ()
    last_success_at: int | None = None
    """Of an occurrence of a schedule: when the last one that succeeded was meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One fact about one attempt (schemas/ack.avsc). `token` is the fencing token, `at` the store's time."""

    job_id: str
    occurrence_id: str
    run: int
    attempt: int
    token: int
    worker: str
    handler: str
    state: AckState
    at: int
    work_offset: int
    started_at: int | None = None
    error: Failure | None = None
    result: bytes | None = None
    log_tail: str | None = None
    retry_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """`o/<partition>`: whoever reads back the record with its own nonce has read all that any earlier owner
    can still commit (DESIGN §5.2). `transactional_ids` let the next owner fence this one."""

    process: str
    transactional_ids: tuple[str, ...]
    generation: int
    nonce: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Highest:
    """`h/<occurrence>`: the highest run emitted so far, and where it stands."""

    run: int
    queue: str
    work_partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record on `dead`: a run that ended dead (`run` set), or bytes nobody can read (`value` and place set)."""

    reason: str
    detail: str
    at: int
    source_topic: str
    source_partition: int
    source_offset: int
    record_key: bytes | None = None
    value: bytes | None = None
    run: Run | None = None
    attempts: tuple[AttemptRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One partition in a heartbeat."""

    topic: str
    partition: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """One run in a heartbeat; `progress_permille` is 0 to 1000."""

    occurrence_id: str
    run: int
    attempt: int
    token: int
    handler: str
    started_at: int
    progress_permille: int | None = None
    note: str | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One run in a heartbeat that `worker` executes and will finish, though its partition is ours by now."""

    occurrence_id: str
    run: int
    token: int
    worker: str
    work_partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a process says of itself on `fleet`, once a second; its tombstone says it left."""

    process: str
    role: str
    version: str
    host: str
    pid: int
    started_at: int
    generation: int
    owned: tuple[Owned, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    held: tuple[Held, ...] = ()
    parked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened to a command or a job, on `events`."""

    id: str
    kind: str
    at: int
    job_id: str | None = None
    occurrence_id: str | None = None
    run: int | None = None
    command_id: str | None = None
    outcome: str | None = None
    reason: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`c/<uuid>`: something asked of the owner of a home partition (schemas/command.avsc; JSON allowed).

    `due_at` and `delay_ms` exclude each other; a delay counts from the command's LogAppendTime. `spec` is what a
    schedule verb makes or changes, `detail` what else it takes, by name.
    """

    command_id: str
    verb: str
    job_id: str | None = None
    key: str | None = None
    schedule_id: str | None = None
    handler: str | None = None
    queue: str | None = None
    payload: bytes | None = None
    due_at: int | None = None
    delay_ms: int | None = None
    idempotency_key: str | None = None
    attempt_limit: int | None = None
    timeout_ms: int | None = None
    serial: str | None = None
    unique: str | None = None
    on_conflict: str | None = None
    seen_run: int | None = None
    reason: str | None = None
    requested_by: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    spec: ScheduleSpec | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch:
    """What the command `replay` is about: encoded runs of one queue and one home partition, the last that was seen of
    each occurrence, and whether they ended dead (schemas/replay_batch.avsc)."""

    runs: tuple[bytes, ...]
    dead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """`k/<key>`: where a keyed job stands (DESIGN §4, keyed jobs)."""

    incarnation: int
    phase: str
    highest_run: int
    unique: str
    changed_at: int
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A chunk of what a worker without the partition would have committed (DESIGN §7, lease)."""

    occurrence_id: str
    run: int
    token: int
    worker: str
    chunk: int
    last: bool
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGuard:
    """`g/<group>/<partition>` on `meta`: the highest generation that owned the partition (H20)."""

    generation: int
    topic_id: str
