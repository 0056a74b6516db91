"""How many jobs a second may be emitted: of a backlog, and to a queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|m|h))?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Jobs a second for the whole installation; each owner takes the share of the partitions it owns."""

    catchup: float | None = None
    """Of overdue jobs. None: as fast as the log takes them."""
    queues: Mapping[str, float] = field(default_factory=dict)
    """Of the runs emitted to a queue."""


def parse_rate(value: object) -> float:
    """Jobs a second: a number, or text such as `100`, `100/s`, `30/m`, `0.5/h`. ValueError if it is none, or zero."""
    match = _RATE.fullmatch(str(value).strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{value!r} is no rate: say how many jobs a second, such as 100, 100/s or 30/m")
    return float(match[1]) / _SECONDS[match[2]]
