"""Idempotency-Key: what may stand in it, and what was asked for under one, as far as this server has heard.

That a request is not done twice is the owners' doing, who know the ids of its commands whichever server sent them. What
is remembered here is only there to tell who sends another request under the same key.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.client.request import TEXT_LIMIT
from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable

HEADER = "Idempotency-Key"
LONGEST = TEXT_LIMIT // 2
"""UTF-8 bytes: of a job it becomes a part of the key."""
KEPT_S = 1_800.0
"""As long as owners remember the ids of commands."""
MOST = 10_000
"""Keys that are remembered at most."""

Scope = tuple[str, ...]


class Conflict(DuelineError):
    """This Idempotency-Key was used for another request: use a new one."""


def checked(key: str) -> str:
    """InvalidInput naming the header."""
    if not key or not key.isprintable() or len(key.encode("utf-8", "replace")) > LONGEST:
        raise InvalidInput(HEADER, f"must be 1 to {LONGEST} printable characters")
    return key


class Heard:
    """What was asked for under each key of late. On the event loop only. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked: OrderedDict[Scope, tuple[float, str]] = OrderedDict()

    @contextmanager
    def asking(self, scope: Scope, asked: object) -> Iterator[None]:
        """`scope`: who, where and the key; `asked`: what is JSON. What is refused inside leaves the key to the next.
        Conflict."""
        now, print_ = self._monotonic(), _print_of(asked)
        since, before = self._asked.get(scope, (now, None))
        known = before is not None and now - since <= KEPT_S
        if known and before != print_:
            raise Conflict(f"{HEADER}: it was used here for another request in the last half hour")
        self._asked[scope] = (since if known else now, print_)
        self._asked.move_to_end(scope)
        if len(self._asked) > MOST:
            self._asked.popitem(last=False)
        try:
            yield
        except DuelineError as error:
            if not known and not isinstance(error, StoreUnreachable):
                self._asked.pop(scope, None)
            raise


def _print_of(asked: object) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
