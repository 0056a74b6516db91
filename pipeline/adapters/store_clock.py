"""The store's clock: every broker that leads a partition of `fleet` is probed once a second (DESIGN §6).

What follows of the answers is decided in `pipeline.core.clock`; here they are sent, timed and counted for a broker.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pipeline.adapters.kafka_probe import KafkaProber
from pipeline.core.clock import Reading, Sample, StoreTime
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.ports import Events

ROUND_MS = 1_000
"""From one probe of a broker to the next."""
QUICK_ROUNDS, QUICK_MS = 5, 3
"""The first probes follow each other closely: one alone may be late by a round trip."""
BURST = 3
"""Probes in a round, one after the other: LogAppendTime is cut to ms, and the best of some loses least of one."""
ANSWER_MS = 1_000
"""How long a round waits for its reports; later ones still count, with what the next round sends."""
POLL_MS = 50
ALL_MS = 2_000
"""How long the first reading waits for each broker, once a majority agrees: the one that is silent may be behind."""
FIRST_MS = 8_000
"""How long the first reading waits for the brokers."""
IDLE_MS = 10_000
"""Nobody asked for so long: probing rests, so that a client that does nothing costs the store nothing."""
AWAKE_MS = 1_000
"""How long the first reading after that waits for new probes; in vain, it goes on with what is known."""
CLOSE_S = 5.0


def monotonic_us() -> int:
    """CLOCK_MONOTONIC in microseconds."""
    return time.monotonic_ns() // 1_000


class Prober(Protocol):
    """See KafkaProber."""

    def leaders(self) -> Mapping[int, int]: ...
    def send(self, partition: int, done: Callable[[int], None]) -> None: ...
    def poll(self, timeout_ms: int) -> None: ...
    def close(self) -> None: ...


class _Report(NamedTuple):
    """A probe that came back, and who led its partition when it was sent."""

    partition: int
    sample: Sample


class Rounds:
    """Probes in rounds. A report counts for a broker that led the partition both before the probe was sent and
    after its report came: whose clock it was is not in the report, and leadership moves."""

    def __init__(self, prober: Prober, monotonic: Callable[[], int]) -> None:
        self._prober, self._monotonic = prober, monotonic
        self._leaders: Mapping[int, int] | None = None
        self._known_at = 0
        self._reports: list[_Report] = []
        self._open: set[object] = set()

    def turn(self) -> tuple[frozenset[int], list[Sample]]:
        """One round: who leads now, and what the reports say. Raises StoreUnreachable, NotFound."""
        before = self._known()
        for _ in range(BURST):
            for broker in frozenset(before.values()):
                self._send(broker, min(n for n, leader in before.items() if leader == broker))
            if not self._heard():
                break
        after = self._leaders = self._prober.leaders()
        self._known_at = self._monotonic()
        reports, self._reports = self._reports, []
        led = [one.sample for one in reports if after.get(one.partition) == one.sample.broker]
        return frozenset(after.values()), led

    def _known(self) -> Mapping[int, int]:
        """What the round before found, if that was just now."""
        leaders, self._leaders = self._leaders, None  # after a failure nothing is known
        if leaders is None or self._monotonic() - self._known_at > 2_000 * ROUND_MS:
            return self._prober.leaders()
        return leaders

    def _send(self, broker: int, partition: int) -> None:
        sent, ticket = self._monotonic(), object()

        def done(log_append_ms: int) -> None:
            self._open.discard(ticket)
            self._reports.append(_Report(partition, Sample(broker, log_append_ms, sent, self._monotonic())))

        self._open.add(ticket)
        self._prober.send(partition, done)

    def _heard(self) -> bool:
        """Wait for the reports; whether all came in time."""
        deadline = self._monotonic() + ANSWER_MS * 1_000
        while self._open and self._monotonic() < deadline:
            self._prober.poll(POLL_MS)
        late = bool(self._open)
        self._open.clear()
        return not late


class StoreClock:
    """`Clock` by the brokers' clocks. A thread of its own probes them, so the reports are taken as they come
    however long an owner's step lasts. For any number of threads.

    `events` hears of every broker that begins or ceases to disagree, on a thread that asks for the time.
    """

    def __init__(
        self, prober: Prober, *, events: Events | None = None, monotonic: Callable[[], int] = monotonic_us
    ) -> None:
        self._events, self._monotonic = events, monotonic
        self._rounds = Rounds(prober, monotonic)
        self._time = StoreTime()
        self._told: frozenset[int] = self._time.outside
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._problem: DuelineError | None = None
        self._count = self._turns = 0
        self._asked = self._started_at = monotonic()
        self._usable = self._begun = self._closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=_keep_probing,
            args=(weakref.ref(self), self._wake, prober),
            name="dueline-clock",
            daemon=True,
        )
        self._thread.start()

    # -- what owners ask ------------------------------------------------------------------------------------

    def monotonic(self) -> int:
        return self._monotonic() // 1_000

    def now(self) -> int:
        """Waits for the first answers; StoreUnreachable, NotFound if they do not come."""
        if not self._usable:
            self._begin()
        with self._lock:
            self._asked = here = self._monotonic()
            now = self._time.now(here)
        if self._time.outside is not self._told:
            self._tell(here)
        return now

    def error(self) -> int:
        self.now()
        with self._lock:
            return self._time.error(self._monotonic())

    @property
    def held_ms(self) -> int:
        """For how long the clock stands still yet, because the brokers were set back; 0 = it runs."""
        self.now()
        with self._lock:
            return self._time.held(self._monotonic())

    @property
    def readings(self) -> Mapping[int, Reading]:
        """Every broker's clock beside the store's, by broker id."""
        self.now()
        with self._lock:
            return self._time.readings(self._monotonic())

    @property
    def disagreement_ms(self) -> int:
        """By how much the broker that is farthest from the store's time is."""
        return max(abs(reading.ahead_ms) for reading in self.readings.values())

    def close(self) -> None:
        """End the probing; the time can still be asked for."""
        with self._lock:
            self._closed = True
            self._news.notify_all()
        self._wake.set()
        self._thread.join(CLOSE_S)

    # -- beginning, and beginning again ---------------------------------------------------------------------

    def _begin(self) -> None:
        """Wait for probes: long for the first ones, a moment after a rest."""
        with self._lock:
            self._asked = self._monotonic()
            self._wake.set()
            count = self._count
            if self._begun:
                self._news.wait_for(lambda: self._count > count or self._closed, AWAKE_MS / 1_000)
            else:
                self._news.wait_for(self._answered, FIRST_MS / 1_000)
                if not self._time.started:
                    raise self._problem or StoreUnreachable(f"no answer to a clock probe in {FIRST_MS} ms")
            self._usable = self._begun = True

    def _answered(self) -> bool:
        """All leaders were heard, or after a while a majority that agrees; or nothing will come. After a while, too:
        a topic that was just made is not known to every broker."""
        late = self._monotonic() - self._started_at > ALL_MS * 1_000
        hopeless = self._problem is not None and not isinstance(self._problem, StoreUnreachable)
        return self._time.complete or (late and (self._time.agreed or hopeless)) or self._closed

    def _tell(self, here: int) -> None:
        with self._lock:
            before, now, readings = self._told, self._time.outside, self._time.readings(here)
            self._told = now
        if self._events is None:
            return
        for broker in sorted(now - before):
            self._events.on("clock_disagreement", broker=broker, ahead_ms=readings[broker].ahead_ms)
        for broker in sorted(before - now):
            self._events.on("clock_agreement", broker=broker)

    # -- on the probing thread ------------------------------------------------------------------------------

    def probe(self) -> int | None:
        """One round, unless nobody asks; ms to the next one, None = closed."""
        if self._closed:
            return None
        if self._unasked():
            return IDLE_MS
        self._turn()
        self._turns += 1
        return QUICK_MS if self._turns < QUICK_ROUNDS else ROUND_MS

    def _unasked(self) -> bool:
        with self._lock:
            unasked = self._monotonic() - self._asked >= IDLE_MS * 1_000
            if unasked:
                self._usable = False
        return unasked

    def _turn(self) -> None:
        try:
            leaders, samples = self._rounds.turn()
        except DuelineError as problem:
            with self._lock:
                self._problem = problem
                self._news.notify_all()
            return
        with self._lock:
            self._time.lead(leaders)
            for sample in samples:
                self._time.sample(sample)
            self._problem = None
            self._count += bool(samples)
            self._news.notify_all()


def _keep_probing(clock: weakref.ref[StoreClock], wake: threading.Event, prober: Prober) -> None:
    """Until the clock is closed or nobody holds it any more."""
    while (held := clock()) is not None and (rest_ms := held.probe()) is not None:
        del held
        wake.wait(rest_ms / 1_000)
        wake.clear()
    prober.close()


def kafka_clock(
    bootstrap: str, topic: str, client: Mapping[str, str] | None = None, events: Events | None = None
) -> StoreClock:
    """The clock of the store at `bootstrap`, by its topic `fleet`. InvalidInput for a bad setting in `client`."""
    return StoreClock(KafkaProber(bootstrap, topic, client), events=events)
