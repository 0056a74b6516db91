"""Pausing, resuming and purging queues: what is said of them on `meta`, each change one transaction of the one writer
that `meta` has at a time. A change is told of once the workers can read it."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline import codec
from pipeline.adapters.kafka_admin import topic_admin
from pipeline.adapters.kafka_meta import Meta
from pipeline.config import Settings
from pipeline.core import queues
from pipeline.core.errors import StoreUnreachable
from pipeline.core.keys import queue_key
from pipeline.core.queues import Pause, Purge, QueueState
from pipeline.queues import states_of

HIDDEN_S = 30.0
LOOK_S = 0.1

Change = Callable[[QueueState | None], QueueState | None]


class KafkaQueues:
    """One installation. Every call may raise StoreUnreachable, and Refused if the store forbids it. Whether there is
    such a queue is for the caller to ask the layout."""

    def __init__(self, settings: Settings) -> None:
        self._admin = topic_admin(settings)
        self._names = settings.names

    def pause(self, queue: str, pause: Pause) -> QueueState:
        """What stands there now: whoever had paused it before is who did."""
        state = self._write(queue, lambda found: queues.paused(found, queue, pause))
        assert state is not None
        return state

    def resume(self, queue: str, by: str, at: int) -> QueueState | None:
        """What stands there now; None: nothing was ever said of it. `at` = the store's time, epoch ms."""
        return self._write(queue, lambda found: queues.resumed(found, queue, by, at))

    def purge(self, queue: str, purge: Purge) -> Purge:
        """The purge that stands there now: it covers the ones before."""
        state = self._write(queue, lambda found: queues.purged(found, queue, purge))
        assert state is not None
        assert state.purge is not None
        return state.purge

    def topic_id(self, queue: str) -> str:
        """That of its work topic: a purge names offsets of that and of no other of the name."""
        return self._admin.topic_id(self._names.work(queue))

    def retention_ms(self, queue: str) -> int | None:
        """For how long its work topic keeps what was emitted; None: for ever, or it cannot be asked."""
        name = self._names.work(queue)
        topic = self._admin.live([name]).get(name)
        told = None if topic is None else topic.settings.get("retention.ms")
        return int(told) if told is not None and int(told) >= 0 else None

    def _write(self, queue: str, change: Change) -> QueueState | None:
        def decide(found: Meta) -> tuple[dict[bytes, bytes | None], QueueState | None]:
            before = states_of(found.queues).get(queue)
            after = change(before)
            if after is None or after == before:
                return {}, after
            return {queue_key(queue): codec.EVENT.encode(queues.to_event(after))}, after

        state = self._admin.meta.write(decide)
        self._await_readable(queue, state)
        return state

    def _await_readable(self, queue: str, state: QueueState | None) -> None:
        """Until no transaction hides it from the workers: of a process that died in one, until the coordinator ends
        that. Somebody else may have changed the queue again by then."""
        deadline = time.monotonic() + HIDDEN_S
        while (there := states_of(self._admin.meta.read().queues).get(queue)) != state:
            if there is not None and state is not None and there.at > state.at:
                return
            if time.monotonic() > deadline:
                raise StoreUnreachable(
                    "meta: it is written, but a transaction that stays open hides it from the workers: `dueline doctor`"
                    " names its producer"
                )
            time.sleep(LOOK_S)
