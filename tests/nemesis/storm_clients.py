"""Clients of a storm: plain Kafka producers that put jobs, commands, ends of runs and rubbish, and remember what the
broker acknowledged. What was acknowledged is what the check holds the product to."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from nemesis import storm_wire as wire

FAR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Job:
    """What a client asked for. `offset` < 0: the broker has not said that it has it."""

    id: str
    due: int
    payload: bytes
    put_at: int
    offset: int = -1
    queue: str = "default"
    serial: str | None = None
    elsewhere: bool = False
    """Put on a partition that is not its home: until it was moved its home knows nothing of it."""


@dataclass(slots=True)
class Sent:
    """A command as it was put; `places` = (partition, offset) of each acknowledged copy."""

    id: str
    fields: dict[str, Any]
    home: int
    at: int
    places: list[tuple[int, int]] = field(default_factory=list)


class Ledger:
    """All that the clients of one storm know."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.commands: dict[str, Sent] = {}
        self.done: dict[tuple[str, int], int] = {}
        """d/ facts put: offset, -1 = not acknowledged."""
        self.retries: dict[tuple[str, int], tuple[int, int]] = {}
        """r/ records put, by (occurrence, run that they ask for): offset and due."""
        self.rubbish: dict[tuple[int, int], str] = {}
        self.rubbish_keys: set[str] = set()
        self.lines: dict[str, int] = {}
        """Marker and due of each job created through the command line."""
        self.unsure_lines: set[str] = set()
        self.answers: dict[str, str] = {}
        """Job ids of creates by command that were answered, by command id."""
        self.recent: list[str] = []


