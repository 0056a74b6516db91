"""What is said through `logging`: one JSON object a line like the events, whoever says it and whatever it says, and no
more of the same than anybody reads.

Libraries log what a client has sent, raw and as often as it sends that; some bring handlers of their own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.ports import Events

OWN_HANDLERS = ("engineio.server", "socketio.server")
"""Loggers that are given one that writes as it likes, unless their level is set when they are first used."""
SAME, SAME_S = 20, 60.0
"""Lines that one place in a program has told within so many seconds; of more only the number is told, afterwards."""
MESSAGE, TRACE = 1_000, 8_000
"""Characters of a message, and of a trace from its end."""


class _Told:
    """Of one place: since when (s) it is counted, how many lines came, how many were left out before."""

    __slots__ = ("came", "left_out", "since")

    def __init__(self, since: float, left_out: int) -> None:
        self.since = since
        self.came = 0
        self.left_out = left_out


class Lines(logging.Handler):
    """Tells records as events. `monotonic` in seconds."""

    def __init__(self, events: Events, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._events = events
        self._monotonic = monotonic
        self._told: dict[tuple[str, int], _Told] = {}

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self._admitted(record.pathname, record.lineno)
        if left_out is None:
            return
        fields: dict[str, Any] = {"left_out": left_out} if left_out else {}
        if record.exc_info and record.exc_info[0] is not None:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)[-TRACE:]
        self._events.on(
            getattr(record, "action", "log"),
            level=record.levelname.lower(),
            logger=record.name,
            message=_message(record)[:MESSAGE],
            **fields,
        )

    def _admitted(self, path: str, line: int) -> int | None:
        """How many of this place were left out before this one; None: this one is, too."""
        now = self._monotonic()
        told = self._told.get((path, line))
        if told is None or now - told.since >= SAME_S:
            left_out = 0 if told is None else max(told.came - SAME, 0)
            told = self._told[path, line] = _Told(now, left_out)
        told.came += 1
        if told.came > SAME:
            return None
        return told.left_out if told.came == 1 else 0


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 -- a library's mistake in its own line must not cost us the line
        return str(record.msg)


@contextmanager
def told(events: Events) -> Iterator[None]:
    """Inside, all that is logged, warned of, or raised where nobody catches it is told there, and nowhere else."""
    root, log = logging.getLogger(), logging.getLogger(__name__)
    handler = Lines(events)
    for name in OWN_HANDLERS:
        logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger(name).handlers.clear()
    root.addHandler(handler)
    before = threading.excepthook, sys.unraisablehook

    def of_a_thread(raised: threading.ExceptHookArgs) -> None:
        name = "?" if raised.thread is None else raised.thread.name
        log.error("thread %s ended", name, exc_info=raised.exc_value)

    def of_nobody(raised: Any) -> None:
        log.error("%s", raised.err_msg or "raised where nobody can catch it", exc_info=raised.exc_value)

    threading.excepthook, sys.unraisablehook = of_a_thread, of_nobody
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook, sys.unraisablehook = before
        root.removeHandler(handler)
