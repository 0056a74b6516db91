"""Where jobs stand in the lists, by handler and queue, and how many stand there.

Each pair of a handler and a queue has a shelf of its own while there are any left, so a page of a few jobs among
millions is found at once. Pairs that come later share the last shelf; what stands there stands once more under its
queue and under its handler. So a job costs one row, as long as there are not very many pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from pipeline.readmodel.rows import SHARED, Head, listed_key, listed_range, shared_key, shared_range
from pipeline.readmodel.words import HANDLER, OTHER, QUEUE


class Narrowed(NamedTuple):
    """What is wanted, as far as heads of rows tell: codes of statuses, numbers of handlers and of queues; None: any."""

    statuses: Set[int]
    handlers: Set[int] | None = None
    queues: Set[int] | None = None

    def has(self, head: Head) -> bool:
        return head.status in self.statuses and self.has_pair(head.handler, head.queue)

    def has_pair(self, handler: int, queue: int) -> bool:
        return (self.handlers is None or handler in self.handlers) and (
            self.queues is None or queue in self.queues
        )


class Stretch(NamedTuple):
    """Jobs of one status, one behind the other by due time and id."""

    status: int
    prefix: bytes
    """How their places begin, in front of the due time."""
    number: int
    exact: bool
    """Whether all of them are wanted."""


class Shelves:
    """Changed by the thread that folds, which also gives shelves to new pairs; any thread reads."""

    def __init__(self, told: dict[str, Any]) -> None:
        """`told`: what `told` said."""
        self._pairs: list[tuple[int, int]] = [(a, b) for a, b in told.get("pairs", ())]
        self._numbers = {pair: number for number, pair in enumerate(self._pairs)}
        self.jobs = _read(told.get("jobs", ()))
        """By status and shelf."""
        self.handlers, self.queues = _read(told.get("handlers", ())), _read(told.get("queues", ()))
        """Of those on the shared shelf: by status and handler, by status and queue."""

    def told(self) -> dict[str, Any]:
        counters = {"jobs": self.jobs, "handlers": self.handlers, "queues": self.queues}
        return {"pairs": self._pairs} | {
            name: [[*key, number] for key, number in counter.items()] for name, counter in counters.items()
        }

    # -- changing -----------------------------------------------------------------------------------------------

    def change(self, head: Head, id_: bytes, number: int) -> tuple[bytes, ...]:
        """Count one job more (1) or less (-1); the keys of its places."""
        _, status, handler, queue, *_ = head
        shelf = self._shelf(handler, queue)
        _add(self.jobs, (status, shelf), number)
        if shelf != SHARED:
            return (listed_key(head, shelf, id_),)
        _add(self.handlers, (status, handler), number)
        _add(self.queues, (status, queue), number)
        return (
            listed_key(head, SHARED, id_),
            shared_key(head, HANDLER, handler, id_),
            shared_key(head, QUEUE, queue, id_),
        )

    def _shelf(self, handler: int, queue: int) -> int:
        found = self._numbers.get((handler, queue))
        if found is not None:
            return found
        number = len(self._pairs)
        if number >= SHARED or OTHER in (handler, queue):  # whoever may append can make up any names
            return SHARED
        self._pairs.append((handler, queue))
        self._numbers[handler, queue] = number
        return number

    # -- asked --------------------------------------------------------------------------------------------------

    def total(self, statuses: Set[int]) -> int:
        """How many jobs there are of these statuses."""
        return sum(count for (status, _), count in _items(self.jobs) if status in statuses)

    def stretches(self, wanted: Narrowed) -> list[Stretch]:
        """Those in which all stand that are wanted, each once."""
        return [*self._own(wanted), *self._shared(wanted)]

    def _own(self, wanted: Narrowed) -> Iterator[Stretch]:
        for (status, shelf), count in _items(self.jobs):
            if shelf != SHARED and status in wanted.statuses and wanted.has_pair(*self._pairs[shelf]):
                yield Stretch(status, listed_range(status, shelf), count, exact=True)

    def _shared(self, wanted: Narrowed) -> list[Stretch]:
        """By queue or by handler: whichever are fewer."""
        _, handlers, queues = wanted
        if handlers is None and queues is None:
            return [
                Stretch(status, listed_range(status, SHARED), count, exact=True)
                for (status, shelf), count in _items(self.jobs)
                if shelf == SHARED and status in wanted.statuses
            ]
        ways = [
            [
                Stretch(status, shared_range(kind, status, number), count, others is None and number != OTHER)
                for (status, number), count in _items(counter)
                if status in wanted.statuses and number in numbers
            ]
            for kind, counter, numbers, others in (
                (QUEUE, self.queues, queues, handlers),
                (HANDLER, self.handlers, handlers, queues),
            )
            if numbers is not None
        ]
        return min(ways, key=_size)


def _size(stretches: list[Stretch]) -> int:
    return sum(each.number for each in stretches)


def _items(counter: Counter[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    """As it was when this began, while another thread changes it."""
    return ((key, counter[key]) for key in [*counter])


def _read(told: Any) -> Counter[tuple[int, int]]:
    return Counter({(a, b): number for a, b, number in told})


def _add(counter: Counter[tuple[int, int]], key: tuple[int, int], number: int) -> None:
    left = counter[key] + number
    if left:
        counter[key] = left
    else:
        del counter[key]
