"""Topic, group and transactional-id names of one installation (DESIGN §1, §3, §7)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pipeline.core.errors import InvalidInput

NAME = re.compile(r"[a-z0-9._-]{1,80}")


@lru_cache(maxsize=4096)
def legal(name: str) -> bool:
    """Whether it may be the name of a handler, queue or schedule; remembered, since the same few come over and over."""
    return NAME.fullmatch(name) is not None


def check_name(field: str, name: str) -> str:
    """`name` itself if it is a legal handler, queue or schedule name; InvalidInput naming `field` otherwise."""
    if not NAME.fullmatch(name):
        raise InvalidInput(field, f"{name!r} does not match [a-z0-9._-]{{1,80}}")
    return name


@dataclass(frozen=True, slots=True)
class Names:
    """Every name derived from the prefix, which is the namespace of an installation."""

    prefix: str = "dueline"

    @property
    def jobs(self) -> str:
        return f"{self.prefix}.jobs"

    @property
    def dead(self) -> str:
        return f"{self.prefix}.dead"

    @property
    def events(self) -> str:
        return f"{self.prefix}.events"

    @property
    def fleet(self) -> str:
        return f"{self.prefix}.fleet"

    @property
    def meta(self) -> str:
        return f"{self.prefix}.meta"

    def work(self, queue: str) -> str:
        return f"{self.prefix}.work.{queue}"

    def acks(self, queue: str) -> str:
        return f"{self.prefix}.acks.{queue}"

    @property
    def dispatcher_group(self) -> str:
        return f"{self.prefix}.dispatcher"

    def worker_group(self, queue: str) -> str:
        return f"{self.prefix}.worker.{queue}"

    def owns(self, topic: str) -> bool:
        """Whether a topic is one of this installation's own."""
        return topic.startswith(f"{self.prefix}.")

    def transactional_id(self, role: str, instance: str, slot: int, n: int) -> str:
        return f"{self.prefix}.{role}.{instance}.{slot}.{n}"
