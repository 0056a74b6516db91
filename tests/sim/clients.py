"""Who asks something of the installation: services that create and change jobs, one that says runs have ended, and
some that put garbage on its topics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sim.watch import ELSEWHERE, KEYS, Job, Watch
from sim.world import HOUR_MS, LAYOUT, NAMES, World

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Command, Event, KeyState, Run, Takeover
from pipeline.core.limited import bare, limited
from pipeline.ports import Headers, Put

RESEND_MS = 10 * 60_000
"""A client gives up sending the same record again after this long."""
JSON = [("content-type", b"application/json")]
LIMITS: dict[str, str] = {"0": ELSEWHERE, "1": "default"}
"""By the first digit of a command's id: the queue that its sender is limited to."""


class Clients:
    """Each public method is one event of a script."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.world, self.watch, self.random = world, watch, world.random
        self.appender = MemoryAppender(world.cluster)
        self.sent: list[tuple[int, Put]] = []
        self.again: set[tuple[int, bytes]] = set()
        """What was sent more than once."""
        self.ended: dict[str, int] = {}
        """By occurrence: how many of its runs were said to have ended."""
        self.numbers = 0
        self.limits = LIMITS

    @property
    def now(self) -> int:
        return self.world.clock.now()

    def put(self, partition: int, key: bytes, value: bytes | None, headers: Headers | None = None) -> Put:
        put = Put(NAMES.jobs, partition, key, value, headers)
        self.appender.append(put)
        return put

    def payload(self) -> bytes:
        self.numbers += 1
        return b'{"n":%d}' % self.numbers

    def some_due(self) -> int:
        ahead = self.random.choice([-1_000, 0, 500, 3_000, 12_000, 25_000, HOUR_MS])
        return self.now + ahead + self.random.randrange(500)

    # -- creating ---------------------------------------------------------------------------------------------

    def create(self) -> None:
        """A job without a key, put by its creator; now and then not where its home is."""
        due = self.some_due()
        id_ = anonymous_id(due, self.world.ids.getrandbits(80))
        run = self._run(id_, due, serial=self.random.choice([None, None, "s"]))
        home = LAYOUT.home(id_)
        partition = self.random.randrange(LAYOUT.partitions) if self.random.random() < 0.15 else home
        self.watch.jobs[id_] = Job(id_, due, run.payload, placed=partition == home)
        self._send(self.put(partition, keys.job_key(id_), codec.RUN.encode(run)))

    def poison(self) -> None:
        """A job that passes every check, and whose run no broker will ever take."""
        pending = [job for job in self.watch.jobs.values() if job.pending]
        if pending:
            job = self.random.choice(pending)
            job.poisoned = True
            self.world.poisoned.add(job.occurrence.encode())

    def _run(self, id_: str, due: int, **changes: Any) -> Run:
        run = Run(
            job_id=id_, occurrence_id=id_, due_at=due, run=1, queue="default", handler="sim.job",
            created_at=self.now, nominal_at=due, idempotency_key=id_, payload=self.payload(),
        )  # fmt: skip
        return replace(run, **changes)

    def _send(self, put: Put) -> None:
        self.sent.append((self.now, put))

    def create_by_command(self) -> None:
        self._ask("create", handler="sim.job", payload=self.payload(), **self._time())

    def create_keyed(self) -> None:
        self._ask(
            "create", key=self.random.choice(KEYS), handler="sim.job", payload=self.payload(), **self._time(),
            unique=self.random.choice([None, "finished", "started", "4s", "20s"]),
            on_conflict=self.random.choice([None, "existing", "replace", "debounce", "reject"]),
        )  # fmt: skip

    def _time(self) -> dict[str, int]:
        kind = self.random.randrange(3)
        return {} if kind == 0 else {"due_at": self.some_due()} if kind == 1 else {"delay_ms": 2_000}

    # -- changing ---------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._ask("cancel", job_id=self._some_job())

    def reschedule(self) -> None:
        self._ask("reschedule", job_id=self._some_job(), **(self._time() or {"delay_ms": 0}))

    def update(self) -> None:
        self._ask("update", job_id=self._some_job(), payload=self.payload())

    def requeue(self) -> None:
        """Whoever wants another run has looked at the job, and says what it saw."""
        known = [job for job in self.watch.jobs.values() if job.runs or (job.placed and not job.cancelled)]
        if known:
            job = self.random.choice(known[-12:])
            id_ = self.random.choice([job.occurrence, job.occurrence.partition(".")[0]])
            seen = job.runs[-1] if job.runs else None
            key = next((key for key in KEYS if keyed_id(key) == id_.partition(".")[0]), None)
            conflict = self.random.choice([None, "reject"]) if job.runs else None
            if conflict is not None:
                seen = self.random.choice(job.runs)  # it may have looked a while ago
            self._ask(
                "requeue", job_id=id_, handler="sim.job", key=key, payload=self.payload(), seen_run=seen,
                on_conflict=conflict,
            )  # fmt: skip

    def stop(self) -> None:
        """Whoever has seen a run says where it stands; others ask the owner to stop what it knows."""
        fired = [job for job in self.watch.jobs.values() if job.runs]
        if fired and self.random.random() < 0.7:
            job = self.random.choice(fired[-12:])
            self._ask("stop", job_id=job.occurrence, queue="default", seen_run=self.random.choice(job.runs))
        else:
            self._ask("stop", job_id=self._some_job())

    def release(self) -> None:
        self._ask("release", job_id=keyed_id(self.random.choice(KEYS)))

    def _some_job(self) -> str:
        """Mostly one of the last created; by its key, too; now and then one that nobody knows."""
        chance = self.random.random()
        if chance < 0.25:
            return keyed_id(self.random.choice(KEYS))
        if chance < 0.3 or not self.watch.jobs:
            return anonymous_id(self.now, self.random.getrandbits(80))
        known = list(self.watch.jobs)
        return self.random.choice(known[-8:] if chance < 0.8 else known)

    def _ask(self, verb: str, **fields: Any) -> None:
        """Put a command at its home; now and then elsewhere, or written as JSON, or of who is limited to a queue."""
        id_ = str(uuid.UUID(int=self.world.ids.getrandbits(128), version=4))
        command = Command(command_id=id_, verb=verb, **fields)
        partition = self._home_of(command)
        if partition is None or self.random.random() < 0.1:
            partition = self.random.randrange(LAYOUT.partitions)
        if (queue := self.limits.get(id_[0])) is not None:
            command = limited(command, [queue])
        self.watch.commands[id_] = bare(command)
        if self.random.random() < 0.2:
            value, headers = self._as_json(command), JSON
        else:
            value, headers = codec.COMMAND.encode(command), None
        self._send(self.put(partition, keys.command_key(id_), value, headers))

    def _home_of(self, command: Command) -> int | None:
        if command.requested_by == "nonsense":
            return None
        if command.job_id is not None:
            return LAYOUT.home(command.job_id)
        return None if command.key is None else LAYOUT.home(keyed_id(command.key))

    def _as_json(self, command: Command) -> bytes:
        fields = {name: getattr(command, name) for name in command.__dataclass_fields__}
        fields["payload"] = None if command.payload is None else json.loads(command.payload)
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()

    # -- again, and the end of runs ---------------------------------------------------------------------------

    def resend(self) -> None:
        """A client that never heard the acknowledgement sends the same record again."""
        recent = [put for at, put in self.sent[-20:] if at > self.now - RESEND_MS]
        if recent:
            put = self.random.choice(recent)
            self.again.add((put.partition, put.key))
            self.put(*put[1:])

    @property
    def unsettled(self) -> bool:
        """Whether a late copy is still unread. What then stands for a day and is compacted is a known limit."""
        return any(self.watch.open.get(place) for place in self.again)

    def end_run(self) -> None:
        """Where there are no workers: say of some run that it ended its job, or that another one is wanted."""
        if self.world.workers:
            return
        running = [
            job for job in self.watch.jobs.values() if len(job.runs) > self.ended.get(job.occurrence, 0)
        ]
        if running:
            self._end(self.random.choice(running), again=self.random.random() < 0.4)

    def end_all(self) -> bool:
        """Every run that was emitted ends its job; whether there were any."""
        running = [
            job for job in self.watch.jobs.values() if len(job.runs) > self.ended.get(job.occurrence, 0)
        ]
        for job in running if not self.world.workers else ():
            self._end(job, again=False)
        return bool(running) and not self.world.workers

    def _end(self, job: Job, again: bool) -> None:
        nth = self.ended.get(job.occurrence, 0)
        self.ended[job.occurrence] = nth + 1
        number, id_ = job.runs[nth], job.occurrence.partition(".")[0]
        home = LAYOUT.home(id_)
        if again:
            due = self.now + self.random.choice([0, 2_000, 8_000])
            run = self._run(id_, due, occurrence_id=job.occurrence, run=number + 1, failures=1)
            self.put(home, keys.retry_key(job.occurrence, number), codec.RUN.encode(run))
        elif id_.startswith("k"):
            done = Event(id=job.occurrence, kind="done", at=self.now, run=number, outcome="succeeded")
            self.put(home, keys.done_key(job.occurrence, number), codec.EVENT.encode(done))

    # -- garbage ----------------------------------------------------------------------------------------------

    def garbage(self) -> None:
        """What some program that knows no better puts on `jobs`: it has an outcome and harms nobody."""
        partition = self.random.randrange(LAYOUT.partitions)
        kinds: list[Callable[[int], None]] = [
            self._bytes, self._forged_job, self._forged_run, self._tombstone, self._bad_command, self._bad_json,
            self._nonsense, self._forged_owner, self._strange_key,
        ]  # fmt: skip
        self.random.choice(kinds)(partition)

    def _stranger(self) -> str:
        return anonymous_id(self.now, self.random.getrandbits(80))

    def _bytes(self, partition: int) -> None:
        start = self.random.choice(
            [b"j/", b"a/", b"k/", b"c/", b"r/", b"d/", b"h/", b"x/", b"o/", b"", b"s/x"]
        )
        self.put(
            partition, start + self.random.randbytes(5), self.random.choice([b"", b"\0\xff", b"\xc3\x01"])
        )

    def _forged_job(self, partition: int) -> None:
        """A job that could never be fired, or is not what its key says."""
        id_ = self._stranger()
        bad: dict[str, Any] = self.random.choice(
            [
                {"queue": "nowhere"}, {"queue": "../x"}, {"handler": ""}, {"due_at": 12}, {"due_at": 1 << 60},
                {"run": 7}, {"occurrence_id": self._stranger()}, {"job_id": self._stranger()},
                {"created_at": self.now - HOUR_MS},
            ]
        )  # fmt: skip
        run = replace(self._run(id_, self.now), **bad)
        self.put(partition, keys.job_key(id_), codec.RUN.encode(run))

    def _forged_run(self, partition: int) -> None:
        id_ = self._stranger()
        run = self._run(id_, self.now, run=self.random.choice([1, 9]))
        key = keys.changed_key(id_) if run.run == 9 else keys.retry_key(id_, 1)
        self.put(partition, key, codec.RUN.encode(run))

    def _tombstone(self, partition: int) -> None:
        id_ = self._stranger()
        key = self.random.choice(
            [keys.job_key(id_), b"k/unknown", keys.done_key(id_, 1), b"c/x", b"o/99", b"\xff"]
        )
        self.put(partition, key, None, self.random.choice([None, [("end", b"fired")], [("end", b"\xff")]]))

    def _bad_command(self, partition: int) -> None:
        id_, other = (str(uuid.UUID(int=self.world.ids.getrandbits(128), version=4)) for _ in range(2))
        command = Command(command_id=other, verb="cancel", job_id=self._stranger())
        self.put(partition, keys.command_key(id_), codec.COMMAND.encode(command))

    def _bad_json(self, partition: int) -> None:
        id_ = str(uuid.UUID(int=self.world.ids.getrandbits(128), version=4))
        text = self.random.choice(
            [b"{", b"[]", b'{"verb":1}', b'{"command_id":"%s","verb":"cancel","at":1}' % id_.encode()]
        )
        self.put(partition, keys.command_key(id_), text, JSON)

    def _nonsense(self, partition: int) -> None:
        """Well written commands that ask for what cannot be."""
        verb, fields = self.random.choice(
            [
                ("explode", {"job_id": self._stranger()}), ("cancel", {}), ("cancel", {"job_id": "j"}),
                ("reschedule", {"job_id": self._stranger(), "due_at": 5}), ("update", {"job_id": self._stranger()}),
                ("create", {"handler": "sim.job", "queue": "nowhere"}), ("create", {}),
                ("create", {"handler": "sim.job", "key": "a", "unique": "soon"}),
                ("create", {"handler": "sim.job", "key": "a", "on_conflict": "maybe"}),
                ("create", {"handler": "sim.job", "key": "a", "due_at": 1}),
            ]
        )  # fmt: skip
        self._ask(verb, requested_by="nonsense", **fields)

    def _forged_owner(self, partition: int) -> None:
        """Keys that only an owner writes."""
        takeover = Takeover(process="me", transactional_ids=("sim.d0",), generation=1, nonce="0", at=self.now)
        run = self._run("kx", self.now)
        state = KeyState(
            incarnation=1, phase="pending", highest_run=0, unique="finished", changed_at=self.now, run=run
        )
        key, value = self.random.choice(
            [
                (keys.takeover_key((partition + 1) % LAYOUT.partitions), codec.TAKEOVER.encode(takeover)),
                (keys.takeover_key(partition), codec.TAKEOVER.encode(takeover)),
                (keys.keyed_key("foreign"), codec.KEY_STATE.encode(state)),
                (keys.highest_key(self._stranger()), b"x"),
            ]
        )
        self.put(partition, key, value)

    def _strange_key(self, partition: int) -> None:
        self.put(
            partition, self.random.choice([b"", b"\xff\xfe", b"z/1", b"d/x/0", b"r//1", b"c/UPPER"]), b"x"
        )
