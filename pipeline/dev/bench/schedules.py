"""Shapes of recurring schedules: each once a minute on one dispatcher, and each every second while dispatchers end."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import codec, preview
from pipeline.core import keys
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.core.ids import parse_occurrence
from pipeline.core.job import Command
from pipeline.core.schedule import ScheduleSpec
from pipeline.dev.bench.faults import balanced
from pipeline.dev.bench.figures import Figure, at_most, spread
from pipeline.dev.bench.handlers import NOTHING
from pipeline.dev.bench.lateness import SETTLE_MS, emit_delay
from pipeline.dev.bench.load import MINUTE_MS, PAYLOADS, encoded, instant, payloads
from pipeline.dev.bench.observer import Observer, Seen
from pipeline.dev.bench.process import DispatcherProcess, OwnerProcess
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, Context
from pipeline.dev.bench.workers import CONCURRENCY
from pipeline.ports import Put

P99_MS = 1_000
LATE_S = 60.0
"""So long after the last instant its occurrence is waited for."""
FLUSH_MS = 60_000
WARM_MS = 60_000
"""Not measured: each has fired once by then."""
FAULT_EVERY_S = 20.0
TICK_S = 0.05
ZONE = "Europe/Berlin"


class Occurrences:
    """What fires of these schedules, in [start, end) of epoch ms: `meant` has the instants of each, by its id."""

    def __init__(self, meant: Mapping[str, Sequence[int]], start: int, end: int) -> None:
        self._meant, self._start, self._end = meant, start, end
        self._came: Counter[tuple[str, int]] = Counter()
        self.count = 0
        """Records in the range so far. Grows in the observer's thread only."""

    @property
    def wanted(self) -> int:
        return sum(map(len, self._meant.values()))

    def due_in(self, key: bytes) -> int:
        """Of an observer: when the occurrence was due, of schedules without jitter; it is counted."""
        occurrence = parse_occurrence(key.decode())
        self._came[occurrence.schedule_id, occurrence.nominal_at] += 1
        self.count += self._start <= occurrence.nominal_at < self._end
        return occurrence.nominal_at

    def wait(self, timeout_s: float, alive: Callable[[], None]) -> None:
        """Until as many have come as are meant, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self.count < self.wanted and time.monotonic() < deadline:
            alive()
            time.sleep(TICK_S)

    def check(self) -> None:
        """DuelineError unless each instant that is meant has fired once, and no other."""
        meant = {(id_, at) for id_, instants in self._meant.items() for at in instants}
        inside = {each: times for each, times in self._came.items() if self._start <= each[1] < self._end}
        doubled = sum(times > 1 for times in inside.values())
        missing, more = len(meant - inside.keys()), len(inside.keys() - meant)
        if doubled or missing or more:
            raise DuelineError(
                f"of {len(meant)} occurrences {missing} are missing and {doubled} doubled, {more} others came"
            )

    def of(self, seen: Sequence[Seen]) -> list[Seen]:
        """The records of the range."""
        return [record for record in seen if self._start <= record.due < self._end]


def meant(specs: Sequence[ScheduleSpec], start: int, end: int) -> dict[str, list[int]]:
    """The instants in [start, end) of each, as the client's `preview` tells them."""
    known: dict[tuple[str, str, int], list[int]] = {}
    found = {}
    for spec in specs:
        expression = spec.cron or f"@every {spec.every_ms}ms"
        rhythm = (expression, spec.tz, spec.phase_ms)
        if rhythm not in known:
            known[rhythm] = list(_previewed(*rhythm, start, end))
        found[spec.id] = known[rhythm]
    return found


def _previewed(expression: str, tz: str, phase_ms: int, start: int, end: int) -> Iterator[int]:
    most = (end - start) // 1_000 + 1
    phase = {"phase": f"{phase_ms}ms"} if phase_ms else {}
    for at in preview(expression, tz=tz, after=instant(start - 1), count=most, **phase):
        ms = round(at.timestamp() * 1000)
        if ms < end:
            yield ms


def create(here: Site, specs: Sequence[ScheduleSpec], alive: Callable[[], None]) -> None:
    """Have the owners make them. StoreUnreachable if not all are answered in time."""
    names, refused = here.settings.names, list[Exception]()

    def report(error: Exception | None, _offset: int, _at: int) -> None:
        if error is not None:
            refused.append(error)

    with Observer(here.settings, names.events, here.layout.partitions, due_in=lambda _key: 0) as answers:
        for n, spec in enumerate(specs):
            here.appender.append(_command(here, spec), report)
            if not n % 1_000:
                here.appender.poll(0)
        here.appender.flush(FLUSH_MS)
        if refused:
            raise StoreUnreachable(f"{names.jobs}: {len(refused)} commands not stored: {refused[0]}")
        answers.wait(len(specs), PATIENCE_S, alive)


def _command(here: Site, spec: ScheduleSpec) -> Put:
    id_ = str(uuid.uuid4())
    command = Command(command_id=id_, verb="schedule.create", schedule_id=spec.id, spec=spec)
    home = here.layout.home_of_name(spec.id)
    return Put(here.settings.names.jobs, home, keys.command_key(id_), codec.COMMAND.encode(command))


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has taken, in all its threads; 0 where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- each once a minute --------------------------------------------------------------------------------------


