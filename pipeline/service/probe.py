"""The lateness probe: a consumer that already waits on work partitions and takes the instant a run arrives.

Lateness is defined at such a consumer (DESIGN §1), so nothing in the dispatcher itself can tell it. One partition
of every queue at a time, another one each turn, a bounded number of records a second: a sample, not a log of all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from pipeline import codec
from pipeline.adapters.kafka_io import READER_GROUP
from pipeline.adapters.kafka_settings import END_OF_PARTITION, constructing, settings
from pipeline.core.errors import DuelineError, Undecodable
from pipeline.core.ids import is_of_grid
from pipeline.ports import Events

TURN_S = 10.0
"""How long one choice of partitions is listened to."""
WINDOW_S = 1.0
"""The budget is for this long; when it is used up, nothing is fetched for the rest of it."""
BATCH = 500
TAKEN_LIMIT = 2_000
"""Records taken in a window at most, measured or not."""
PATIENCE_S = 0.2
"""Of one wait for a record; `close` takes no longer than it."""
RETRY_S = 5.0
OWN: Mapping[str, Any] = {
    "group.id": READER_GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    # Records that arrive faster than the budget are fetched in vain: little at a time.
    "fetch.message.max.bytes": 65_536,
    "queued.max.messages.kbytes": 512,
}


class Sink(Protocol):
    """Where the measurements go: `metrics.DispatcherMetrics`."""

    def lateness(self, queue: str, *, due_at: int, appended_at: int, received_at: int) -> None: ...
    def not_measured(self, kind: str) -> None: ...


class ProbeConsumer(Protocol):
    """The part of confluent_kafka.Consumer that is used."""

    def assign(self, partitions: list[TopicPartition], /) -> Any: ...
    def unassign(self) -> Any: ...
    def poll(self, timeout: float, /) -> Any: ...
    def consume(self, num_messages: int, timeout: float, /) -> Any: ...
    def close(self) -> Any: ...


def probe_consumer(bootstrap: str, client: Mapping[str, str]) -> ProbeConsumer:
    with constructing():
        return Consumer(settings(bootstrap, client, OWN))


class LatenessProbe:
    """A daemon thread with a consumer of its own. It shares only the clock with the owner."""

    def __init__(
        self,
        *,
        open_consumer: Callable[[], ProbeConsumer],
        queues: Callable[[], Mapping[str, int]],
        topic: Callable[[str], str],
        budget: int,
        now: Callable[[], int],
        sink: Sink,
        events: Events,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`queues` = work partitions by queue, `topic` = work topic of a queue, `budget` = records a second,
        `now` = the store's time in epoch ms, for any thread."""
        self._open = open_consumer
        self._queues = queues
        self._topic = topic
        self._budget = budget
        self._now = now
        self._sink = sink
        self._events = events
        self._monotonic = monotonic
        self._turn = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The thread may need a moment to close its consumer; it keeps no process alive."""
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)

    # -- the probe's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (KafkaException, DuelineError) as error:
                self._events.on("probe_failed", reason=str(error))
                self._stop.wait(RETRY_S)

    def _listen(self) -> None:
        consumer = self._open()
        try:
            while not self._stop.is_set():
                self.take_turn(consumer)
        finally:
            consumer.close()

    def take_turn(self, consumer: ProbeConsumer) -> None:
        """Listen to one partition of every queue for a while, or until a second's budget is used up."""
        places = self._places()
        if not places:
            self._stop.wait(WINDOW_S)
            return
        consumer.assign([TopicPartition(topic, number, OFFSET_END) for topic, number in places])
        end, window = self._monotonic() + TURN_S, 0.0
        following: set[tuple[str, int]] = set()
        while not self._stop.is_set() and (now := self._monotonic()) < end:
            if now >= window:
                window, left, room = now + WINDOW_S, self._budget, TAKEN_LIMIT
            taken, measured = self._receive(consumer, places, following, left)
            left, room = left - measured, room - taken
            if left <= 0 or room <= 0:
                # What piles up meanwhile would be read late: begin again at the end, somewhere else.
                consumer.unassign()
                self._stop.wait(max(0.0, window - self._monotonic()))
                return

    def _places(self) -> dict[tuple[str, int], str]:
        """The partitions of this turn with their queues."""
        self._turn += 1
        return {(self._topic(q), self._turn % size): q for q, size in self._queues().items() if size > 0}

    def _receive(
        self,
        consumer: ProbeConsumer,
        places: Mapping[tuple[str, int], str],
        following: set[tuple[str, int]],
        left: int,
    ) -> tuple[int, int]:
        """Take what has arrived; measure at most `left` of it. Returns how many records were taken, and measured.

        Only what comes while this consumer waits tells anything: not what stood there when it began, nor what
        came while it was busy with others. `following` are the partitions whose end it has reached before.
        """
        first = consumer.poll(0)
        waited = first is None
        first = consumer.poll(PATIENCE_S) if first is None else first
        if first is None:
            return 0, 0
        received_at = self._now()
        records, arrived = [], set()
        for message in [first, *consumer.consume(BATCH, 0)]:
            place = (message.topic(), message.partition())
            if message.error() is None:
                records.append((place, message))
                arrived.add(place)
            elif message.error().code() == END_OF_PARTITION:
                arrived.add(place)
        heard = [record for record in records if record[0] in following][: left if waited else 0]
        following |= arrived
        for place, message in heard:
            self._measure(places[place], message, received_at)
        return len(records), len(heard)

    def _measure(self, queue: str, message: Any, received_at: int) -> None:
        try:
            head = codec.peek_run(message.value() or b"")
        except Undecodable:
            self._sink.not_measured("unreadable")
            return
        if head.due_at < head.created_at and not is_of_grid(
            (message.key() or b"").decode("utf-8", "replace")
        ):
            self._sink.not_measured("due_at_creation")  # nobody could have fired it in time
            return
        appended_at = message.timestamp()[1]
        self._sink.lateness(queue, due_at=head.due_at, appended_at=appended_at, received_at=received_at)
