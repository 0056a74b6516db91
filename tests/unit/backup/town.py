"""An installation in memory that goes on by small transactions, as owners and workers make them, while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from pipeline import codec
from pipeline.adapters.memory import MemoryClock, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.backup.cut import Reach, Span
from pipeline.backup.jobs import JobsState
from pipeline.backup.records import Plain
from pipeline.backup.runs import Finished, OpenRuns
from pipeline.core import ids, keys
from pipeline.core.job import Ack, AckState, Command, Event, Highest, KeyState, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.core.spec import ScheduleSpec
from pipeline.fold import CREATE
from pipeline.ports import CommittedOffset, Put

T0 = 1_800_000_000_000
NAMES = Names("t")
LAYOUT = default_layout(shards=2, ring=2, queues={"default": 2})


class MemoryScratch:
    """`backup.jobs.Scratch` in memory."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = sorted((key, value) for key, value in self.rows.items() if key.startswith(prefix))
        return iter([(key[len(prefix) :], value) for key, value in found])


@contextmanager
def memory_scratch(_path: Path) -> Iterator[MemoryScratch]:
    yield MemoryScratch()


def run_of(job_id: str, **changes: Any) -> Run:
    run = Run(
        job_id=job_id,
        occurrence_id=job_id,
        due_at=T0,
        run=1,
        queue="default",
        handler="email.send",
        created_at=T0,
        nominal_at=T0,
        idempotency_key=job_id,
        payload=b"{}",
    )
    return replace(run, **changes)


@dataclass(slots=True)
class Fate:
    """What became of one occurrence: the number of the last transaction when it was made, and when it ended."""

    made: int
    ended: int | None = None


