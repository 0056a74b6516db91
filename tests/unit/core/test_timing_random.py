"""Expressions, choices and exclusions drawn at random around the nights on which clocks change, against a walk over
every second or minute (second_walk)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from pipeline.core.errors import InvalidSchedule
from pipeline.core.timing import preview
from pipeline.core.zones import zone_of

from .minute_walk import transitions
from .second_walk import BOUNDS, Choices, instants

HOUR, NEVER = 3600, 1 << 40
ZONES = {
    "America/New_York": 2026, "Europe/Berlin": 2026, "Australia/Lord_Howe": 2026, "Pacific/Apia": 2011,
    "Pacific/Chatham": 2026, "Africa/Casablanca": 2026, "Asia/Tehran": 2021, "Antarctica/Troll": 2026,
}  # fmt: skip
"""And a year in which their clocks changed."""


def item(draw: Random, at: int) -> str:
    low, high = BOUNDS[at]
    one, other = draw.randint(low, high), draw.randint(low, high)
    step = draw.choice(("", f"/{draw.randint(2, 20)}"))
    every, from_, both = draw.choice((2, 3, 7, 10, 15, 20, 30)), draw.randint(1, 20), f"{one},{other}"
    forms = ["*", f"*/{every}", f"{one}", f"{one}/{from_}", both]
    return draw.choice(forms + ([f"{one}-{other}{step}"] * 2 if one != other else []))


def expression(draw: Random, hours: list[int], night: datetime, seconds: bool) -> str:
    """One whose hours and days are mostly those of that night."""
    some = ",".join(map(str, sorted(draw.sample(hours, 2))))
    hour = draw.choice((str(draw.choice(hours)), some, item(draw, 2), "*"))
    day, weekday, which = night.day, night.isoweekday() % 7, (night.day - 1) // 7 + 1
    days = (
        "*",
        "*",
        "*",
        "*",
        "?",
        "L",
        "LW",
        f"{day}W",
        "31W",
        "20-L",
        "*/2",
        f"{day}",
        "28-3",
        item(draw, 3),
    )
    weekdays = (
        "*",
        "*",
        "*",
        "*",
        "?",
        f"{weekday}#{which}",
        f"{weekday}#{which % 5 + 1}",
        f"L{weekday}",
        "1-5",
        "5-1",
    )
    month = draw.choice(("*", "*", item(draw, 4)))
    fields = [item(draw, 1), hour, draw.choice(days), month, draw.choice(weekdays)]
    return " ".join([item(draw, 0), *fields] if seconds else fields)


def rules_of(draw: Random, hours: list[int], night: datetime) -> list[str]:
    day = night.date()
    some = (
        [str(day)],
        [f"{day - timedelta(days=1)}..{day}", "cron:*/2 * * * 0"],
        ["cron:0-29 * * * *"],
        [f"cron:* {min(hours)} * * *"],
        [f"cron:{draw.randint(0, 59)} {draw.choice(hours)} L * *", f"cron:* * * * {draw.randint(0, 6)}"],
    )
    return draw.choice(some) if draw.random() < 0.4 else []


def case(draw: Random, name: str, seconds: bool) -> tuple[str, int, int, Choices]:
    zone = zone_of(name).info
    changes = transitions(zone, ZONES[name], ZONES[name])
    night = draw.choice(changes)[0]
    at, span = round(night.timestamp()), (2 if seconds else 30) * HOUR
    hours = sorted({(night + timedelta(hours=n)).astimezone(zone).hour for n in range(-2, 3)})
    begin = at + draw.choice((-draw.randint(1, span), draw.randint(-2 * HOUR, 2 * HOUR)))
    choices = Choices(
        gap=draw.choice(("run_after", "skip")),
        overlap=draw.choice(("first", "both")),
        rules=rules_of(draw, hours, night.astimezone(zone)),
        start=draw.choice((0, at + draw.randint(-HOUR, HOUR))),
        end=draw.choice((NEVER, at + draw.randint(HOUR + 1, span))),
    )
    return expression(draw, hours, night.astimezone(zone), seconds), begin, max(begin, at + span), choices


def shown(text: str, name: str, begin: int, end: int, choices: Choices, number: int) -> list[int] | None:
    """What the preview says of (begin, end), in seconds; None: that it would never run at all."""
    start = datetime.fromtimestamp(choices.start, UTC) if choices.start else None
    until = datetime.fromtimestamp(choices.end, UTC) if choices.end < NEVER else None
    policy = {"dst_gap": choices.gap, "dst_overlap": choices.overlap, "exclude": {"x": choices.rules}}
    after = datetime.fromtimestamp(begin, UTC)
    try:
        found = preview(text, tz=name, after=after, count=number, **policy, start=start, end=until)
    except InvalidSchedule:
        return None
    return [at for each in found if (at := round(each.timestamp())) < end]


@pytest.mark.parametrize("seconds", [False, True], ids=["minutes", "seconds"])
@pytest.mark.parametrize("name", ZONES)
def test_what_is_shown_is_what_walking_finds(name: str, seconds: bool) -> None:
    draw, wanted, compared = Random(f"{name} {seconds}"), 3 if seconds else 25, 0
    while compared < wanted:
        text, begin, end, choices = case(draw, name, seconds)
        expected = list(instants(text, zone_of(name).info, begin, end, choices))
        found = shown(text, name, begin, end, choices, len(expected) + 1)
        assert (found or []) == expected, (text, begin, choices)
        compared += found is not None
