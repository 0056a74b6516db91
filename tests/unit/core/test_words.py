"""What a schedule says in plain words."""

from __future__ import annotations

import pytest

from pipeline.core.timing import TimingSpec, timing_of


def words(cron=None, tz="Europe/Berlin", **more):
    return timing_of(TimingSpec(cron=cron, tz=tz, schedule_id="reports", **more)).words


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 8 * * 1-5", "weekdays at 08:00 Berlin"),
        ("0 8 * * mon,tue,3-5", "weekdays at 08:00 Berlin"),
        ("0 8,18 * * 7", "Sundays at 08:00 and 18:00 Berlin"),
        ("0 8 * * sun,sat", "Saturdays and Sundays at 08:00 Berlin"),
        ("@daily", "every day at 00:00 Berlin"),
        ("@hourly", "every hour Berlin"),
        ("@yearly", "on the 1st of the month in January at 00:00 Berlin"),
        ("* * * * *", "every minute Berlin"),
        ("*/5 * * * *", "every 5 minutes Berlin"),
        ("*/5 9-17 * * 1-5", "weekdays every 5 minutes, between 09:00 and 17:59 Berlin"),
        ("5,35 * * * *", "at 5 and 35 minutes past the hour Berlin"),
        ("0 0 13 * fri", "on the 13th of the month or Fridays at 00:00 Berlin"),
        ("0 0 1,2,L * ?", "on the 1st, 2nd and last day of the month at 00:00 Berlin"),
        (
            "0 8 1,2,8-14,20,28-L * *",
            "on the 1st, 2nd, 8th to 14th, 20th and 28th to 31st of the month at 08:00 Berlin",
        ),
        ("0 8 30-1,5 * *", "on the 1st, 5th, 30th and 31st of the month at 08:00 Berlin"),
        ("0 8 LW * *", "on the weekday nearest the last day of the month at 08:00 Berlin"),
        ("0 8 15W 1,6 *", "on the weekday nearest the 15th of the month in January and June at 08:00 Berlin"),
        ("0 8 * * 5#3,L1", "on the last Monday and on the third Friday of the month at 08:00 Berlin"),
        ("0 8 */11 * 1", "on the 1st, 12th and 23rd of the month and only Mondays at 08:00 Berlin"),
        ("0 22-4/3 * * *", "every day at 01:00, 04:00 and 22:00 Berlin"),
        ("30 0 8 * * *", "every day at 08:00:30 Berlin"),
        ("0 0 8 * * *", "every day at 08:00 Berlin"),
        ("* * * * * *", "every second Berlin"),
        ("*/15 * * * * *", "every 15 seconds Berlin"),
        ("5 * * * * *", "second 5 of every minute Berlin"),
        ("5 * 8-11 * * *", "every day second 5 of every minute of hours 8 to 11 Berlin"),
        ("1,2,4 */20 * * * *", "seconds 1, 2 and 4 of every 20 minutes Berlin"),
        ("H H * * *", "every day at 19:28 Berlin"),
        ("@every 90s", "every 1m30s"),
    ],
)
def test_words(cron, expected):
    assert words(cron) == expected


@pytest.mark.parametrize(
    ("minute", "hour", "expected"),
    [
        ("*/45", "*", "at 0 and 45 minutes past the hour UTC"),
        ("*/7", "*", "at 0, 7, 14, 21, 28, 35, 42, 49, and 56 minutes past the hour UTC"),
        ("10-20", "*", "minutes 10 through 20 past the hour UTC"),
        ("0", "*/5", "every day at 00:00, 05:00, 10:00, 15:00 and 20:00 UTC"),
        ("*/30", "1,3,5", "every day every 30 minutes, at 01:00, 03:00, and 05:00 UTC"),
        ("50-5/5", "*", "at 0, 5, 50, and 55 minutes past the hour UTC"),
    ],
)
def test_times_are_told_by_the_library_in_forms_that_it_reads_as_we_do(minute, hour, expected):
    assert words(f"{minute} {hour} * * *", tz="UTC") == expected


def test_words_of_other_kinds_and_of_exclusions():
    assert words(every_ms=90_000) == "every 1m30s"
    assert words(every_ms=86_400_000 + 1) == "every 1d1ms"
    assert words(after_ms=600_000) == "10m after the last run finished"
    closed = (("holidays", ("2026-12-25",)), ("nights", ("cron:* 0-5 * * *",)))
    assert words("0 8 * * *", tz="America/New_York", exclude=closed) == (
        "every day at 08:00 New York, not on holidays and nights"
    )
