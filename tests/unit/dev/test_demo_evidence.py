"""Reading the topics back; what the waiting consumers make of a record; whose environment a child gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.config import Settings
from pipeline.core import keys
from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState, Heartbeat, Owned, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.dev.demo import watch
from pipeline.dev.demo.cast import Cast, environment
from pipeline.dev.demo.evidence import Created, Emission, End, Start, read_topics
from pipeline.dev.demo.steps import step
from pipeline.dev.demo.watch import Tally, store_ahead_ms
from pipeline.ports import Put

NAMES = Names("demo-0")
ID = anonymous_id(1_700_000_000_500, 7)
NOW = 1_700_000_000_000
Done = Callable[[Exception | None, int, int], None]


class World:
    """A memory cluster with the topics of an installation."""

    def __init__(self) -> None:
        self.clock = MemoryClock(NOW)
        self.cluster = MemoryCluster(self.clock.now)
        for topic in (NAMES.jobs, NAMES.work("default"), NAMES.acks("default"), NAMES.dead, NAMES.fleet):
            self.cluster.create_topic(topic, 3)
        self.reader = MemoryReader(self.cluster)

    def put(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        self.cluster.append(Put(topic, partition, key, value))


@pytest.fixture
def world() -> World:
    return World()


def run(number: int = 1) -> Run:
    return Run(
        job_id=ID, occurrence_id=ID, due_at=NOW - 3, run=number, queue="default", handler="dunning.mail",
        created_at=NOW - 9, nominal_at=NOW - 3, idempotency_key="dunning_invoice_55", payload=b"{}",
    )  # fmt: skip


def ack(state: AckState, attempt: int = 1, result: bytes | None = None) -> Ack:
    return Ack(
        job_id=ID, occurrence_id=ID, run=1, attempt=attempt, token=100 + attempt, worker="w",
        handler="dunning.mail", state=state, at=NOW, work_offset=0, result=result,
    )  # fmt: skip


def heartbeat(pid: int, role: str, topic: str, partitions: int, state: str = "running") -> Heartbeat:
    return Heartbeat(
        process=f"process-{pid}", role=role, version="1", host="h", pid=pid, started_at=NOW, generation=1,
        owned=tuple(Owned(topic=topic, partition=n, state=state) for n in range(partitions)),
    )  # fmt: skip


def test_everything_is_read_back(world: World) -> None:
    world.put(NAMES.jobs, 1, keys.job_key(ID), codec.RUN.encode(run()))
    world.put(NAMES.jobs, 1, keys.job_key(ID), None)
    world.put(NAMES.jobs, 2, keys.retry_key(ID, 1), codec.RUN.encode(run(2)))
    world.put(NAMES.work("default"), 0, ID.encode(), codec.RUN.encode(run()))
    started, ended = ack(AckState.STARTED), ack(AckState.SUCCEEDED, 2, b'{"mail":"sent"}')
    released = ack(AckState.RELEASED, 3)
    world.put(NAMES.acks("default"), 0, keys.started_key(ID, 1, 101), codec.ACK.encode(started))
    world.put(NAMES.acks("default"), 0, keys.started_key(ID, 1, 103), codec.ACK.encode(released))
    world.put(NAMES.acks("default"), 2, keys.terminal_key(ID, 1, 2), codec.ACK.encode(ended))
    world.put(NAMES.acks("default"), 2, keys.takeover_key(2), b"not an ack")
    world.put(NAMES.dead, 0, b"x", b"y")
    beat = heartbeat(11, "worker", NAMES.work("default"), 3)
    world.put(NAMES.fleet, 1, b"process-11", codec.HEARTBEAT.encode(beat))
    world.put(NAMES.fleet, 1, b"process-11", None)

    found = read_topics(world.reader, NAMES, "default")

    assert found.created == [Created("dunning_invoice_55", "dunning.mail")], (
        "its tombstone and its retry create nothing"
    )
    assert found.emissions == [Emission(ID, 1, "dunning_invoice_55", NOW - 3, NOW)]
    assert found.starts == [Start(ID, 1, 1, 101, "w", NOW)], "a released attempt is none"
    assert found.ends == [End(ID, 1, 2, "w", AckState.SUCCEEDED, b'{"mail":"sent"}')]
    assert found.dead == 1
    assert found.processes == {11: "process-11"}


# -- the waiting consumers--------------------------------------------------------------------------
# --------------------------------------------------------------------------------------


class Message:
    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_lateness_is_by_the_store_s_clock_and_of_run_1_only() -> None:
    tally = Tally(store_ahead=40)
    tally.work(Message(ID.encode(), codec.RUN.encode(run())), NOW)
    tally.work(Message(ID.encode(), codec.RUN.encode(run(2))), NOW)
    assert tally.lateness == [43]


def test_starts_and_successes_are_counted_once_for_each_run() -> None:
    tally = Tally(store_ahead=0)
    started = keys.started_key(ID, 1, 101)
    for attempt in (1, 2):
        tally.ack(Message(started, codec.ACK.encode(ack(AckState.STARTED, attempt))), NOW)
    tally.ack(Message(started, codec.ACK.encode(ack(AckState.RELEASED))), NOW)
    tally.ack(Message(started, None), NOW)
    assert (tally.started, tally.succeeded) == ({(ID, 1)}, set())
    tally.ack(Message(keys.terminal_key(ID, 1, 2), codec.ACK.encode(ack(AckState.SUCCEEDED))), NOW)
    assert tally.succeeded == {ID}


@pytest.mark.parametrize(
    ("sent", "received", "ahead"),
    [
        (NOW - 5, NOW + 5, 0),  # the store's instant lies between: no difference can be seen
        (NOW, NOW, 0),
        (NOW - 500, NOW - 490, 501),  # the store is ahead; the larger bound, to the millisecond
        (NOW + 490, NOW + 500, -489),
    ],
)
def test_the_store_s_clock_against_ours(
    world: World, monkeypatch: pytest.MonkeyPatch, sent: int, received: int, ahead: int
) -> None:
    readings = iter((sent, received))
    monkeypatch.setattr(watch, "wall_ms", lambda: next(readings))
    assert store_ahead_ms(MemoryAppender(world.cluster), NAMES.fleet) == ahead


class SlowToBegin:
    """An appender whose first answer takes eight seconds, like that of a broker which has just started."""

    def __init__(self, world: World) -> None:
        self._world, self._wait_ms = world, 8_000
        self._appender = MemoryAppender(world.cluster)

    def append(self, put: Put, done: Done | None = None) -> None:
        self._world.clock.advance(self._wait_ms)
        self._wait_ms = 0
        self._appender.append(put, done)

    def poll(self, timeout_ms: int) -> None:
        self._appender.poll(timeout_ms)

    def flush(self, timeout_ms: int) -> None:
        assert timeout_ms >= 30_000, "a busy machine is no reason to give up"
        self._appender.flush(timeout_ms)

    def close(self) -> None:
        self._appender.close()


def test_a_slow_first_contact_does_not_blur_the_measurement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "wall_ms", lambda: world.clock.now() - 5_000)
    assert store_ahead_ms(SlowToBegin(world), NAMES.fleet) == 5_001


class Unanswered:
    """An appender that reports an error for every record."""

    def append(self, _put: Put, done: Done | None = None) -> None:
        assert done is not None
        done(StoreUnreachable("no broker"), -1, -1)

    def poll(self, timeout_ms: int) -> None:
        pass

    def flush(self, timeout_ms: int) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_probe_without_answer_names_its_step() -> None:
    with (
        pytest.raises(StoreUnreachable, match=r"^clock probe: demo-0\.fleet: no broker$"),
        step("clock probe"),
    ):
        store_ahead_ms(Unanswered(), "demo-0.fleet")


def test_an_error_that_names_its_field_gets_no_step_in_front() -> None:
    with pytest.raises(InvalidInput, match=r"^store: wrong$"), step("topics"):
        raise InvalidInput("store", "wrong")


# -- the processes--------------------------------------------------------------------------------
# ----------------------------------------------------------------------------------------------


class Child:
    """A child process that runs."""

    returncode: int | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return self.returncode


def cast(tmp_path: Path, children: dict[str, Any]) -> Cast:
    settings = Settings(bootstrap_servers="127.0.0.1:1", prefix="demo-0", state_dir=tmp_path)
    made = Cast(settings, tmp_path, tmp_path / "stage.json")
    made._children = children
    return made


@pytest.mark.parametrize(
    ("last", "ready"),
    [
        (heartbeat(12, "worker", NAMES.work("default"), 2), True),
        (heartbeat(12, "worker", NAMES.work("default"), 2, state="restoring"), False),
        (heartbeat(12, "worker", NAMES.work("default"), 1), False),  # a partition nobody owns
        (heartbeat(99, "worker", NAMES.work("default"), 2), False),  # somebody else's worker
    ],
)
def test_ready_is_when_every_partition_is_run_by_our_processes(
    world: World, tmp_path: Path, last: Heartbeat, ready: bool
) -> None:
    layout = default_layout(shards=1, ring=3, queues={"default": 2})
    for partition, beat in enumerate((heartbeat(11, "dispatcher", NAMES.jobs, 3), last)):
        world.put(NAMES.fleet, partition, beat.process.encode(), codec.HEARTBEAT.encode(beat))
    made = cast(tmp_path, {"dispatcher": Child(11), "worker 1": Child(12)})
    assert made._ready(made._heartbeats(world.reader), layout) is ready


def test_a_process_that_ended_is_named_with_its_last_words(tmp_path: Path) -> None:
    ended = Child(12)
    ended.returncode = 3
    (tmp_path / "worker_1.log").write_text("one\ntwo\nno such queue\n")
    with pytest.raises(DuelineError, match=r"worker 1 ended \(code 3\)[\s\S]*no such queue"):
        cast(tmp_path, {"dispatcher": Child(11), "worker 1": ended}).check()


def test_a_pid_that_is_none_of_ours_is_never_killed(tmp_path: Path) -> None:
    made = cast(tmp_path, {"worker 1": Child(12)})
    assert made.name_of(12) == "worker 1"
    with pytest.raises(DuelineError, match="none of the demo's"):
        made.name_of(1)


def test_a_child_knows_this_installation_and_no_other(tmp_path: Path) -> None:
    shell = {
        "PATH": "/bin",
        "DUELINE_PREFIX": "billing",
        "DUELINE_CONCURRENCY": "1",
        "DUELINE_KAFKA__SASL_PASSWORD": "x",
    }
    settings = Settings(bootstrap_servers="127.0.0.1:1", prefix="demo-0", state_dir=tmp_path)
    assert environment(settings, shell) == {
        "PATH": "/bin",
        "DUELINE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "DUELINE_PREFIX": "demo-0",
        "DUELINE_STATE_DIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }
    told = Settings(
        bootstrap_servers="b:1", prefix="demo-0", state_dir=tmp_path, kafka={"sasl.password": "x"}
    )
    assert environment(told, shell)["DUELINE_KAFKA__SASL_PASSWORD"] == "x", "a named store needs it"