def minutely(context: Context, count: int, minutes: int, plots: dict[str, list[float]]) -> list[Figure]:
    """So many schedules, as many at each second of the minute, for so many minutes after their first; one dispatcher
    and a worker that does nothing. DuelineError if an occurrence is missing or came twice."""
    specs = [_spec(n, cron=f"{n % 60} * * * * *", tz=ZONE) for n in range(count)]
    with site(context.store, context.directory) as here:
        dispatcher, worker = here.dispatcher(), here.worker(concurrency=CONCURRENCY)
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        worker.wait_running(here.work_partitions, PATIENCE_S)
        create(here, specs, dispatcher.check)
        start = here.now() + WARM_MS
        end = start + minutes * MINUTE_MS
        occurrences = Occurrences(meant(specs, start, end), start, end)
        with here.observer(occurrences.due_in) as observer:
            _sleep_until(here, start, worker.check)
            before = Cost.of(dispatcher)
            _sleep_until(here, end, dispatcher.check)
            after = Cost.of(dispatcher)
            occurrences.wait(LATE_S, dispatcher.check)
            seen = occurrences.of(list(observer.seen))
    occurrences.check()
    name = f"{count:,} schedules once a minute"
    plots[name] = [record.lateness for record in seen]
    late = spread(plots[name])
    context.tell(f"{name}: p50 {late.p50:g} ms, p99 {late.p99:g} ms")
    return [
        _figure(f"lateness p50, {name}", late.p50, "ms", late.described()),
        _figure(f"lateness p99, {name}", late.p99, "ms", late.described(), P99_MS),
        emit_delay("schedules", name, seen),
        *_costs(name, before, after, len(seen), minutes),
    ]


class Cost(NamedTuple):
    """What a process has taken so far: seconds of processor time, resident MB; 0 where /proc does not tell."""

    processor_s: float
    rss_mb: float

    @classmethod
    def of(cls, process: OwnerProcess) -> Cost:
        return cls(processor_s(process.pid), process.memory_mb().get("rss_mb", 0.0))


def _costs(name: str, before: Cost, after: Cost, occurrences: int, minutes: int) -> list[Figure]:
    """None where /proc does not tell."""
    if not before.processor_s or not before.rss_mb:
        return []
    spent, rss = after.processor_s - before.processor_s, after.rss_mb
    each = f"processor time of the dispatcher an occurrence, {name}"
    return [
        _figure(each, spent * 1e6 / occurrences, "us", {"cores": spent / minutes / 60}),
        _figure(
            f"growth of its memory, {name}", rss / before.rss_mb, "times", {"rss_mb": rss, "minutes": minutes}
        ),
    ]


def _spec(n: int, **when: Any) -> ScheduleSpec:
    return ScheduleSpec(
        id=f"report-{n:06}", handler=NOTHING, overlap="allow", misfire="all(1000)", payload=_payloads[n % PAYLOADS],
        **when,
    )  # fmt: skip


_payloads = [encoded(each) for each in payloads()]


def _sleep_until(here: Site, at: int, alive: Callable[[], None]) -> None:
    while (left := at - here.now()) > 0:
        alive()
        time.sleep(min(left / 1000, 0.5))


def _figure(
    name: str, value: float, unit: str, detail: Mapping[str, float], most: float | None = None
) -> Figure:
    target = None if most is None else at_most(most)
    return Figure(shape="schedules", name=name, value=value, unit=unit, target=target, detail=detail)


# -- each every second, while dispatchers end ----------------------------------------------------------------


def through_restarts(
    context: Context, count: int, seconds: float, plots: dict[str, list[float]]
) -> list[Figure]:
    """So many schedules fire every second for so long, half of them at the full second; of two dispatchers one is
    killed or told to end every 20 s, and replaced. DuelineError if an occurrence is missing or came twice."""
    specs = [
        _spec(n, cron="* * * * * *", tz=ZONE)
        if n % 2
        else _spec(n, every_ms=1_000, phase_ms=n * 1_000 // count)
        for n in range(count)
    ]
    with site(context.store, context.directory) as here:
        dispatchers = [here.dispatcher(), here.dispatcher()]

        def alive() -> None:
            for dispatcher in dispatchers:
                dispatcher.check()

        balanced(dispatchers, here.layout.partitions)
        create(here, specs, alive)
        start = here.now() + SETTLE_MS
        end = start + int(seconds * 1000)
        occurrences = Occurrences(meant(specs, start, end), start, end)
        with here.observer(occurrences.due_in) as observer:
            restarts = _restarting(here, dispatchers, end, alive)
            occurrences.wait(LATE_S, alive)
            seen = occurrences.of(list(observer.seen))
    occurrences.check()
    name = f"{count:,} schedules every second, {restarts} restarts"
    plots[name] = [record.lateness for record in seen]
    late = spread(plots[name])
    context.tell(
        f"{name}: {len(seen):,} occurrences, none missing or doubled; worst lateness {late.most:g} ms"
    )
    return [
        _figure(f"worst lateness, {name}", late.most, "ms", late.described()),
        emit_delay("schedules", name, seen),
    ]


def _restarting(here: Site, dispatchers: list[DispatcherProcess], end: int, alive: Callable[[], None]) -> int:
    """Until `end` one after the other is killed or ends politely, and another starts; how many that were."""
    restarts = 0
    while True:
        _sleep_until(here, min(end, here.now() + int(FAULT_EVERY_S * 1000)), alive)
        if here.now() >= end:
            return restarts
        victim = dispatchers.pop(0)
        if restarts % 2:
            victim.stop()
        else:
            victim.kill()
        restarts += 1
        dispatchers.append(here.dispatcher())
