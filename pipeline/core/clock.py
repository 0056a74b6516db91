"""The store's time from probes of its brokers: bounds, agreement, and what follows of both (DESIGN §6).

A probe is a record appended on a partition that one broker leads. Its LogAppendTime was read off that broker's
clock after the probe was sent and before its report came in, and nothing is assumed of the delay either way:

    broker's time at `received` >= LogAppendTime          broker's time at `sent` < LogAppendTime + 1 ms

Both bounds are carried forward by CLOCK_MONOTONIC and widen by 500 ppm, which is as fast as a disciplined clock
is slewed. This machine's wall clock plays no part.

The store's time is the lower bound of the slowest among the brokers that agree within 2 s, if these are a majority.
Without a majority it is the lowest bound of all, so with two brokers that disagree the lower one; one broker alone is
the store's time. It never goes backwards: when the agreeing brokers are set back, it stands still until they have
caught up, so what falls due meanwhile is late and never early.

Pure: fed with samples, asked for the time. All instants here are in microseconds, epoch ones as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

AGREE_US = 2_000_000
DRIFT = 2_000
"""One part in so many: 500 ppm."""
WINDOW_US = 10_000_000
"""Samples older than this go once there is a younger one: a step back smaller than a round trip shows in none,
and is forgotten with the last sample before it."""
KEEP = 32
VOTE_US = 600_000_000
"""How long a broker that leads nothing any more is still asked whether it agrees: one clock gone wrong must
not become the store's because the others cannot be heard."""
ROUNDING_US = 2
"""Readings are cut to microseconds, and so is their drift."""


class Sample(NamedTuple):
    """A probe that came back: LogAppendTime in ms, CLOCK_MONOTONIC when it was sent and when its report came."""

    broker: int
    log_append_ms: int
    sent_us: int
    received_us: int

    @property
    def low(self) -> int:
        """`low + slow(m)` is a lower bound of the broker's time at any m from `received_us` on."""
        return self.log_append_ms * 1_000 - _slow(self.received_us) - ROUNDING_US

    @property
    def high(self) -> int:
        """`high + fast(m)` is an upper bound of it."""
        return (self.log_append_ms + 1) * 1_000 - _fast(self.sent_us) + ROUNDING_US


def _slow(monotonic: int) -> int:
    return monotonic - monotonic // DRIFT


def _fast(monotonic: int) -> int:
    return monotonic + monotonic // DRIFT


class Span(NamedTuple):
    """Between which epoch instants a broker's clock stands."""

    low: int
    high: int

    def gap(self, other: Span) -> int:
        """By how much the two cannot be the same; 0 if they can."""
        return max(0, self.low - other.high, other.low - self.high)


class BrokerTime:
    """One broker's clock: the largest lower and the smallest upper bound of its recent samples.

    Samples that contradict those before mean that the clock was set: the older ones go. A jump of more than 2 s
    is believed when a second probe, sent after the first came back, says the same: a probe counted for the wrong
    broker, while leadership moves, must not turn the majority.
    """

    def __init__(self, sample: Sample) -> None:
        self._samples = deque([sample], KEEP)
        self._doubted: Sample | None = None
        self.low, self.high, self.heard_us = sample.low, sample.high, sample.received_us

    def span(self, monotonic_us: int) -> Span:
        return Span(self.low + _slow(monotonic_us), self.high + _fast(monotonic_us))

    def add(self, sample: Sample) -> None:
        gap = _gap(self, sample)
        if gap > AGREE_US and not self._said_before(sample):
            self._doubted = sample
            return
        if gap:
            self._samples.clear()
            self.heard_us = sample.received_us
        self._doubted = None
        self._samples.append(sample)
        self.heard_us = max(self.heard_us, sample.received_us)
        while self._samples[0].received_us < self.heard_us - WINDOW_US:
            self._samples.popleft()
        self.low = max(sample.low for sample in self._samples)
        self.high = min(sample.high for sample in self._samples)

    def _said_before(self, sample: Sample) -> bool:
        doubted = self._doubted
        if doubted is None or sample.sent_us < doubted.received_us:
            return False
        return _gap(doubted, sample) <= AGREE_US


def _gap(known: BrokerTime | Sample, sample: Sample) -> int:
    at = sample.received_us
    before = Span(known.low + _slow(at), known.high + _fast(at))
    return before.gap(Span(sample.low + _slow(at), sample.high + _fast(at)))


class Reading(NamedTuple):
    """A broker's clock beside the store's time, in ms, for people and metrics."""

    ahead_ms: int
    """Lower bound of the broker's time minus the store's; negative = the broker is behind."""
    error_ms: int
    """Between the two bounds of the broker's time."""
    outside: bool
    """Not among those that agree, so excluded."""


