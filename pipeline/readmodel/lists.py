"""Lists: which rows match, in which order, and where a page goes on."""

from __future__ import annotations

import base64
import hashlib
import heapq
import hmac
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, NamedTuple

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Run
from pipeline.readmodel import tale as tales
from pipeline.readmodel.body import unpack
from pipeline.readmodel.counts import figures_of
from pipeline.readmodel.questions import Count, JobsWanted
from pipeline.readmodel.rows import (
    BASE,
    CODES,
    HOUR,
    JOB,
    KEYED,
    MINUTE,
    OCCURRENCE,
    STATUSES,
    Head,
    after,
    due_bytes,
    head_of,
    hour_key,
    minute_of,
)
from pipeline.readmodel.shelves import Narrowed, Shelves, Stretch
from pipeline.readmodel.tale import Tale
from pipeline.readmodel.words import HANDLER, QUEUE, Words

BUDGET, LEAST = 20_000, 1_000
"""Rows that are looked at for one page at most, and at least however long that takes: each page gets somewhere."""
BUDGET_S = 0.2
"""And for how long."""
COUNTED, COUNTED_S = 200_000, 0.5
"""The same for a count."""
MOST_KEYS = 2_000
"""Jobs that are sorted for one page because their keys begin alike; more are looked for among all."""
MOST_HOURS = 5_000
MOVING = frozenset(CODES[status] for status in STATUSES if status not in tales.ENDED)
"""Statuses that jobs leave."""
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
CHUNK = 64
FAR = b"\xff" * 8
SEAL = 12
"""Bytes of a cursor that nobody can guess."""
ORDERS = ("due", "-due")


class Found(NamedTuple):
    """A row that matches."""

    id: str
    tale: Tale
    place: bytes
    """Where it stands in the order: its due time and id."""


class Cursor:
    """Where a list goes on, as text that only servers of this store can read or write: it may name a row that whoever
    asks must not see. Sealed with a synthetic nonce (as RFC 5297): a MAC of the place, which the mask comes from."""

    def __init__(self, field: str, what: object, secret: bytes) -> None:
        """`field`: what a wrong one is called. `what`: what is listed; of another list it is none. `secret`: the same
        in all servers of the store, and not told to their clients."""
        self._field = field
        self._key = hashlib.sha256(secret + json.dumps(what, sort_keys=True, default=str).encode()).digest()

    def written(self, place: bytes) -> str:
        seal = self._seal(place)
        return base64.urlsafe_b64encode(seal + self._masked(seal, place)).decode().rstrip("=")

    def read(self, cursor: str | None, within: bytes = b"") -> bytes | None:
        """The place, which begins with `within`; None: the beginning. InvalidInput if it is none of this list."""
        if cursor is None:
            return None
        try:
            found = base64.urlsafe_b64decode(cursor.encode("ascii") + b"==")
        except ValueError:
            raise InvalidInput(self._field, "is none that a page of ours came with") from None
        seal, place = found[:SEAL], self._masked(found[:SEAL], found[SEAL:])
        if not (hmac.compare_digest(seal, self._seal(place)) and place.startswith(within)):
            raise InvalidInput(self._field, "is of another list: ask without it")
        return place

    def _seal(self, place: bytes) -> bytes:
        return hmac.digest(self._key, place, "sha256")[:SEAL]

    def _masked(self, seal: bytes, text: bytes) -> bytes:
        mask = hashlib.shake_256(self._key + seal).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, mask, strict=True))


def asked(wanted: JobsWanted) -> list[Any]:
    """What a list of jobs is, for its cursor."""
    return [
        sorted(wanted.statuses), wanted.handler, wanted.queue, wanted.schedule, sorted(wanted.labels.items()),
        wanted.key, wanted.key_prefix, wanted.due_from, wanted.due_to, wanted.text, wanted.order,
        queues_asked(wanted.queues),
    ]  # fmt: skip


def queues_asked(queues: frozenset[str] | None) -> list[str] | None:
    """As part of a cursor's list."""
    return None if queues is None else sorted(queues)


def check(wanted: JobsWanted, limit: int, most: int) -> None:
    """InvalidInput naming what makes no sense."""
    if wanted.order not in ORDERS:
        raise InvalidInput("order", f"{wanted.order!r:.40} is none of {', '.join(ORDERS)}")
    if not 1 <= limit <= most:
        raise InvalidInput("limit", f"{limit} is not within 1 to {most}")