@dataclass(slots=True)
class Town:
    """`asked` transactions were made so far. Anonymous jobs only, also such as a command makes."""

    random: Random
    cluster: MemoryCluster = field(default_factory=lambda: MemoryCluster(lambda: T0))
    fates: dict[str, Fate] = field(default_factory=dict)
    asked: int = 0
    pending: dict[bytes, tuple[int, Run]] = field(default_factory=dict)
    """By record key: where it stands, and the run to emit."""
    commands: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    open: list[tuple[int, int, Run]] = field(default_factory=list)
    """Partition, offset, run."""
    finished: dict[int, set[int]] = field(default_factory=lambda: {0: set(), 1: set()})

    def __post_init__(self) -> None:
        self.cluster.create_topic(NAMES.jobs, LAYOUT.partitions)
        self.cluster.create_topic(NAMES.meta, 1)
        for topic in (NAMES.work("default"), NAMES.acks("default")):
            self.cluster.create_topic(topic, 2)
        for key, value in (
            (keys.LAYOUT_KEY, codec.LAYOUT.encode(LAYOUT)),
            (keys.ERA_KEY, codec.ERA.encode(codec.Era(era=3))),
        ):
            self.cluster.append(Put(NAMES.meta, 0, key, value))

    def put(self, partition: int, key: bytes, value: bytes | None, headers: Any = None) -> int:
        return self.cluster.append(Put(NAMES.jobs, partition, key, value, headers)).offset()

    def go_on(self, times: int) -> None:
        for _ in range(times):
            self.asked += 1
            self.random.choice(self.steps())()

    def steps(self) -> Sequence[Callable[[], None]]:
        return self.create, self.send, self.execute, self.move, self.fire, self.end, self.end, self.retry

    def backlog(self, jobs: int) -> None:
        """So many jobs more and as many commands, of which a third has fired and none has ended."""
        for number in range(jobs):
            for step in (self.create, self.send, *((self.fire,) if number % 3 == 0 else ())):
                self.asked += 1
                step()

    def create(self) -> None:
        id_ = ids.anonymous_id(T0 + self.random.randrange(300_000), self.asked)
        # A foreign producer puts them anywhere.
        at = self.random.choice((LAYOUT.home(id_), self.random.randrange(LAYOUT.partitions)))
        self.fates[id_] = Fate(self.asked)
        self._wait(at, keys.job_key(id_), run_of(id_))

    def _wait(self, at: int, key: bytes, run: Run) -> None:
        self.put(at, key, codec.RUN.encode(run))
        self.pending[key] = at, run

    def send(self) -> None:
        """A create command without a key, at the home of what it makes."""
        uuid = f"00000000-0000-4000-8000-{self.asked:012x}"
        due = T0 + self.random.randrange(300_000)
        id_ = ids.command_job_id(due, uuid)
        command = Command(command_id=uuid, verb=CREATE, handler="email.send", due_at=due)
        self.fates[id_] = Fate(self.asked)
        at, key = LAYOUT.home(id_), keys.command_key(uuid)
        self.put(at, key, codec.COMMAND.encode(command))
        self.commands[key] = at, id_

    def execute(self) -> None:
        if self.commands:
            key = self.random.choice(list(self.commands))
            at, id_ = self.commands.pop(key)
            self._make(at, id_)
            self.put(at, key, None)

    def _make(self, at: int, id_: str) -> None:
        self._wait(at, keys.job_key(id_), run_of(id_))

    def move(self) -> None:
        lost = [key for key, (at, run) in self.pending.items() if at != LAYOUT.home(run.job_id)]
        if lost:
            at, run = self.pending.pop(lost[0])
            self._wait(LAYOUT.home(run.job_id), lost[0], run)
            self.put(at, lost[0], None, [("end", b"moved")])

    def fire(self) -> None:
        home = [key for key, (at, run) in self.pending.items() if at == LAYOUT.home(run.job_id)]
        if home:
            key = self.random.choice(home)
            at, run = self.pending.pop(key)
            place = LAYOUT.work_partition("default", run.job_id)
            work = Put(NAMES.work("default"), place, run.occurrence_id.encode(), codec.RUN.encode(run))
            self.open.append((place, self.cluster.append(work).offset(), run))
            if run.run > 1:
                highest = codec.HIGHEST.encode(Highest(run=run.run, queue="default", work_partition=place))
                self.put(at, keys.highest_key(run.occurrence_id), highest)
            self._fired(at, key, run)

    def _fired(self, at: int, key: bytes, run: Run) -> None:
        self.put(at, key, None, [("end", b"fired")])

    def end(self) -> None:
        if self.open:
            run = self._ack(AckState.SUCCEEDED)
            self.fates[run.occurrence_id].ended = self.asked

    def retry(self) -> None:
        if self.open:
            run = self._ack(AckState.RETRYING)
            key = keys.retry_key(run.occurrence_id, run.run)
            self._wait(LAYOUT.home(run.job_id), key, replace(run, run=run.run + 1))

    def _ack(self, state: AckState) -> Run:
        place, offset, run = self.open.pop(self.random.randrange(len(self.open)))
        self.finished[place].add(offset)
        ack = Ack(
            job_id=run.job_id,
            occurrence_id=run.occurrence_id,
            run=run.run,
            attempt=1,
            token=1,
            worker="w",
            handler="h",
            state=state,
            at=T0,
            work_offset=offset,
        )
        key = keys.terminal_key(run.occurrence_id, run.run, 1)
        self.cluster.append(Put(NAMES.acks("default"), place, key, codec.ACK.encode(ack)))
        return run

    def committed(self, place: int) -> CommittedOffset:
        """The mark, and what was finished above it."""
        finished = sorted(self.finished[place])
        mark = next((n for n, offset in enumerate(finished) if n != offset), len(finished))
        above = "".join(self._above(mark, [offset for offset in finished if offset > mark]))
        return CommittedOffset(mark, f"1;0;{above};;" if above else "")

    def _above(self, mark: int, offsets: Sequence[int]) -> Iterator[str]:
        base, first = mark, True
        while offsets:
            length = next((n for n, offset in enumerate(offsets) if offset != offsets[0] + n), len(offsets))
            yield f"{'' if first else ','}{offsets[0] - base}+{length}"
            base, offsets, first = offsets[0] + length, offsets[length:], False


INCARNATION = 5
SCHEDULE = Schedule(
    incarnation=INCARNATION,
    revision=1,
    spec=ScheduleSpec(id="ticks", handler="tick", every_ms=1_000, overlap="allow"),
    created_at=T0,
    changed_at=T0,
    last_nominal=T0,
)


