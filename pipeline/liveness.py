"""Who still beats, by our own reading of `fleet` and our own monotonic clock (DESIGN §7, lease).

A process is stale when no heartbeat of it has come for the time-out, counted only while a probe of ours on the
same partition comes back within a second: a reader that is cut off, or a loop that was frozen, hears nobody and
must not take that for silence. No time stamp of any machine plays a part.

Whoever heard nothing for the whole time-out begins to count anew: what cut us off, a store that was restarted or a
machine that stood still, has cut off the others too, and each of them finds its way back in its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.core.hashing import text_hash
from pipeline.ports import Appender, Clock, Feed, Put, Record

PROBE_MS = 250
"""How often each watched partition is probed."""
ECHO_MS = 1_000
"""A probe that is not back after so long says that we hear nothing."""
LEAVE_MS = 250
"""Who leaves has stored what it had to say before. That stands on another topic, and may be read a little later."""
GRAIN_MS = 400
"""What one look may add to a silence at most: between two looks this process may have been frozen."""


class _Ear:
    """One partition of `fleet`: the probes on their way, and when the one that came back last was sent."""

    __slots__ = ("echoed", "next_probe", "sent")

    def __init__(self, now: int) -> None:
        self.sent: dict[bytes, int] = {}
        self.echoed: int | None = None
        self.next_probe = now

    def hears(self, now: int) -> bool:
        return self.echoed is not None and self.deaf_ms(now) <= ECHO_MS

    def deaf_ms(self, now: int) -> int:
        """Since a probe that came back was sent; 0 if none has come back yet."""
        return 0 if self.echoed is None else now - self.echoed


class Liveness:
    """Judges the processes that it is told to watch. Used by one thread; reads only while it watches somebody."""

    def __init__(
        self,
        *,
        open_feed: Callable[[], Feed],
        appender: Appender,
        fleet: str,
        partitions: int,
        clock: Clock,
        timeout_ms: int,
        process: str,
    ) -> None:
        self._open_feed, self._appender, self._clock = open_feed, appender, clock
        self._fleet, self._partitions = fleet, partitions
        self._timeout_ms = timeout_ms
        self._probe = f"probe/{process}/"
        self._feed: Feed | None = None
        self._ears: dict[int, _Ear] = {}
        self._silence: dict[str, int] = {}
        self._left: dict[str, int] = {}
        """Who has said that it leaves, and when that was heard."""
        self._looked = 0
        self._probes = 0

    def watch(self, processes: Iterable[str]) -> None:
        """Look once at these, and at nobody else any more. Call it every step while anybody is to be watched."""
        now = self._clock.monotonic()
        wanted = {name: self._silence.get(name, 0) for name in processes}
        if not wanted:
            self.close()
            return
        if self._feed is None:
            self._feed, self._looked = self._open_feed(), now
        self._silence = wanted
        heard = self._listen(self._feed, now)
        elapsed, self._looked = min(now - self._looked, GRAIN_MS), now
        for name in wanted:
            ear = self._ears[self._place(name)]
            if name in heard or ear.deaf_ms(now) >= self._timeout_ms:
                wanted[name] = 0
            elif ear.hears(now):
                wanted[name] += elapsed
        self._send_probes(now)

    def stale(self, process: str) -> bool:
        """Whether it is known to have left, or was silent for the whole time-out."""
        left = self._left.get(process)
        if left is not None:
            return self._looked - left >= LEAVE_MS
        return self._silence.get(process, 0) >= self._timeout_ms

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._feed = None
        self._ears.clear()
        self._silence.clear()
        self._left.clear()

    def _place(self, process: str) -> int:
        return text_hash(process) % self._partitions

    def _listen(self, feed: Feed, now: int) -> set[str]:
        """Names that were heard of since the last look."""
        places = frozenset(map(self._place, self._silence))
        for place in places - self._ears.keys():
            self._ears[place] = _Ear(now)
        feed.follow(places)
        heard: set[str] = set()
        while records := feed.poll(0):
            for record in records:
                self._hear(record, heard, now)
        return heard

    def _hear(self, record: Record, heard: set[str], now: int) -> None:
        key, ear = record.key() or b"", self._ears.get(record.partition() or 0)
        if ear is not None and (sent := ear.sent.pop(key, None)) is not None:
            ear.echoed = max(sent, ear.echoed or sent)
            return
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return
        if record.value() is not None:
            heard.add(name)
        elif name in self._silence:  # a process says that it leaves; names are never used twice
            self._left.setdefault(name, now)

    def _send_probes(self, now: int) -> None:
        for place, ear in self._ears.items():
            if now >= ear.next_probe:
                ear.next_probe = now + PROBE_MS
                self._probes += 1
                key = f"{self._probe}{self._probes}".encode()
                ear.sent = {k: at for k, at in ear.sent.items() if now - at <= ECHO_MS}
                ear.sent[key] = now
                self._appender.append(Put(self._fleet, place, key, None), _unheard)


def _unheard(_error: Exception | None, _offset: int, _log_append_time: int) -> None:
    """A probe that is lost does not come back, which is what it is for."""
