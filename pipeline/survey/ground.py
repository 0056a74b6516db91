"""Where a survey reads: the topics of an installation, and what it asks of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Scan


class Part(NamedTuple):
    """One partition of a work topic, and of the acks topic beside it."""

    queue: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An installation, to be read."""

    scan: Scan
    names: Names
    layout: Layout
