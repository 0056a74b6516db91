"""Shapes with commands: how soon cancel and reschedule are answered, and half of the jobs cancelled just before
they are due."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from pipeline import codec
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.core.errors import DuelineError
from pipeline.core.job import Command
from pipeline.core.keys import command_key
from pipeline.dev.bench.figures import Figure, Spread, at_most, per_second, spread
from pipeline.dev.bench.lateness import GRACE_S
from pipeline.dev.bench.load import far, instant
from pipeline.dev.bench.process import DispatcherProcess
from pipeline.dev.bench.site import Site
from pipeline.dev.bench.throughput import LEAD_MS, PATIENCE_S, Context, check_time, pace_ms, patiently
from pipeline.ports import Put

IDLE_CALLS = 100
"""Of each verb."""
IDLE_MS = 5_000
"""The idle calls are over within this."""
MOST_CALLS = 2_000
"""During a drain: as many as fit in it, one after the other."""
IDLE_P99_MS, BUSY_P99_MS = 100, 500
WAIT_S = 30
FLUSH_MS = 60_000


def answers(context: Context, drained: int, plots: dict[str, list[float]]) -> list[Figure]:
    """From the call to its answer, one call after the other: nothing else to do, and during a drain."""
    cancels, moves, busy = patiently(context, lambda here, slack: _answers(here, drained, slack))
    context.tell(f"answers: cancel {_told(cancels)}, reschedule {_told(moves)}, in a drain {_told(busy)}")
    plots["answer to cancel, idle"], plots["answer to cancel, in a drain"] = cancels, busy
    return [
        _answer("cancel, idle", spread(cancels), IDLE_P99_MS),
        _answer("reschedule, idle", spread(moves), IDLE_P99_MS),
        _answer(f"cancel, during a drain of {drained:,}", spread(busy), BUSY_P99_MS),
    ]


class Answers(NamedTuple):
    """ms from call to answer: cancel and reschedule with nothing else to do, cancel during a drain."""

    cancels: list[float]
    moves: list[float]
    busy: list[float]


def _answers(here: Site, drained: int, slack: float) -> Answers:
    idle_ids = here.create(far(2 * IDLE_CALLS, here.now()))
    busy_ids = iter(here.create(far(MOST_CALLS, here.now())))
    ahead_ms = LEAD_MS + IDLE_MS + int(drained * pace_ms(here) * slack)
    due = here.now() + ahead_ms
    with here.observer() as observer:
        here.create(due for _ in range(drained))
        dispatcher = here.dispatcher()
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        here.app.cancel(next(busy_ids), wait=WAIT_S)  # the first call connects
        cancels = [_timed(_cancel(here, dispatcher, id_)) for id_ in idle_ids[:IDLE_CALLS]]
        moves = [_timed(_reschedule(here, dispatcher, id_)) for id_ in idle_ids[IDLE_CALLS:]]
        check_time(here, due)
        time.sleep(max(0, due - here.now()) / 1000)
        busy = []
        while len(observer.seen) < drained and (id_ := next(busy_ids, None)) is not None:
            busy.append(_timed(_cancel(here, dispatcher, id_)))
        observer.wait(drained, GRACE_S, dispatcher.check)
    dispatcher.stop()
    return Answers(cancels, moves, busy)


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _cancel(here: Site, owner: DispatcherProcess, id_: str) -> Callable[[], None]:
    return lambda: _expect("cancelled", here.app.cancel(id_, wait=WAIT_S).outcome, owner)


def _reschedule(here: Site, owner: DispatcherProcess, id_: str) -> Callable[[], None]:
    later = instant(next(far(1, here.now())))
    return lambda: _expect("rescheduled", here.app.reschedule(id_, at=later, wait=WAIT_S).outcome, owner)


def _expect(outcome: str, found: str, owner: DispatcherProcess) -> None:
    if found != outcome:
        owner.check()  # its last words say more
        raise DuelineError(f"a call was answered {found}, not {outcome}")


def _told(values: Sequence[float]) -> str:
    found = spread(values)
    return f"p50 {found.p50:.1f} ms, p99 {found.p99:.1f} ms"


def _answer(name: str, found: Spread, bound: float) -> Figure:
    return Figure(
        shape="commands",
        name=f"answer p99, {name}",
        value=found.p99,
        unit="ms",
        target=at_most(bound),
        detail=found.described(),
    )


# -- half of them cancelled ----------------------------------------------------------------------------------


def cancelled(context: Context, count: int) -> list[Figure]:
    """All due at one instant, every second one cancelled just before it. DuelineError if one that was answered
    `cancelled` fired, or one that was not did not."""
    figure = patiently(context, lambda here, slack: _cancelled(here, count, slack))
    detail = figure.detail
    context.tell(
        f"of {count:,}: {detail['cancelled']:,.0f} cancelled, {detail['fired']:,.0f} fired, {figure.value:,.0f}/s"
    )
    return [figure]


def _cancelled(here: Site, count: int, slack: float) -> Figure:
    lead = int(count * pace_ms(here) * slack)
    due = here.now() + LEAD_MS + 2 * lead
    with here.observer() as observer:
        ids = here.create(due for _ in range(count))
        dispatcher = here.dispatcher()
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        time.sleep(max(0, due - lead - here.now()) / 1000)
        _send(here, ids[::2])
        check_time(here, due)
        ahead = due - here.now()
        outcomes = _outcomes(here, len(ids[::2]), due)
        fired = count - outcomes["cancelled"]
        observer.wait(fired, GRACE_S, dispatcher.check)
        time.sleep(0.5)  # one too many would follow at once
        seen = list(observer.seen)
    dispatcher.stop()
    if len(seen) != fired:
        raise DuelineError(
            f"{len(seen)} fired and {outcomes['cancelled']} were answered cancelled, of {count}"
        )
    took = max(record.at for record in seen) - due
    return Figure(
        shape="cancelled",
        name=f"drain of {count:,} with every second one cancelled",
        value=per_second(fired, took),
        unit="fired/s",
        detail={
            "cancelled": outcomes["cancelled"],
            "too_late": outcomes["fired"],
            "fired": fired,
            "commands_stored_before_due_ms": ahead,
            "least_emit_delay": min(record.emit_delay for record in seen),
        },
    )


def _send(here: Site, ids: Iterable[str]) -> None:
    """As any client may: plain records, nobody waits for the answers. Each is durable when this returns."""
    for n, id_ in enumerate(ids):
        command = Command(command_id=str(uuid.uuid4()), verb="cancel", job_id=id_)
        key, value = command_key(command.command_id), codec.COMMAND.encode(command)
        here.appender.append(Put(here.settings.names.jobs, here.layout.home(id_), key, value))
        if not n % 1_000:
            here.appender.poll(0)
    here.appender.flush(FLUSH_MS)


def _outcomes(here: Site, count: int, due: int) -> Counter[str]:
    """Of so many commands, once each is answered; DuelineError if not in time."""
    deadline = time.monotonic() + max(0, due - here.now()) / 1000 + GRACE_S
    while True:
        found = list(islice(_answered(here), count + 1))
        if len(found) >= count:
            return Counter(found)
        if time.monotonic() > deadline:
            raise DuelineError(f"{len(found)} of {count} commands were answered")
        time.sleep(0.5)


def _answered(here: Site) -> Iterator[str]:
    events = here.settings.names.events
    with closing(KafkaReader(here.settings.require_bootstrap(), here.settings.kafka)) as reader:
        for partition in range(reader.partitions(events)):
            for record in reader.read(events, partition):
                event = codec.EVENT.decode(record.value() or b"")
                if event.kind == "answer":
                    yield str(event.outcome)
