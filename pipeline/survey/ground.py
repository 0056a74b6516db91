"""Where a survey reads: the topics of an installation, and what it asks of the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.codec.registry import Codec
from pipeline.core.errors import Undecodable, UnknownFingerprint
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Scan


class Part(NamedTuple):
    """One partition of a work topic, and of the acks topic beside it."""

    queue: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An installation, to be read. `newer` counts, by topic, what could not be read since it is of a schema that was
    announced and is unknown here: what it says is not known, and must not be taken for nothing."""

    scan: Scan
    names: Names
    layout: Layout
    newer: Counter[str] = field(default_factory=Counter)

    def is_newer(self, codec: Codec[Any], value: bytes, topic: str) -> bool:
        """Whether these bytes, which could not be read, are of a newer version; if so they are counted."""
        if value.startswith(codec.frame):
            return False
        try:
            codec.decode(value)
        except UnknownFingerprint as unknown:
            newer = f"{unknown.fingerprint:016x}" in self.layout.fingerprints
            if newer:
                self.newer[topic] += 1
            return newer
        except Undecodable:
            return False
        return False
