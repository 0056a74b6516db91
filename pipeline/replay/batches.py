"""From runs as they stand on a work topic to the commands that ask for them once more (pure)."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.job import Command, ReplayBatch
from pipeline.core.layout import Layout
from pipeline.portion import REPLAY

BATCH_RUNS, BATCH_BYTES = 200, 512 * 1024
"""Of one command at most; a single run may be larger."""


class Found(NamedTuple):
    """A run that is to be replayed: its record's key and value, and whether it ended dead."""

    key: bytes
    value: bytes
    dead: bool


class Batch(NamedTuple):
    """Runs of one home partition."""

    home: int
    dead: bool
    values: list[bytes]


def batched(found: Iterable[Found], layout: Layout) -> tuple[list[Batch], int]:
    """Batches by home, and how many of `found` have none: whoever may append can put anything on a work topic."""
    gathered: dict[tuple[int, bool], list[bytes]] = {}
    homeless = 0
    for each in found:
        try:
            home = layout.home(each.key.decode())
        except (Undecodable, UnicodeDecodeError):
            homeless += 1
        else:
            gathered.setdefault((home, each.dead), []).append(each.value)
    return [
        Batch(home, dead, values)
        for (home, dead), all_values in gathered.items()
        for values in _pieces(all_values)
    ], homeless


def _pieces(values: list[bytes]) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size = 0
    for value in values:
        if piece and (len(piece) >= BATCH_RUNS or size + len(value) > BATCH_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += len(value)
    yield piece


def command_of(batch: Batch, queue: str, replay_id: str, requested_by: str) -> Command:
    """The command for a batch. The same batch of the same replay gives the same command: asked again within half an
    hour, its owner answers as it did."""
    told = hashlib.sha256(b"\0".join(batch.values)).hexdigest()
    return Command(
        command_id=str(uuid.uuid5(uuid.UUID(replay_id), f"{batch.home} {batch.dead} {told}")),
        verb=REPLAY,
        queue=queue,
        payload=codec.REPLAY_BATCH.encode(ReplayBatch(runs=tuple(batch.values), dead=batch.dead)),
        requested_by=requested_by,
        detail={REPLAY: replay_id},
    )
