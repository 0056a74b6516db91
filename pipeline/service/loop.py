"""The loop around `step`: the signals that end it, the watchdog that ends a hang, the rebuild after a fatal error."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Mapping
from random import Random
from types import FrameType

from pipeline.core.errors import DuelineError, RebuildClients, StoreUnreachable
from pipeline.core.retry import RetryPolicy, backoff
from pipeline.ports import Events

WATCHDOG_S = 60
"""A step never takes this long, not even beside a handler that holds the GIL for half a minute; a client call that
hangs does (librdkafka#5456). Past it the process ends and the group moves its partitions. The watchdog needs no GIL."""
REARM_S = 1.0
STDERR = 2
"""As a number: `sys.stderr` may be a handler's, who has put something without a descriptor there for a while."""
NAP_S = 0.05
LEAVING_MS = 500
"""Longest pause between two tries of a process that is told to end."""
REBUILD = RetryPolicy(base="200ms", cap="10s")


_USUAL: Mapping[int, Callable[[int, FrameType | None], object] | signal.Handlers] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
SAME_SIGNAL_S = 0.5
"""`timeout` and terminals send a signal to the process and once more to its group: that is one request."""


class Stop:
    """Set by the first SIGTERM or SIGINT; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self.since = 0.0
        """When it was, monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Sleep so long, but no longer than until it is requested: a signal alone does not end a sleep."""
        until = time.monotonic() + seconds
        while not self.requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, NAP_S))

    def listen(self) -> None:
        listen(self._on)

    def _on(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested and now - self.since > SAME_SIGNAL_S:
            if os.isatty(2):
                os.write(2, b"left at once: runs in flight start again on another worker\n")
            os._exit(128 + number)
        if not self.requested:
            self.requested, self.since = True, now


def listen(handle: Callable[[int, FrameType | None], None]) -> None:
    """Have SIGTERM and SIGINT handled in this process, and in no fork of it: a handler's `multiprocessing` ends its own
    processes by SIGTERM, and would wait for ever for one that has taken it for a wish to drain."""

    def forget() -> None:
        for number, usual in _USUAL.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, usual)

    for number in _USUAL:
        signal.signal(number, handle)
    os.register_at_fork(after_in_child=forget)


class Watchdog:
    """Ends the process with a traceback of all threads when it is not fed in time."""

    def __init__(self) -> None:
        self._fed = 0.0

    def feed(self) -> None:
        now = time.monotonic()
        if now - self._fed >= REARM_S:
            self._fed = now
            faulthandler.dump_traceback_later(WATCHDOG_S, exit=True, file=STDERR)

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def step_until(step: Callable[[int], int], done: Callable[[], bool]) -> None:
    """Call `step(patience)` with the wait it asked for, until `done`. The wait happens inside the step, in poll."""
    watchdog, patience = Watchdog(), 0
    try:
        while not done():
            watchdog.feed()
            patience = step(patience)
    finally:
        watchdog.stop()


def rebuilding(
    run_once: Callable[[], None],
    stop: Stop,
    events: Events,
    dismissed: Callable[[DuelineError], None] = lambda error: None,
    owes: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
) -> None:
    """Run until it returns; after a fatal client error, which `dismissed` is told, build everything anew in this
    process (H17). So too while the store cannot be reached: it was when this process started.

    Once `stop` is requested, only as long as this process `owes` anything, and for at most `patience_s` from then on:
    what was started before the clients died is still to be finished, or given back."""
    failures, random = 0, Random()
    while not stop.requested or (owes() and time.monotonic() < stop.since + patience_s):
        started = time.monotonic()
        try:
            run_once()
        except (RebuildClients, StoreUnreachable) as error:
            failures = 1 if time.monotonic() - started > 60 else failures + 1
            delay = backoff(REBUILD, failures, random)
            events.on("rebuild", reason=str(error), delay_ms=delay)
            dismissed(error)
            if stop.requested:
                time.sleep(min(delay, LEAVING_MS) / 1000)
            else:
                stop.sleep(delay / 1000)
        else:
            return
