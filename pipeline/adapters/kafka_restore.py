"""The store that a backup is restored into (`backup.restore.Target`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from pipeline.adapters.kafka_admin import lay_out, topic_admin
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_cut import KafkaPositions
from pipeline.adapters.kafka_hold import begin_restore, finish_restore, lift
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.store_clock import StoreClock, kafka_clock
from pipeline.config import Settings
from pipeline.core.backup import Hold
from pipeline.core.layout import Layout
from pipeline.heartbeat import Seen, read_fleet
from pipeline.ports import Put

PAUSE_S = 0.5
FLUSH_MS = 60_000
HOLD_MS = 30_000


class KafkaTarget:
    """One thread. Connects when it is first asked; StoreUnreachable."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = settings.names
        self._admin = topic_admin(settings)
        bootstrap = settings.require_bootstrap()
        self._reader = KafkaReader(bootstrap, settings.kafka)
        self._positions = KafkaPositions(bootstrap, settings.kafka)
        self._appender = KafkaAppender(bootstrap, settings.kafka)
        self._clock: StoreClock | None = None

    def layout(self) -> Layout | None:
        return self._admin.meta_if_present().layout

    def hold(self) -> Hold | None:
        return self._admin.meta_if_present().hold

    def beating(self, within_ms: int) -> Sequence[Seen]:
        if not self._reader.partitions(self._names.fleet):
            return ()
        return read_fleet(self._reader, self._names.fleet, self._now() - within_ms)

    def pause(self) -> None:
        time.sleep(PAUSE_S)

    def _now(self) -> int:
        """The store's time, epoch ms; its topic `fleet` must be there."""
        if self._clock is None:
            bootstrap, client = self._settings.require_bootstrap(), self._settings.kafka
            self._clock = kafka_clock(bootstrap, self._names.fleet, client)
        return self._clock.now()

    def occupied(self, layout: Layout) -> str:
        return next(self._found(layout), "")

    def _found(self, layout: Layout) -> Iterator[str]:
        """Records, and offsets of groups: those of earlier topics of these names would skip what is restored."""
        names, queues = self._names, sorted(layout.queues.items())
        topics = [(names.jobs, layout.partitions)]
        topics += [(topic(queue), count) for queue, count in queues for topic in (names.work, names.acks)]
        there = self._admin.shapes(topic for topic, _ in topics)
        for topic, count in topics:
            if topic in there and (found := self._positions.sizes(topic, count)):
                yield f"{topic} holds records ({found} offsets)"
        for queue, count in queues:
            if names.work(queue) in there:
                group = names.worker_group(queue)
                offsets = self._positions.committed(group, names.work(queue), count)
                if any(each is not None and each.offset > 0 for each in offsets):
                    yield f"group {group} has offsets of an earlier topic {names.work(queue)}"

    def create(self, layout: Layout) -> Sequence[str]:
        return lay_out(self._settings, layout)

    def begin(self, id: str, era: int) -> Hold:
        return begin_restore(self._admin.meta, id=id, era=era, at=self._now(), timeout_ms=HOLD_MS)

    def abandon(self, id: str) -> None:
        lift(self._admin.meta, id)

    def append(self, put: Put) -> None:
        self._appender.append(put)

    def flush(self) -> None:
        self._appender.flush(FLUSH_MS)

    def finish(self, id: str) -> Hold:
        return finish_restore(self._admin.meta, id)

    def close(self) -> None:
        if self._clock is not None:
            self._clock.close()
        self._appender.close()
        self._positions.close()
        self._reader.close()
