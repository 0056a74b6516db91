"""A process of a worker's pool: runs handlers, one at a time, and says to the worker on a socket what they do.

    python -m pipeline.service.pool_child SOCKET_FD PARENT_PID

Standard output and error are the worker's own and free for the handlers. The process ends with its worker: the kernel
kills it when the worker dies (Linux; also while C code keeps the GIL), and everywhere a closed channel ends it. What a
handler has started itself ends with a stop or a time-out, but may outlive a worker that is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import CoroutineType
from typing import Any

from pipeline import codec
from pipeline.adapters.pool_wire import Channel, ChannelClosed, Head, raised_head, refusal_error
from pipeline.adapters.thread_pool import end_if_copy, process_id
from pipeline.attempt import context_of
from pipeline.config import load_settings
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.handler import (
    Cancel,
    Dead,
    HandlerSpec,
    Registry,
    RemoteError,
    Retry,
    Snooze,
    encode_result,
)
from pipeline.core.job import Failure
from pipeline.core.jobref import JobRef
from pipeline.handlers import with_builtin
from pipeline.service.apps import load_app
from pipeline.service.loop import listen
from pipeline.service.streams import lasting_streams

PR_SET_PDEATHSIG = 1
STOPPED_S = 0.05
"""How long an answer to "stopped?" is believed: handlers ask in tight loops."""
LEAVE_S = 4.0
"""For an idle process to end by itself once its worker is gone."""
THREADS_LIMIT = 100
"""A process whose handlers have left more threads behind is not used again."""


class PipeSide:
    """`core.context.Side` of one attempt, over the channel to the worker. Any thread may use it while it is open."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._closed = False
        self._stopped = False
        self._fresh_until = 0.0
        self._process = process_id()

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        plain = {name: _plain(name, value) for name, value in request.items()}
        head = self._ask("schedule", {"kind": "schedule", "request": plain})
        return JobRef(head["id"], head["status"], datetime.fromisoformat(head["due_at"]))

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        partition: int | None,
    ) -> None:
        head = {"kind": "produce", "topic": topic, "partition": partition, "headers": list(headers)}
        self._ask("produce", head, value, key, *headers.values())

    def progress(self, fraction: float | None, note: str) -> None:
        self._tell(
            {"kind": "progress", "fraction": None if fraction is None else float(fraction), "note": note}
        )

    def log(self, line: str) -> None:
        self._tell({"kind": "log", "line": line})

    def stopped(self) -> bool:
        now = time.monotonic()
        if self._closed or self._copied:
            return True
        if not self._stopped and now >= self._fresh_until:
            self._fresh_until = now + STOPPED_S
            self._stopped = bool(self._ask("stopped", {"kind": "stopped"})["stopped"])
        return self._stopped

    def close(self, head: Head, *parts: bytes | None) -> None:
        """Say the outcome; what comes later has no transaction to go into."""
        with self._lock:
            self._closed = True
            self._channel.send(head, *parts)

    @property
    def _copied(self) -> bool:
        """Whether this is a fork of the process that runs the attempt, which alone may speak for it."""
        return process_id() != self._process

    def _ask(self, what: str, head: Head, *parts: bytes | None) -> Head:
        if self._copied:
            raise Refused(f"{what}: this process is a fork of the one that runs the attempt")
        with self._lock:
            if self._closed:
                raise Refused(f"{what}: the attempt has come to an end")
            self._channel.send(head, *parts)
            answer, _ = self._channel.receive()
        if answer["kind"] == "refused":
            raise refusal_error(answer)
        return answer

    def _tell(self, head: Head) -> None:
        if self._copied:
            return
        with self._lock:
            if not self._closed:
                self._channel.send(head)


