"""What the owners tell, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.clock import Reading
from pipeline.core.handler import Cancel, Dead, Fenced, InvalidPayload, Retry, Snooze, Stopped, TimedOut
from pipeline.core.states import PartitionState
from pipeline.metrics import WORDS_LIMIT, DispatcherMetrics, Metrics, WorkerMetrics, base
from pipeline.ports import Call, Done
from pipeline.service import counted
from pipeline.service.counted import CountedExecutor, handler_outcome
from pipeline.service.log import LogEvents

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def metrics(told: Told) -> DispatcherMetrics:
    return DispatcherMetrics(slot=3, version="1.2", librdkafka="2.16", forward=told)


@pytest.fixture
def worker(told: Told) -> WorkerMetrics:
    return WorkerMetrics(slot=0, version="1.2", librdkafka="2.16", forward=told)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"dueline_{name}", labels)


def test_every_event_is_handed_on_as_it_was_told_and_counted(metrics: DispatcherMetrics, told: Told) -> None:
    metrics.on("fencing", partition=4, transactional_id="x")
    assert told.lines == [("fencing", {"partition": 4, "transactional_id": "x"})]
    assert value(metrics, "events_total", action="fencing") == 1


def test_a_transaction_is_counted_with_its_outcome_duration_and_jobs(metrics: DispatcherMetrics) -> None:
    metrics.on("transaction", outcome="committed", duration_ms=30, jobs=500)
    metrics.on("transaction", outcome="fenced", duration_ms=2, jobs=1)
    assert value(metrics, "transactions_total", outcome="committed") == 1
    assert value(metrics, "transactions_total", outcome="fenced") == 1
    assert value(metrics, "transactions_total", outcome="poison") == 0, "shown before it happens"
    assert value(metrics, "transaction_duration_seconds_sum") == pytest.approx(0.032)
    assert value(metrics, "transaction_jobs_sum") == 501


def test_fired_jobs_and_dead_letters_are_counted(metrics: DispatcherMetrics) -> None:
    metrics.on("emitted", fired=7, dead=3, commands=0, reasons={"unknown_queue": 2})
    metrics.on("emitted", fired=5, dead=0)
    assert value(metrics, "jobs_fired_total") == 12
    assert value(metrics, "dead_letters_total", reason="unknown_queue") == 2
    assert value(metrics, "dead_letters_total", reason="unspecified") == 1


def test_commands_are_counted_by_verb_and_outcome(metrics: DispatcherMetrics) -> None:
    metrics.on("answered", verb="cancel", outcome="too_late", waited_ms=40)
    metrics.on("answered", verb="cancel", outcome="too_late")
    assert value(metrics, "commands_total", verb="cancel", outcome="too_late") == 2
    assert value(metrics, "command_latency_seconds_sum") == pytest.approx(0.04)


def test_gauges_are_the_last_ones_told_in_base_units_and_unknown_before(metrics: DispatcherMetrics) -> None:
    before = value(metrics, "oldest_overdue_seconds")
    assert before != before, "not known is not nothing"
    metrics.on(
        "gauges",
        pending=10,
        overdue=2,
        oldest_overdue_ms=1500,
        states={"running": 2},
        generation=4,
        index_bytes=9,
    )
    names = ("index_jobs", "jobs_overdue", "oldest_overdue_seconds", "generation", "index_bytes")
    assert [value(metrics, name) for name in names] == [10, 2, 1.5, 4, 9]


def test_states_that_no_partition_is_in_any_more_go_back_to_zero(metrics: DispatcherMetrics) -> None:
    metrics.partitions("", [PartitionState.RESTORING, PartitionState.RUNNING])
    metrics.partitions("", [PartitionState.RUNNING, PartitionState.RUNNING])
    assert value(metrics, "partition_state", queue="", state="running") == 2
    assert value(metrics, "partition_state", queue="", state="restoring") == 0


def test_a_recovery_lasts_from_assigned_or_a_set_back_to_running(
    metrics: DispatcherMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])
    metrics.on("assigned", partitions=[1, 2, 3])
    metrics.on("revoked", partitions=[3])
    now[0] += 2
    metrics.on("running", partitions=[1, 2, 3])
    assert value(metrics, "recovery_seconds_count", queue="") == 2
    assert value(metrics, "recovery_seconds_sum", queue="") == 4
    metrics.on("outcome_unknown", partitions=[1])
    metrics.on("index_rebuild", partition=2)
    now[0] += 1
    metrics.on("running", partitions=[1, 2])
    assert value(metrics, "recovery_seconds_sum", queue="") == 6


def test_a_workers_recovery_is_its_queues(worker: WorkerMetrics) -> None:
    for action in ("assigned", "running"):
        worker.of_queue("mail").on(action, partitions=[1])
    assert value(worker, "recovery_seconds_count", queue="mail") == 1


@pytest.mark.parametrize(
    ("action", "reason"),
    [("outcome_unknown", "outcome_unknown"), ("lost", "membership_lost"), ("rebuild", "fatal_error")],
)
def test_what_makes_a_log_take_new_producers_is_counted_as_that(
    metrics: DispatcherMetrics, action: str, reason: str
) -> None:
    metrics.on(action)
    assert value(metrics, "producer_recycles_total", reason=reason) == 1


def test_rebuilt_and_stopped_partitions_are_counted(metrics: DispatcherMetrics) -> None:
    metrics.on("index_rebuild", partition=1, reason="x")
    metrics.on("partition_stopped", partition=1, reason="x")
    assert value(metrics, "index_rebuilds_total") == 1
    assert value(metrics, "partitions_stopped_total") == 1


def test_lateness_is_from_receipt_and_emit_delay_from_the_append(metrics: DispatcherMetrics) -> None:
    metrics.lateness("mail", due_at=10_000, appended_at=10_004, received_at=10_012)
    assert value(metrics, "lateness_seconds_sum", queue="mail") == pytest.approx(0.012)
    assert value(metrics, "emit_delay_seconds_sum", queue="mail") == pytest.approx(0.004)
    assert value(metrics, "early_runs_total") == 0


def test_a_clock_that_reads_low_never_makes_lateness_less_than_emit_delay(metrics: DispatcherMetrics) -> None:
    metrics.lateness("mail", due_at=10_000, appended_at=10_004, received_at=10_002)
    assert value(metrics, "lateness_seconds_sum", queue="mail") == pytest.approx(0.004)


def test_a_run_before_its_time_is_counted(metrics: DispatcherMetrics) -> None:
    metrics.lateness("mail", due_at=10_000, appended_at=9_999, received_at=10_002)
    assert value(metrics, "early_runs_total") == 1


@pytest.mark.parametrize("limit", [0.001, 0.015, 0.04, 0.25, 1, 2, 20, 60])
def test_every_limit_the_product_states_is_the_edge_of_a_bucket(
    metrics: DispatcherMetrics, limit: float
) -> None:
    metrics.lateness("q", due_at=0, appended_at=0, received_at=int(limit * 1000))
    assert value(metrics, "lateness_seconds_bucket", queue="q", le=str(float(limit))) == 1


def test_the_clock_shows_its_error_and_each_broker(metrics: DispatcherMetrics) -> None:
    readings = {1: Reading(0, 2, False), 2: Reading(-5_000, 2, True)}
    metrics.clock(1_000, 3, readings)
    assert value(metrics, "clock_error_seconds") == pytest.approx(0.003)
    assert value(metrics, "clock_disagreement_seconds", broker="2") == -5
    assert value(metrics, "clock_brokers_outside") == 1
    metrics.clock(2_000, 3, {1: Reading(0, 2, False)})
    assert value(metrics, "clock_disagreement_seconds", broker="2") is None, "a broker that is gone"


@pytest.mark.parametrize(
    "action", ["transaction", "emitted", "answered", "running", "gauges", "index_rebuild", "lost"]
)
def test_an_event_without_its_fields_harms_nobody(
    metrics: DispatcherMetrics, told: Told, action: str
) -> None:
    metrics.on(action)
    assert told.lines == [(action, {})]


def test_labels_stay_bounded_whatever_is_told(metrics: DispatcherMetrics) -> None:
    for n in range(1_000):
        metrics.on("emitted", dead=1, reasons={f"reason{n}": 1})
    metrics.on("emitted", dead=1, reasons={"a text of a user, 4711": 1})
    series = [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "dueline_dead_letters_total"
    ]
    assert len(series) == WORDS_LIMIT + 1
    assert value(metrics, "dead_letters_total", reason="other") == 1_000 - WORDS_LIMIT + 1


def test_the_build_is_told(metrics: DispatcherMetrics) -> None:
    labels = {"version": "1.2", "librdkafka": "2.16", "role": "dispatcher", "slot": "3"}
    assert value(metrics, "build_info", **labels) == 1


def test_what_happens_many_times_a_second_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = DispatcherMetrics(slot=0, version="1", librdkafka="2", forward=LogEvents("dispatcher"))
    for action in ("transaction", "emitted", "answered", "gauges"):
        metrics.on(action)
    assert capsys.readouterr().err == ""
    metrics.on("lost", partitions=[1])
    assert '"lost"' in capsys.readouterr().err


# -- workers -------------------------------------------------------------------------------------------------


class FakeExecutor:
    abandoned = 0

    def __init__(self) -> None:
        self.done: list[Done] = []
        self.calls: list[Call] = []

    def submit(self, call: Call) -> None:
        self.calls.append(call)

    def completed(self) -> list[Done]:
        done, self.done = self.done, []
        return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        return set(tickets)

    def stop(self, tickets: Iterable[int]) -> None:
        """Nothing to stop."""

    def close(self, timeout_ms: int) -> None:
        self.calls.clear()


def nothing() -> None:
    pass


T0_S = 1_800_000_000.0
"""The store's time in seconds at monotonic second 100."""


