"""How a dispatcher takes over, commits, halves a batch and goes on after errors, over the in-memory cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import CommitFault, MemoryAppender, MemoryClock, MemoryGroupLog
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.choice import BATCH_BYTES
from pipeline.core import keys
from pipeline.core.errors import PoisonRecord, RetryStep
from pipeline.core.identity import Identity
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Command, DeadLetter, Heartbeat, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.site import Site, Standing
from pipeline.core.states import PartitionState
from pipeline.dispatcher import Dispatcher
from pipeline.fencing import UNDECIDED_MS
from pipeline.heartbeat import Pulse, Seen
from pipeline.ports import Put

NAMES = Names("t")
LAYOUT = default_layout(queues={"default": 2})


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))

    def actions(self) -> list[str]:
        return [action for action, _ in self.lines]


class House:
    """A cluster, a client, and dispatchers by name."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        p = LAYOUT.partitions
        for topic, size in {NAMES.jobs: p, NAMES.dead: p, NAMES.events: p, NAMES.fleet: 1}.items():
            self.cluster.create_topic(topic, size)
        self.cluster.create_topic(NAMES.work("default"), 2)
        self.client = MemoryAppender(self.cluster)
        self.told = Told()
        self.standing: Callable[[], Standing] | None = None
        self.logs: dict[str, MemoryGroupLog] = {}
        self._ids = iter(range(1_000))

    def dispatcher(
        self, name: str, index: MemoryIndex | None = None, fleet: Sequence[Seen] = ()
    ) -> Dispatcher:
        def open_log(listener: Any) -> MemoryGroupLog:
            self.logs[name] = MemoryGroupLog(
                self.cluster, NAMES.jobs, NAMES.dispatcher_group, listener, [f"t.{name}"]
            )
            return self.logs[name]

        return Dispatcher(
            open_log=open_log,
            index=index or MemoryIndex(),
            site=Site(
                names=NAMES,
                layout=LAYOUT,
                cluster_id="c",
                topic_id="t",
                stale_after_ms=10**9,
                read_standing=self.standing,
            ),
            clock=self.clock,
            random=Random(name),
            identity=Identity(process=name, host="h", pid=1, version="0", started_at=0),
            pulse=Pulse(
                appender=MemoryAppender(self.cluster),
                fleet=NAMES.fleet,
                partitions=1,
                process=name,
            ),
            events=self.told,
            fleet=lambda since: [seen for seen in fleet if seen.at >= since],
        )

    def job(self, *, due_in: int = 0, payload: bytes = b"{}") -> Run:
        due = self.clock.now() + due_in
        job_id = anonymous_id(due, next(self._ids))
        run = Run(
            job_id=job_id,
            occurrence_id=job_id,
            due_at=due,
            run=1,
            queue="default",
            handler="h",
            created_at=self.clock.now(),
            nominal_at=due,
            idempotency_key=job_id,
            payload=payload,
        )
        put = Put(NAMES.jobs, LAYOUT.home(job_id), keys.job_key(job_id), codec.RUN.encode(run))
        self.client.append(put)
        return run

    def values(self, topic: str) -> list[bytes]:
        logs = [self.cluster.partition(topic, n) for n in range(self.cluster.partitions(topic))]
        return [record.value() or b"" for log in logs for record in log.read(0, log.end + 1)[0]]

    def fired(self) -> list[Run]:
        return [codec.RUN.decode(value) for value in self.values(NAMES.work("default"))]

    def dead(self) -> list[DeadLetter]:
        return [codec.DEAD_LETTER.decode(value) for value in self.values(NAMES.dead)]


@pytest.fixture
def house() -> House:
    return House()


def steps(dispatcher: Dispatcher, count: int = 5) -> None:
    for _ in range(count):
        dispatcher.step(0)


def test_nothing_fires_before_its_time_and_the_wait_is_exact(house: House) -> None:
    dispatcher = house.dispatcher("d")
    run = house.job(due_in=120)
    steps(dispatcher)
    assert house.fired() == []
    assert dispatcher.step(0) == 120
    house.clock.advance(119)
    steps(dispatcher)
    assert house.fired() == []
    house.clock.advance(1)
    dispatcher.step(0)
    assert house.fired() == [run]


def test_a_second_dispatcher_shares_the_partitions_and_kept_ones_keep_running(house: House) -> None:
    first = house.dispatcher("a")
    steps(first)
    second = house.dispatcher("b")
    for _ in range(6):
        first.step(0)
        assert PartitionState.RUNNING in first.states.values()
        second.step(0)
    assert len(first.states) == len(second.states) == LAYOUT.partitions // 2
    assert {*first.states.values(), *second.states.values()} == {PartitionState.RUNNING}


