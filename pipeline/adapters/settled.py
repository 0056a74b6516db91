"""What a handler came to, in a form that runs none of its code any more.

The text of an exception and the JSON of a result are made by the user's classes: a queryset in a message asks its
database, a lazy object computes. That belongs to the handler's own thread or task, where it holds up its own run;
the thread that owns the partitions must not wait for it.
"""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from pipeline.adapters.pool_wire import raised_error, raised_head
from pipeline.core.handler import (
    Cancel,
    Dead,
    Kept,
    RemoteError,
    Retry,
    Snooze,
    Stopped,
    TimedOut,
    encode_result,
    failure_of,
)

OUR_OWN = (Stopped, TimedOut)
VERBS = (Retry, Snooze, Cancel, Dead)


def settled(value: Any, error: BaseException | None) -> tuple[Any, BaseException | None]:
    """The same outcome as plain data: verbs and errors made anew, a result as its JSON."""
    try:
        if error is not None:
            return None, error if isinstance(error, OUR_OWN) else raised_error(raised_head(error))
        if isinstance(value, VERBS):
            return None, raised_error(raised_head(value))
        if isinstance(value, CoroutineType):
            return value, None  # told as what it is, and closed
        return Kept(encode_result(value)), None
    except BaseException as problem:  # noqa: BLE001 - whatever their objects do, the run has an outcome
        return None, RemoteError(failure_of(problem))