@dataclass(slots=True)
class City(Town):
    """A town with keys, whose jobs end by facts that their owner consumes, and a schedule."""

    holders: dict[str, Run] = field(default_factory=dict)
    """Keys that are held: by job id, the run that holds it."""
    facts: list[tuple[int, bytes, str]] = field(default_factory=list)
    last_nominal: int = T0

    def steps(self) -> Sequence[Callable[[], None]]:
        return (
            *Town.steps(self),
            self.send_keyed,
            self.send_keyed,
            self.consume,
            self.consume,
            self.tick,
            self.tick,
        )

    def send_keyed(self) -> None:
        uuid, key = f"00000000-0000-4000-8000-{self.asked:012x}", f"order-{self.asked}"
        command = Command(command_id=uuid, verb=CREATE, handler="email.send", due_at=T0, key=key)
        id_ = ids.keyed_id(key)
        at, record_key = LAYOUT.home(id_), keys.command_key(uuid)
        offset = self.put(at, record_key, codec.COMMAND.encode(command))
        occurrence = ids.occurrence_of_keyed(id_, ids.incarnation(3, offset))
        self.fates[occurrence] = Fate(self.asked)
        self.commands[record_key] = at, f"{occurrence} {key}"

    def _make(self, at: int, id_: str) -> None:
        occurrence, _, key = id_.partition(" ")
        if not key:
            Town._make(self, at, id_)
            return
        job = occurrence.partition(".")[0]
        run = run_of(job, occurrence_id=occurrence, idempotency_key=occurrence, key=key)
        self.pending[keys.keyed_key(key)] = at, run
        self._hold(at, run, run)

    def _hold(self, at: int, holder: Run, waiting: Run | None) -> None:
        incarnation = int(holder.occurrence_id.partition(".")[2])
        state = KeyState(
            incarnation=incarnation,
            phase="fired" if waiting is None else "pending",
            highest_run=holder.run,
            unique="finished",
            changed_at=T0,
            run=waiting,
        )
        self.put(at, keys.keyed_key(holder.key or ""), codec.KEY_STATE.encode(state))
        self.holders[holder.job_id] = holder

    def _fired(self, at: int, key: bytes, run: Run) -> None:
        if run.key is not None:
            self._hold(at, run, None)
        if not key.startswith(b"k/"):
            Town._fired(self, at, key, run)

    def _ack(self, state: AckState) -> Run:
        run = Town._ack(self, state)
        if state is AckState.SUCCEEDED and run.key is not None:
            at, fact = LAYOUT.home(run.job_id), keys.done_key(run.occurrence_id, run.run)
            self.put(
                at, fact, codec.EVENT.encode(Event(id=run.job_id, kind="done", at=T0, outcome=str(state)))
            )
            self.facts.append((at, fact, run.key))
        return run

    def consume(self) -> None:
        if self.facts:
            at, fact, key = self.facts.pop(0)
            self.put(at, keys.keyed_key(key), None, [("end", b"done")])
            self.put(at, fact, None, [("end", b"consumed")])

    def tick(self) -> None:
        """The schedule comes to its next instant."""
        self.last_nominal += 1_000
        id_ = ids.schedule_occurrence("ticks", INCARNATION, "g", "", self.last_nominal)
        self.fates[id_] = Fate(self.asked)
        run = run_of(id_, schedule_id="ticks", nominal_at=self.last_nominal)
        place = LAYOUT.work_partition("default", id_)
        work = Put(NAMES.work("default"), place, id_.encode(), codec.RUN.encode(run))
        self.open.append((place, self.cluster.append(work).offset(), run))
        state = replace(SCHEDULE, last_nominal=self.last_nominal)
        self.put(LAYOUT.home_of_name("ticks"), keys.schedule_key("ticks"), codec.SCHEDULE.encode(state))


class Glances:
    """`Positions` of a town that goes on between any two looks at it. `forgetful`: its group has no offset."""

    def __init__(self, town: Town, steps: Callable[[], int], *, forgetful: bool = False) -> None:
        self._town = town
        self._forgetful = forgetful
        self._steps = steps

    def _look(self) -> None:
        self._town.go_on(self._steps())

    def committed(self, _group: str, _topic: str, partitions: int) -> list[CommittedOffset | None]:
        found: list[CommittedOffset | None] = []
        for number in range(partitions):
            self._look()
            found.append(None if self._forgetful else self._town.committed(number))
        return found

    def ends(self, topic: str, partitions: int) -> list[int]:
        found = []
        for number in range(partitions):
            self._look()
            found.append(self._town.cluster.partition(topic, number).end)
        return found


def reader(town: Town) -> MemoryReader:
    return MemoryReader(town.cluster)


def clock() -> MemoryClock:
    return MemoryClock(T0)


def fold(town: Town, spans: Sequence[Span], era: int = 3) -> JobsState:
    state = JobsState(MemoryScratch(), LAYOUT, era)
    for partition, span in enumerate(spans):
        state.fold(partition, reader(town).read(NAMES.jobs, partition), span)
    state.settle()
    return state


def open_runs(town: Town, partition: int, reach: Reach, jobs: JobsState) -> list[Plain]:
    finished = Finished(reach, reader(town).read(NAMES.acks("default"), partition))
    runs = OpenRuns("default", finished, reach, jobs, LAYOUT)
    return list(runs.of(reader(town).read(NAMES.work("default"), partition)))