class JobList:
    """The rows of jobs in order of due time. Any thread: it reads what is written, and rows that change meanwhile
    are shown as they have become, if they still match."""

    def __init__(self, rows: RocksRows, words: Words, shelves: Shelves) -> None:
        self._rows, self._words, self._shelves = rows, words, shelves

    def page(
        self, wanted: JobsWanted, limit: int, start: bytes | None
    ) -> tuple[list[Found], bytes | None, int]:
        """Up to `limit` that match behind `start`, where to go on, and how many were looked at."""
        found: list[Found] = []
        scanned, last = 0, start
        deadline = time.monotonic() + BUDGET_S
        narrowed = self._narrowed(wanted)
        places = self._places(wanted, self._shelves.stretches(narrowed), start)
        while chunk := [*islice(places, CHUNK)]:
            rows = self._rows.get_all([JOB + place[8:] for place in chunk])
            for place, row in zip(chunk, rows, strict=True):
                scanned += 1
                last = place
                if row is not None and (match := self._match(wanted, narrowed, place, row)) is not None:
                    found.append(match)
                    if len(found) == limit:
                        return found, last, scanned
            if scanned >= BUDGET or (scanned >= LEAST and time.monotonic() > deadline):
                return found, last, scanned
        return found, None, scanned

    def count(self, wanted: JobsWanted, at_most: int) -> Count:
        """As `Questions.count`."""
        narrowed = self._narrowed(wanted)
        stretches = self._shelves.stretches(narrowed)
        exact = not _by_body(wanted) and all(each.exact for each in stretches)
        if exact and wanted.due_from is wanted.due_to is None:
            return Count(sum(each.number for each in stretches), capped=False)
        deadline = time.monotonic() + COUNTED_S
        places, number, scanned = self._places(wanted, stretches, None), 0, 0
        while chunk := [*islice(places, CHUNK * 16)]:
            scanned += len(chunk)
            if exact:
                number += len(chunk)
            else:
                rows = self._rows.get_all([JOB + place[8:] for place in chunk])
                both = zip(chunk, rows, strict=True)
                number += sum(
                    row is not None and self._match(wanted, narrowed, place, row) is not None
                    for place, row in both
                )
            if number >= at_most:
                return Count(at_most, capped=next(places, None) is not None or number > at_most)
            if scanned >= COUNTED or time.monotonic() > deadline:
                return Count(number, capped=next(places, None) is not None)
        return Count(number, capped=False)

    # -- what is looked at ------------------------------------------------------------------------------------

    def _narrowed(self, wanted: JobsWanted) -> Narrowed:
        queues = wanted.queues
        if wanted.queue is not None:
            queues = frozenset({wanted.queue}) & (queues if queues is not None else {wanted.queue})
        return Narrowed(
            {CODES[status] for status in wanted.statuses or STATUSES},
            None if wanted.handler is None else self._numbers(HANDLER, {wanted.handler}),
            None if queues is None else self._numbers(QUEUE, queues),
        )

    def _numbers(self, kind: bytes, words: Set[str]) -> frozenset[int]:
        found = (self._words.wanted(kind, word) for word in words)
        return frozenset(number for number in found if number is not None)

    def _places(
        self, wanted: JobsWanted, stretches: Sequence[Stretch], start: bytes | None
    ) -> Iterator[bytes]:
        """Where what may match stands, behind `start`, in order: due time and id."""
        few = self._few(wanted)
        if few is not None:
            backwards = wanted.order == "-due"
            few.sort(reverse=backwards)
            return iter([p for p in few if start is None or (p < start if backwards else p > start)])
        if wanted.schedule is not None:
            prefix = OCCURRENCE + wanted.schedule.encode("utf-8", "surrogatepass") + b"\0"
            return self._stretch(prefix, wanted, start)
        first = self._first_due({each.status for each in stretches}, wanted)
        runs = [self._stretch(each.prefix, wanted, start, first.get(each.status, 0)) for each in stretches]
        return runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=wanted.order == "-due")

    def _first_due(self, statuses: set[int], wanted: JobsWanted) -> Mapping[int, int]:
        """No job of a status stands before this time, by code: to the minute, as the counts tell. In front of it lie
        the graves of all that has gone on, thousands a minute, and a search would walk them."""
        left, found = statuses & MOVING, dict[int, int]()
        begin = hour_key(minute_of(wanted.due_from or 0))
        for hour, value in islice(self._rows.scan(begin, after(HOUR)) if left else (), MOST_HOURS):
            figures = figures_of(value)
            for status in [status for status in left if figures[status - 1]]:
                left.discard(status)
                found[status] = self._first_minute(int.from_bytes(hour[1:], "big"), status)
            if not left:
                break
        return found

    def _first_minute(self, hour: int, status: int) -> int:
        """The first minute of an hour in which there is one, as an instant."""
        begin, end = (MINUTE + (n * 60).to_bytes(4, "big") for n in (hour, hour + 1))
        for key, value in self._rows.scan(begin, end):
            if figures_of(value)[status - 1]:
                return int.from_bytes(key[1:], "big") * MINUTE_MS
        return hour * HOUR_MS

    def _stretch(
        self, prefix: bytes, wanted: JobsWanted, start: bytes | None, first: int = 0
    ) -> Iterator[bytes]:
        low = prefix + due_bytes(max(wanted.due_from or 0, first))
        high = after(prefix) if wanted.due_to is None else prefix + due_bytes(wanted.due_to)
        size = len(prefix)
        if wanted.order == "-due":
            if start is not None:
                high = min(high, prefix + start)
            return (key[size:] for key, _ in self._rows.scan_back(low, high)) if low < high else iter(())
        if start is not None:
            low = max(low, prefix + start + b"\0")
        return (key[size:] for key, _ in self._rows.scan(low, high)) if low < high else iter(())

    def _few(self, wanted: JobsWanted) -> list[bytes] | None:
        """Where those stand of which an id is told, or how the key begins; None: they may be too many to be sorted."""
        if wanted.text is not None and (id_ := self._named(wanted.text)) is not None:
            ids = [id_]
        elif (begins := wanted.key if wanted.key is not None else wanted.key_prefix) is not None:
            prefix = KEYED + begins.encode("utf-8", "surrogatepass") + (b"" if wanted.key is None else b"\0")
            keys = [key for key, _ in islice(self._rows.scan(prefix, after(prefix)), MOST_KEYS + 1)]
            if len(keys) > MOST_KEYS:
                return None
            ids = [key[key.rindex(b"\0") + 1 :] for key in keys]
        else:
            return None
        rows = self._rows.get_all([JOB + id_ for id_ in ids])
        return [
            due_bytes(head_of(row).due_at) + id_
            for id_, row in zip(ids, rows, strict=True)
            if row is not None
        ]

    def _named(self, text: str) -> bytes | None:
        """The occurrence that a whole id means; None: it is none, and so may be part of one."""
        try:
            parsed = parse_id(text)
        except Undecodable:
            return None
        base = isinstance(parsed, KeyedId) and parsed.incarnation is None
        value = self._rows.get(BASE + text.encode()) if base else None
        return text.encode() if value is None else f"{text}.{json.loads(value)[1]}".encode()

    # -- whether it matches -----------------------------------------------------------------------------------

    def _match(self, wanted: JobsWanted, narrowed: Narrowed, place: bytes, row: bytes) -> Found | None:
        head = head_of(row)
        if not (narrowed.has(head) and _is_due(wanted, head) and due_bytes(head.due_at) == place[:8]):
            return None
        id_ = place[8:].decode()
        if wanted.schedule is not None and tales.schedule_of(id_) != wanted.schedule:
            return None
        found = unpack(id_, row, self._words)
        shown = found.story().shown
        if not _is_of(wanted, found.queue if shown is None else shown.queue):
            return None
        keyed = wanted.key is not None or wanted.key_prefix is not None
        if shown is None and (wanted.labels or keyed or wanted.handler):
            return None
        if shown is not None and not _run_matches(wanted, shown, id_):
            return None
        if shown is None and wanted.text is not None and wanted.text not in id_:
            return None
        return Found(id_, found, place)


