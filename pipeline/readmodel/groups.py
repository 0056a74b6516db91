"""What the groups of the workers have committed, asked of the store every few seconds by a thread of its own, so that
no question waits for that: how far a purge is, and which runs have ended though their acks are not there any more."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from pipeline.core.errors import DuelineError
from pipeline.core.queues import Purge
from pipeline.ports import GroupProgress
from pipeline.readmodel.following import Following
from pipeline.readmodel.installation import said_of
from pipeline.readmodel.open_runs import Ended, any_open
from pipeline.readmodel.purging import left_of
from pipeline.readmodel.source import Source
from pipeline.readmodel.words import QUEUE

log = logging.getLogger(__name__)

EVERY_S = 3.0
SELDOM_S = 60.0
"""How often the store is asked after so long without a question."""


class Groups:
    """Asks, and tells any thread."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._below: Mapping[tuple[str, int], int] = {}
        self._left: Mapping[str, int] = {}
        """By purge: how many of the runs that it means have not ended. One that has ended is asked about no more."""
        self._asked = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dueline-groups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def below(self, queue: str, partition: int) -> int:
        """All in front of this offset has ended; 0: nobody knows yet. As of some seconds ago."""
        self._asked = time.monotonic()
        return self._below.get((queue, partition), 0)

    def left(self, purge: Purge) -> int | None:
        """As of a few seconds ago; None: nobody knows yet."""
        self._asked = time.monotonic()
        return self._left.get(purge.id)

    def _run(self) -> None:
        told = float("-inf")
        while not self._stop.is_set():
            source, now = self._following.source, time.monotonic()
            if source is not None and (now - self._asked < SELDOM_S or now - told > SELDOM_S):
                told = now
                try:
                    with source.lagging:
                        if self._following.source is source:
                            self._ask(source)
                except DuelineError as error:  # the following thread tells of a store that is gone
                    log.info("groups: %s", error, extra={"action": "readmodel.groups"})
                except Exception:
                    log.exception("groups: unexpected", extra={"action": "readmodel.groups"})
            self._stop.wait(EVERY_S)

    def _ask(self, source: Source) -> None:
        below, left, ended = (
            dict[tuple[str, int], int](),
            dict[str, int](),
            dict[tuple[str, int], Ended](),
        )
        said = said_of(self._following.rows)
        for queue, count in self._following.layout().queues.items():
            topic, group = source.names.work(queue), source.names.worker_group(queue)
            progress = source.group_progress(group, topic, count)
            known = [_ended_below(at) for at in progress]
            below.update({(queue, partition): offset for partition, offset in enumerate(known)})
            ended.update(self._ended(source, queue, progress, known))
            purge = said[queue].purge if queue in said else None
            if purge is not None:
                left[purge.id] = self._left_of(source, topic, progress, purge)
        self._below, self._left = below, left
        self._following.ended = ended

    def _ended(
        self, source: Source, queue: str, progress: Sequence[GroupProgress], known: Sequence[int]
    ) -> dict[tuple[str, int], Ended]:
        """Of partitions with rows that say otherwise. Most often those were just not folded yet."""
        rows, number = self._following.rows, self._following.sheet.words.known(QUEUE, queue)
        doubtful = [
            partition
            for partition, below in enumerate(known)
            if number is not None and any_open(rows, number, partition, below)
        ]
        if not doubtful:
            return {}
        # Asked after the group: what it had committed by then was acked in front of these.
        acks = source.group_progress(
            source.names.worker_group(queue), source.names.acks(queue), len(progress)
        )
        return {
            (queue, partition): Ended(known[partition], progress[partition].low, acks[partition].end)
            for partition in doubtful
        }

    def _left_of(self, source: Source, topic: str, progress: list[GroupProgress], purge: Purge) -> int:
        of_this = self._following.identity_of(topic) == purge.topic_id
        ended = self._left.get(purge.id) == 0
        if ended or not of_this:
            return 0
        left = left_of(source.lag_reader, topic, progress, purge.ends)
        for partition in range(len(progress)):
            source.lag_reader.leave(topic, partition)
        return left


def _ended_below(at: GroupProgress) -> int:
    committed = at.committed or 0
    return max(at.low, committed if committed <= at.end else 0)  # beyond: of a topic that was made anew since
