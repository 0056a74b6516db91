"""What must hold of an installation, told of every record in the order in which records became readable for good.

So each promise is checked when the record comes that would break it, and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.world import NAMES

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core.ids import keyed_id
from pipeline.core.job import Command, Event, KeyState
from pipeline.core.limited import NOT_ALLOWED, QUEUES
from pipeline.core.times import parse_duration
from pipeline.core.topics import WORK_RETENTION_MS

KEYS = ("a", "b/ü", "c")
"""Those that clients use; others are garbage."""
ELSEWHERE = "elsewhere"
"""A queue on which there is nothing: who is limited to it can change nothing."""


@dataclass
class Job:
    """An occurrence that somebody was told exists."""

    occurrence: str
    due: int
    payload: bytes
    placed: bool = True
    """Whether it stands at its home: one that was put elsewhere is on its way."""
    runs: list[int] = field(default_factory=list)
    last_due: int = 0
    """When the last of them was due."""
    cancelled: bool = False
    stopped: bool = False
    poisoned: bool = False
    """Whether no broker takes its first run."""
    dead: bool = False

    @property
    def pending(self) -> bool:
        return not self.runs and not self.cancelled and not self.dead


class Watch:
    """`wrong` holds whatever a promise was broken by."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.wrong: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.commands: dict[str, Command] = {}
        """Those that were sent, by id."""
        self._taken_at: dict[str, list[int]] = {}
        """When the log took each command, every time it was sent."""
        self.answers: dict[str, Event] = {}
        self.keys: dict[bytes, KeyState] = {}
        self._incarnations: dict[bytes, int] = {}
        self._done: dict[str, int] = {}
        """By occurrence: the highest run that ended the job."""
        self._executed: dict[int, int] = {}
        self._retries: dict[bytes, int] = {}
        """By record key: when a retry is due, as it was last put."""
        self.acks: dict[tuple[str, int], list[int]] = {}
        self.stops: dict[str, Event | None] = {}
        """What workers can read of stops, by occurrence; None: taken back."""
        """Tokens of the terminal acks of each run."""
        self.open: dict[tuple[int, bytes], bool] = {}
        """By partition and key of jobs and commands: whether the last record is no tombstone."""
        self._topics = {
            NAMES.work("default"): self._work,
            NAMES.events: self._event,
            NAMES.jobs: self._jobs,
            NAMES.acks("default"): self._ack,
            NAMES.dead: self._dead,
        }

    def saw(self, records: Sequence[MemoryRecord]) -> None:
        for record in records:
            see = self._topics.get(record.topic())
            if see is not None:
                see(record)

    def say(self, problem: str) -> None:
        self.wrong.append(problem)

    def expect(self, holds: object, problem: str) -> None:
        if not holds:
            self.say(problem)

    def check(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)

    # -- work: fired once, on time, as it was last asked for ------------------------------------------------

    def _work(self, record: MemoryRecord) -> None:
        run = codec.RUN.decode(record.value() or b"")
        self.expect(record.timestamp()[1] >= run.due_at, f"early: {run}")
        job = self.jobs.get(run.occurrence_id)
        if job is None:
            self.say(f"invented: {run}")
            return
        if run.run == 1:
            self.expect(1 not in job.runs, f"doubled: {run}")
            self.expect(not job.cancelled, f"fired although cancelled: {run}")
            self.expect((run.due_at, run.payload) == (job.due, job.payload), f"fired {run}, wanted {job}")
        self.expect(not job.runs or run.run > job.runs[-1], f"run {run.run} after {job.runs}: {run}")
        job.runs.append(run.run)
        job.last_due = run.due_at

    def _ack(self, record: MemoryRecord) -> None:
        if record.key().startswith(b"t/"):
            ack = codec.ACK.decode(record.value() or b"")
            self.acks.setdefault((ack.occurrence_id, ack.run), []).append(ack.token)
        elif record.key().startswith(b"x/"):
            value = record.value()
            self.stops[record.key()[2:].decode()] = None if value is None else codec.EVENT.decode(value)

    def _dead(self, record: MemoryRecord) -> None:
        if record.value() is None:
            return  # the mark of a requeue
        letter = codec.DEAD_LETTER.decode(record.value() or b"")
        job = None if letter.run is None else self.jobs.get(letter.run.occurrence_id)
        if job is not None and letter.source_topic == NAMES.jobs:
            self.expect(job.pending and job.poisoned, f"buried: {job}: {letter}")
            job.dead = True

    # -- events: answers --------------------------------------------------------------------------------------

    def _event(self, record: MemoryRecord) -> None:
        event = codec.EVENT.decode(record.value() or b"")
        command = self.commands.get(event.command_id or "")
        if event.kind != "answer" or command is None:
            return
        first = self.answers.setdefault(event.command_id or "", event)
        if first is event:
            self._answered(command, event)
        else:
            self.expect(first == event, f"executed twice, or told otherwise: {first}, then {event}")

    def _answered(self, command: Command, event: Event) -> None:
        judge: Callable[[Command, Event, Job | None], None] | None = getattr(self, f"_{event.outcome}", None)
        if judge is None:
            self.say(f"unknown outcome of {command}: {event}")
            return
        job = self.jobs.get(event.occurrence_id or "")
        if command.detail.get(QUEUES) == ELSEWHERE:
            self._changed_nothing(command, event, job)
        judge(command, event, job)

    def _changed_nothing(self, command: Command, event: Event, job: Job | None) -> None:
        """What it may be told beside `not_allowed` was so before it was asked."""
        was_so = event.outcome in ("refused", "not_found", "fired", "superseded")
        if event.outcome == "cancelled":
            was_so = job is None or job.cancelled
        elif event.outcome in ("stopped", "stopping"):
            was_so = job is None or job.stopped
        self.expect(was_so or event.outcome == NOT_ALLOWED, f"limited, and {event} of {job} by {command}")

    def _not_allowed(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(command.detail.get(QUEUES) == ELSEWHERE, f"{event} of {job} by {command}")

    def _due_of(self, command: Command, event: Event) -> int:
        due = int(event.detail.get("due_at", -1))
        if command.due_at is not None:
            wanted = [command.due_at]
        else:
            wanted = [at + (command.delay_ms or 0) for at in self._taken_at[command.command_id]]
        self.expect(due in wanted, f"asked for {wanted}, answered {event}")
        return due

    def _created(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job is None, f"created twice: {event}")
        due = self._due_of(command, event)
        occurrence = event.occurrence_id or ""
        self.jobs[occurrence] = Job(occurrence, due, command.payload or b"{}", placed=False)
        if command.key is not None:
            held = self.keys.get(b"k/" + command.key.encode())
            self.expect(
                held and occurrence.endswith(f".{held.incarnation}"), f"{event} but the key holds {held}"
            )
            self.jobs[occurrence].placed = True

    def _replaced(self, command: Command, event: Event, job: Job | None) -> None:
        if job is None or not job.pending:
            self.say(f"{event} of {job}")
            return
        job.due, job.payload = self._due_of(command, event), command.payload or b"{}"

    def _debounced(self, command: Command, event: Event, job: Job | None) -> None:
        if job is None or not job.pending:
            self.say(f"{event} of {job}")
            return
        due = int(event.detail["due_at"])
        wanted = (
            [command.due_at]
            if command.due_at is not None
            else [at + (command.delay_ms or 0) for at in self._taken_at[command.command_id]]
        )
        self.expect(due in [max(job.due, each) for each in wanted], f"{event} of {job} by {command}")
        job.due = due

    def _existing(self, command: Command, event: Event, job: Job | None) -> None:
        held = self.keys.get(b"k/" + (command.key or "").encode())
        self.expect(job and held, f"{event} while the key is free")

    _rejected = _existing

    def _refused(self, command: Command, event: Event, job: Job | None) -> None:
        asks_of_none = command.verb == "requeue" and "names no incarnation" in (event.reason or "")
        self.expect(command.requested_by == "nonsense" or asks_of_none, f"refused: {command}: {event}")

    def _cancelled(self, command: Command, event: Event, job: Job | None) -> None:
        if job is None:
            known = [
                j for o, j in self.jobs.items() if o.startswith(f"{event.occurrence_id}.") and j.cancelled
            ]
            self.expect(known, f"{event} of nothing that was cancelled")
            return
        self.expect(1 not in job.runs, f"{event} of {job}")
        self.expect(job.cancelled or command.verb in ("cancel", "stop"), f"{event} of {job}")
        job.cancelled = True

    def _stopped(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(self._runs_of(event), f"{event} of what has not fired")
        if job is not None:
            job.stopped = True

    def _stopping(self, command: Command, event: Event, job: Job | None) -> None:
        """Its worker can read of it, and no retry will be emitted."""
        if job is None or not job.runs:
            self.say(f"{event} of what has not fired: {job}")
            return
        told = self.stops.get(job.occurrence)
        self.expect(told is not None and told.run == job.runs[-1] == event.run, f"{event} of {job}: {told}")
        job.stopped = True

    def _superseded(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job and job.runs[-1] > (command.seen_run or 0), f"{event} of {job} by {command}")

    def _fired(self, command: Command, event: Event, job: Job | None) -> None:
        start = f"{event.occurrence_id}."
        dead = [j for o, j in self.jobs.items() if j.dead and (j is job or o.startswith(start))]
        self.expect(dead or self._runs_of(event), f"{event} of what has not fired: {job}")

    def _runs_of(self, event: Event) -> list[int]:
        job = self.jobs.get(event.occurrence_id or "")
        if job is not None:
            return job.runs
        start = f"{event.occurrence_id}."
        return [run for o, j in self.jobs.items() if o.startswith(start) for run in j.runs]

    def _not_found(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job is None or not (job.pending and job.placed), f"{event} of {job}")

    def _rescheduled(self, command: Command, event: Event, job: Job | None) -> None:
        due = self._due_of(command, event)
        if job is None or job.cancelled:
            self.say(f"{event} of {job}")
        elif not job.runs:
            job.due = due
        else:
            retry = self._retries.get(f"r/{job.occurrence}/{job.runs[-1]}".encode())
            self.expect(retry == due, f"{event}, but the retry is due at {retry}")

    def _updated(self, command: Command, event: Event, job: Job | None) -> None:
        if job is None or not job.pending:
            self.say(f"{event} of {job}")
        else:
            job.payload = command.payload or b""

    def _requeued(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job is None or (job.runs and job.runs[-1] == event.run), f"{event} of {job}")
        self.expect(self.stops.get(event.occurrence_id or "") is None, f"{event}, and it is still stopped")
        if job is not None:
            job.stopped = False

    def _brought_forward(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job and job.runs, f"{event} of {job}")

    def _pending(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job and job.pending, f"{event} of {job}")

    def _released(self, command: Command, event: Event, job: Job | None) -> None:
        self.expect(job and job.runs, f"{event} of {job}")

    # -- jobs: keys, and the order of commands --------------------------------------------------------------

    def _jobs(self, record: MemoryRecord) -> None:
        key, value, headers = record.key(), record.value(), dict(record.headers() or ())
        match key[:2]:
            case b"k/" if key[2:].decode("utf-8", "replace") in KEYS:
                self._key(key, value, headers)
            case b"c/" | b"j/":
                self.open[record.partition(), key] = value is not None
                if key[:1] == b"c":
                    self._command(record, headers)
            case b"d/" if value is not None:
                self._ended(key)
            case b"r/":
                self._retry(key, value, headers)

    def _command(self, record: MemoryRecord, headers: dict[str, bytes]) -> None:
        id_ = record.key()[2:].decode("utf-8", "replace")
        if record.value() is not None and "moved" not in headers:
            self._taken_at.setdefault(id_, []).append(record.timestamp()[1])
        if record.value() is None and headers.get("end") == b"executed":
            base, before = int(headers["base"]), self._executed.get(record.partition(), -1)
            self.expect(base > before, f"command {id_} at {base} was executed after the one at {before}")
            self._executed[record.partition()] = base

    def _ended(self, key: bytes) -> None:
        occurrence, _, run = key[2:].decode("utf-8", "replace").rpartition("/")
        if run.isdigit():
            self._done[occurrence] = max(int(run), self._done.get(occurrence, 0))

    def _retry(self, key: bytes, value: bytes | None, headers: dict[str, bytes]) -> None:
        job = self.jobs.get(key[2:].decode("utf-8", "replace").rpartition("/")[0])
        if value is not None:
            self._retries[key] = codec.RUN.decode(value).due_at if job is not None else 0
        elif job is not None and headers.get("end") == b"fired":
            self.expect(not job.stopped, f"{key!r} was emitted although {job} was stopped")
            wanted = self._retries.get(key)
            self.expect(
                job.last_due == wanted, f"{key!r} was wanted at {wanted}, emitted as due at {job.last_due}"
            )

    def _key(self, key: bytes, value: bytes | None, headers: dict[str, bytes]) -> None:
        before = self.keys.get(key)
        if value is None:
            if before is not None:
                self._freed(key, before, headers.get("end", b"").decode())
            self.keys.pop(key, None)
            return
        state = codec.KEY_STATE.decode(value)
        if before is not None and before.incarnation == state.incarnation:
            self.expect(before.run or not state.run, f"{key!r} pending again: {before}, then {state}")
        else:
            self.expect(before is None or self._over(before), f"{key!r} was taken from {before} by {state}")
            last = self._incarnations.get(key, -1)
            self.expect(state.incarnation > last, f"{key!r}: incarnation {state.incarnation} after {last}")
            self._incarnations[key] = state.incarnation
        self.keys[key] = state

    def _over(self, state: KeyState) -> bool:
        """Whether a key is free by the passing of time alone."""
        if state.run is not None or state.unique == "started":
            return False
        held = WORK_RETENTION_MS if state.unique == "finished" else parse_duration("unique", state.unique)
        return self._now() >= state.changed_at + held

    def _freed(self, key: bytes, state: KeyState, end: str) -> None:
        occurrence = f"{keyed_id(key[2:].decode())}.{state.incarnation}"
        job = self.jobs.get(occurrence)
        if job is None:
            self.say(f"{key!r} held by an unknown job: {state}")
            return
        match end:
            case "done":
                legal = bool(job.runs) and self._done.get(occurrence, 0) >= job.runs[-1]
            case "fired":
                legal = bool(job.runs)
            case "cancelled":
                legal = not job.runs
            case "stopped" | "released":
                legal = bool(job.runs)
            case "dead":
                legal = job.dead
            case "expired":
                legal = self._over(state)
            case _:
                legal = False
        self.expect(legal, f"{key!r} freed as {end!r} while {state}, {job}")

    # -- once nothing is left to do ---------------------------------------------------------------------------

    def check_rest(self) -> None:
        lost = [job for job in self.jobs.values() if job.pending]
        self.expect(not lost, f"lost: {lost}")
        unanswered = [c for id_, c in self.commands.items() if id_ not in self.answers]
        self.expect(not unanswered, f"not answered: {unanswered}")
        self.check()
