"""The next instant of a schedule, beside croniter's own: `python bench/cron.py`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from time import process_time
from zoneinfo import ZoneInfo

from croniter import croniter

from pipeline.core.timing import TimingSpec, timing_of

ROUNDS = 5_000
START = datetime(2026, 1, 1, tzinfo=UTC)
CASES = [
    ("30 2 * * *", "UTC"),
    ("*/5 * * * *", "UTC"),
    ("30 2 * * *", "Europe/Berlin"),
    ("*/5 * * * *", "Europe/Berlin"),
]


def microseconds(step: Callable[[], object]) -> float:
    begin = process_time()
    for _ in range(ROUNDS):
        step()
    return (process_time() - begin) / ROUNDS * 1e6


def ours(expression: str, tz: str) -> Callable[[], object]:
    timing, at = timing_of(TimingSpec(cron=expression, tz=tz)), int(START.timestamp()) * 1000

    def step() -> None:
        nonlocal at
        at = timing.next_after(at) or 0

    return step


def main() -> None:
    for expression, tz in CASES:
        theirs = croniter(expression, START.astimezone(ZoneInfo(tz)))
        bare, own = microseconds(lambda it=theirs: it.get_next(datetime)), microseconds(ours(expression, tz))
        print(f"{expression:14} {tz:14} {own:6.1f} us, croniter {bare:6.1f} us, {own / bare:.2f}")
    month, begin = 30 * 86_400_000, int(START.timestamp()) * 1000
    for expression in ("* * * * *", "* * * * * *"):
        timing = timing_of(TimingSpec(cron=expression, tz="Europe/Berlin"))
        spent = microseconds(lambda of=timing: of.count(begin, begin + month))
        print(f"{expression:14} Europe/Berlin  {spent:6.1f} us for the number of instants in 30 days")


if __name__ == "__main__":
    main()
