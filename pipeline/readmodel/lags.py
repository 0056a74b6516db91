"""How far the workers of each queue are behind, asked of the store every few seconds by a thread of its own, so that
no question waits for that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from pipeline.core.errors import DuelineError
from pipeline.follower.fleet import behind
from pipeline.readmodel.following import Following
from pipeline.readmodel.source import Source

log = logging.getLogger(__name__)

EVERY_S = 3.0
IDLE_S = 60.0
"""After so long without a question nobody is asked any more."""
Lag = tuple[int, int | None]


class Lags:
    """By queue: how many offsets its workers are behind, and since when."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._lags: Mapping[str, Lag] = {}
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

    def _run(self) -> None:
        while not self._stop.is_set():
            source = self._following.source
            if source is not None and time.monotonic() - self._asked < IDLE_S:
                try:
                    with source.lagging:
                        if self._following.source is source:
                            self._lags = self._ask(source)
                except DuelineError as error:  # the following thread tells of a store that is gone
                    log.info("lags: %s", error, extra={"action": "readmodel.lags"})
                except Exception:
                    log.exception("lags: unexpected", extra={"action": "readmodel.lags"})
            self._stop.wait(EVERY_S)

    def _ask(self, source: Source) -> dict[str, Lag]:
        found = {}
        for queue, count in self._following.layout().queues.items():
            topic, group = source.names.work(queue), source.names.worker_group(queue)
            progress = source.group_progress(group, topic, count)
            found[queue] = behind(source.lag_reader, topic, progress)
            for partition in range(count):
                source.lag_reader.leave(topic, partition)
        return found
