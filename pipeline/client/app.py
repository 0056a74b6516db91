"""`Dueline`: the handlers of an application, and the client that creates and reads jobs (DESIGN §9)."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from pipeline.client import parts
from pipeline.config import Settings, load_settings
from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.core.handler import DEFAULT_MAX_ATTEMPTS, Duration, Registry
from pipeline.core.retry import RetryPolicy

if TYPE_CHECKING:
    from pipeline.client.connection import Connection, Delivery
    from pipeline.client.request import JobOptions, JobRef

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FLUSH_MS = 5_000
_log = logging.getLogger("dueline")


class _Unchained:
    """Around what a user calls: an error of ours leaves as one traceback, whose last line says what to do. What
    it was raised from stays in its `__context__`. A class, since a generator would add frames of its own."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, DuelineError):
            error.__cause__ = None  # which also hides the context, as `from None` does


_unchained = _Unchained()


class Dueline:
    """The handlers of an application by name, and its client.

    Safe to make at import: nothing connects before the first call that needs the store. Safe for threads (one
    producer for all) and across a fork (the child makes its own). What is in flight when the process exits is
    flushed, for up to 5 s.

    `settings` are those of `dueline config show`, as keywords: `Dueline(prefix="billing")`; what is not given
    comes from DUELINE_* variables. InvalidInput if one is unknown or malformed.
    """

    def __init__(self, *, connect: Callable[[Settings], parts.Parts] | None = None, **settings: Any) -> None:
        with _unchained:
            self.settings = load_settings(**settings)
        self.registry = Registry()
        self._connect = connect or parts.connect
        self._start = threading.Lock()
        self._connection: Connection | None = None
        self._at_exit: weakref.finalize[[Connection], Dueline] | None = None
        _apps.add(self)

    # -- handlers -------------------------------------------------------------------------------------------

    def job(
        self,
        name: str,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Register a handler `(ctx, **payload)`, or `(ctx, payload)` to get the payload whole; sync or async.

        A job's own `max_attempts` and `timeout` win. InvalidInput if the name is illegal or taken.
        """

        def register(function: F) -> F:
            self.registry.add(
                name, function, max_attempts=max_attempts, timeout=timeout, retry=retry or RetryPolicy()
            )
            return function

        return register

    # -- creating jobs --------------------------------------------------------------------------------------

    def schedule(
        self, handler: str, payload: dict[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> JobRef:
        """Create a job: run `handler` with `payload` (a JSON object). Returns once the store has acknowledged
        the record: from then on the job is not lost.

        at: when, an aware datetime or RFC 3339 text; a past instant fires at once. Required, or else
        in_: how long from now by the store's clock: `10m`, a timedelta, or seconds.
        idempotency_key: what the handler's effect is made unique by; default: the occurrence id.
        queue: whose workers run it; default: the setting, `default`.
        max_attempts, timeout (a duration): override the handler's own.
        serial: jobs of one serial group start one after the other.
        labels, headers: text by name, to list jobs by, and handed on as context.

        Raises InvalidInput naming the option, with nothing stored; StoreUnreachable if the store did not
        confirm within 10 s (it may still have the job); Refused if its topics are missing.
        """
        with _unchained:
            connection, ref, delivery = self._create({"handler": handler, "payload": payload, **options})
            connection.wait(delivery)
        return ref

    async def aschedule(
        self, handler: str, payload: dict[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> JobRef:
        """`schedule` for coroutines: neither connecting nor waiting for the store blocks the event loop."""
        import asyncio  # 40 ms that a process without a loop need not pay

        request = {"handler": handler, "payload": payload, **options}
        with _unchained:
            connection, ref, delivery = await asyncio.to_thread(self._create, request)
            await connection.wait_async(delivery)
        return ref

    def _create(self, request: Mapping[str, Any]) -> tuple[Connection, JobRef, Delivery]:
        if self._connection is None:  # what is wrong in it is told without a store
            from pipeline.client.request import check

            check(request, self.settings)
        connection = self._connected()
        return connection, *connection.create(request)

    def schedule_many(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]:
        """Create many jobs: each item is a mapping with the names of `schedule`. A lazy iterator: jobs are
        created while it is consumed, with bounded memory and up to 8,000 in flight, and each reference comes
        in order once its record is acknowledged. To create them all: `for ref in app.schedule_many(jobs): …`

        A bad item ends it: the references of all items before it come first (these jobs are stored), then
        InvalidInput naming the item's number, from 1, and the option; nothing from it on is stored.
        """
        from pipeline.client.bulk import schedule_all

        # A generator of this object's own, so that it lives as long as its jobs are wanted.
        with _unchained:
            yield from schedule_all(self._connected(), jobs)

    # -- reading and changing jobs --------------------------------------------------------------------------

    def get(self, job_id: str) -> dict[str, Any]:
        """The job with its runs and attempts, as `dueline job get` shows it (schemas/cli/job_get.json).

        Raises NotFound, InvalidInput('id') if the id is malformed, StoreUnreachable.
        """
        with _unchained, self._connected().reading() as finder:
            return finder.job(job_id)

    def live_handlers(self) -> frozenset[str]:
        """Names of the handlers that a live worker runs now. Raises StoreUnreachable."""
        with _unchained:
            connection = self._connected()
            with connection.reading() as finder:
                return finder.live_handlers(connection.clock.now())

    def cancel(self, job_id: str) -> NoReturn:
        """Not yet: InvalidInput."""
        raise InvalidInput("cancel", "not supported yet")

    def reschedule(self, job_id: str, *, at: datetime) -> NoReturn:
        """Not yet: InvalidInput."""
        raise InvalidInput("reschedule", "not supported yet")

    def result(self, job_id: str, *, wait: str | timedelta | float = 0) -> NoReturn:
        """Not yet: InvalidInput. `get` has the result of a job that succeeded."""
        raise InvalidInput("result", "not supported yet; get(id) has the result of a job that succeeded")

    # -- life -----------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: int = EXIT_FLUSH_MS) -> None:
        """Wait until everything in flight is durable; StoreUnreachable if it is not within the time."""
        if self._connection is not None:
            with _unchained:
                self._connection.flush(timeout_ms)

    def close(self, timeout_ms: int = EXIT_FLUSH_MS) -> None:
        """Flush and disconnect; a later call connects anew. StoreUnreachable as `flush`."""
        with self._start:
            connection, self._connection = self._connection, None
            if connection is not None and self._at_exit is not None:
                self._at_exit.detach()
                with _unchained:
                    connection.close(timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None:
            return connection
        # Avro and Kafka are not loaded before they are used.
        from pipeline.client.connection import Connection

        with self._start:
            if self._connection is None:
                connection = Connection(self._connect(self.settings), self.settings)
                self._at_exit = weakref.finalize(self, _close_at_exit, connection)
                self._connection = connection
            return self._connection

    def forget_connection(self) -> None:
        """In the child of a fork: the parent's client has no threads here, so it can be neither used nor
        closed. It is kept, since the destructor of librdkafka's handle would wait for those threads."""
        self._start = threading.Lock()
        if self._connection is not None and self._at_exit is not None:
            self._at_exit.detach()
            _inherited.append(self._connection)
            self._connection = None


_apps: weakref.WeakSet[Dueline] = weakref.WeakSet()
_inherited: list[Connection] = []


def _forget_all() -> None:
    for app in _apps:
        app.forget_connection()


os.register_at_fork(after_in_child=_forget_all)


def _close_at_exit(connection: Connection) -> None:
    try:
        connection.close(EXIT_FLUSH_MS)
    except StoreUnreachable as error:
        _log.error("jobs in flight at exit may be lost: %s", error, extra={"action": "exit_flush"})