@pytest.fixture
def inner() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def executor(worker: WorkerMetrics, inner: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> CountedExecutor:
    monkeypatch.setattr(counted.time, "monotonic", lambda: 100.0)
    return CountedExecutor(inner, worker, "mail", lambda: int(T0_S * 1000))


def call(ticket: int, fired_ago_s: float = 0.0) -> Call:
    """A call of a run that was fired so long before monotonic second 100."""
    return Call(ticket, nothing, False, handler="send", fired_at=int((T0_S - fired_ago_s) * 1000))


def test_telling_the_application_of_a_dead_run_is_no_attempt(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    executor.submit(Call(1, nothing, False, handler="on_dead"))
    inner.done = [Done(1, None, None, began=99.0, ended=99.5)]
    assert len(executor.completed()) == 1
    assert value(worker, "start_delay_seconds_count", queue="mail") in (None, 0)
    assert value(worker, "attempts_started_total", queue="mail") in (None, 0)


def test_attempts_are_counted_when_they_start_and_when_they_end(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    for ticket in range(3):
        executor.submit(call(ticket))
    inner.done = [Done(0, 1, None), Done(1, None, ValueError())]
    assert [done.ticket for done in executor.completed()] == [0, 1]
    assert value(worker, "attempts_started_total", queue="mail") == 3
    assert value(worker, "attempts_finished_total", queue="mail", outcome="returned") == 1
    assert value(worker, "attempts_finished_total", queue="mail", outcome="failed") == 1
    assert value(worker, "attempts_in_flight", queue="mail") == 1
    executor.close(0)
    assert inner.calls == []


def test_a_call_is_measured_from_its_record_to_its_begin_and_from_there_to_its_end(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    executor.submit(call(1, fired_ago_s=0.5))
    inner.done = [Done(1, None, None, began=99.75, ended=99.95)]
    executor.completed()
    assert value(worker, "start_delay_seconds_sum", queue="mail") == pytest.approx(0.25)
    labels = {"handler": "send", "outcome": "returned"}
    assert value(worker, "handler_duration_seconds_sum", **labels) == pytest.approx(0.2)
    assert value(worker, "handler_duration_seconds_bucket", **labels, le="0.1") == 0
    assert value(worker, "handler_duration_seconds_bucket", **labels, le="0.25") == 1
    assert value(worker, "handler_duration_seconds_count", **labels) == 1


def test_a_clock_that_reads_low_makes_no_negative_delay(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    executor.submit(call(1, fired_ago_s=-0.5))
    inner.done = [Done(1, None, None, began=100.0, ended=100.0)]
    executor.completed()
    assert value(worker, "start_delay_seconds_sum", queue="mail") == 0


def test_a_call_that_never_began_took_no_time_and_a_withdrawn_one_is_not_in_flight(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    executor.submit(call(1))
    executor.submit(call(2))
    inner.done = [Done(1, None, Stopped())]
    executor.completed()
    assert value(worker, "attempts_in_flight", queue="mail") == 1
    assert executor.withdraw([2]) == {2}
    assert value(worker, "attempts_in_flight", queue="mail") == 0
    assert value(worker, "attempts_finished_total", queue="mail", outcome="stopped") == 1
    assert value(worker, "start_delay_seconds_count", queue="mail") == 0


def test_threads_that_handlers_outlived_are_shown(
    worker: WorkerMetrics, inner: FakeExecutor, executor: CountedExecutor
) -> None:
    inner.abandoned = 2
    executor.submit(call(1))
    executor.completed()
    assert value(worker, "threads_abandoned", queue="mail") == 2


def test_the_edges_of_a_histogram_belong_to_the_bucket_below(worker: WorkerMetrics) -> None:
    for limit in (0.01, 0.025, 0.04, 0.08):
        worker.start_delay(f"q{limit}").observe([limit])
        shown = value(worker, "start_delay_seconds_bucket", queue=f"q{limit}", le=str(limit))
        assert shown == 1, "a limit that the product states"
    worker.start_delay("mail").observe([1e9])
    assert value(worker, "start_delay_seconds_bucket", queue="mail", le="60.0") == 0
    assert value(worker, "start_delay_seconds_bucket", queue="mail", le="+Inf") == 1


def test_handlers_stay_bounded_however_many_there_are(worker: WorkerMetrics) -> None:
    for n in range(1_000):
        worker.duration(f"h{n}", "returned").observe([0.1])
    labels = {"handler": "other", "outcome": "returned"}
    assert value(worker, "handler_duration_seconds_count", **labels) == 1_000 - WORDS_LIMIT


@pytest.mark.parametrize(
    ("done", "outcome"),
    [
        (Done(0, None, None), "returned"),
        (Done(0, None, KeyError()), "failed"),
        (Done(0, Retry(after="1m"), None), "retry"),
        (Done(0, None, Snooze(for_="1m")), "snooze"),
        (Done(0, Cancel("x"), None), "cancel"),
        (Done(0, None, Fenced("a newer attempt was there")), "fenced"),
        (Done(0, None, Dead("x")), "dead"),
        (Done(0, None, InvalidPayload("x")), "invalid_payload"),
        (Done(0, None, TimedOut()), "timed_out"),
        (Done(0, None, Stopped()), "stopped"),
    ],
)
def test_a_verb_counts_the_same_returned_or_raised(done: Done, outcome: str) -> None:
    assert handler_outcome(done) == outcome


def test_a_workers_events_say_their_queue_and_acks_are_counted_by_it(
    worker: WorkerMetrics, told: Told
) -> None:
    worker.of_queue("mail").on("acked", outcomes=20)
    worker.of_queue("mail").on("assigned", queue="mail", partitions=[1])
    assert told.lines == [
        ("acked", {"queue": "mail", "outcomes": 20}),
        ("assigned", {"queue": "mail", "partitions": [1]}),
    ]
    assert value(worker, "acks_total", queue="mail") == 20
    assert value(worker, "ack_transaction_outcomes_count", queue="mail") == 1


def test_dead_letters_of_acks_are_counted_by_reason(worker: WorkerMetrics) -> None:
    worker.of_queue("mail").on("acked", outcomes=3, dead={"max_attempts": 2, "Some text: 4711": 1})
    assert value(worker, "dead_letters_total", reason="max_attempts") == 2
    assert value(worker, "dead_letters_total", reason="other") == 1
    assert worker.finished == 3


@pytest.mark.parametrize(
    ("action", "fields", "name", "count"),
    [
        ("ack_refused", {"outcomes": 7}, "acks_refused", 7),
        ("fenced_ack", {}, "acks_fenced", 1),
        ("held", {"partition": 2, "runs": ["a", "b"]}, "runs_found_held", 2),
        ("held", {"partition": 2, "runs": 3}, "runs_found_held", 3),
        ("reclaimed", {"job": "j"}, "runs_reclaimed", 1),
        ("adopted", {}, "runs_adopted", 1),
        ("offered", {}, "outcomes_offered", 1),
        ("offer_taken", {}, "offers_taken", 1),
        ("offer_ignored", {"offers": 2}, "offers_ignored", 2),
        ("result_discarded", {"ticket": 9}, "results_discarded", 1),
        ("stopped_run", {}, "runs_stopped", 1),
    ],
)
def test_what_the_lease_comes_to_is_counted_by_queue(
    worker: WorkerMetrics, action: str, fields: dict[str, Any], name: str, count: int
) -> None:
    worker.of_queue("mail").on(action, **fields)
    assert value(worker, f"{name}_total", queue="mail") == count
    assert value(worker, "events_total", action=action) == 1


def test_a_queues_gauges_are_the_last_ones_told_and_absent_before(worker: WorkerMetrics) -> None:
    assert value(worker, "runs_waiting", queue="mail") is None
    worker.of_queue("mail").on("gauges", waiting=4, held=1, parked=2, paused=3, lag=90, oldest_gap_ms=2_500)
    names = ("runs_waiting", "runs_held", "runs_parked", "partitions_paused", "work_lag_records")
    assert [value(worker, name, queue="mail") for name in names] == [4, 1, 2, 3, 90]
    assert value(worker, "oldest_gap_seconds", queue="mail") == 2.5
    worker.of_queue("mail").on("gauges", waiting=0, lag=None)
    assert value(worker, "runs_waiting", queue="mail") == 0
    assert value(worker, "oldest_gap_seconds", queue="mail") == 2.5, "not told of"
    unknown = value(worker, "work_lag_records", queue="mail")
    assert unknown != unknown


@pytest.mark.parametrize("action", ["acked", "gauges", "held", "ack_refused", "partition_stopped"])
def test_a_workers_event_without_its_fields_harms_nobody(
    worker: WorkerMetrics, told: Told, action: str
) -> None:
    worker.on(action)
    assert told.lines == [(action, {})]


# -- the page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [DispatcherMetrics, WorkerMetrics])
def test_the_page_of_metrics_lists_every_metric_with_its_labels(
    make: Callable[..., Metrics], told: Told
) -> None:
    page = DOCS.read_text()
    metrics = make(slot=0, version="1", librdkafka="2", forward=told)
    for collector in {*metrics.registry._collector_to_names}:
        for family in collector.collect():
            if not family.name.startswith("dueline_"):
                continue
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = ",".join(getattr(collector, "_labelnames", ()))
            shown = f"`{name}{{{labels}}}`" if labels else f"`{name}`"
            assert f"| {shown} | {family.type} |" in page, shown
