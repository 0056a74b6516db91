"""How much of a window the topics still hold."""

from __future__ import annotations

from pipeline.core.errors import InvalidInput
from pipeline.core.times import format_instant
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.survey.ground import Ground, Part
from pipeline.survey.reading import parts
from pipeline.survey.window import Filter, Window


def check_kept(ground: Ground, window: Window, wanted: Filter, now: int) -> int | None:
    """Up to which instant records of the window may be gone, epoch ms; None: all are there. InvalidInput('--from') if
    nothing of it is left. `now` is the store's clock, in ms."""
    ends = [_gone_until(ground, part, now) for part in parts(ground, wanted)]
    gone = max((end for end in ends if end is not None), default=window.from_ms)
    if gone <= window.from_ms:
        return None
    if gone >= window.to_ms:
        raise InvalidInput(
            "--from",
            f"all of the window is gone: what was due before {format_instant(gone)} is no longer kept on"
            f" {ground.names.prefix}.work.*",
        )
    return gone


def _gone_until(ground: Ground, part: Part, now: int) -> int | None:
    """What was appended before is no longer there; None: everything that ever was is."""
    topic, number = ground.names.work(part.queue), part.partition
    low, _, end = ground.scan.span(topic, number)
    if not low:
        return None
    for batch in ground.scan.batches(topic, number, low, end):
        return batch[0].timestamp()[1]
    return now - WORK_RETENTION_MS
