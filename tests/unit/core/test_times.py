"""Instants and durations at the edge."""

import math
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.times import (
    aware,
    format_instant,
    instant_of,
    parse_duration,
    parse_instant,
    written_instant,
)

instants = st.integers(EARLIEST, LATEST)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2030-01-31T09:30:00Z", 1_896_082_200_000),
        ("2030-01-31t09:30:00z", 1_896_082_200_000),
        ("2030-01-31 09:30:00Z", 1_896_082_200_000),
        ("2030-01-31T11:30:00+02:00", 1_896_082_200_000),
        ("2030-01-31T04:00:00-05:30", 1_896_082_200_000),
        ("2030-01-31T09:30:00-00:00", 1_896_082_200_000),
        ("2030-01-31T09:30:00.5Z", 1_896_082_200_500),
        ("2030-01-31T09:30:00.123Z", 1_896_082_200_123),
        ("2030-01-31T09:30:00.1230000001Z", 1_896_082_200_124),
        ("2030-01-31T09:30:59.9999Z", 1_896_082_260_000),
        ("2000-01-01T00:00:00Z", EARLIEST),
        ("2200-01-01T00:00:00Z", LATEST),
    ],
)
def test_instants(text, ms):
    assert parse_instant("at", text) == ms


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2030-01-31T09:30:00", "has no offset: add Z or one such as +02:00"),
        ("1999-12-31T23:59:59.999Z", "is before 2000"),
        ("2000-01-01T00:00:00+00:01", "is before 2000"),
        ("0001-01-01T00:00:00+23:59", "is before 2000"),
        ("2200-01-01T00:00:00.0001Z", "is after 2200"),
        ("9999-12-31T23:59:59-23:59", "is after 2200"),
        ("2030-02-30T00:00:00Z", "is no instant: day is out of range"),
        ("2030-01-01T24:00:00Z", "is no instant: hour must be in"),
        ("2030-01-01T00:00:60Z", "is no instant: second must be in"),
        ("2030-01-01T00:00:00+24:00", "is no instant: the offset must be within 23:59"),
        ("2030-01-01T00:00:00+00:60", "is no instant: the offset must be within 23:59"),
        ("0000-01-01T00:00:00Z", "is no instant: year"),
        ("2030-01-01", "is no RFC 3339 instant"),
        ("2030-01-01T00:00Z", "is no RFC 3339 instant"),
        ("2030-01-01T00:00:00.Z", "is no RFC 3339 instant"),
        ("2030-01-01T00:00:00+0200", "is no RFC 3339 instant"),
        ("2030-01-01T00:00:00Z\n", "is no RFC 3339 instant"),
        ("٢٠٣٠-01-01T00:00:00Z", "is no RFC 3339 instant"),
        ("tomorrow", "is no RFC 3339 instant"),
        ("1893456000", "is no RFC 3339 instant"),
        ("", "is no RFC 3339 instant"),
        ("x" * 1000, "is no RFC 3339 instant"),
        (1_893_456_001, "is no RFC 3339 instant"),
        (None, "is no RFC 3339 instant"),
    ],
)
def test_instants_refused_in_one_short_line(text, problem):
    with pytest.raises(InvalidInput) as refusal:
        parse_instant("at", text)
    message = str(refusal.value)
    assert message.startswith("at: ")
    assert problem in message
    assert len(message) < 200
    assert "\n" not in message


@given(instants, offsets)
def test_any_instant_in_any_zone_reads_back(ms, zone):
    text = aware(ms).astimezone(zone).isoformat(timespec="milliseconds")
    assert parse_instant("at", text) == ms
    assert parse_instant("at", format_instant(ms)) == ms
    assert instant_of("at", aware(ms).astimezone(zone)) == ms


def test_the_one_written_form():
    assert format_instant(1_896_082_200_007) == "2030-01-31T09:30:00.007Z"
    assert format_instant(0) == "1970-01-01T00:00:00.000Z"
    assert written_instant(datetime(2030, 1, 31, 10, 30, tzinfo=ZoneInfo("Europe/Berlin"))) == (
        "2030-01-31T09:30:00.000Z"
    )
    assert aware(1_896_082_200_007) == datetime(2030, 1, 31, 9, 30, 0, 7_000, tzinfo=UTC)
    assert aware(0).tzinfo is UTC


def test_a_datetime_with_a_zone_and_microseconds_is_rounded_up():
    berlin = datetime(2030, 7, 1, 12, 0, 0, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert instant_of("at", berlin) == parse_instant("at", "2030-07-01T10:00:00.001Z")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (datetime(2030, 1, 1), "is naive: add a time zone"),  # noqa: DTZ001
        (datetime(1999, 1, 1, tzinfo=UTC), "is before 2000"),
        (datetime(2201, 1, 1, tzinfo=UTC), "is after 2200"),
        (datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-23))), "is after 2200"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))), "is before 2000"),
    ],
)
def test_datetimes_refused(value, problem):
    with pytest.raises(InvalidInput, match=r"^at: ") as refusal:
        instant_of("at", value)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1.5h", 5_400_000),
        ("0.1ms", 1),
        ("0s", 0),
        ("0.3s", 300),
        (timedelta(minutes=10), 600_000),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (30, 30_000),
        (0.25, 250),
    ],
)
def test_durations(value, ms):
    assert parse_duration("in", value) == ms


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is no duration such as"),
        ("10", "is no duration such as"),
        ("ms", "is no duration such as"),
        ("10 m", "is no duration such as"),
        ("10M", "is no duration such as"),
        ("30m1h", "is no duration such as"),
        ("1h1h", "is no duration such as"),
        ("1e3s", "is no duration such as"),
        ("nan", "is no duration such as"),
        ("٣s", "is no duration such as"),
        ("1s\n", "is no duration such as"),
        ("9" * 400 + "s", "is no duration such as"),
        (None, "is no duration such as"),
        (True, "is no duration such as"),
        ([], "is no duration such as"),
        ("-5s", "must be zero or more"),
        (-1, "must be zero or more"),
        (math.nan, "must be zero or more"),
        (timedelta(microseconds=-1), "must be zero or more"),
        ("201w2000000d", "is longer than 200 years"),
        (math.inf, "is longer than 200 years"),
        (10**400, "is longer than 200 years"),
        (timedelta.max, "is longer than 200 years"),
    ],
)
def test_durations_refused_in_one_short_line(value, problem):
    with pytest.raises(InvalidInput) as refusal:
        parse_duration("in", value)
    message = str(refusal.value)
    assert message.startswith("in: ")
    assert problem in message
    assert len(message) < 200
    assert "\n" not in message


@given(st.integers(0, 10**7), st.integers(0, 59), st.integers(0, 999_999))
def test_text_timedelta_and_number_agree(minutes, seconds, microseconds):
    exact = Fraction(minutes * 60_000 + seconds * 1_000) + Fraction(microseconds, 1_000)
    value = timedelta(minutes=minutes, seconds=seconds, microseconds=microseconds)
    assert parse_duration("in", value) == math.ceil(exact)
    assert parse_duration("in", f"{minutes}m{seconds}.{microseconds:06}s") == math.ceil(exact)
