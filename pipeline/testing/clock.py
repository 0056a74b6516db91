"""A store's clock that a test moves."""

from __future__ import annotations

from datetime import datetime

from pipeline.core.times import Duration, aware, instant_of, parse_duration, parse_instant


class FakeClock:
    """The time of the store, which stands until a test moves it. Implements `ports.Clock` as `store`."""

    def __init__(self, now: datetime | str = "2030-01-01T00:00:00Z") -> None:
        """InvalidInput('now') if it is naive or malformed."""
        self.store = StoreClock(_ms("now", now))

    def now(self) -> datetime:
        """Aware, in UTC."""
        return aware(self.store.ms)

    def advance(self, by: Duration) -> None:
        """Let time pass: `10m`, a timedelta, or seconds. InvalidInput('by')."""
        self.store.ms += parse_duration("by", by)

    def move_to(self, instant: datetime | str) -> None:
        """Make it that time, later or earlier. InvalidInput('instant')."""
        self.store.ms = _ms("instant", instant)


class StoreClock:
    """What the client and the worker see of it. `ms` = epoch ms."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now(self) -> int:
        return self.ms

    def monotonic(self) -> int:
        return self.ms

    def error(self) -> int:
        return 0

    def close(self) -> None:
        return


def _ms(field: str, instant: datetime | str) -> int:
    return instant_of(field, instant) if isinstance(instant, datetime) else parse_instant(field, instant)
