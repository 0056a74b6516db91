"""`Dueline`: the handlers of an application, and the client that creates and reads jobs (DESIGN §9)."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pipeline.client import parts
from pipeline.client.handlers import Handlers
from pipeline.config import Settings, load_settings
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.core.handler import Duration
from pipeline.core.middleware import with_headers

if TYPE_CHECKING:
    from pipeline.client.commands import JobChange
    from pipeline.client.request import JobOptions
    from pipeline.client.schedules import Schedules
    from pipeline.client.transport import Transport
    from pipeline.core.jobref import JobRef

EXIT_FLUSH_MS = 5_000
WAIT, RESULT_WAIT = "5s", "10s"
"""How long an owner's answer, and a result, is waited for by default."""
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


class Dueline(Handlers):
    """The handlers of an application by name, and its client.

    Safe to make at import: nothing connects before the first call that needs the store. Safe for threads (one
    producer for all) and across a fork (the child makes its own). What is in flight when the process exits is
    flushed, for up to 5 s.

    `settings` are those of `dueline config show`, as keywords: `Dueline(prefix="billing")`; what is not given
    comes from DUELINE_* variables. InvalidInput if one is unknown or malformed. With a `url` (and a `token`) every
    verb is asked of a `dueline server` instead of Kafka (docs/http-client.md). `include` and `middleware` are as
    the methods `include` and `use`, for several.
    """

    def __init__(
        self,
        *,
        include: Iterable[Handlers] = (),
        middleware: Iterable[object] = (),
        connect: Callable[[Settings], parts.Parts] | None = None,
        **settings: Any,
    ) -> None:
        with _unchained:
            self.settings = load_settings(**settings)
        super().__init__(include=include, middleware=middleware)
        self._connect = connect or parts.connect
        self._start = threading.Lock()
        self._over_http = connect is None and self.settings.over_http
        self._transport: Transport | None = None
        self._at_exit: weakref.finalize[[Transport], Dueline] | None = None
        _apps.add(self)

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
        spread: put the job off by up to this duration, the same for the same key or idempotency key, so that
            jobs meant for one instant do not all start at once.
        key: identity of the job: while it holds the key there is no second one. Its owner answers `created`, or
            what it did about the job that holds the key: `existing`, `replaced`, `debounced`, `rejected`.
        unique: how long the key is held: until the job is `finished` (default), until it has `started`, or for
            a duration from now.
        on_conflict: `existing` (default), `replace`, `debounce` (put it off), `reject`; replace and debounce
            change a job that has not fired.
        wait: how long the owner's answer is waited for, 5 s by default; then the status is `accepted`: it is
            stored all the same and not lost.

        Raises InvalidInput naming the option, with nothing stored; StoreUnreachable if the store did not
        confirm within 10 s (it may still have the job); Refused if its topics are missing.
        """
        with _unchained:
            request = self._request(handler, payload, options)
            return self._connected_for(request).schedule(request)

    async def aschedule(
        self, handler: str, payload: dict[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> JobRef:
        """`schedule` for coroutines: neither connecting nor waiting for the store blocks the event loop."""
        import asyncio  # 40 ms that a process without a loop need not pay

        request = self._request(handler, payload, options)
        with _unchained:
            transport = self._transport
            if transport is None:
                transport = await asyncio.to_thread(self._connected_for, request)
            return await transport.aschedule(request)

    def _request(
        self, handler: str, payload: dict[str, Any] | None, options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return with_headers(self.registry.middleware, {"handler": handler, "payload": payload, **options})

    def _connected_for(self, request: Mapping[str, Any]) -> Transport:
        if self._transport is None:  # what is wrong in it is told without a store
            from pipeline.client.request import check

            check(request, self.settings)
        return self._connected()

    def schedule_many(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]:
        """Create many jobs: each item is a mapping with the names of `schedule`. A lazy iterator: jobs are
        created while it is consumed, with bounded memory and up to 8,000 in flight, and each reference comes
        in order once its record is acknowledged; jobs with a key are `accepted`, their owners' answers are not
        waited for. To create them all: `for ref in app.schedule_many(jobs): …`

        A bad item ends it: the references of all items before it come first (these jobs are stored), then
        InvalidInput naming the item's number, from 1, and the option; nothing from it on is stored.
        """
        if self.registry.middleware:
            jobs = map(partial(with_headers, self.registry.middleware), jobs)
        # A generator of this object's own, so that it lives as long as its jobs are wanted.
        with _unchained:
            yield from self._connected().schedule_many(jobs)

    @property
    def schedules(self) -> Schedules:
        """Recurring schedules: `app.schedules.create("nightly", "report.daily", cron="0 2 * * *")`, `update`, `pause`,
        `resume`, `trigger`, `backfill`, `delete`, `get`, `list`."""
        connected: Any = self._connected  # of the transport that goes with it
        if self._over_http:
            from pipeline.client.http_schedules import HttpSchedules

            return HttpSchedules(connected, queue=self.settings.queue)
        from pipeline.client.schedules import Schedules

        return Schedules(connected, queue=self.settings.queue)

    # -- reading and changing jobs --------------------------------------------------------------------------

    def get(self, job_id: str) -> dict[str, Any]:
        """The job with its runs and attempts, as `dueline job get` shows it (schemas/cli/job_get.json).

        Raises NotFound, InvalidInput('id') if the id is malformed; StoreUnreachable, also if what may have been stored
        last cannot be read: a store that is coming back never says that a job is not there.
        """
        with _unchained:
            return self._connected().get(job_id)

    def live_handlers(self) -> frozenset[str]:
        """Names of the handlers that a live worker runs now. Raises StoreUnreachable."""
        with _unchained:
            return self._connected().live_handlers()

    def cancel(self, job_id: str, *, stop: bool = False, wait: Duration = WAIT) -> JobChange:
        """Ask the owner to cancel the job, and wait for its answer. The outcome is `cancelled`: it did not fire
        and will not; `stopped`: it fired, and its pending retry was dropped; `too_late`; `not_found`;
        `unknown`: no answer within `wait`, though the command is stored and will be executed.

        `stop`: of a job that fired too. `stopped`: no further run will start, and none is running; `stopping`: its
        worker is told, and had not ended the run within `wait`; `too_late`: it ended by itself.

        `<id>.<incarnation>` names an older incarnation of a job with a key. Raises InvalidInput('id') if the id
        is malformed; Refused for the next instant of a schedule, which has no change of its own: pause the schedule
        or exclude the instant; StoreUnreachable.
        """
        if not stop:
            return self._change("cancel", job_id, wait)
        with _unchained:
            return self._connected_for_id(job_id).stop(job_id, wait)

    def reschedule(
        self,
        job_id: str,
        *,
        at: datetime | str | None = None,
        in_: Duration | None = None,
        wait: Duration = WAIT,
    ) -> JobChange:
        """Have the job, or its pending retry, due at another time, earlier or later: `rescheduled`, else as
        `cancel`. InvalidInput naming the option."""
        return self._change("reschedule", job_id, wait, at=at, in_=in_)

    def update(self, job_id: str, payload: dict[str, Any], *, wait: Duration = WAIT) -> JobChange:
        """Replace the payload of a job that has not fired: `updated`, else as `cancel`."""
        return self._change("update", job_id, wait, payload=payload)

    def requeue(self, job_id: str, *, wait: Duration = WAIT) -> JobChange:
        """Run a job once more, at once: `requeued`, its failures forgotten; `brought_forward`: its pending
        retry runs now; `pending`: it has not fired, nothing was done; `not_found`; `unknown`."""
        return self._change("requeue", job_id, wait)

    async def acancel(self, job_id: str, *, stop: bool = False, wait: Duration = WAIT) -> JobChange:
        """`cancel` for coroutines."""
        if not stop:
            return await self._achange("cancel", job_id, wait)
        import asyncio

        with _unchained:
            transport = await asyncio.to_thread(self._connected_for_id, job_id)
            return await transport.astop(job_id, wait)

    async def areschedule(
        self,
        job_id: str,
        *,
        at: datetime | str | None = None,
        in_: Duration | None = None,
        wait: Duration = WAIT,
    ) -> JobChange:
        """`reschedule` for coroutines."""
        return await self._achange("reschedule", job_id, wait, at=at, in_=in_)

    def _change(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        with _unchained:
            return self._connected_for_id(job_id).change(verb, job_id, wait, **options)

    async def _achange(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        import asyncio

        with _unchained:
            transport = await asyncio.to_thread(self._connected_for_id, job_id)
            return await transport.achange(verb, job_id, wait, **options)

    def result(self, job_id: str, *, wait: Duration = RESULT_WAIT) -> Any:
        """What the handler returned, once the job has succeeded; waits for that for up to `wait`.

        Raises JobFailed if it ended otherwise, TimeoutError if it did not end in time, NotFound, InvalidInput
        naming the option, StoreUnreachable.
        """
        from pipeline.client import waiting

        with _unchained:
            return waiting.wait_for(waiting.result(self._connected_for_id(job_id), job_id, wait))

    async def aresult(self, job_id: str, *, wait: Duration = RESULT_WAIT) -> Any:
        """`result` for coroutines."""
        import asyncio

        from pipeline.client import waiting

        with _unchained:
            transport = await asyncio.to_thread(self._connected_for_id, job_id)
            return await waiting.wait_for_async(waiting.result(transport, job_id, wait))

    def _connected_for_id(self, job_id: str) -> Transport:
        from pipeline.client.commands import check_id

        check_id(job_id)
        return self._connected()

    # -- life -----------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: int = EXIT_FLUSH_MS) -> None:
        """Wait until everything in flight is durable; StoreUnreachable if it is not within the time."""
        if self._transport is not None:
            with _unchained:
                self._transport.flush(timeout_ms)

    def close(self, timeout_ms: int = EXIT_FLUSH_MS) -> None:
        """Flush and disconnect; a later call connects anew. StoreUnreachable as `flush`."""
        with self._start:
            transport, self._transport = self._transport, None
            if transport is not None and self._at_exit is not None:
                self._at_exit.detach()
                with _unchained:
                    transport.close(timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> Transport:
        transport = self._transport
        if transport is not None:
            return transport
        with self._start:
            if self._transport is None:
                self._transport = transport = self._made()
                self._at_exit = weakref.finalize(self, _close_at_exit, transport)
            return self._transport

    def _made(self) -> Transport:
        # Neither Avro and Kafka nor the HTTP library are loaded before they are used.
        if self._over_http:
            from pipeline.client.http import Http

            return Http(self.settings)
        from pipeline.client.direct import Direct

        return Direct(self._connect(self.settings), self.settings)

    @contextmanager
    def connected_by(self, connect: Callable[[Settings], parts.Parts]) -> Iterator[None]:
        """Connect by something else until the end of the block: for tests (pipeline.testing)."""
        with self._start:
            kept = self._connect, self._over_http, self._transport, self._at_exit
            self._connect, self._over_http, self._transport = connect, False, None
        try:
            yield
        finally:
            self.close()
            with self._start:
                self._connect, self._over_http, self._transport, self._at_exit = kept

    def forget_connection(self) -> None:
        """In the child of a fork: the parent's client has no threads here, so it can be neither used nor
        closed. It is kept, since the destructor of librdkafka's handle would wait for those threads."""
        self._start = threading.Lock()
        if self._transport is not None and self._at_exit is not None:
            self._at_exit.detach()
            _inherited.append(self._transport)
            self._transport = None


_apps: weakref.WeakSet[Dueline] = weakref.WeakSet()
_inherited: list[Transport] = []


def _forget_all() -> None:
    for app in _apps:
        app.forget_connection()


os.register_at_fork(after_in_child=_forget_all)


def _close_at_exit(transport: Transport) -> None:
    try:
        transport.close(EXIT_FLUSH_MS)
    except StoreUnreachable as error:
        _log.error("jobs in flight at exit may be lost: %s", error, extra={"action": "exit_flush"})