def test_h18_an_open_transaction_of_an_earlier_owner_holds_the_takeover_until_it_is_fenced(
    house: House,
) -> None:
    house.job()

    def die(stage: str, _id: str) -> None:
        if stage == "commit" and house.values(NAMES.jobs):
            raise KeyboardInterrupt

    victim = house.dispatcher("a")
    steps(victim, 2)
    house.cluster.hook = die
    house.job()
    with pytest.raises(KeyboardInterrupt):
        steps(victim)
    house.cluster.hook = lambda stage, _id: None
    house.logs["a"].expire()
    heir = house.dispatcher("b")
    steps(heir)
    assert PartitionState.RESTORING in heir.states.values()
    house.clock.advance(UNDECIDED_MS)
    steps(heir)
    assert "fencing" in house.told.actions()
    assert set(heir.states.values()) == {PartitionState.RUNNING}
    assert len(house.fired()) == 2


@pytest.mark.parametrize(("silent_ms", "fenced"), [(10_000, True), (0, False)], ids=["dead", "live"])
def test_h18_a_dead_workers_open_transaction_is_fenced_and_a_live_ones_never(
    house: House, silent_ms: int, fenced: bool
) -> None:
    """A worker that died inside its ack has put a retry on `jobs` that is neither there nor not there."""
    epoch = house.cluster.init_transactions("t.worker")
    house.cluster.begin("t.worker", epoch)
    house.cluster.transactional_append("t.worker", epoch, Put(NAMES.jobs, 0, b"r/x", b"v"))
    beat = Heartbeat(
        process="w",
        role="worker",
        version="0",
        host="h",
        pid=2,
        started_at=0,
        generation=1,
        transactional_ids=("t.worker",),
    )
    dispatcher = house.dispatcher("d", fleet=[Seen(beat, house.clock.now() - silent_ms)])
    steps(dispatcher)
    assert dispatcher.states[0] is PartitionState.RESTORING
    house.clock.advance(UNDECIDED_MS)
    steps(dispatcher)
    assert ("fencing" in house.told.actions()) == fenced
    assert (dispatcher.states[0] is PartitionState.RUNNING) == fenced


def test_our_own_id_is_never_fenced(house: House) -> None:
    index = MemoryIndex()
    steps(house.dispatcher("d", index))
    house.logs["d"].close()
    again = house.dispatcher("d", index)
    house.cluster.hook = lambda stage, _id: None
    again.step(0)
    house.clock.advance(UNDECIDED_MS)
    steps(again)
    assert "fencing" not in house.told.actions()


@pytest.mark.parametrize("fault", list(CommitFault))
def test_h16_whatever_becomes_of_a_commit_the_job_fires_once(house: House, fault: CommitFault) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    house.job()
    dispatcher.step(0) if fault is CommitFault.REFUSED else None
    house.logs["d"].faults.append(fault)
    house.job()
    steps(dispatcher, 8)
    assert len({run.job_id for run in house.fired()}) == len(house.fired()) == 2


