"""How far the workers of each queue are behind, and with a purge of it, asked of the store every few seconds by a
thread of its own, so that no question waits for that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from pipeline.core.errors import DuelineError
from pipeline.core.queues import Purge
from pipeline.follower.fleet import behind
from pipeline.ports import GroupProgress
from pipeline.readmodel.following import Following
from pipeline.readmodel.installation import said_of
from pipeline.readmodel.purging import left_of
from pipeline.readmodel.source import Source

log = logging.getLogger(__name__)

EVERY_S = 3.0
IDLE_S = 60.0
"""After so long without a question nobody is asked any more."""
Lag = tuple[int, int | None]
"""Runs that wait, and since when the oldest that has not ended was there."""


class Lags:
    """By queue: how many offsets its workers are behind, and since when."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._lags: Mapping[str, Lag] = {}
        self._left: Mapping[str, int] = {}
        """By purge: how many of the runs that it means have not ended. One that has ended is asked about no more."""
        self._asked = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dueline-lags", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def get(self, queue: str, default: Lag) -> Lag:
        """As of a few seconds ago."""
        self._asked = time.monotonic()
        return self._lags.get(queue, default)

    def left(self, purge: Purge) -> int | None:
        """As of a few seconds ago; None: nobody knows yet."""
        return self._left.get(purge.id)

    def _run(self) -> None:
        while not self._stop.is_set():
            source = self._following.source
            if source is not None and time.monotonic() - self._asked < IDLE_S:
                try:
                    with source.lagging:
                        if self._following.source is source:
                            self._lags, self._left = self._ask(source)
                except DuelineError as error:  # the following thread tells of a store that is gone
                    log.info("lags: %s", error, extra={"action": "readmodel.lags"})
                except Exception:
                    log.exception("lags: unexpected", extra={"action": "readmodel.lags"})
            self._stop.wait(EVERY_S)

    def _ask(self, source: Source) -> tuple[dict[str, Lag], dict[str, int]]:
        lags, left = dict[str, Lag](), dict[str, int]()
        said = said_of(self._following.rows)
        for queue, count in self._following.layout().queues.items():
            topic, group = source.names.work(queue), source.names.worker_group(queue)
            progress = source.group_progress(group, topic, count)
            _, oldest = behind(source.lag_reader, topic, progress)
            lags[queue] = left_of(source.lag_reader, topic, progress, [at.end for at in progress]), oldest
            purge = said[queue].purge if queue in said else None
            if purge is not None:
                left[purge.id] = self._left_of(source, topic, progress, purge)
            for partition in range(count):
                source.lag_reader.leave(topic, partition)
        return lags, left

    def _left_of(self, source: Source, topic: str, progress: list[GroupProgress], purge: Purge) -> int:
        of_this = self._following.identity_of(topic) == purge.topic_id
        ended = self._left.get(purge.id) == 0
        return 0 if ended or not of_this else left_of(source.lag_reader, topic, progress, purge.ends)
