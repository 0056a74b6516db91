"""Every way a transaction can fail, injected into a stand-in for the client's producer (DESIGN §5.6)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.adapters import kafka_txn
from pipeline.adapters.kafka_txn import TransactionalProducer
from pipeline.core.errors import OutcomeUnknown, PoisonRecord, RebuildClients, RetryStep
from pipeline.ports import Put

PUTS = [Put("jobs", 3, b"a", b"1", [("end", b"fired")]), Put("work", 1, b"b", None)]


def error(code: int = KafkaError.UNKNOWN, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "injected", **flags))


RETRIABLE = error(KafkaError._TIMED_OUT, retriable=True)
ABORTABLE = error(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True)
FATAL = error(KafkaError.INVALID_PRODUCER_EPOCH, fatal=True)
FENCED = error(KafkaError._FENCED, txn_requires_abort=True)
OTHER = error(KafkaError._STATE)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Cluster:
    """What all producers of a test have in common: the faults to come, and a log of the calls."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.calls: list[str] = []
        self.faults: dict[str, deque[Any]] = {}
        self.made = 0

    def fail(self, call: str, *faults: Any) -> None:
        """A fault is raised, called (to let time pass), or None for a call that works."""
        self.faults[call] = deque(faults)

    def call(self, name: str) -> None:
        self.calls.append(name)
        if self.faults.get(name):
            fault = self.faults[name].popleft()
            if isinstance(fault, BaseException):
                raise fault
            if fault is not None:
                fault()

    def slow(self, seconds: float) -> Callable[[], None]:
        return lambda: self.clock.sleep(seconds)


class Producer:
    def __init__(self, cluster: Cluster, config: dict[str, Any]) -> None:
        self._cluster, self._config = cluster, config
        self.undelivered: list[KafkaError] = []
        cluster.made += 1
        cluster.calls.append("new")

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._cluster.call(name.removesuffix("_transaction"))

    def produce(
        self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Any = None
    ) -> None:
        self._cluster.call("produce")

    def flush(self, timeout: float) -> int:
        self._cluster.call("flush")
        failures = self._cluster.faults.get("deliver", deque())
        while failures:
            self._config["on_delivery"](failures.popleft(), None)
        return len(self._cluster.faults.get("left", ()))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    built = Cluster()
    monkeypatch.setattr(kafka_txn, "Producer", lambda config: Producer(built, config))
    monkeypatch.setattr(kafka_txn, "time", built.clock)
    return built


@pytest.fixture
def producer(cluster: Cluster) -> TransactionalProducer:
    built = TransactionalProducer({"transactional.id": "x"})
    cluster.calls.clear()
    return built


def commit(producer: TransactionalProducer) -> None:
    producer.commit(PUTS, [], b"group")


REPLACED = ["purge", "close", "new", "init_transactions"]
SENT = ["begin", "produce", "produce", "flush", "send_offsets_to"]


def test_h5_the_order_of_a_transaction(cluster: Cluster, producer: TransactionalProducer) -> None:
    commit(producer)
    assert cluster.calls == [*SENT, "commit"]


def test_every_step_of_a_transaction_passes_the_checkpoint_in_its_order(cluster: Cluster) -> None:
    producer = TransactionalProducer({"transactional.id": "x"}, checkpoint=cluster.calls.append)
    cluster.calls.clear()
    commit(producer)
    steps = ["begun", "produced", "flushed", "offsets_sent", "committed"]
    after = ["begin", "produce", "flush", "send_offsets_to", "commit"]
    assert [call for call in cluster.calls if call in steps] == steps
    assert [cluster.calls[cluster.calls.index(step) - 1] for step in steps] == after


def test_an_aborted_transaction_passes_no_further_step(cluster: Cluster) -> None:
    passed: list[str] = []
    producer = TransactionalProducer({"transactional.id": "x"}, checkpoint=passed.append)
    cluster.fail("send_offsets_to", ABORTABLE)
    with pytest.raises(RetryStep):
        commit(producer)
    assert passed == ["begun", "produced", "flushed"]


