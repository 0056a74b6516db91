"""`--queue Q[:weight]`: how the runs that a worker executes at a time are shared out among its queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.core.errors import InvalidInput
from pipeline.core.names import check_name

HEAVIEST = 1_000


def parse_queues(texts: Iterable[str]) -> dict[str, int]:
    """Weights by queue; a queue without one weighs 1. InvalidInput('--queue') for a malformed one or a repetition."""
    weights: dict[str, int] = {}
    for text in texts:
        name, colon, weight = text.partition(":")
        if name in weights:
            raise InvalidInput("--queue", f"{name!r} is given twice")
        weights[check_name("--queue", name)] = _weight(text, weight) if colon else 1
    return weights


def _weight(text: str, weight: str) -> int:
    if not weight.isascii() or not weight.isdigit() or not 1 <= int(weight[:9]) <= HEAVIEST:
        raise InvalidInput("--queue", f"{text!r}: a weight is a whole number from 1 to {HEAVIEST}")
    return int(weight)


def shares(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """`total` shared out by weight, rounded by largest remainder; each queue gets one at least, even if that makes
    more than `total`."""
    whole = sum(weights.values())
    exact = {queue: total * weight / whole for queue, weight in weights.items()}
    given = {queue: max(1, int(share)) for queue, share in exact.items()}
    by_remainder = sorted(exact, key=lambda queue: int(exact[queue]) - exact[queue])
    for queue in by_remainder[: max(0, total - sum(given.values()))]:
        given[queue] += 1
    return given
