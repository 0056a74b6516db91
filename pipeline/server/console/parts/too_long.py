"""What stands in a field and could not be sent: nothing may be done with what stood there before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from pipeline.core.errors import InvalidInput


class TooLong(InvalidInput):
    """The browser says so beside the field."""


def unless_too_long(act: Callable[[], Any]) -> Any:
    """What `act` answers; where it looks at a field that is too long it ends there, and that is all: who pressed the
    button has been told."""
    try:
        answer = act()
    except TooLong:
        return None
    return _awaited(answer) if isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except TooLong:
        return None
