"""How long something of many steps may go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Allowed:
    """Until a deadline, or until nobody waits for it any more: then it ends between two steps. Any thread.

    `with` ends it: a thread cannot be cancelled, but it can look.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + seconds
        self.seconds = seconds

    @property
    def left_ms(self) -> int:
        return max(round((self._until - self._monotonic()) * 1000), 0)

    @property
    def over(self) -> bool:
        return self.left_ms == 0

    def end(self) -> None:
        self._until = self._monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