def _is_due(wanted: JobsWanted, head: Head) -> bool:
    return (wanted.due_from is None or head.due_at >= wanted.due_from) and (
        wanted.due_to is None or head.due_at < wanted.due_to
    )


def _is_of(wanted: JobsWanted, queue: str) -> bool:
    """By name: queues without a number of their own have the same one."""
    return wanted.queue in (None, queue) and (wanted.queues is None or queue in wanted.queues)


def _by_body(wanted: JobsWanted) -> bool:
    """Whether more is wanted than what the head of a row tells."""
    keyed = wanted.key is not None or wanted.key_prefix is not None
    return keyed or bool(wanted.schedule or wanted.labels or wanted.text)


def _run_matches(wanted: JobsWanted, run: Run, id_: str) -> bool:
    text = wanted.text
    return (
        wanted.handler in (None, run.handler)
        and wanted.labels.items() <= run.labels.items()
        and wanted.key in (None, run.key)
        and (wanted.key_prefix is None or (run.key is not None and run.key.startswith(wanted.key_prefix)))
        and (text is None or text in id_ or text in run.handler or text in (run.key or ""))
    )


def page_of(
    items: Iterable[tuple[bytes, Any]], limit: int, keep: Callable[[Any], bool] = lambda _: True
) -> tuple[list[Any], bytes | None, int]:
    """The first that are wanted of some rows, where to go on, and how many were looked at."""
    found: list[Any] = []
    scanned, deadline = 0, time.monotonic() + BUDGET_S
    for key, item in items:
        scanned += 1
        if keep(item):
            found.append(item)
        over = scanned >= BUDGET or (scanned >= LEAST and time.monotonic() > deadline)
        if len(found) == limit or over:
            return found, key, scanned
    return found, None, scanned
