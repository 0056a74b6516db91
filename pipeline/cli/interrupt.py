"""Ctrl-C and a polite stop, whatever becomes of them on their way.

Python raises an interrupt wherever it is. Inside a C library that calls Python, or is called with values to convert, it
may come out as another exception altogether (a client's constructor turned it into "TypeError: expected configuration
property name"). So that one came is remembered, and what follows from it is not told as a failure.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_came = False


def came() -> bool:
    """Whether this process was interrupted: what is being raised follows from that."""
    return _came


def remembered() -> None:
    """From now on Ctrl-C is remembered, if nobody else sees to it. In another thread than the main one: nothing."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def stoppable() -> None:
    """From now on SIGTERM takes the same way out as Ctrl-C. For the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _came
    _came = True
    raise KeyboardInterrupt
