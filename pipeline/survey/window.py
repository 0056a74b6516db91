"""Which occurrences are meant: a window of due time, and a filter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from pipeline.core.errors import InvalidInput
from pipeline.core.names import check_name
from pipeline.core.times import format_instant
from pipeline.survey.seen import Seen, State

FAILED: Set[State] = frozenset({State.FAILED, State.DEAD})
"""DESIGN §9: failed includes dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of due time, epoch ms: `from_ms` belongs to it, `to_ms` does not."""

    from_ms: int
    to_ms: int

    def __contains__(self, at: int) -> bool:
        return self.from_ms <= at < self.to_ms


def window(from_ms: int, to_ms: int | None, now: int) -> Window:
    """From a user's words; `to_ms` None: until now, the store's clock in ms. InvalidInput naming `--from` or `--to` if
    it is reversed, empty, or reaches into the future, of which nobody can say what happened."""
    in_order(from_ms, to_ms)
    if from_ms >= now:
        raise InvalidInput("--from", f"{_at(from_ms)} is in the future: the store's clock says {_at(now)}")
    if to_ms is not None and to_ms > now:
        raise InvalidInput("--to", f"{_at(to_ms)} is in the future: the store's clock says {_at(now)}")
    return Window(from_ms=from_ms, to_ms=now if to_ms is None else to_ms)


def in_order(from_ms: int | None, to_ms: int | None) -> None:
    """What can be said of a window before the store's clock is asked. InvalidInput('--to') if it is reversed."""
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise InvalidInput("--to", f"{_at(to_ms)} is not after --from, {_at(from_ms)}")


_at = format_instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which occurrences; None and empty = any. `outcomes` are states, `failed` meaning `dead` too.

    InvalidInput if a name could not be one.
    """

    handler: str | None = None
    schedule: str | None = None
    queue: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key_prefix: str | None = None
    outcomes: Set[State] = frozenset()

    def __post_init__(self) -> None:
        for name in ("handler", "schedule", "queue"):
            if (text := getattr(self, name)) is not None:
                check_name(f"--{name}", text)

    @property
    def any_head(self) -> bool:
        """Whether nothing of what an occurrence is, is asked for; only how it ended."""
        return not self.labels and (self.handler, self.schedule, self.key_prefix) == (None, None, None)

    def matches_head(
        self, handler: str, schedule_id: str | None, key: str | None, labels: Mapping[str, str]
    ) -> bool:
        """Whether it is wanted by what it is; the queue is chosen by topic."""
        return (
            self.handler in (None, handler)
            and self.schedule in (None, schedule_id)
            and (self.key_prefix is None or (key is not None and key.startswith(self.key_prefix)))
            and self.labels.items() <= labels.items()
        )

    def matches(self, seen: Seen) -> bool:
        """Whether it is wanted, by what it is and how it ended."""
        return (
            self.queue in (None, seen.queue)
            and self.matches_head(seen.handler, seen.schedule_id, seen.key, seen.labels)
            and self.wants(seen.state)
        )

    def wants(self, state: State) -> bool:
        return (
            not self.outcomes or state in self.outcomes or (State.FAILED in self.outcomes and state in FAILED)
        )
