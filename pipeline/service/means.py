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

FRESH_S = 30.0
"""How long the number of a topic's partitions is believed; a topic that was missing is asked for each time."""


def means(
    settings: Settings, layout: Callable[[], Layout], now: Callable[[], int], partitions: Callable[[str], int]
) -> Means:
    """`layout()` is the latest one, `now()` the store's clock in ms, `partitions(topic)` asks the store."""
    random = Random()
    requests = Requests(
        now=now,
        random80=lambda: random.getrandbits(80),
        payload_limit=settings.payload_limit,
        default_queue=settings.queue,
    )
    names = settings.names

    def record(request: Mapping[str, Any]) -> tuple[JobRef, Put]:
        known = layout()
        if request.get("key") is not None:
            command = requests.command(request)
            check_queue(known, command.queue or settings.queue)
            ref = created(command, None)
            key = command_key(command.command_id)
            return ref, Put(names.jobs, known.home(ref.id), key, codec.COMMAND.encode(command))
        run = requests.run(request)
        check_queue(known, run.queue)
        return JobRef.of(run), Put(
            names.jobs, known.home(run.job_id), job_key(run.job_id), codec.RUN.encode(run)
        )

    return Means(record=record, partitions=Remembered(partitions), reserved=names.owns)


def check_queue(layout: Layout, queue: str) -> None:
    """InvalidInput if it is unknown."""
    if queue not in layout.queues:
        raise InvalidInput("queue", f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it")


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