class StoreTime:
    """The store's time (see above). Not for several threads at once."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerTime] = {}
        self._leaders: frozenset[int] = frozenset()
        self._line: int | None = None
        self._ceiling = 0
        self._last = 0
        self.agreed = False
        """Whether a majority of the known brokers was heard and agrees."""
        self.outside: frozenset[int] = frozenset()
        """Brokers heard that are not among those that agree; another object whenever it changes."""

    @property
    def complete(self) -> bool:
        """Whether every leader was heard, and one at least."""
        return bool(self._brokers) and self._leaders <= self._brokers.keys()

    @property
    def started(self) -> bool:
        """Whether half of the leaders were heard, at least; only then ask for the time."""
        return self._line is not None and 2 * len(self._leaders & self._brokers.keys()) >= len(self._leaders)

    def lead(self, brokers: Iterable[int]) -> None:
        """These lead a partition of `fleet` now."""
        self._leaders = frozenset(brokers)

    def sample(self, sample: Sample) -> None:
        broker = self._brokers.get(sample.broker)
        if broker is None:
            self._brokers[sample.broker] = BrokerTime(sample)
        else:
            broker.add(sample)
        self._forget_the_gone(sample)
        self._judge(sample.received_us)

    def _forget_the_gone(self, sample: Sample) -> None:
        keep, since = self._leaders | {sample.broker}, sample.received_us - VOTE_US
        self._brokers = {n: b for n, b in self._brokers.items() if n in keep or b.heard_us >= since}

    def _judge(self, at: int) -> None:
        """Which brokers agree, and what bounds the time from now on."""
        spans = {n: broker.span(at) for n, broker in self._brokers.items()}
        agreeing = most_agreeing(spans)
        self.agreed = 2 * len(agreeing) > len(self._leaders | self._brokers.keys())
        members = agreeing if self.agreed else _beside_the_lowest(spans)
        # One that leads nothing and is silent stamps nothing, and its bound sinks by the drift: it may vote only.
        active = [
            n for n in members if n in self._leaders or self._brokers[n].heard_us >= at - WINDOW_US
        ] or members
        # Agreeing means within 2 s, so one whose answers are slow holds the time back by no more than that.
        low = max(min(spans[n].low for n in active), max(spans[n].low for n in members) - AGREE_US)
        self._line = low - _slow(at)
        self._ceiling = min(self._brokers[n].high for n in active)
        outside = self._brokers.keys() - members
        if outside != self.outside:
            self.outside = frozenset(outside)

    def now(self, monotonic_us: int) -> int:
        """Epoch ms. Never goes backwards, never ahead of any broker that agrees, unless those were set back."""
        assert self._line is not None, "nothing was heard yet: see `started`"
        at = (self._line + monotonic_us - monotonic_us // DRIFT) // 1_000  # as _bound, which costs a call
        if at > self._last:
            self._last = at
        return self._last

    def _bound(self, monotonic_us: int) -> int:
        assert self._line is not None
        return (self._line + _slow(monotonic_us)) // 1_000

    def held(self, monotonic_us: int) -> int:
        """For how many ms it stands still, because the agreeing brokers were set back; 0 = it runs."""
        return max(0, self._last - self._bound(monotonic_us))

    def error(self, monotonic_us: int) -> int:
        """By how many ms the store's time may be ahead of `now`, at most."""
        high = -(-(self._ceiling + _fast(monotonic_us)) // 1_000)
        return max(0, high - max(self._last, self._bound(monotonic_us)))

    def readings(self, monotonic_us: int) -> Mapping[int, Reading]:
        """Every broker that votes, by its number."""
        now, spans = self.now(monotonic_us), {n: b.span(monotonic_us) for n, b in self._brokers.items()}
        return {
            n: Reading(span.low // 1_000 - now, -((span.low - span.high) // 1_000), n in self.outside)
            for n, span in spans.items()
        }


def most_agreeing(spans: Mapping[int, Span]) -> frozenset[int]:
    """The largest set of brokers whose clocks can all stand within 2 s; of several the one with the earliest.

    They can if some window of 2 s touches each span, that is if it begins within [low - 2 s, high] of each; the
    first such window begins at one of these lower ends.
    """
    best: frozenset[int] = frozenset()
    for start in sorted(span.low - AGREE_US for span in spans.values()):
        touched = frozenset(n for n, span in spans.items() if span.low - AGREE_US <= start <= span.high)
        if len(touched) > len(best):
            best = touched
    return best


def _beside_the_lowest(spans: Mapping[int, Span]) -> frozenset[int]:
    lowest = min(span.low for span in spans.values())
    return frozenset(n for n, span in spans.items() if span.low - AGREE_US <= lowest)
