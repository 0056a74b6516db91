"""Answers of owners: who waits for which command, and the thread that reads `events` meanwhile.

The place from which a partition of `events` is read is known before a command is put, so its answer cannot be
missed. One consumer per client, kept open while it is used: making one takes longer than the owner needs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from pipeline import codec
from pipeline.core.errors import DuelineError, Undecodable
from pipeline.core.job import Event
from pipeline.ports import Feed, Record

POLL_MS = 20
"""Longest wait for news before a partition newly asked for is followed."""
IDLE_S = 30.0
"""After so long without a command the consumer is closed: it would read other clients' answers for nobody."""
_log = logging.getLogger("dueline")

Waiter = Future[Event]


class Answers:
    """Waits for answers of owners. Any thread may ask; a thread of its own reads."""

    def __init__(self, open_feed: Callable[[], Feed], partitions: int) -> None:
        """`open_feed` gives a feed of `events`, which has so many partitions."""
        self._open_feed = open_feed
        self._partitions = partitions
        self._news = threading.Condition()
        self._waiting: dict[str, Waiter] = {}
        self._wanted: set[int] = set()
        self._ready: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None
        self._used = 0.0
        self._closed = False

    def expect(self, command_id: str, partition: int, patience_s: float) -> Waiter:
        """A future of the answer, to be asked for before the command is put; `forget` it in the end. Returns
        when the partition is being read, at the latest after `patience_s`: then the answer may be missed."""
        future: Waiter = Future()
        future.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        with self._news:
            self._waiting[command_id] = future
            self._used = time.monotonic()
            self._wanted.add(partition)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._read, name="dueline-answers", daemon=True)
                self._thread.start()
            self._news.wait_for(lambda: partition in self._ready or self._thread is None, patience_s)
        return future

    def forget(self, command_id: str) -> None:
        """Nobody waits for this one any more. Whoever sends another will send to any partition: all are followed
        from now on, so that none of them is the first again."""
        with self._news:
            if self._waiting.pop(command_id, None) is not None:
                self._used = time.monotonic()
                self._wanted.update(range(self._partitions) if self._wanted else ())

    def close(self) -> None:
        """Stop reading; who still waits gets no answer."""
        with self._news:
            self._closed = True
            thread = self._thread
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- on the thread --------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            feed = self._open_feed()
        except DuelineError as error:
            self._gave_up(error)
            return
        try:
            while wanted := self._still_wanted():
                feed.follow(wanted)
                for record in feed.poll(POLL_MS):
                    self._take(record)
                self._tell_ready(feed.following)
        except DuelineError as error:
            self._gave_up(error)
        finally:
            feed.close()

    def _still_wanted(self) -> frozenset[int]:
        """Partitions to follow; none: the end. Decided under the lock, so whoever asks next begins anew."""
        with self._news:
            idle = not self._waiting and time.monotonic() - self._used > IDLE_S
            if self._closed or idle:
                self._end()
            return frozenset(self._wanted)

    def _gave_up(self, error: DuelineError) -> None:
        _log.warning("answers cannot be read: %s", error, extra={"action": "answers"})
        with self._news:
            self._end()

    def _end(self) -> None:
        self._thread = None
        self._ready = frozenset()
        self._wanted = set()
        self._news.notify_all()

    def _tell_ready(self, following: frozenset[int]) -> None:
        if following != self._ready:
            with self._news:
                self._ready = following
                self._news.notify_all()

    def _take(self, record: Record) -> None:
        key, value = record.key() or b"", record.value()
        future = self._waiting.get(key.decode("utf-8", "replace"))
        if future is None or value is None or future.done():
            return
        try:
            event = codec.EVENT.decode(value)
        except Undecodable:
            return
        if event.outcome is not None:
            future.set_result(event)
