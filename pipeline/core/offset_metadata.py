"""The text that a worker commits beside an offset: what it finished and started above it.

Grammar, meaning and examples: schemas/offset-metadata.md; vectors: schemas/vectors/offset-metadata.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pipeline.core.errors import StopPartition

BROKER_LIMIT = 4_096
"""Bytes of offset metadata that a broker takes (`offset.metadata.max.bytes`)."""
WINDOW_LIMIT = 3_500
"""Bytes that no start may be able to exceed: the rest is slack for a successor that begins with our text."""
WORKER_LIMIT = 80

_VERSION = "1"
_OFFSET_LIMIT = 1 << 63
_WORKER = re.compile(rf"[A-Za-z0-9._:/-]{{1,{WORKER_LIMIT}}}")
_N = r"(?:0|[1-9][0-9]{0,18})"
_P = r"[1-9][0-9]{0,18}"
_RUN = rf"{_P}\+{_P}"
_HOLDER = rf"{_P}@{_WORKER.pattern}"
_START = rf"{_N}\.{_N}(?:\.{_P})?"
_FORM = re.compile(
    rf"{_VERSION};({_N});((?:{_RUN}(?:,{_RUN})*)?);((?:{_HOLDER}(?:,{_HOLDER})*)?);((?:{_START}(?:,{_START})*)?)"
)


class Start(NamedTuple):
    """What is known of the starts of an unfinished run: how many, the latest one's token and worker."""

    starts: int
    token: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMetadata:
    """What stands above a committed offset.

    `finished` = (first, last) offsets of finished runs of records, ascending, never adjacent, all above the
    mark; `started` = unfinished offsets that were started, ascending, complete up to `acks_offset`.
    """

    acks_offset: int = 0
    finished: tuple[tuple[int, int], ...] = ()
    started: tuple[tuple[int, Start], ...] = ()


def check_start(start: Start) -> None:
    """ValueError if this start could not be written."""
    if not 0 < start.token < _OFFSET_LIMIT:
        raise ValueError(f"{start.token} is no token")
    if not _WORKER.fullmatch(start.worker):
        raise ValueError(f"worker {start.worker!r} does not match {_WORKER.pattern}")


def encode(mark: int, metadata: OffsetMetadata) -> str:
    """The one text of `metadata` beside the committed offset `mark`. ValueError if `decode` would refuse it:
    once committed, such a text stops every later owner of the partition."""
    text = _written(mark, metadata)
    if len(text) > BROKER_LIMIT or not _FORM.fullmatch(text) or not _consistent(mark, metadata):
        raise ValueError(f"{text[:120]!r} is no offset metadata")
    return text


def fits(mark: int, metadata: OffsetMetadata) -> bool:
    """Whether its text leaves a broker room for what little may be added before something is finished."""
    return len(_written(mark, metadata)) <= (WINDOW_LIMIT + BROKER_LIMIT) // 2


def _written(mark: int, metadata: OffsetMetadata) -> str:
    holders = sorted({(start.token, start.worker) for _, start in metadata.started})
    index = {holder: number for number, holder in enumerate(holders)}
    return ";".join(
        (
            _VERSION,
            str(metadata.acks_offset),
            ",".join(_written_runs(mark, metadata.finished)),
            ",".join(f"{token}@{worker}" for token, worker in holders),
            ",".join(_written_starts(mark, metadata.started, index)),
        )
    )


def decode(mark: int, text: str) -> OffsetMetadata:
    """What `text` says beside the committed offset `mark`; an empty text says nothing.

    StopPartition if it is of another version or not exactly what `encode` writes: a guess could start a
    finished run again.
    """
    if not text:
        return OffsetMetadata()
    version = text.split(";", 1)[0]
    if version != _VERSION:
        raise StopPartition(f"offset metadata has version {version[:20]!r}, this process knows {_VERSION!r}")
    form = _FORM.fullmatch(text) if len(text) <= BROKER_LIMIT else None
    if form is None:
        raise _malformed(text)
    acks, runs, holders, starts = form.groups()
    try:
        metadata = OffsetMetadata(
            acks_offset=int(acks),
            finished=tuple(_read_runs(mark, runs)),
            started=tuple(_read_starts(mark, starts, _read_holders(holders))),
        )
    except IndexError:
        raise _malformed(text) from None
    # Order, spelling and use of the holders are checked by writing it again.
    if not _consistent(mark, metadata) or _written(mark, metadata) != text:
        raise _malformed(text)
    return metadata


def _written_runs(mark: int, finished: tuple[tuple[int, int], ...]) -> Iterator[str]:
    base = mark
    for first, last in finished:
        yield f"{first - base}+{last - first + 1}"
        base = last + 1


def _written_starts(
    mark: int, started: tuple[tuple[int, Start], ...], index: dict[tuple[int, str], int]
) -> Iterator[str]:
    base = mark
    for offset, (starts, token, worker) in started:
        repeated = f".{starts}" if starts > 1 else ""
        yield f"{offset - base}.{index[token, worker]}{repeated}"
        base = offset


def _read_runs(mark: int, text: str) -> Iterator[tuple[int, int]]:
    base = mark
    for item in _items(text):
        gap, length = item.split("+")
        first = base + int(gap)
        base = first + int(length)
        yield first, base - 1


def _read_holders(text: str) -> list[tuple[int, str]]:
    pairs = (item.split("@") for item in _items(text))
    return [(int(token), worker) for token, worker in pairs]


def _read_starts(mark: int, text: str, holders: list[tuple[int, str]]) -> Iterator[tuple[int, Start]]:
    offset = mark
    for item in _items(text):
        delta, holder, *starts = item.split(".")
        offset += int(delta)
        yield offset, Start(int(starts[0]) if starts else 1, *holders[int(holder)])


def _items(text: str) -> list[str]:
    return text.split(",") if text else []


def _consistent(mark: int, metadata: OffsetMetadata) -> bool:
    offsets = [offset for offset, _ in metadata.started]
    numbers = [metadata.acks_offset, *(last for _, last in metadata.finished), *offsets]
    numbers += [start.token for _, start in metadata.started]
    runs = iter(metadata.finished)
    run = next(runs, None)
    for offset in offsets:
        while run is not None and run[1] < offset:
            run = next(runs, None)
        if run is not None and run[0] <= offset:
            return False
    return max(numbers) < _OFFSET_LIMIT and all(a < b for a, b in pairwise(offsets))


def _malformed(text: str) -> StopPartition:
    return StopPartition(f"offset metadata is malformed: {text[:120]!r}")
