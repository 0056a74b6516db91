"""Processes for handlers that need a CPU, or a wall, of their own (`pool="process"`).

A thread per running call talks to its child and waits for it, so whatever a child does concerns that call alone. The
child is a fresh Python (no fork of a process with threads) in a process group of its own: killing the group is how a
call is stopped. What is said on the socket pair stands in `pool_wire`, the child's side in `service.pool_child`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pipeline import codec
from pipeline.adapters.pool_wire import Channel, ChannelClosed, Head, raised_error, refusal_head
from pipeline.adapters.thread_pool import ThreadPool, drain, never_begun, timed_out
from pipeline.core.errors import Refused
from pipeline.core.handler import Stopped
from pipeline.ports import Call, Done, Task

CHILD = "pipeline.service.pool_child"
"""Named, not imported: it stands in a higher layer."""
BUILT_IN = ""
"""The target without an application: the product's own handlers."""
START_S = 60.0
"""For a child to load the application."""
END_S = 5.0
"""For a child to end after it was told or made to."""
POLL_S = 0.005
PER_CPU = 4
"""Children for each CPU at most: each holds the whole application in its memory."""


class ProcessDied(Exception):
    """The process that ran the handler ended before it answered, or could not start."""


class _Child:
    """One process of the pool. Used by one thread at a time; `kill` by any."""

    def __init__(self, target: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", CHILD, str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        self._socket = ours
        self._channel = Channel(ours)
        self._reaping = threading.Lock()
        self.worn = False
        """Not to be used for another call."""
        try:
            self._greet(target)
        except BaseException:
            self.kill()
            self.reap()
            raise

    def _greet(self, target: str) -> None:
        deadline = time.monotonic() + START_S
        try:
            self._channel.send({"target": target, "path": sys.path}, deadline=deadline)
            head, _ = self._channel.receive(deadline)
        except ChannelClosed:
            raise ProcessDied(f"a process of the pool ended while it started: {self.reap()}") from None
        except TimeoutError:
            raise ProcessDied(f"a process of the pool did not start within {START_S:g} s") from None
        if head.get("kind") != "ready":
            raise ProcessDied(f"a process of the pool could not start: {head.get('problem')}")

    def usable(self) -> bool:
        """Whether it waits for a call: it lives, and says nothing that was not asked for."""
        news = select.poll()  # unlike select, it takes any descriptor
        news.register(self._socket, select.POLLIN)
        return not (self.worn or news.poll(0))

    def run(self, task: Task, deadline: float | None) -> tuple[Any, BaseException | None]:
        """The handler's value or error. TimeoutError, ChannelClosed."""
        ask = {"attempt": task.attempt, "token": task.token, "fired_at": task.fired_at}
        self._channel.send(ask, codec.RUN.encode(task.run), deadline=deadline)
        while True:
            head, parts = self._channel.receive(deadline)
            try:
                match head["kind"]:
                    case "returned":
                        self.worn = head["worn"]
                        return None if parts[0] is None else json.loads(parts[0]), None
                    case "raised":
                        self.worn = head["worn"]
                        return None, raised_error(head)
                    case _:
                        self._serve(task, head, parts, deadline)
            except (LookupError, TypeError, ValueError) as problem:
                raise ChannelClosed(f"nonsense: {problem!r}") from None

    def _serve(self, task: Task, head: Head, parts: list[bytes | None], deadline: float | None) -> None:
        """Do what the handler asks of its worker."""
        side = task.side
        match head["kind"]:
            case "progress":
                side.progress(head["fraction"], head["note"])
            case "log":
                side.log(head["line"])
            case _:
                try:
                    answer = _answer(task, head, parts)
                except Exception as problem:  # noqa: BLE001 - the handler's to see
                    answer = refusal_head(problem)
                self._channel.send(answer, deadline=deadline)

    def kill(self) -> None:
        """End it and what it started in its group, at once. Nothing happens once it is reaped."""
        with self._reaping:
            if self._process.returncode is None:  # so its number is its own still
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> str:
        """How it ended, in words; it is killed if it has not."""
        self.kill()
        with self._reaping:
            try:
                code = self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                return "it does not end"
            finally:
                self._channel.close()
        return f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"

    def dismiss(self) -> None:
        """Let it end by itself, which it does when its channel closes."""
        self._channel.close()

    def has_ended(self) -> bool:
        """It is not reaped by this, so its number stays its own."""
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Job:
    """A call and the child that runs it. `stop` may come at any time, from the owner's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self.stopped = False

    def begin(self, child: _Child) -> bool:
        """False if it was stopped meanwhile."""
        with self._lock:
            self._child = child
            return not self.stopped

    def end(self) -> bool:
        """The child is no longer this call's; whether it may be used again."""
        with self._lock:
            self._child = None
            return not self.stopped

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            if self._child is not None:
                self._child.kill()


class ProcessPool:
    """Up to `size` calls at once, each in a process that stays for the next one. `target` = `module:attribute`,
    or BUILT_IN; without one all calls are refused.

    Children are started when they are needed. One that crashes, is stopped, or whose call's time is over is killed
    with its process group, and the next call starts another. All methods are for the owner's thread.
    """

    def __init__(self, size: int, target: str | None) -> None:
        self._threads = ThreadPool(min(size, PER_CPU * (os.cpu_count() or 1)), "process")
        self._target = target
        self._done: deque[Done] = deque()
        self._jobs: dict[int, _Job] = {}
        self._idle: list[_Child] = []

    def submit(self, call: Call) -> None:
        job = self._jobs[call.ticket] = _Job()
        self._threads.submit(Call(call.ticket, lambda: self._run(call, job), False))

    def completed(self) -> list[Done]:
        self._threads.completed()
        return drain(self._done)

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        gone = self._threads.withdraw(tickets)
        for ticket in gone:
            del self._jobs[ticket]
        return gone

    def stop(self, tickets: Iterable[int]) -> None:
        tickets = set(tickets)
        self._done.extend(never_begun(self.withdraw(tickets)))
        for ticket in tickets:
            if (job := self._jobs.get(ticket)) is not None:
                job.stop()

    def cease(self) -> None:
        """Begin no further call."""
        self.withdraw(list(self._jobs))

    def close(self, timeout_ms: int) -> bool:
        """Whether all calls ended by themselves within the time; the rest is killed."""
        self.cease()
        ended = _within(timeout_ms / 1000, lambda: not self._jobs)
        for job in list(self._jobs.values()):
            job.stop()
        _within(END_S, lambda: not self._jobs)
        self._dismiss()
        # Last, since the kernel kills a child together with the thread that started it.
        return self._threads.close(int(END_S * 1000)) and ended

    def _dismiss(self) -> None:
        """Let the children that wait end by themselves: what their clients have in flight is flushed then."""
        for child in self._idle:
            child.dismiss()
        _within(END_S, lambda: all(child.has_ended() for child in self._idle))
        while self._idle:
            self._idle.pop().reap()

    # -- a thread's side ------------------------------------------------------------------------------------

    def _run(self, call: Call, job: _Job) -> None:
        began = time.monotonic()
        value: Any = None
        error: BaseException | None
        try:
            child = self._borrow()
            began = time.monotonic()
            value, error = self._call(child, call, job, began)
        except Exception as problem:  # noqa: BLE001 - of this call alone
            error = problem
        self._jobs.pop(call.ticket, None)
        self._done.append(Done(call.ticket, value, error, began, time.monotonic()))

    def _borrow(self) -> _Child:
        """A child that waits, or a new one. ProcessDied, Refused."""
        if self._target is None:
            raise Refused(
                "handlers with pool=process need to be found by another process: start this worker with --app"
                " module:attribute"
            )
        while True:
            try:
                child = self._idle.pop()
            except IndexError:
                return _Child(self._target)
            if child.usable():
                return child
            child.reap()

    def _call(self, child: _Child, call: Call, job: _Job, began: float) -> tuple[Any, BaseException | None]:
        assert call.task is not None, "calls of a process pool carry a task"
        deadline = None if call.timeout_ms is None else began + call.timeout_ms / 1000
        if not job.begin(child):
            self._idle.append(child)
            return None, Stopped("stopped before it began")
        try:
            outcome = child.run(call.task, deadline)
        except TimeoutError:
            job.end()
            child.reap()
            return None, timed_out(call.timeout_ms or 0)
        except ChannelClosed:
            stopped = not job.end()
            how = child.reap()
            return None, Stopped("stopped") if stopped else ProcessDied(f"its process ended: {how}")
        except BaseException:
            job.end()
            child.reap()
            raise
        if job.end():
            self._idle.append(child)
        else:
            child.reap()
        return outcome


def _answer(task: Task, head: Head, parts: list[bytes | None]) -> Head:
    """What the worker says to a request. Raises what it refuses it with."""
    match head["kind"]:
        case "schedule":
            ref = task.side.schedule(head["request"])
            return {"kind": "job", "id": ref.id, "status": ref.status, "due_at": ref.due_at.isoformat()}
        case "produce":
            value, key, *texts = parts
            headers = dict(zip(head["headers"], (text or b"" for text in texts), strict=True))
            task.side.produce(head["topic"], value, key, headers, head["partition"])
            return {"kind": "done"}
        case "stopped":
            return {"kind": "stopped", "stopped": task.side.stopped()}
        case kind:
            raise ValueError(f"{kind!r} is no request")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return true
