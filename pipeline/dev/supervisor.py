"""Keeps a few child processes running, restarts what dies, and stops them in order.

One thread, one selector: it waits for the children's output, for signals (SIGCHLD among them) and for the
next restart. Every child dies with this process, even by SIGKILL (`pipeline.dev.process`).
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

from pipeline.dev.process import describe_exit, spawn, sweep

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEAT_S = 0.5
"""A second signal within this is the first one again: `uv run` and `timeout` repeat what the terminal sent."""
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 10.0
STEADY_S = 10.0
"""A child that lived this long is restarted at once; one that dies sooner waits twice as long each time."""
USAGE_ERROR = 2
"""Exit code of a child that was told nonsense (DESIGN §9): starting it again cannot help.
Of one that was ready once it is a death like any other: its command line was good."""
REFUSED = 4
"""Exit code of a child that the store's state forbids to go on (DESIGN §9)."""
POLITE_ENDINGS = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Of a child that was asked to stop; the last is a JVM's."""
CHUNK = 65_536


class Printer(Protocol):
    """Where lines go: what became of a role, and what its process wrote. `all_ready` is called once, when every
    role that says when it is ready has said so."""

    def event(self, role: str, text: str) -> None: ...
    def line(self, role: str, text: str) -> None: ...
    def all_ready(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A child to keep running. `start` starts it; `running` is the process if it runs already.

    The first line of its output that contains `ready` is announced (None: it never says); `stop_timeout_s` is
    its time after SIGTERM. `last_codes` are exit codes after which it is not restarted: everything stops.
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    running: subprocess.Popen[bytes] | None = None
    ready: str | None = '"action": "running"'
    stop_timeout_s: float = 10.0
    last_codes: frozenset[int] = frozenset()


def command(name: str, argv: Sequence[str], *, env: Mapping[str, str], stop_timeout_s: float = 10.0) -> Role:
    """A Role that runs `argv` with its output passed through."""

    def start() -> subprocess.Popen[bytes]:
        return spawn(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return Role(name=name, start=start, stop_timeout_s=stop_timeout_s)


def backoff(quick_deaths: int) -> float:
    """Seconds to wait after so many quick deaths in a row."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (quick_deaths - 1)) if quick_deaths else 0.0


@dataclass(slots=True)
class _Child:
    role: Role
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    quick_deaths: int = 0
    restart_at: float | None = None
    asked_to_stop: bool = False
    ready: bool = False
    was_ready: bool = False
    """Whether any of its processes was."""


@dataclass(slots=True)
class _Pipe:
    """One output of one child, with the line it has not finished yet."""

    child: _Child
    partial: bytes = b""


class Supervisor:
    """Runs `roles`, started in this order and stopped in the opposite one, or all at once if `together`. Use from
    the main thread."""

    def __init__(self, roles: Sequence[Role], printer: Printer, *, together: bool = False) -> None:
        self._children = [_Child(role) for role in roles]
        self._printer = printer
        self._selector = selectors.DefaultSelector()
        self._stop_requests = 0
        self._asked_at = -REPEAT_S
        self._together = together
        self._refusal = 0
        """Exit code of a child that will not be restarted."""
        self._stopping = False
        self._all_ready = False

    def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP (0), or until a child says it was told nonsense (2) or ends with one
        of its last codes (that one).

        Nothing is left running when it returns or raises.
        """
        with self._selector, self._signals():
            try:
                for child in self._children:
                    self._start(child, child.role.running)
                while not self._stop_requests and not self._refusal:
                    self._step(self._next_restart())
            finally:
                self._stopping = True
                for child in self._children if self._together else ():
                    self._ask_to_stop(child)
                for child in reversed(self._children):
                    self._stop(child)
        return self._refusal

    # -- waiting ---------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes on a socket that the selector watches (signal.set_wakeup_fd)."""
        reading, writing = socket.socketpair()
        with reading, writing:
            reading.setblocking(False)
            writing.setblocking(False)
            wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
            handlers = {n: signal.signal(n, lambda *_: None) for n in (*STOP_SIGNALS, signal.SIGCHLD)}
            self._selector.register(reading, selectors.EVENT_READ, None)
            try:
                yield
            finally:
                self._selector.unregister(reading)
                signal.set_wakeup_fd(wakeup)
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    def _step(self, until: float | None) -> None:
        """Wait for something to happen, at most until `until` (monotonic seconds), and deal with it."""
        timeout = None if until is None else max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                numbers = key.fileobj.recv(CHUNK)  # type: ignore[union-attr]  # the socket of `_signals`
                if any(number in STOP_SIGNALS for number in numbers):
                    self._stop_requested()
            else:
                self._read(key.fileobj, key.data)  # type: ignore[arg-type]  # a pipe of a child
        for child in self._children:
            self._reap(child)
            self._restart_if_time(child)

    def _stop_requested(self) -> None:
        now = time.monotonic()
        if now - self._asked_at >= REPEAT_S:
            self._stop_requests += 1
            self._asked_at = now

    def _next_restart(self) -> float | None:
        return min((c.restart_at for c in self._children if c.restart_at is not None), default=None)

    # -- one child -------------------------------------------------------------------------------------------

    def _start(self, child: _Child, running: subprocess.Popen[bytes] | None = None) -> None:
        verb = "started" if child.process is None else "restarted"
        child.process = running or child.role.start()
        child.started_at, child.restart_at, child.ready = time.monotonic(), None, False
        for pipe in (child.process.stdout, child.process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, _Pipe(child))
        self._printer.event(child.role.name, f"{verb} (pid {child.process.pid})")

    def _read(self, pipe: IO[bytes], data: _Pipe) -> bool:
        """Pass on what stands in `pipe`; whether there may be more."""
        try:
            chunk = os.read(pipe.fileno(), CHUNK)
        except BlockingIOError:
            return False
        *lines, data.partial = (data.partial + chunk).split(b"\n")
        for line in lines:
            self._pass_on(data, line)
        if not chunk:
            self._close(pipe, data)
        return bool(chunk)

    def _close(self, pipe: IO[bytes], data: _Pipe) -> None:
        if data.partial:
            self._pass_on(data, data.partial)
        self._selector.unregister(pipe)
        pipe.close()

    def _pass_on(self, data: _Pipe, raw: bytes) -> None:
        child, line = data.child, raw.decode(errors="replace")
        self._printer.line(child.role.name, line)
        if not child.ready and child.role.ready is not None and child.role.ready in line:
            child.ready = child.was_ready = True
            self._printer.event(child.role.name, "ready")
            if not self._all_ready and all(c.ready or c.role.ready is None for c in self._children):
                self._all_ready = True
                self._printer.all_ready()

    def _reap(self, child: _Child) -> None:
        """Notice that a child ended, and plan its restart."""
        process = child.process
        if self._stopping or process is None or child.restart_at is not None or process.poll() is None:
            return
        self._finish(child)
        ending, now = describe_exit(process.returncode), time.monotonic()
        if (refusal := self._refusal_of(child, process.returncode)) is not None:
            self._refusal = process.returncode
            self._printer.event(child.role.name, f"{refusal} ({ending}), stopping")
            return
        child.quick_deaths = 0 if now - child.started_at >= STEADY_S else child.quick_deaths + 1
        delay = backoff(child.quick_deaths)
        child.restart_at = now + delay
        self._printer.event(child.role.name, f"died ({ending}), restarting in {delay:.1f} s")

    def _refusal_of(self, child: _Child, code: int) -> str | None:
        """What a child says by ending so, if to start it again cannot help."""
        if code in child.role.last_codes:
            return "refused to go on"
        return "refused its command line" if code == USAGE_ERROR and not child.was_ready else None

    def _restart_if_time(self, child: _Child) -> None:
        if not self._stopping and child.restart_at is not None and child.restart_at <= time.monotonic():
            self._start(child)

    def _finish(self, child: _Child) -> None:
        """Deal with what an ended child leaves: processes of its group, and output not read yet."""
        assert child.process is not None
        sweep(child.process)
        for key in list(self._selector.get_map().values()):
            if key.data is not None and key.data.child is child:
                while self._read(key.fileobj, key.data):  # type: ignore[arg-type]
                    pass
                if not key.fileobj.closed:  # type: ignore[union-attr]  # held by a process that escaped
                    self._close(key.fileobj, key.data)  # type: ignore[arg-type]

    def _ask_to_stop(self, child: _Child) -> None:
        """Once: a second SIGTERM means at once."""
        if child.process is not None and child.process.returncode is None and not child.asked_to_stop:
            child.asked_to_stop = True
            child.process.terminate()

    def _stop(self, child: _Child) -> None:
        """SIGTERM, SIGKILL at its deadline or at a second stop signal; meanwhile output is passed on."""
        process = child.process
        if process is None or process.returncode is not None:
            return
        self._ask_to_stop(child)
        deadline = time.monotonic() + child.role.stop_timeout_s
        while process.poll() is None and self._stop_requests < 2 and time.monotonic() < deadline:
            self._step(deadline)
        killed = process.poll() is None
        process.kill()
        code = process.wait()
        self._finish(child)
        ending = "stopped" if code in POLITE_ENDINGS else f"stopped ({describe_exit(code)})"
        self._printer.event(child.role.name, "killed" if killed else ending)
