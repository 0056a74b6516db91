"""The store's clock: a lower bound of a broker's time, from delivery reports (DESIGN §6)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pipeline.core.errors import StoreUnreachable
from pipeline.ports import Appender, Put

WINDOW_MS = 60_000
"""Samples older than this are dropped once there is a younger one: the two clocks drift apart."""
REFRESH_MS = 5_000
"""A new probe is sent, without waiting for it, when nothing was heard for this long."""
PROBE_TIMEOUT_MS = 8_000
POLL_MS = 20
ROUNDING_MS = 1
"""Both readings of the monotonic clock are cut to milliseconds: together they may gain almost one."""
PROBE_KEY = b"probe"
"""Record key of a probe on `fleet`: a tombstone of no process, which its readers pass over."""


def monotonic_ms() -> int:
    """CLOCK_MONOTONIC in ms."""
    return time.monotonic_ns() // 1_000_000


class StoreClock:
    """`Clock` by one broker: a record's LogAppendTime was the broker's time before its report came in, so
    that time plus what has passed here since is never ahead of the broker's.

    `topic` must have LogAppendTime (`fleet`). The reports arrive while `appender` is polled or flushed. The
    largest of the recent bounds is the best one. A broker's clock set back is followed only once the time it
    lost has passed: `now` never goes backwards.
    """

    def __init__(
        self, appender: Appender, topic: str, partition: int = 0, monotonic: Callable[[], int] = monotonic_ms
    ) -> None:
        self._appender, self._put = appender, Put(topic, partition, PROBE_KEY, None)
        self._monotonic = monotonic
        self._samples: deque[tuple[int, int]] = deque()
        self._last = 0
        self._asked = 0

    def monotonic(self) -> int:
        return self._monotonic()

    def now(self) -> int:
        """Waits for a first probe; StoreUnreachable if that is not answered."""
        if not self._samples:
            self.probe(PROBE_TIMEOUT_MS)
        here = self._monotonic()
        self._refresh(here)
        self._last = max(self._last, here + max(offset for _, offset in tuple(self._samples)))
        return self._last

    def sample(self, log_append_time: int, monotonic_at_receipt: int) -> None:
        """Take any delivery report of a topic with LogAppendTime into account."""
        self._samples.append((monotonic_at_receipt, log_append_time - monotonic_at_receipt - ROUNDING_MS))
        while self._samples[0][0] < monotonic_at_receipt - WINDOW_MS:
            self._samples.popleft()

    def probe(self, timeout_ms: int) -> None:
        """Append a record and wait for its report; StoreUnreachable if it does not come in time."""
        answers: list[Exception | None] = []
        self._ask(answers.append)
        deadline = self._monotonic() + timeout_ms
        while not answers:
            if self._monotonic() >= deadline:
                raise StoreUnreachable(f"no answer to a clock probe on {self._put.topic} in {timeout_ms} ms")
            self._appender.poll(POLL_MS)
        if answers[0] is not None:
            raise answers[0]

    def _refresh(self, here: int) -> None:
        if here - max(self._samples[-1][0], self._asked) >= REFRESH_MS:
            self._ask(lambda error: None)

    def _ask(self, answered: Callable[[Exception | None], None]) -> None:
        def done(error: Exception | None, offset: int, log_append_time: int) -> None:
            if error is None:
                self.sample(log_append_time, self._monotonic())
            answered(error)

        self._asked = self._monotonic()
        self._appender.append(self._put, done)