def test_a_record_the_broker_never_takes_is_found_and_buried_and_the_others_fire(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    commit, work = house.logs["d"].commit, NAMES.work("default")

    def refuse(puts: Sequence[Put], offsets: Any, membership: Any) -> None:
        if any(put.topic == work and b"poison" in (put.value or b"") for put in puts):
            raise PoisonRecord("too large")
        commit(puts, offsets, membership)

    monkeypatch.setattr(house.logs["d"], "commit", refuse)
    culprit = house.job(payload=b'"poison"')
    others = [house.job() for _ in range(9)]
    steps(dispatcher, 30)
    assert {run.job_id for run in house.fired()} == {run.job_id for run in others}
    (letter,) = house.dead()
    assert (letter.run, letter.reason) == (culprit, "unappendable")


def test_a_cancel_in_the_first_half_of_a_bisected_batch_holds_in_the_second(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    commit, work, sizes = house.logs["d"].commit, NAMES.work("default"), []

    def refuse(puts: Sequence[Put], offsets: Any, membership: Any) -> None:
        sizes.append(len(puts))
        if any(put.topic == work and b"poison" in (put.value or b"") for put in puts):
            raise PoisonRecord("too large")
        commit(puts, offsets, membership)

    monkeypatch.setattr(house.logs["d"], "commit", refuse)
    jobs = [house.job(due_in=1_000) for _ in range(40)]
    house.job(due_in=1_000, payload=b'"poison"')
    steps(dispatcher)
    cancelled = jobs[::4]
    for run in cancelled:
        command = Command(command_id=str(uuid.uuid4()), verb="cancel", job_id=run.job_id)
        home, key = LAYOUT.home(run.job_id), keys.command_key(command.command_id)
        house.client.append(Put(NAMES.jobs, home, key, codec.COMMAND.encode(command)))
    house.clock.advance(1_000)
    steps(dispatcher, 30)
    wanted = {run.job_id for run in jobs} - {run.job_id for run in cancelled}
    assert {run.job_id for run in house.fired()} == wanted
    assert len(house.dead()) == 1
    assert len(sizes) < 25, "found by halving, not by trying"


def test_a_record_whose_dead_letter_is_refused_too_holds_up_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    commit = house.logs["d"].commit

    def refuse(puts: Sequence[Put], offsets: Any, membership: Any) -> None:
        if any(b"poison" in (put.value or b"") for put in puts):
            raise PoisonRecord("too large")
        commit(puts, offsets, membership)

    monkeypatch.setattr(house.logs["d"], "commit", refuse)
    house.job(payload=b'"poison"')
    others = [house.job() for _ in range(9)]
    steps(dispatcher, 30)
    assert {run.job_id for run in house.fired()} == {run.job_id for run in others}
    assert "unburied" in house.told.actions()
    assert house.dead() == []


def test_a_batch_that_is_too_much_for_its_time_out_gets_smaller_until_it_passes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    commit = house.logs["d"].commit

    def slow(puts: Sequence[Put], offsets: Any, membership: Any) -> None:
        if len(puts) > 4:
            raise RetryStep("timed out")
        commit(puts, offsets, membership)

    monkeypatch.setattr(house.logs["d"], "commit", slow)
    jobs = [house.job() for _ in range(20)]
    steps(dispatcher, 40)
    assert {run.job_id for run in house.fired()} == {job.job_id for job in jobs}


def test_a_transaction_holds_no_more_bytes_than_its_limit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    commit, sizes = house.logs["d"].commit, []

    def measured(puts: Sequence[Put], offsets: Any, membership: Any) -> None:
        sizes.append(sum(len(put.value or b"") for put in puts))
        commit(puts, offsets, membership)

    monkeypatch.setattr(house.logs["d"], "commit", measured)
    for _ in range(20):
        house.job(payload=b"x" * 1_000_000)
    steps(dispatcher, 20)
    assert len(house.fired()) == 20
    assert max(sizes) <= BATCH_BYTES + 1_100_000


def test_h13_a_log_that_lost_the_position_means_a_rebuild(house: House) -> None:
    index = MemoryIndex()
    steps(house.dispatcher("d", index))
    house.logs["d"].close()
    for number in range(LAYOUT.partitions):
        house.cluster.partition(NAMES.jobs, number).entries.clear()
    run = house.job(due_in=50)
    dispatcher = house.dispatcher("d", index)
    steps(dispatcher, LAYOUT.partitions + 8)
    assert "index_rebuild" in house.told.actions()
    house.clock.advance(50)
    steps(dispatcher)
    assert [fired.job_id for fired in house.fired()] == [run.job_id]


def test_h27_an_announced_unknown_schema_stops_its_partition_and_no_other(house: House) -> None:
    dispatcher = house.dispatcher("d")
    strange = b"\xc3\x01" + bytes(8)
    layout = dispatcher._site.layout
    object.__setattr__(dispatcher._site, "layout", _announcing(layout, "0" * 16))
    steps(dispatcher)
    house.client.append(Put(NAMES.jobs, 3, keys.job_key(anonymous_id(house.clock.now(), 1)), strange))
    run = next(job for job in (house.job() for _ in range(50)) if LAYOUT.home(job.job_id) != 3)
    steps(dispatcher)
    assert dispatcher.states[3] is PartitionState.CLOSED
    assert "partition_stopped" in house.told.actions()
    assert run.job_id in {fired.job_id for fired in house.fired()}


def _announcing(layout: Any, fingerprint: str) -> Any:
    from dataclasses import replace

    return replace(layout, fingerprints=(fingerprint,))


def test_h12_the_index_of_an_idle_partition_does_not_grow_stale(house: House) -> None:
    index = MemoryIndex()
    dispatcher = house.dispatcher("d", index)
    steps(dispatcher)
    first = index.position(0)
    house.clock.advance(2 * 3_600_000)
    steps(dispatcher)
    second = index.position(0)
    assert first is not None
    assert second is not None
    assert (second.offset, second.synced_at) == (first.offset, house.clock.now())


def test_a_heartbeat_tells_partitions_and_states(house: House) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    beat = dispatcher.heartbeat()
    assert (beat.role, len(beat.owned), beat.transactional_ids) == ("dispatcher", LAYOUT.partitions, ("t.d",))
    assert {owned.state for owned in beat.owned} == {"running"}
    values = [value for value in house.values(NAMES.fleet) if value]
    assert codec.HEARTBEAT.decode(values[-1]).process == "d"
    dispatcher.close()
    assert house.values(NAMES.fleet)[-1] == b""
