"""The grammar of cron expressions: what is read, as what, and what is refused with its place."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from itertools import islice, product

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.cron import ALIASES, parse_cron
from pipeline.core.errors import InvalidSchedule
from pipeline.core.timing import preview

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def days(text, month=2, schedule_id=""):
    monday, length = monthrange(2026, month)
    found = parse_cron(text, schedule_id).days.of_month(month, (monday + 1) % 7, length)
    return tuple(day for day in range(1, 32) if found >> day - 1 & 1)


def times(text, schedule_id=""):
    read = parse_cron(text, schedule_id)
    return [(h * 3600 + m * 60 + s) * 1000 for h, m, s in product(read.hours, read.minutes, read.seconds)]


@pytest.mark.parametrize(
    ("text", "month", "expected"),
    [
        ("0 0 L * *", 2, (28,)),
        ("0 0 LW * *", 2, (27,)),
        ("0 0 LW * *", 5, (29,)),
        ("0 0 * * 5L", 2, (27,)),
        ("0 0 * * 0L", 2, (22,)),
        ("0 0 * * 7L", 2, (22,)),
        ("0 0 * * 1#5,L1", 3, (30,)),
        ("0 0 * * 1#5", 2, ()),
        ("0 0 * * 5-1", 2, (1, 2, 6, 7, 8, 9, 13, 14, 15, 16, 20, 21, 22, 23, 27, 28)),
        ("0 0 * * 5-2/2", 2, (1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27)),
        ("0 0 * * 0-7", 2, tuple(range(1, 29))),
        ("0 0 * * 7-1", 2, (1, 2, 8, 9, 15, 16, 22, 23)),
        ("0 0 * * 5-7/2", 2, (1, 6, 8, 13, 15, 20, 22, 27)),
        ("0 0 20-L * *", 2, tuple(range(20, 29))),
        ("0 0 28-2/2 * *", 2, (1, 28)),
        ("0 0 W15 * *", 2, (16,)),
        ("0 0 31W * *", 8, (31,)),
        ("0 0 1,L * *", 2, (1, 28)),
        ("0 0 15W * *", 2, (16,)),
        ("0 0 1W * *", 2, (2,)),
        ("0 0 1W * *", 8, (3,)),
        ("0 0 28W * *", 2, (27,)),
        ("0 0 31W * *", 5, (29,)),
        ("0 0 20W * *", 2, (20,)),
        ("0 0 31W * *", 2, ()),
        ("0 0 * * 5#2", 2, (13,)),
        ("0 0 * * fri#2", 2, (13,)),
        ("0 0 * * L5", 2, (27,)),
        ("0 0 * * 7", 2, (1, 8, 15, 22)),
        ("0 0 * * 7/2", 2, (1, 8, 15, 22)),
        ("0 0 1 * sun", 2, (1, 8, 15, 22)),
        ("0 0 2 * sun", 2, (1, 2, 8, 15, 22)),
        ("0 0 */2 * sun", 2, (1, 15)),
        ("0 0 1 * */7", 2, (1,)),
        ("0 0 ? * sun", 2, (1, 8, 15, 22)),
        ("0 0 1 JAN,feb ?", 2, (1,)),
        ("0 0 1 3 *", 2, ()),
        ("0 0 30 2 *", 2, ()),
    ],
)
def test_days(text, month, expected):
    assert days(text, month=month) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 1 * * *", [3_900_000]),
        ("30 5 1 * * *", [3_930_000]),
        ("0 22-4/3 * * *", [hour * 3_600_000 for hour in (1, 4, 22)]),
        ("0 22-4/2 * * *", [hour * 3_600_000 for hour in (0, 2, 4, 22)]),
        ("0 23-4/2 * * *", [hour * 3_600_000 for hour in (1, 3, 23)]),
        ("1,1,*/30 0 * * *", [0, 60_000, 1_800_000]),
        ("58-1 1 * * *", [3_600_000, 3_660_000, 7_080_000, 7_140_000]),
        ("59/15 1 * * *", [7_140_000]),
        ("*/100 1 * * *", [3_600_000]),
        (" 5\t1 * * *\n", [3_900_000]),
    ],
)
def test_times_of_day(text, expected):
    assert times(text) == expected


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("* * * * *", True),
        ("*/5 1 * * *", True),
        ("5 */2 * * *", True),
        ("5 1 * * *", False),
        ("0-59 0-23 * * *", False),
        ("* 5 1 * * *", True),
        ("0 5 1 * * *", False),
    ],
)
def test_a_star_in_front_makes_a_rhythm(text, interval):
    assert parse_cron(text).interval is interval


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_what_it_stands_for(alias):
    read, written = parse_cron(alias.upper()), parse_cron(ALIASES[alias])
    assert read == written == parse_cron(f" {alias}\t")


def test_a_hashed_field_is_chosen_by_the_schedule_and_stays():
    # These may never change: schedules that stand would move.
    assert parse_cron("H H H H H", "reports").fields == ("0", "28", "19", "23", "6", "4")
    many = [parse_cron("H H(0-3) * * *", f"reports-{n}") for n in range(200)]
    assert {cron.minutes for cron in many} > {(n,) for n in range(50, 55)}
    assert {cron.hours for cron in many} == {(n,) for n in range(4)}
    assert len({cron.minutes[0] - cron.hours[0] * 2 for cron in many}) > 50  # each field by a hash of its own
    assert {parse_cron("0 0 H * *", f"s{n}").days.days for n in range(500)} == {
        frozenset({n + 1}) for n in range(28)
    }


def test_hashed_steps_and_ranges_stay_within():
    for number in range(100):
        minutes = parse_cron("H/15 1 * * *", f"s{number}").minutes
        assert minutes == tuple(range(minutes[0], 60, 15))
        assert len(minutes) == 4
        minutes = parse_cron("H(30-59)/10 1 * * *", f"s{number}").minutes
        assert minutes == tuple(range(minutes[0], 60, 10))
        assert 30 <= minutes[0] < 40
        assert parse_cron("H/100 1 * * *", f"s{number}").minutes[0] < 60


@pytest.mark.parametrize("text", ["H(5-5)", "H(9-3)", "H(0-60)", "H/0", "H(0-5)/0"])
def test_a_hashed_field_out_of_range_is_refused(text):
    with pytest.raises(InvalidSchedule, match=r"minute field, character 1: .* within 0-59"):
        parse_cron(f"{text} * * * *", "id")


def test_an_expression_without_hashed_fields_is_read_once_for_all_schedules():
    assert parse_cron("0 0 * mar thu", "a") is parse_cron("0 0 * mar thu", "b")


FIVE = ("minute", "hour", "day of month", "month", "day of week")
TOO_MUCH = [
    *[(f"{'* ' * n}60{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}-1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}+1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1,{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n},1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1,,2{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1-{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1-2-3{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}*/0{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}*/-1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}*/{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}/5{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}*/x{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1.5{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1e1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}0x1{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}**{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}*-5{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}R{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}1,r(0-5){' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}H{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}\u0663{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}\uff11{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    *[(f"{'* ' * n}{'9' * 50}{' *' * (4 - n)}", FIVE[n]) for n in range(5)],
    ("* * LW,2 * *", "day of month"),
    ("* * 2-LW * *", "day of month"),
    ("0 9-9 * * *", "hour"),
    ("0 1,9-9/2 * * *", "hour"),
    ("5-5 * * * *", "minute"),
    ("0 20-30 * * *", "hour"),
    ("0 22-4/00 * * *", "hour"),
    ("0 0 5-0/2 * *", "day of month"),
    ("0 0 * jam-feb *", "month"),
    ("0 0 1-1 * *", "day of month"),
    ("0 0 * jan-jan *", "month"),
    ("0 0 * * mon-1", "day of week"),
    ("0 0 * * 7-0", "day of week"),
    ("0 0 * * 7-7", "day of week"),
    ("0 0 * * L", "day of week"),
    ("0 0 * * 1-3#2,4", "day of week"),
    ("0 0 * * 5,5#3", "day of week"),
    ("0 0 * * 1#1/2", "day of week"),
    ("0 0 ?/2 * *", "day of month"),
    ("0 ? * * *", "hour"),
    ("0 0\u00a0 * * *", "hour"),
    ("0 0 * * *\u3000", "day of week"),
    ("* * L-3 * *", "day of month"),
    ("* * 1W,2 * *", "day of month"),
    ("* * 0 * *", "day of month"),
    ("* * * 0 *", "month"),
    ("* * * jam *", "month"),
    ("* * * * 8", "day of week"),
    ("* * * * 8L", "day of week"),
    ("* * * * 1#6", "day of week"),
    ("* * * * 1#1,2", "day of week"),
    ("* * * * funday", "day of week"),
    ("60 * * * * *", "second"),
    ("; * * * *", "minute"),
]


@pytest.mark.parametrize(("text", "field"), TOO_MUCH)
def test_what_cannot_be_read_is_refused_by_its_field_and_place(text, field):
    with pytest.raises(InvalidSchedule, match=rf"^cron: {field} field, character \d+: "):
        parse_cron(text)


def test_there_are_enough_of_them():
    assert len({text for text, _ in TOO_MUCH}) >= 127


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 1 1 * 2026 *", "has 7 fields"),
        ("0\u00a00 * * *", r"^cron: field 1, character 2: '\\xa0'"),
        ("0 0 12 * * * 2099\u00a0", "^cron: field 7, character 18: "),
        ("@daily 5", "'@daily 5' is none of"),
        ("@ daily", "is none of"),
        ("5 @daily", "^cron: field 2, character 3: "),
        ("@reboot", "names no time"),
        ("@never", "is none of @hourly"),
        ("*" * 257, "257 characters"),
        (",".join(["1"] * 100_000), "characters long"),
        (None, "must be text, not NoneType"),
        (5, "must be text, not int"),
    ],
)
def test_what_is_no_expression_at_all_is_refused(text, problem):
    with pytest.raises(InvalidSchedule, match=problem):
        parse_cron(text)


def test_the_place_is_that_of_the_item():
    with pytest.raises(InvalidSchedule, match=r"minute field, character 5: 61 is not within 0-59"):
        parse_cron("1,2,61 * * * *")
    with pytest.raises(InvalidSchedule, match=r"hour field, character 5: 24 is not within 0-23"):
        parse_cron("5   24 * * *")
    with pytest.raises(
        InvalidSchedule, match=r"hour field, character 8: '9-9' is a range of one value: write 9"
    ):
        parse_cron("\t0 1,3,9-9 * * *")


def test_fields_that_are_right_one_by_one_may_not_go_together(monkeypatch):
    monkeypatch.setattr("pipeline.core.cron._reads", lambda *_: True)
    with pytest.raises(InvalidSchedule, match="do not go together"):
        parse_cron("61 * * * *")


_EXPRESSION = st.tuples(
    st.sampled_from(["*", "*/7", "5", "1,31", "10-20", "3-40/9"]),
    st.sampled_from(["*", "*/5", "0", "4,22", "9-17", "1-20/6"]),
    st.sampled_from(["*", "1", "28", "L", "5-9", "*/10"]),
    st.sampled_from(["*", "2", "1,6", "*/5", "mar-sep"]),
    st.sampled_from(["*", "0", "1-5", "sat,sun"]),
).map(" ".join)


@settings(max_examples=60)
@given(_EXPRESSION, st.integers(0, 4 * 365 * 1440))
def test_where_the_clock_does_not_jump_the_library_agrees(text, minute):
    after = MIDNIGHT + timedelta(minutes=minute)
    theirs = croniter(text, after, implement_cron_bug=True)
    assert preview(text, after=after, count=3) == list(islice(theirs.all_next(datetime), 3))


@given(st.text(max_size=300))
def test_no_text_brings_anything_but_an_answer_or_a_refusal(text):
    try:
        parse_cron(text, "id")
    except InvalidSchedule:
        return


@given(st.text(alphabet="0123456789*/,-#?LWHR() ", max_size=40))
def test_nor_does_what_looks_like_one(text):
    try:
        read = parse_cron(text, "id")
    except InvalidSchedule:
        return
    for values in (read.seconds, read.minutes, read.hours):
        assert values
        assert list(values) == sorted(set(values))
