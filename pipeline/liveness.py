"""Who still beats, by our own reading of `fleet` and our own monotonic clock (DESIGN §7, lease).

A process is stale when no heartbeat of it has come for the time-out, counted only while a probe of ours on the
same partition comes back within a second: a reader that is cut off, or a loop that was frozen, hears nobody and
must not take that for silence. No time stamp of any machine plays a part.

It listens all the time, so that a dead holder has been silent for long by the time the group has noticed its death:
what it held starts again after one time-out, not after two. In a large fleet that would cost more than it saves, and
it listens only while somebody is to be judged.

Whoever heard nothing for the whole time-out begins to count anew: what cut us off, a store that was restarted or a
machine that stood still, has cut off the others too, and each of them finds its way back in its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.core.hashing import text_hash
from pipeline.ports import Appender, Clock, Feed, Put, Record

PROBE_MS = 400
"""How often each partition is probed."""
ECHO_MS = 1_000
"""A probe that is not back after so long says that we hear nothing."""
GRAIN_MS = 400
"""What one look may add to a silence at most: between two looks this process may have been frozen."""
LEAVE_MS = 250
"""Who leaves has stored what it had to say before. That stands on another topic, and may be read a little later."""
LOOK_MS = 100
"""How often it listens while nobody is to be judged."""
CROWD = 30
"""Processes from which on it listens only when needed: each of them reads what all of them write."""
REMEMBERED = 10
"""Time-outs for which a silent process that nobody asks about is remembered."""


class _Ear:
    """One partition of `fleet`. `audible` = ms for which we would have heard whoever beat: a silence is the difference
    to what it was when somebody was last heard of."""

    __slots__ = ("audible", "echoed", "heard", "left", "next_probe", "sent")

    def __init__(self, now: int) -> None:
        self.sent: dict[bytes, int] = {}
        """Probes on their way, with the time of their sending."""
        self.echoed: int | None = None
        """When the one that came back last was sent."""
        self.next_probe = now
        self.audible = 0
        self.heard: dict[str, int] = {}
        self.left: dict[str, int] = {}
        """Who has said that it leaves, and when that was heard; names are never used twice."""

    def deaf_ms(self, now: int) -> int:
        """Since a probe that came back was sent; 0 if none has come back yet."""
        return 0 if self.echoed is None else now - self.echoed

    def listened(self, now: int, elapsed: int, timeout_ms: int) -> None:
        if self.deaf_ms(now) >= timeout_ms:
            self.heard = dict.fromkeys(self.heard, self.audible)
        elif self.echoed is not None and self.deaf_ms(now) <= ECHO_MS:
            self.audible += elapsed

    def silence(self, name: str) -> int:
        return self.audible - self.heard.get(name, self.audible)

    def forget(self, now: int, memory_ms: int, asked: frozenset[str]) -> None:
        """Who is gone for good, unless somebody asks about it."""
        for names, since in ((self.heard, self.audible - memory_ms), (self.left, now - memory_ms)):
            for name in [name for name, at in names.items() if at < since and name not in asked]:
                del names[name]


class Liveness:
    """Judges other processes. Used by one thread."""

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
        self._crowded = False
        self._looked = 0
        self._probes = 0

    def watch(self, processes: Iterable[str]) -> None:
        """Listen, and be ready to judge these. Call it every step while there is something that others may hold."""
        asked, now = frozenset(processes), self._clock.monotonic()
        if not asked:
            if self._crowded:
                self.close()
            if self._crowded or (self._feed is not None and now - self._looked < LOOK_MS):
                return
        if self._feed is None:
            self._feed, self._looked = self._open_feed(), now
            self._ears = {number: _Ear(now) for number in range(self._partitions)}
        heard = self._listen(self._feed, now)
        elapsed, self._looked = min(now - self._looked, GRAIN_MS), now
        for ear in self._ears.values():
            ear.listened(now, elapsed, self._timeout_ms)
            ear.forget(now, REMEMBERED * self._timeout_ms, asked)
        for name in heard | asked:
            ear = self._ears[self._place(name)]
            if name in heard or name not in ear.heard:
                ear.heard[name] = ear.audible
        self._crowded = self._crowded or sum(len(ear.heard) for ear in self._ears.values()) > CROWD
        self._send_probes(now)

    def stale(self, process: str) -> bool:
        """Whether it is known to have left, or was silent for the whole time-out."""
        ear = self._ears.get(self._place(process))
        if ear is None:
            return False
        left = ear.left.get(process)
        if left is not None:
            return self._looked - left >= LEAVE_MS
        return ear.silence(process) >= self._timeout_ms

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._feed = None
        self._ears.clear()

    def _place(self, process: str) -> int:
        return text_hash(process) % self._partitions

    def _listen(self, feed: Feed, now: int) -> set[str]:
        """Names that were heard of since the last look."""
        feed.follow(frozenset(self._ears))
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
        elif ear is not None and (
            name in ear.heard or name in heard
        ):  # it leaves; others' probes are nobody's name
            ear.left.setdefault(name, now)

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
