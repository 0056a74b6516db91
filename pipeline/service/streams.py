"""Standard output and error of a process that runs handlers: no handler can take them from the others, or from us.

`sys.stdout` and `sys.stderr` belong to everybody in a process. A handler that closes one, or leaves junk in its place,
would make the next `print` of another run fail, and with it that run; and what is said at the end, by the command or
by the interpreter that flushes both, would make the exit code of the worker that of a failure.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pipeline.service.log import speaking_to

LOOK_S = 1.0
"""How long a stream may be out of order before it is put back."""


class Lasting(io.TextIOWrapper):
    """A text stream over a descriptor that stays open: who closes it has flushed it."""

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.flush()


class _Place:
    """`sys.stdout` or `sys.stderr`, and the descriptor that it led to when it was whole."""

    def __init__(self, name: str) -> None:
        """OSError if it leads to no descriptor, as in a test; AttributeError if there is none."""
        stream = getattr(sys, name)
        stream.flush()
        self._name, self._fd = name, stream.fileno()
        self.spare = os.dup(self._fd)
        """Of our own, for what handlers do to the other."""
        self._encoding, self._errors = stream.encoding, stream.errors
        self._by_lines, self._at_once = stream.line_buffering, stream.write_through
        self.put_back()

    def put_back(self) -> None:
        binary = io.BufferedWriter(io.FileIO(self._fd, "w", closefd=False))
        stream = Lasting(
            binary, self._encoding, self._errors, line_buffering=self._by_lines, write_through=self._at_once
        )
        setattr(sys, self._name, stream)

    def mend(self) -> None:
        try:
            os.fstat(self._fd)
        except OSError:
            os.dup2(self.spare, self._fd)
        if not _usable(getattr(sys, self._name, None)):
            self.put_back()

    def end(self) -> None:
        """What stays goes where it went at the start, whatever a handler has left there."""
        self.mend()
        if not isinstance(getattr(sys, self._name), Lasting):
            self.put_back()
        os.close(self.spare)


def _usable(stream: object) -> bool:
    """Whether whoever prints would get through: by anything that takes text, as long as it is not closed."""
    try:
        stream.write("")  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
    except OSError:
        return True  # a full disk, a reader that is gone: the stream is what it was
    except Exception:  # noqa: BLE001 - junk may raise anything
        return False
    return True


@contextmanager
def lasting_streams() -> Iterator[Callable[[], None]]:
    """Inside, `sys.stdout` and `sys.stderr` cannot be closed, what handlers put in their place for longer is replaced
    every second, or when the function that this gives is called, and what we say ourselves goes by a descriptor of our
    own. Afterwards both are in order, for the command's answer. A stream that is none (closed before we were started,
    captured by a test) is left as it is."""
    places: dict[str, _Place] = {}
    for name in ("stdout", "stderr"):
        with suppress(OSError, AttributeError, ValueError):
            places[name] = _Place(name)

    def mend() -> None:
        for place in places.values():
            place.mend()

    with ExitStack() as stack:
        for place in places.values():
            stack.callback(place.end)
        if (errors := places.get("stderr")) is not None:
            own = os.fdopen(errors.spare, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
            stack.enter_context(speaking_to(stack.enter_context(own)))
        stack.enter_context(_every_second(mend))
        yield mend


@contextmanager
def _every_second(action: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(LOOK_S):
            action()

    thread = threading.Thread(target=repeat, name="streams", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