@pytest.mark.parametrize("call", ["begin", "send_offsets_to"])
def test_a_retriable_error_repeats_the_same_call(cluster: Cluster, producer: Any, call: str) -> None:
    cluster.fail(call, RETRIABLE, RETRIABLE)
    commit(producer)
    assert cluster.calls.count(call) == 3
    assert cluster.calls[-1] == "commit"
    assert cluster.made == 1


def test_retriable_without_end_gives_the_producer_up(cluster: Cluster, producer: Any) -> None:
    cluster.fail("send_offsets_to", *[RETRIABLE] * 2_000)
    with pytest.raises(RetryStep):
        commit(producer)
    assert cluster.calls[-4:] == REPLACED


@pytest.mark.parametrize("call", ["begin", "send_offsets_to"])
def test_an_abortable_error_aborts(cluster: Cluster, producer: Any, call: str) -> None:
    cluster.fail(call, ABORTABLE)
    with pytest.raises(RetryStep):
        commit(producer)
    assert cluster.calls[-2:] == [call, "abort"]
    assert cluster.made == 1


@pytest.mark.parametrize("call", ["begin", "produce", "send_offsets_to", "commit"])
def test_h17_a_fatal_error_rebuilds_the_clients(cluster: Cluster, producer: Any, call: str) -> None:
    cluster.fail(call, FATAL)
    with pytest.raises(RebuildClients):
        commit(producer)
    assert cluster.calls[-1] == call


@pytest.mark.parametrize("raised", [FATAL, SystemError("a callback returned with an exception set")])
def test_a_client_that_turns_fatal_in_flush(cluster: Cluster, producer: Any, raised: Exception) -> None:
    cluster.fail("flush", raised)
    with pytest.raises(RebuildClients):
        commit(producer)


def test_fenced_while_sending_offsets_is_not_abortable(cluster: Cluster, producer: Any) -> None:
    cluster.fail("send_offsets_to", FENCED)
    with pytest.raises(RebuildClients):
        commit(producer)
    assert "abort" not in cluster.calls


def test_any_other_error_before_the_end_replaces_the_producer(cluster: Cluster, producer: Any) -> None:
    cluster.fail("begin", OTHER)
    with pytest.raises(RetryStep):
        commit(producer)
    assert cluster.calls == ["begin", *REPLACED]


@pytest.mark.parametrize("raised", [RETRIABLE, ABORTABLE, OTHER, FENCED])
def test_h16_a_commit_that_raised_is_unknown(cluster: Cluster, producer: Any, raised: Exception) -> None:
    cluster.fail("commit", raised)
    with pytest.raises(OutcomeUnknown):
        commit(producer)
    assert cluster.calls == [*SENT, "commit", *REPLACED]


def test_h6_a_slow_commit_is_unknown_though_it_succeeded(cluster: Cluster, producer: Any) -> None:
    cluster.fail("commit", cluster.slow(1.1))
    with pytest.raises(OutcomeUnknown):
        commit(producer)
    assert cluster.calls == [*SENT, "commit", *REPLACED]
    commit(producer)


def test_a_commit_within_a_second_is_clean(cluster: Cluster, producer: Any) -> None:
    cluster.fail("commit", cluster.slow(0.9))
    commit(producer)
    assert cluster.made == 1


@pytest.mark.parametrize("abort", [[RETRIABLE], [OTHER], [ABORTABLE], ["slow"]])
def test_h6_an_abort_that_was_not_clean_taints_the_producer(
    cluster: Cluster, producer: Any, abort: Any
) -> None:
    cluster.fail("send_offsets_to", ABORTABLE)
    cluster.fail("abort", *(cluster.slow(1.1) if fault == "slow" else fault for fault in abort))
    with pytest.raises(RetryStep):
        commit(producer)
    assert cluster.calls[-4:] == REPLACED


def test_no_new_producer_means_new_clients(cluster: Cluster, producer: Any) -> None:
    cluster.fail("commit", OTHER)
    cluster.fail("init_transactions", OTHER)
    with pytest.raises(RebuildClients):
        commit(producer)


def test_init_transactions_is_repeated_while_retriable(cluster: Cluster) -> None:
    cluster.fail("init_transactions", RETRIABLE)
    TransactionalProducer({"transactional.id": "x"})
    assert cluster.calls == ["new", "init_transactions", "init_transactions"]


