"""What the doctor says: how bad it is, what it endangers, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum


class Severity(StrEnum):
    """The worst first."""

    ERROR = "error"
    """A promise is broken, or will be with the next fault: act now. The exit code is 1."""
    WARNING = "warning"
    """Nothing is broken yet: act before it is."""
    NOTE = "note"
    """Worth knowing, and normal on many a store."""


class Danger(Enum):
    """What a finding endangers: a promise by its number (README, "What is promised"), or what is no promise (0)."""

    LOST = 1, "no acknowledged job is lost, none fires early"
    ONCE = 2, "every due occurrence is emitted exactly once"
    STARTED = 3, "what finished is not started again, what runs is not started elsewhere"
    EFFECT = 4, "an effect happens once where key and token are checked"
    CLOCK = 6, "no clock of a client, dispatcher or worker makes a job early or late"
    ON_TIME = 0, "jobs fire, and their handlers start, on time"
    SIGHT = -1, "what is wrong here would be seen"

    @property
    def promise(self) -> int | None:
        return self.value[0] if self.value[0] > 0 else None

    @property
    def words(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. `subject` = the topic, group, process, broker or path it is about;
    `remedy` = the command that mends it, or what to do where no command can."""

    severity: Severity
    subject: str
    problem: str
    danger: Danger
    remedy: str


CUT = "see `Lost broker disk` in docs/runbook.md: dueline verify tells what is missing, dueline restore brings it back"
"""What to do about a log that lost records which were acknowledged."""


def listed(numbers: Iterable[int], *, most: int = 12) -> str:
    """Partitions in words: "0-3, 7", cut after `most` stretches."""
    stretches: list[list[int]] = []
    for number in sorted(set(numbers)):
        if stretches and stretches[-1][1] == number - 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in stretches]
    return ", ".join(words[:most]) + (" …" if len(words) > most else "")


def span(ms: int) -> str:
    """A length of time for a person: the largest unit of which there are at least two."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(ms) >= 2 * size:
            return f"{ms / size:.0f} {unit}"
    return f"{ms} ms"
