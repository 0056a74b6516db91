"""Events of the owners as log lines: one JSON object each, always with an `action` and ids."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

JOB_LOGGER = "dueline.job"
QUIET = frozenset({"emitted", "acked", "transaction", "answered", "gauges"})
"""Happen many times a second; metrics count them, a log would drown in them."""


class JobLines(logging.Formatter):
    """What handlers say through `ctx.logger`, as lines like the events: with the ids of the attempt."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "action": "handler.log",
            "level": record.levelname,
            "handler": record.name.removeprefix(f"{JOB_LOGGER}."),
            **{name: getattr(record, name) for name in ("job", "run", "attempt") if hasattr(record, name)},
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_own: TextIO | None = None
"""Where our lines go while handlers of others run in this process; None = stderr, whatever that is."""


@contextmanager
def speaking_to(stream: TextIO) -> Iterator[None]:
    """Inside, our lines go there, and so does what libraries log of which nobody has said where to."""
    global _own
    before, last_resort = _own, logging.lastResort
    _own, logging.lastResort = stream, OwnHandler(logging.WARNING)
    try:
        yield
    finally:
        _own, logging.lastResort = before, last_resort


class OwnHandler(logging.StreamHandler[TextIO]):
    """Writes where our lines go at that moment."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        logging.Handler.__init__(self, level)

    @property  # the standard library's own last resort is made so
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr if _own is None else _own


def show_job_lines() -> None:
    """Show what handlers log from INFO on, unless the application has set up logging of its own."""
    logger = logging.getLogger(JOB_LOGGER)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = OwnHandler()
        handler.setFormatter(JobLines())
        logger.addHandler(handler)
        logger.propagate = False


def say(line: str) -> None:
    """Write a line to stderr. One that nobody takes (a full disk, a reader that is gone, a handler that closed the
    stream) is lost: no job may be for it, and metrics tell the same."""
    stream: TextIO | None = sys.stderr if _own is None else _own
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.write(line + "\n")
            stream.flush()


class LogEvents:
    """Writes each event to stderr. Implements `ports.Events`."""

    def __init__(self, role: str, slot: int | None = None) -> None:
        self._who = {"role": role} if slot is None else {"role": role, "slot": slot}

    def on(self, action: str, **fields: Any) -> None:
        if action in QUIET:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": now, **self._who, "action": action, **fields}
        say(json.dumps(line, default=str))
