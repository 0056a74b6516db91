"""The connected half of a client: one producer, and a thread that takes its delivery reports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Any

from pipeline import codec
from pipeline.client.answers import Answers
from pipeline.client.parts import JobFinder, Parts, Report
from pipeline.client.recorder import Recorder
from pipeline.client.request import Requests
from pipeline.config import Settings
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.core.job import Run
from pipeline.core.jobref import JobRef
from pipeline.core.keys import job_key
from pipeline.core.minting import Mint
from pipeline.core.names import check_name
from pipeline.ports import Clock, Put

POLL_MS = 100
"""How long the poller may sleep in the producer; a report wakes it at once."""
YIELD_S = 0.05
"""How long the poller leaves the reports to a thread that takes them itself."""
RECENT_MS = 20
DELIVERY_S = 10.0
"""How long a record may take to be acknowledged before the store counts as unreachable."""


class Delivery:
    """The delivery reports of some records; `future` is done when each has come.

    Reports may come from several threads at once: `list.append` is atomic where `+= 1` is not.
    """

    __slots__ = ("_closed", "_expected", "_reports", "future")

    def __init__(self, expected: int | None = None) -> None:
        """`expected` None: not known before `expect`."""
        self.future: Future[None] = Future()
        self.future.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        self._expected = expected
        self._reports: list[Exception | None] = []
        self._closed = threading.Lock()

    def report(self, error: Exception | None, _offset: int, _log_append_time: int) -> None:
        self._reports.append(error)
        if len(self._reports) == self._expected:
            self._close()

    def expect(self, expected: int) -> None:
        """This many were appended. Both sides compare after their own write, so one of them sees it."""
        self._expected = expected
        if len(self._reports) == expected:
            self._close()

    def _close(self) -> None:
        if not self._closed.acquire(blocking=False):
            return
        error = next((report for report in self._reports if report is not None), None)
        if isinstance(error, NotFound):  # the topic was there when the layout was read
            error = StoreUnreachable(f"{error}: the store may be coming back, ask again")
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class RecentClock:
    """The store's time, asked for at most every 20 ms: a bulk of jobs needs it 100,000 times a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reading = self._read()

    def _read(self) -> tuple[int, int]:
        return self._clock.now(), self._clock.monotonic()

    def now(self) -> int:
        """Epoch ms; as low a bound of the broker's time as the reading it goes on from."""
        return self.at(self._clock.monotonic())

    def at(self, monotonic: int) -> int:
        """`now`, by a reading of the monotonic clock that was just taken."""
        now, at = self._reading
        elapsed = monotonic - at
        if elapsed < RECENT_MS:
            return now + elapsed
        self._reading = self._read()
        return self._reading[0]


class Connection:
    """Parts that are connected, with their poller. Used by any thread of the process that made it."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        """Looks at the store. Raises StoreUnreachable; Refused if its topics are missing or do not fit."""
        self.parts = parts
        self.layout = parts.load_layout()
        self.clock = RecentClock(parts.clock)
        # Made here, in this process: a copy made by a fork would repeat the parent's ids.
        self._random = random = Random()
        self.requests = Requests(
            now=self.clock.now,
            random80=lambda: random.getrandbits(80),
            payload_limit=settings.payload_limit,
            default_queue=settings.queue,
        )
        self.answers = Answers(parts.open_feed, self.layout.partitions)
        self._reads = threading.Lock()
        self._silent = False
        self._pumped = 0.0
        self._stop = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="dueline-client", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            if time.monotonic() - self._pumped < YIELD_S:
                self._stop.wait(YIELD_S)
            else:
                self.parts.appender.poll(POLL_MS)

    def pump(self, timeout_ms: int) -> None:
        """Take delivery reports on this thread. A thread that appends without a break must: it and the poller
        would pass the interpreter lock to and fro for every record, ten times slower."""
        self._pumped = time.monotonic()
        self.parts.appender.poll(timeout_ms)

    def pump_until(self, delivery: Delivery) -> None:
        """`wait`, taking the reports on this thread."""
        deadline = time.monotonic() + DELIVERY_S
        while not delivery.future.done():
            if time.monotonic() >= deadline:
                raise self._unconfirmed()
            self.pump(POLL_MS)
        delivery.future.result()

    def recorder(self) -> Recorder:
        """For one thread that creates many jobs."""
        mint = Mint(self.layout, self._random.getrandbits)
        return Recorder(self.requests, self.parts.names.jobs, mint, self.require_queue)

    def append(self, run: Run, report: Report) -> int:
        """Queue the record of a new job, at its home; its size. InvalidInput if its queue is unknown."""
        if run.queue not in self.layout.queues:
            self._look_again(run.queue)
        value = codec.RUN.encode(run)
        home = self.layout.home(run.job_id)
        self.parts.appender.append(Put(self.parts.names.jobs, home, job_key(run.job_id), value), report)
        return len(value)

    def require_queue(self, queue: str) -> None:
        """InvalidInput if it is unknown, or no name of one: then it is not advised to make it."""
        if queue not in self.layout.queues:
            self._look_again(check_name("queue", queue))

    def _look_again(self, queue: str) -> None:
        """The queue may have been created since the layout was read."""
        self.layout = self.parts.load_layout()
        if queue not in self.layout.queues:
            raise InvalidInput(
                "queue", f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it"
            )

    def create(self, request: Mapping[str, Any]) -> tuple[JobRef, Delivery]:
        """Queue the record of one job; `wait` for its delivery. InvalidInput naming the option."""
        run = self.requests.run(request)
        delivery = Delivery(expected=1)
        self.append(run, delivery.report)
        return JobRef.of(run), delivery

    @contextmanager
    def reading(self) -> Iterator[JobFinder]:
        """The reader, which serves one thread at a time."""
        with self._reads:
            yield self.parts.finder(self.layout)

    def wait(self, delivery: Delivery) -> None:
        """Until the records of `delivery` are durable; StoreUnreachable if not within 10 s.

        The producer gives up by itself within two minutes, long before the 15 minutes after which an owner
        refuses a late copy (DESIGN §4), so nothing reported as failed comes back much later.
        """
        try:
            delivery.future.result(DELIVERY_S)
        except TimeoutError:
            raise self._unconfirmed() from None

    async def wait_async(self, delivery: Delivery) -> None:
        """`wait` without blocking the event loop."""
        try:
            await asyncio.wait_for(asyncio.wrap_future(delivery.future), DELIVERY_S)
        except TimeoutError:
            raise self._unconfirmed() from None

    def _unconfirmed(self) -> StoreUnreachable:
        self._silent = True
        return StoreUnreachable(
            f"the store did not confirm within {DELIVERY_S:.0f} s, and may or may not have the job: look with"
            " `dueline job list`, or create it again with an idempotency key"
        )

    def flush(self, timeout_ms: int) -> None:
        """StoreUnreachable if something is not durable within the time."""
        self.parts.appender.flush(timeout_ms)

    def close(self, timeout_ms: int) -> None:
        """Flush and close, without patience if the store was silent before. Raises as `flush`."""
        self._stop.set()
        if threading.current_thread() is not self._poller:  # which may drop the last reference to a client
            self._poller.join()
        try:
            self.parts.appender.flush(0 if self._silent else timeout_ms)
        finally:
            self.answers.close()
            self.parts.clock.close()
            self.parts.appender.close()
            self.parts.reader.close()
