"""What handlers make records with while they run: jobs as the client makes them, and facts about topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from pipeline import codec
from pipeline.attempt import Means
from pipeline.client.commands import created
from pipeline.client.request import Requests
from pipeline.config import Settings
from pipeline.core.errors import InvalidInput
from pipeline.core.jobref import JobRef
from pipeline.core.keys import command_key, job_key
from pipeline.core.layout import Layout
from pipeline.ports import Put

AGAIN_S = 1.0
FRESH_S = 30.0
"""How long the number of a topic's partitions is believed; a topic that was missing is asked for each time."""


class Layouts:
    """The layout, read again when somebody asks for a queue, or a schema, that it does not know: it may be new."""

    def __init__(self, layout: Layout, read: Callable[[], Layout]) -> None:
        self._layout, self._read = layout, read
        self._again_at = 0.0

    def announced(self, fingerprint: str) -> bool:
        """Whether `topics upgrade` has told of this schema; looked up at most once a second. StoreUnreachable."""
        if fingerprint not in self._layout.fingerprints and time.monotonic() >= self._again_at:
            self._layout = self._read()
            self._again_at = time.monotonic() + AGAIN_S
        return fingerprint in self._layout.fingerprints

    def with_queue(self, queue: str) -> Layout:
        """InvalidInput if the queue is unknown."""
        if queue not in self._layout.queues:
            self._layout = self._read()
        if queue not in self._layout.queues:
            raise InvalidInput(
                "queue", f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it"
            )
        return self._layout


def means(
    settings: Settings, layouts: Layouts, now: Callable[[], int], partitions: Callable[[str], int]
) -> Means:
    """`now()` is the store's clock in ms, `partitions(topic)` asks the store."""
    random = Random()
    requests = Requests(
        now=now,
        random80=lambda: random.getrandbits(80),
        payload_limit=settings.payload_limit,
        default_queue=settings.queue,
    )
    names = settings.names

    def record(request: Mapping[str, Any]) -> tuple[JobRef, Put]:
        if request.get("key") is not None:
            command = requests.command(request)
            home = layouts.with_queue(command.queue or settings.queue).home_of_name(str(command.key))
            value = codec.COMMAND.encode(command)
            return created(command, None), Put(names.jobs, home, command_key(command.command_id), value)
        run = requests.run(request)
        home = layouts.with_queue(run.queue).home(run.job_id)
        return JobRef.of(run), Put(names.jobs, home, job_key(run.job_id), codec.RUN.encode(run))

    return Means(record=record, partitions=Remembered(partitions), reserved=names.owns)


class Remembered:
    """How many partitions a topic has, asked for at most every 30 s. Any thread may call it."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, float]] = {}

    def __call__(self, topic: str) -> int:
        count, until = self._known.get(topic, (0, 0.0))
        if count > 0 and time.monotonic() < until:
            return count
        with self._lock:
            count = self._ask(topic)
            self._known[topic] = (count, time.monotonic() + FRESH_S)
        return count