class Client:
    def __init__(
        self, bootstrap: str, prefix: str, layout: wire.Layout, ledger: Ledger, random: Random
    ) -> None:
        self.layout, self.ledger, self.random = layout, ledger, random
        self.jobs_topic = f"{prefix}.jobs"
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
                "delivery.timeout.ms": 30_000,
            }
        )

    def put(
        self,
        key: str,
        value: bytes,
        partition: int,
        done: Callable[[int], None],
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        def report(error: Any, message: Message) -> None:
            if error is None:
                done(message.offset() or 0)

        self.producer.produce(
            self.jobs_topic,
            key=key.encode(),
            value=value,
            partition=partition,
            on_delivery=report,
            headers=headers or [],
        )
        self.producer.poll(0)

    # -- jobs ---------------------------------------------------------------------------------------------

    def job(self, due: int, *, elsewhere: bool = False) -> Job:
        random = self.random
        id_ = wire.anonymous(due, random.getrandbits(80))
        job = Job(id_, due, json.dumps({"n": id_[-6:], "v": 0}).encode(), now_ms())
        job.queue = "slow" if random.random() < 0.1 else "default"
        job.serial = f"g{random.randrange(5)}" if random.random() < 0.1 else None
        run = {
            "job_id": id_,
            "occurrence_id": id_,
            "due_at": due,
            "run": 1,
            "queue": job.queue,
            "handler": "storm.nothing",
            "created_at": job.put_at,
            "serial": job.serial,
            "nominal_at": due,
            "idempotency_key": id_,
            "payload": job.payload,
        }
        self.ledger.jobs[id_] = job

        def acked(offset: int) -> None:
            job.offset = offset
            self.ledger.recent.append(id_)

        home = self.layout.home(id_)
        if elsewhere:
            home, job.elsewhere = random.randrange(self.layout.partitions), True
        self.put(f"j/{id_}", wire.write("run", run), home, acked)
        if random.random() < 0.01:  # a client that was not sure puts it again
            self.put(f"j/{id_}", wire.write("run", run), home, lambda offset: None)
        return job

    # -- commands -----------------------------------------------------------------------------------------

    def command(self, fields: dict[str, Any], home: int | None, *, twice: bool = False) -> Sent:
        random, id_ = self.random, str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        partition = random.randrange(self.layout.partitions) if home is None else home
        sent = Sent(id_, fields, partition, now_ms())
        if home is not None and random.random() < 0.05:
            partition = random.randrange(self.layout.partitions)
        self.ledger.commands[id_] = sent
        if random.random() < 0.5:
            value, headers = self._json(id_, fields), [("content-type", b"application/json")]
        else:
            value, headers = wire.write("command", {"command_id": id_, **fields}), []
        for _ in range(2 if twice else 1):
            self.put(
                f"c/{id_}", value, partition, lambda offset: sent.places.append((partition, offset)), headers
            )
        return sent

    def _json(self, id_: str, fields: dict[str, Any]) -> bytes:
        plain = dict(fields)
        if "payload" in plain:
            plain["payload"] = json.loads(plain["payload"])
        return json.dumps({"command_id": id_, **plain}).encode()

    def create(self, key: str | None = None, **more: Any) -> Sent:
        fields = {"verb": "create", "handler": "storm.nothing", **more, **({"key": key} if key else {})}
        return self.command(fields, None if key is None else self.layout.home(wire.keyed(key)))

    def change(self, verb: str, job_id: str, **more: Any) -> Sent:
        return self.command(
            {"verb": verb, "job_id": job_id, **more},
            self.layout.home(job_id),
            twice=self.random.random() < 0.05,
        )

    def payload(self) -> bytes:
        return json.dumps({"v": self.random.getrandbits(40)}, separators=(", ", ": ")).encode()

    # -- what workers do ----------------------------------------------------------------------------------

    def finish(self, run: dict[str, Any]) -> None:
        """As a worker that acked the run: it ended the job, or asks for another run."""
        occurrence, number, random = run["occurrence_id"], run["run"], self.random
        home = self.layout.home(run["job_id"])
        if random.random() < 0.25 and number < 4:
            due = now_ms() + random.choice((0, 300, 2_000))
            self.ledger.retries[occurrence, number + 1] = (-1, due)
            again = {**run, "run": number + 1, "failures": run["failures"] + 1, "due_at": due}

            def retried(offset: int) -> None:
                self.ledger.retries[occurrence, number + 1] = (offset, due)

            self.put(f"r/{occurrence}/{number}", wire.write("run", again), home, retried)
        elif run["key"] is not None:
            self.ledger.done[occurrence, number] = -1
            event = {"id": occurrence, "kind": "done", "at": now_ms(), "job_id": run["job_id"]}
            event |= {"occurrence_id": occurrence, "run": number, "outcome": "succeeded"}

            def ended(offset: int) -> None:
                self.ledger.done[occurrence, number] = offset

            self.put(f"d/{occurrence}/{number}", wire.write("event", event), home, ended)

    # -- rubbish ------------------------------------------------------------------------------------------

    def rubbish(self) -> None:
        random = self.random
        due = now_ms() + 500
        id_ = wire.anonymous(due, random.getrandbits(80))
        run = {
            "job_id": id_,
            "occurrence_id": id_,
            "due_at": due,
            "run": 1,
            "queue": "default",
            "handler": "storm.nothing",
            "created_at": now_ms(),
            "nominal_at": due,
            "idempotency_key": id_,
            "payload": b"{}",
        }
        what, key, value = random.choice(
            (
                ("garbage", f"j/{id_}", random.randbytes(80)),
                ("no key", f"what {id_}?", b"{}"),
                ("forged run", f"j/{id_}", wire.write("run", run | {"run": 7})),
                ("unknown queue", f"j/{id_}", wire.write("run", run | {"queue": "nowhere"})),
                ("too old", f"j/{id_}", wire.write("run", run | {"created_at": due - 20 * 60_000})),
                ("garbage command", f"c/{uuid.UUID(int=random.getrandbits(128))}", b"{nonsense"),
                ("forged retry", f"r/{id_}/1", wire.write("run", run | {"run": 9})),
            )
        )
        home = self.layout.home(id_)
        self.ledger.rubbish_keys.add(key)

        def acked(offset: int) -> None:
            self.ledger.rubbish[home, offset] = what

        self.put(key, value, home, acked)


class Storm(threading.Thread):
    """One client that does this and that until told to stop, `rate` times a second."""

    def __init__(self, client: Client, rate: float) -> None:
        super().__init__(daemon=True)
        self.client, self.rate, self.closing = client, rate, threading.Event()
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            while not self.closing.is_set():
                self._one()
                time.sleep(self.client.random.expovariate(self.rate))
        except Exception as error:  # noqa: BLE001 - raised again by close()
            self.failed = error

    def _one(self) -> None:
        client, random = self.client, self.client.random
        kind = random.random()
        if kind < 0.55:
            client.job(now_ms() + self._delay(), elsewhere=random.random() < 0.03)
        elif kind < 0.60:
            when = (
                {"delay_ms": self._delay()} if random.random() < 0.5 else {"due_at": now_ms() + self._delay()}
            )
            client.create(payload=client.payload(), **when)
        elif kind < 0.72:
            self._keyed()
        elif kind < 0.985:
            self._change()
        elif kind < 0.995:
            client.rubbish()
        else:
            due = now_ms() + random.randrange(500, 4_000)
            for _ in range(random.choice((100, 1_000))):
                client.job(due)

    def _delay(self) -> int:
        random = self.client.random
        return random.choice((-2_000, 0, 100, 500, 1_500, 4_000, 8_000, FAR_MS)) + random.randrange(400)

    def _keyed(self) -> None:
        client, random = self.client, self.client.random
        unique = random.choice(("finished", "finished", "started", "3s"))
        more: dict[str, Any] = {"unique": unique, "payload": client.payload()}
        more["on_conflict"] = random.choice(("existing", "replace", "debounce", "reject"))
        if random.random() < 0.5:
            more["delay_ms"] = max(0, self._delay() % 10_000)
        else:
            more["due_at"] = now_ms() + self._delay() % 10_000
        client.create(f"key {random.randrange(12)}", **more)

    def _change(self) -> None:
        random, ledger = self.client.random, self.client.ledger
        if random.random() < 0.25:
            job_id = wire.keyed(f"key {random.randrange(12)}")
        elif random.random() < 0.15 and ledger.answers:
            job_id = random.choice(list(ledger.answers.values()))
        elif ledger.recent:
            job_id = ledger.recent[-1 - min(int(random.expovariate(1 / 200)), len(ledger.recent) - 1)]
        else:
            return
        verb = random.choices(("cancel", "reschedule", "update", "release", "requeue"), (3, 5, 3, 0.4, 0.3))[
            0
        ]
        for _ in range(
            random.choice((1, 1, 1, 2, 4))
        ):  # several changes of one job in a row, in flight at once
            self._one_change(verb, job_id)
            verb = random.choice(("reschedule", "update", "reschedule", "cancel"))

    def _one_change(self, verb: str, job_id: str) -> None:
        client, random = self.client, self.client.random
        match verb:
            case "reschedule" if random.random() < 0.4:
                client.change(verb, job_id, delay_ms=random.choice((0, 200, 1_500, 6_000)))
            case "reschedule":
                client.change(verb, job_id, due_at=now_ms() + self._delay())
            case "update":
                client.change(verb, job_id, payload=client.payload())
            case "release" if job_id[0] != "k":
                pass
            case "requeue":
                run = {"handler": "storm.nothing", "payload": client.payload(), "seen_run": 1}
                if job_id[0] == "j":
                    client.change(verb, job_id, **run)
            case _:
                client.change(verb, job_id)

    def close(self) -> None:
        self.closing.set()
        self.join(20)
        assert self.client.producer.flush(40) == 0, "the broker did not take what we put"
        if self.failed is not None:
            raise self.failed


class Listener(threading.Thread):
    """Reads `events` and `work` as they grow: answers go to the ledger, some fired runs are ended as by a worker."""

    def __init__(self, bootstrap: str, prefix: str, client: Client) -> None:
        super().__init__(daemon=True)
        self.client, self.closing, self.finishing = client, threading.Event(), True
        self.failed: Exception | None = None
        self.answered: dict[str, int] = {}
        self.fired: dict[str, int] = defaultdict(int)
        self.markers: set[str] = set()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "storm", "enable.auto.commit": False, "log_level": 0}
        )
        self._events, layout = f"{prefix}.events", client.layout
        topics = [(self._events, layout.partitions)]
        topics += [(f"{prefix}.work.{queue}", count) for queue, count in layout.queues.items()]
        self._consumer.assign(
            [TopicPartition(topic, n, OFFSET_BEGINNING) for topic, count in topics for n in range(count)]
        )

    def run(self) -> None:
        try:
            while not self.closing.is_set():
                for message in self._consumer.consume(500, 0.1):
                    if message.error() is None:
                        self._one(message)
                self.client.producer.poll(0)
        except Exception as error:  # noqa: BLE001 - raised again by close()
            self.failed = error

    def _one(self, message: Message) -> None:
        value = wire.read(message.value() or b"")
        if message.topic() == self._events:
            if value["kind"] == "answer":
                self._answer(value)
            return
        self.fired[value["occurrence_id"]] += 1
        if value["handler"] == "storm.line":
            self.markers.add(json.loads(value["payload"])["m"])
        chance = self.client.random.random()
        if self.finishing and ((value["key"] is not None and chance < 0.8) or chance < 0.04):
            self.client.finish(value)

    def _answer(self, event: dict[str, Any]) -> None:
        id_ = event["command_id"]
        self.answered[id_] = self.answered.get(id_, 0) + 1
        sent = self.client.ledger.commands.get(id_)
        if sent is not None and event["outcome"] == "created" and "key" not in sent.fields:
            self.client.ledger.answers[id_] = event["job_id"]

    def close(self) -> None:
        self.closing.set()
        self.join(20)
        self.client.producer.flush(30)
        self._consumer.close()
        if self.failed is not None:
            raise self.failed