def _plain(name: str, value: object) -> object:
    """An option of `schedule` as JSON that means the same. InvalidInput naming it if there is none."""
    match value:
        case datetime() if value.utcoffset() is None:
            raise InvalidInput(name, f"{value} is naive: add a time zone, for example tzinfo=datetime.UTC")
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            value = dict(value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(name, f"is not JSON: {problem}") from None
    return value


class Child:
    """The loop of this process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.busy = False

    def serve(self, registry: Registry, mend: Callable[[], None] = lambda: None) -> None:
        """Run what the worker sends until it closes the channel. `mend` puts standard output and error in order for the
        next one."""
        while True:
            try:
                head, parts = self._channel.receive()
            except ChannelClosed:
                return
            self.busy = True
            self._attempt(registry, head, parts[0] or b"")
            mend()
            self.busy = False

    def _attempt(self, registry: Registry, head: Head, data: bytes) -> None:
        side, process = PipeSide(self._channel), process_id()
        try:
            value, error = self._call(registry, head, data, side), None
        except BaseException as raised:  # noqa: BLE001 - a handler's SystemExit is its result
            value, error = None, raised
        end_if_copy(process, error)
        verdict = error if error is not None else value
        worn = {"worn": threading.active_count() > THREADS_LIMIT}
        if error is not None or isinstance(verdict, (Retry, Snooze, Cancel, Dead)):
            side.close(raised_head(verdict) | worn)
        else:
            side.close({"kind": "returned"} | worn, encode_result(value))

    def _call(self, registry: Registry, head: Head, data: bytes, side: PipeSide) -> Any:
        run = codec.RUN.decode(data)
        spec = registry.get(run.handler)
        if spec is None:
            raise LookupError(
                f"this process of the pool found no handler {run.handler!r}: start the worker with --app"
            )
        context = context_of(run, head["attempt"], head["token"], head["fired_at"], side)
        if spec.asynchronous:
            return asyncio.run(spec.invoke(context, context.payload))
        return _awaited_by_nobody(spec, spec.invoke(context, context.payload))


def _awaited_by_nobody(spec: HandlerSpec, value: object) -> object:
    """A coroutine is no result: only `decide` in the worker could tell, and it cannot be sent there."""
    if isinstance(value, CoroutineType):
        value.close()
        problem = f"{spec.name} returned a coroutine that nobody awaits"
        raise RemoteError(Failure(type="NotAwaited", message=problem))
    return value


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


def _watch(sock: socket.socket, child: Child) -> None:
    """End this process group when the worker's end of the channel is closed; if idle, it may end by itself first."""
    poller = select.poll()
    poller.register(sock, 0)  # a hang-up is always told
    poller.poll()
    if not child.busy:
        time.sleep(LEAVE_S)
    os.killpg(0, signal.SIGKILL)


def _loaded(channel: Channel) -> Registry | None:
    """The handlers of the application, by the name and on the path that the worker sends, and the built-in ones."""
    head, _ = channel.receive()
    sys.path[:] = head["path"]
    try:
        own = load_app(head["target"]).registry if head["target"] else Registry()
        handlers = with_builtin(own, load_settings())
    except BaseException as problem:  # noqa: BLE001 - a module may call sys.exit while it is imported
        channel.send({"kind": "failed", "problem": str(problem) or repr(problem)})
        return None
    channel.send({"kind": "ready"})
    return handlers


def main(fd: int, parent: int) -> int:
    _die_with(parent)
    faulthandler.enable()
    # A service manager signals every process: the worker drains, and its children with it. A function and not SIG_IGN,
    # which the programs that a handler starts would inherit.
    listen(lambda _number, _frame: None)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    os.register_at_fork(after_in_child=sock.close)  # the worker hears the end of this process by it
    channel = Channel(sock)
    child = Child(channel)
    threading.Thread(target=_watch, args=(sock, child), name="watch", daemon=True).start()
    try:
        handlers = _loaded(channel)
        if handlers is None:
            return 1
        with lasting_streams() as mend:
            child.serve(handlers, mend)
    except ChannelClosed:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
