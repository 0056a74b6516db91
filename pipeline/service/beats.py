"""Heartbeats of a worker whose loop is busy: its handlers go on, and nobody may take it for dead (DESIGN §7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pipeline.core.errors import DuelineError
from pipeline.heartbeat import Pulse
from pipeline.ports import Clock

LOOK_S = 0.25


@contextmanager
def repeated(pulses: Sequence[Pulse], clock: Clock) -> Iterator[None]:
    """Repeat the last heartbeat of each of these while inside, as long as its loop is late with the next. A loop that
    hangs for good is ended by the watchdog."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            for pulse in pulses:
                with suppress(DuelineError):  # the loop hears of it too, and decides
                    pulse.repeat(clock.monotonic())

    thread = threading.Thread(target=look, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