def test_a_fenced_initialisation_rebuilds_the_clients(cluster: Cluster) -> None:
    cluster.fail("init_transactions", FATAL)
    with pytest.raises(RebuildClients):
        TransactionalProducer({"transactional.id": "x"})


def test_a_failed_delivery_aborts(cluster: Cluster, producer: Any) -> None:
    """`flush` returns 0 although a record failed."""
    cluster.fail("deliver", KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(RetryStep):
        commit(producer)
    assert cluster.calls[-2:] == ["flush", "abort"]
    commit(producer)


def test_a_poisonous_delivery_outranks_what_follows_from_it(cluster: Cluster, producer: Any) -> None:
    purged, huge = KafkaError(KafkaError._PURGE_QUEUE), KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    cluster.fail("deliver", purged, huge, purged)
    with pytest.raises(PoisonRecord):
        commit(producer)
    assert cluster.calls[-1] == "abort"


def test_a_record_refused_at_once_is_poison(cluster: Cluster, producer: Any) -> None:
    cluster.fail("produce", error(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(PoisonRecord):
        commit(producer)
    assert cluster.calls == ["begin", "produce", "abort"]


def test_records_not_acknowledged_in_time_abort(cluster: Cluster, producer: Any) -> None:
    cluster.fail("left", "one")
    with pytest.raises(RetryStep, match="not acknowledged"):
        commit(producer)
    assert cluster.calls[-2:] == ["flush", "abort"]


def test_a_full_queue_waits_for_room(cluster: Cluster, producer: Any) -> None:
    cluster.fail("produce", BufferError(), BufferError())
    commit(producer)
    assert cluster.calls[:6] == ["begin", "produce", "poll", "produce", "poll", "produce"]


def test_a_queue_that_stays_full_aborts(cluster: Cluster, producer: Any) -> None:
    cluster.fail("produce", *[BufferError()] * 100)
    cluster.fail("poll", *[cluster.slow(1.0)] * 100)
    with pytest.raises(RetryStep, match="full"):
        commit(producer)
    assert cluster.calls[-1] == "abort"


def test_h17_offsets_that_are_never_answered_cost_the_producer_and_not_the_process(
    cluster: Cluster, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka#5456: the call ignores its time-out when a connection breaks at the wrong moment."""
    released = threading.Event()
    monkeypatch.setattr(kafka_txn, "OFFSETS_S", 0.05)
    monkeypatch.setattr(kafka_txn, "_left_behind", [])
    made = producer
    cluster.fail("send_offsets_to", released.wait)
    with pytest.raises(RetryStep, match="no answer"):
        made.commit(PUTS, [], b"group")
    assert cluster.made == 2, "a new producer, whose initialisation ends what the old one had open"
    assert "commit" not in cluster.calls
    made.commit(PUTS, [], b"group")
    assert cluster.calls[-1] == "commit"
    released.set()


@pytest.mark.parametrize("renewal", ["closed", "left behind"])
def test_what_a_failed_renewal_has_ended_is_not_called_again(
    cluster: Cluster, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch, renewal: str
) -> None:
    """A closed producer raises what nobody catches, one that hangs would hang again: everything is built anew."""
    if renewal == "closed":
        cluster.fail("commit", OTHER)
    else:
        monkeypatch.setattr(kafka_txn, "in_time", hangs)
    cluster.fail("init_transactions", OTHER)
    with pytest.raises(RebuildClients):
        commit(producer)
    cluster.calls.clear()
    producer.close()
    assert cluster.calls == []


def hangs(call: Callable[[], object], seconds: float) -> None:
    raise kafka_txn.Hung("no answer")


def test_a_producer_that_does_not_close_is_left_behind_and_replaced(
    cluster: Cluster, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a broker that stands still it may not return: the watchdog would end the process."""
    before = len(kafka_txn._left_behind)
    monkeypatch.setattr(kafka_txn, "in_time", hangs)
    producer.renew()
    assert cluster.calls == ["purge", "new", "init_transactions"]
    assert len(kafka_txn._left_behind) == before + 1
    monkeypatch.undo()
    kafka_txn._left_behind.pop()
