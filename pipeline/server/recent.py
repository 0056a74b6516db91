"""Read your writes: where in the log what somebody wrote stands, so that what they read next can wait for it.

A write answers its positions in a header, which any server takes back; and a server remembers its own for some
seconds, so who talks to one server need not care.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.readmodel.questions import Position, Questions

HEADER = "Dueline-Position"
STALE = "Dueline-Stale"
WAIT_MS = 2_000
"""So long a read waits at most for the read model to hear of what was written."""
KEPT_S = 10.0
WRITERS, NAMES = 1_000, 10_000
"""Principals, and jobs and schedules, that are remembered at most."""
MOST = 256
"""Places in one header at most."""
_PLACE = re.compile(r"(jobs|events|meta)/([0-9]{1,5}):([0-9]{1,15})")

Places = dict[tuple[str, int], int]


class Recent:
    """What this server wrote of late. On the event loop only. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_writer: OrderedDict[str, tuple[float, Places]] = OrderedDict()
        # Plain tuples: the collector forgets those, and would walk ten thousand of any other kind again and again.
        self._by_name: OrderedDict[str, tuple[float, tuple[tuple[Any, ...], ...]]] = OrderedDict()

    def note(self, writer: str, positions: Sequence[Position], name: str | None = None) -> None:
        """`writer` wrote there, about the job or schedule `name`."""
        if not positions:
            return
        now = self._monotonic()
        since, places = self._by_writer.pop(writer, (now, {}))
        if now - since > KEPT_S:
            places = {}
        for topic, partition, offset in positions:
            places[topic, partition] = max(offset, places.get((topic, partition), -1))
        self._by_writer[writer] = (now, places)
        if name is not None:
            self._by_name.pop(name, None)
            self._by_name[name] = (now, tuple(tuple(position) for position in positions))
        for memory, most in ((self._by_writer, WRITERS), (self._by_name, NAMES)):
            if len(memory) > most:
                memory.popitem(last=False)

    def of_writer(self, writer: str) -> list[Position]:
        since, places = self._by_writer.get(writer, (0.0, {}))
        if self._monotonic() - since > KEPT_S:
            return []
        return [Position(topic, partition, offset) for (topic, partition), offset in places.items()]

    def of_name(self, name: str) -> tuple[Position, ...]:
        since, positions = self._by_name.get(name, (0.0, ()))
        return tuple(map(Position._make, positions)) if self._monotonic() - since <= KEPT_S else ()


async def heard(questions: Questions, positions: Iterable[Position], wait_ms: int | None = None) -> bool:
    """Whether the read model has heard of all of these, waiting at most so long, without blocking a thread."""
    missing = _missing(questions, positions)
    if not missing:
        return True
    loop, more = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(more.set)

    with questions.awaited(wake), suppress(TimeoutError):
        async with asyncio.timeout((WAIT_MS if wait_ms is None else wait_ms) / 1000):
            while missing := _missing(questions, missing):
                await more.wait()
                more.clear()
    return not missing


def _missing(questions: Questions, positions: Iterable[Position]) -> list[Position]:
    return [position for position in positions if not questions.wait_for(position, 0)]


def written(positions: Iterable[Position], prefix: str) -> str:
    """As a header."""
    return ", ".join(
        f"{topic.removeprefix(f'{prefix}.')}/{partition}:{offset}" for topic, partition, offset in positions
    )


def read_places(text: str, prefix: str) -> list[Position]:
    """InvalidInput naming the header."""
    parts = [part.strip() for part in text.split(",")]
    found = [_PLACE.fullmatch(part) for part in parts]
    if not all(found) or len(parts) > MOST:
        raise InvalidInput(HEADER, "is not what a write answered, such as jobs/5:1234")
    return [Position(f"{prefix}.{m[1]}", int(m[2]), int(m[3])) for m in found if m is not None]
