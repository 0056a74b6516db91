"""Calls in a thread of their own. Such a thread keeps no process from ending, and may be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Apart:
    """A call under way, and what became of it. Implements `ports.Pending`."""

    __slots__ = ("_call", "_raised", "_thread")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._make, name="aside", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`, on the thread that asks
            self._raised = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Whether it was done within this time."""
        self._thread.join(seconds)
        return self.done()

    def result(self) -> None:
        """Wait for the end of the call; raises what it raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised
