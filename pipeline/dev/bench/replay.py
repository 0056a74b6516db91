"""The shape `replay`: reading what happened beside reading alone, running it again beside the drain that ran it first,
and keeping to a rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from pipeline import codec
from pipeline.adapters.kafka_io import BATCH, WAIT_S, KafkaReader, take
from pipeline.adapters.kafka_settings import settings as client_settings
from pipeline.client.connection import Connection
from pipeline.client.parts import connect
from pipeline.core.errors import DuelineError
from pipeline.core.job import Ack, AckState
from pipeline.core.keys import terminal_key
from pipeline.dev.bench.figures import Figure, at_least, at_most, per_second, ratio_at_least
from pipeline.dev.bench.observer import Observer, Seen
from pipeline.dev.bench.process import DispatcherProcess, read_memory
from pipeline.dev.bench.site import Site
from pipeline.dev.bench.throughput import LEAD_MS, PATIENCE_S, Context, check_time, pace_ms, patiently
from pipeline.ports import Put
from pipeline.replay import Asked, Chosen, Replays, choose
from pipeline.survey import Filter, Ground, State, Window

SCAN_RATIO, EMISSION_RATIO = 0.5, 0.5
MILLION_S = 180
RATE, RATE_SECONDS, RATE_OFF = 500, 6, 0.05
FAILED = Filter(outcomes=frozenset({State.FAILED}))
FLUSH_MS = 60_000


def replays(context: Context, count: int) -> list[Figure]:
    """`count` jobs that fired and ended dead, all of them replayed; DuelineError unless each has one run more."""
    found = patiently(context, lambda here, slack: _replayed(here, count, slack))
    context.tell(", ".join(f"{figure.name} {figure.value:,.1f} {figure.unit}" for figure in found))
    return found


def _replayed(here: Site, count: int, slack: float) -> list[Figure]:
    ahead_ms = LEAD_MS + int(count * pace_ms(here) * slack)
    due = here.now() + ahead_ms
    dispatcher = here.dispatcher()
    with here.observer(lambda _key: due) as observer:
        here.create(due for _ in range(count))
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        check_time(here, due)
        observer.wait(count, (due - here.now()) / 1000 + PATIENCE_S, dispatcher.check)
        drained = per_second(count, max(seen.at for seen in observer.seen) - due)
        _end_dead(here, due)
        bare = _bare_scan(here)
        connection = Connection(connect(here.settings), here.settings)
        try:
            with closing(connection.parts.open_scan()) as scan:
                ground = Ground(scan=scan, names=here.settings.names, layout=connection.layout)
                window = Window(from_ms=due, to_ms=due + 1)
                began = time.perf_counter()
                with choose(ground, window, FAILED) as chosen:
                    scanned = per_second(2 * count, (time.perf_counter() - began) * 1000)
                    emitted, grown = _emitted(Replays(connection, ground), window, chosen, count)
                observer.wait(2 * count, PATIENCE_S, dispatcher.check)
                paced = _paced(here, connection, ground, observer, dispatcher, 2 * count)
        finally:
            connection.close(FLUSH_MS)
        surplus = len(observer.seen) - 2 * count - 2 * RATE * RATE_SECONDS
    dispatcher.stop()
    if surplus:
        raise DuelineError(f"{surplus} runs too many were emitted")
    return [
        Figure(
            shape="replay",
            name=f"survey of {count:,}",
            value=scanned,
            unit="records/s",
            bare=bare,
            target=ratio_at_least(SCAN_RATIO),
        ),
        Figure(
            shape="replay",
            name=f"replay of {count:,}, beside the drain",
            value=emitted,
            unit="runs/s",
            bare=drained,
            target=ratio_at_least(EMISSION_RATIO),
            detail={"rss_grown_mb": grown},
        ),
        Figure(
            shape="replay",
            name=f"replay of {count:,}, a million would take",
            value=1_000_000 / emitted,
            unit="s",
            target=at_most(MILLION_S),
        ),
        Figure(
            shape="replay",
            name=f"replay at {RATE} a second",
            value=paced / RATE,
            unit="of the rate",
            target=at_least(1 - RATE_OFF),
        ),
        Figure(
            shape="replay",
            name=f"replay at {RATE} a second, at most",
            value=paced / RATE,
            unit="of the rate",
            target=at_most(1 + RATE_OFF),
        ),
    ]


def _emitted(replays: Replays, window: Window, chosen: Chosen, count: int) -> tuple[float, float]:
    """Runs a second from the first command on until all are answered; MB by which this process grew."""
    asked = Asked(window=window, wanted=FAILED, requested_by="bench")
    before = _rss_mb()
    began = time.perf_counter()
    done = replays.carry_out(replays.begin(asked, count), chosen)
    took = (time.perf_counter() - began) * 1000
    if done.counts.get("replayed") != count:
        raise DuelineError(f"of {count} runs {done.counts} became")
    return per_second(count, took), max(0.0, _rss_mb() - before)


def _paced(
    here: Site,
    connection: Connection,
    ground: Ground,
    observer: Observer,
    dispatcher: DispatcherProcess,
    seen: int,
) -> float:
    """Runs a second of a replay that was given a rate, by when the log took them."""
    count = RATE * RATE_SECONDS
    due = here.now() + LEAD_MS
    here.create(due for _ in range(count))
    observer.wait(seen + count, PATIENCE_S, dispatcher.check)
    _end_dead(here, due)
    window, replays = Window(from_ms=due, to_ms=due + 1), Replays(connection, ground)
    asked = Asked(window=window, wanted=FAILED, requested_by="bench", rate=RATE)
    with choose(ground, window, FAILED) as chosen:
        replays.carry_out(replays.begin(asked, count), chosen)
    observer.wait(seen + 2 * count, PATIENCE_S, dispatcher.check)
    return _rate_of(observer.seen[seen + count :])


def _rate_of(seen: Sequence[Seen]) -> float:
    """Records a second, by their times of appending; those of the last round stand for the time after it."""
    appended = sorted(each.appended for each in seen)
    last = next(n for n, at in enumerate(appended) if at > appended[-1] - 1000 // 5 // 2)
    return per_second(last, appended[last] - appended[0])


def _end_dead(here: Site, since: int) -> None:
    """An ack for each run that was emitted since (epoch ms) that says it is dead, as a worker would have written it."""
    queue = here.settings.queue
    work, acks = here.settings.names.work(queue), here.settings.names.acks(queue)
    with closing(KafkaReader(here.settings.require_bootstrap(), here.settings.kafka)) as reader:
        for number in range(here.work_partitions):
            for record in reader.read(work, number, since_ms=since):
                run = codec.RUN.decode(record.value() or b"")
                ack = Ack(
                    job_id=run.job_id,
                    occurrence_id=run.occurrence_id,
                    run=run.run,
                    attempt=1,
                    token=(1 << 55) + 1,
                    worker="bench.worker.0",
                    handler=run.handler,
                    state=AckState.DEAD,
                    at=run.due_at,
                    work_offset=record.offset() or 0,
                )
                key = terminal_key(run.occurrence_id, run.run, 1)
                here.appender.append(Put(acks, number, key, codec.ACK.encode(ack)))
                if not (record.offset() or 0) % 1_000:
                    here.appender.poll(0)
    here.appender.flush(FLUSH_MS)


def _bare_scan(here: Site) -> float:
    """Records a second of a consumer that reads the same partitions one after the other, and nothing else."""
    own = {
        "group.id": f"{here.settings.prefix}.bare",  # the client wants one; nothing joins it
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
        "fetch.queue.backoff.ms": 20,
    }
    names, queue = here.settings.names, here.settings.queue
    consumer = Consumer(client_settings(here.settings.require_bootstrap(), here.settings.kafka, own))
    began, read = time.perf_counter(), 0
    for number in range(here.work_partitions):
        for topic in (names.acks(queue), names.work(queue)):
            read += _read_all(consumer, TopicPartition(topic, number, 0))
    took = (time.perf_counter() - began) * 1000
    consumer.close()
    return per_second(read, took)


def _read_all(consumer: Consumer, place: TopicPartition) -> int:
    consumer.assign([place])
    read, ended = 0, False
    while not ended:
        batch = take(consumer, BATCH, WAIT_S)
        ended = any(message.error() is not None for message in batch)
        read += len(batch) - ended
    return read


def _rss_mb() -> float:
    with open("/proc/self/status") as status:
        return read_memory(status.read()).get("rss_mb", 0.0)
