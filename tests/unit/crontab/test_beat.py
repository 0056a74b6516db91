"""Celery's `beat_schedule`, read and never run."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import ScheduleSpec, timing_spec
from pipeline.core.times import aware
from pipeline.core.timing import timing_of
from pipeline.crontab import Parsed, parse_beat

PROJECT = '''\
"""Celery of the shop."""
import os
from datetime import timedelta
from celery import Celery
from celery.schedules import crontab as cron, solar

app = Celery("shop", broker=os.environ["BROKER"])
MINUTE = 60
HOURLY = {"hourly": {"task": "shop.tasks.hourly", "schedule": timedelta(hours=1)}}

app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "nightly-report": {
        "task": "shop.tasks.report",
        "schedule": cron(minute=30, hour="2"),
        "kwargs": {"month": "last"},
        "options": {"queue": "slow", "expires": 2 * MINUTE, "priority": 3},
    },
    "Add every 30 s": {"task": "shop.tasks.Add", "schedule": 30.0, "args": (16, 16)},
    "monday": {"task": "shop.tasks.week", "schedule": cron(0, "7,8", "mon-fri")},
    "sunset": {"task": "shop.tasks.lamp", "schedule": solar("sunset", 52.5, 13.4)},
    "broken": {"task": "shop.tasks.x", "schedule": cron(minute=os.environ["M"])},
    **HOURLY,
}
'''


def read(text: str | bytes, **options: Any) -> Parsed:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_beat(content, source="file:beat", name="celery.py", **options)


def one(schedule: str, rest: str = "") -> ScheduleSpec:
    (spec,) = read(f'beat_schedule = {{"a": {{"task": "t", "schedule": {schedule}, {rest}}}}}').whole()
    return spec


def problems(parsed: Parsed) -> list[tuple[int, str]]:
    return [(problem.line, problem.field) for problem in parsed.problems]


def test_a_projects_schedule_is_carried_over_and_what_is_not_is_told() -> None:
    parsed = read(PROJECT)
    assert [(spec.id, spec.handler, spec.cron, spec.every_ms) for spec in parsed.specs] == [
        ("nightly-report", "shop.tasks.report", "30 2 * * *", None),
        ("add-every-30-s", "shop.tasks.add", None, 30_000),
        ("monday", "shop.tasks.week", "0 7-8 * * 1-5", None),
        ("hourly", "shop.tasks.hourly", None, 3_600_000),
    ]
    report, add, *_ = parsed.specs
    assert (report.payload, report.queue, report.catch_up_ms) == (b'{"month":"last"}', "slow", 120_000)
    assert json.loads(add.payload) == {"args": [16, 16]}
    assert {spec.tz for spec in parsed.specs} == {"Europe/Berlin"}
    assert {spec.source for spec in parsed.specs} == {"file:beat"}
    assert problems(parsed) == [(21, "schedule"), (22, "schedule")]
    assert [note.field for note in parsed.notes if note.line == 13] == ["expires", "priority"]
    assert [note.field for note in parsed.notes if note.line == 19] == ["schedule", "id", "handler", "args"]


ENTRY = '{"a": {"task": "t", "schedule": 60}}'


@pytest.mark.parametrize(
    "source",
    [
        f"beat_schedule = {ENTRY}",
        f"beat_schedule: dict = {ENTRY}",
        f"CELERY_BEAT_SCHEDULE = {ENTRY}",
        f"CELERYBEAT_SCHEDULE = {ENTRY}",
        f"app.conf.beat_schedule = {ENTRY}",
        f"app.conf.beat_schedule.update({ENTRY})",
        f'app.conf["beat_schedule"] = {ENTRY}',
        'app.conf.beat_schedule["a"] = {"task": "t", "schedule": 60}',
        'celery.conf.beat_schedule = dict(a=dict(task="t", schedule=60))',
        f"app.conf.update(beat_schedule={ENTRY}, result_expires=3600)",
        f'app.conf.update({{"beat_schedule": {ENTRY}}})',
        f"app.config.from_mapping(CELERY=dict(beat_schedule={ENTRY}))",
        f'CELERY = {{"beat_schedule": {ENTRY}}}',
        f"class Config:\n    beat_schedule = {ENTRY}",
        f"def make():\n    app.conf.beat_schedule = {ENTRY}",
        f"A = {ENTRY}\nbeat_schedule = A",
        'A = {"a": {"task": "t", "schedule": 60}}\nbeat_schedule = {} | A',
    ],
)
def test_a_schedule_is_found_wherever_it_is_set(source: str) -> None:
    (spec,) = read(source).whole()
    assert (spec.id, spec.handler, spec.every_ms) == ("a", "t", 60_000)


@pytest.mark.parametrize(
    "source",
    [
        "timezone = 'Asia/Tokyo'\n",
        "CELERY_TIMEZONE = 'Asia/Tokyo'\n",
        "TIME_ZONE = 'Asia/Tokyo'\nCELERY_TIMEZONE = TIME_ZONE\n",
        "app.conf.timezone = 'Asia/Tokyo'\n",
        "app.conf.update(timezone='Asia/Tokyo', enable_utc=True)\n",
        "app.conf.update({'timezone': 'Asia/Tokyo'})\n",
        "app.conf['timezone'] = 'Asia/Tokyo'\n",
    ],
)
def test_the_zone_is_that_of_the_application(source: str) -> None:
    text = source + f"beat_schedule = {ENTRY}\n"
    assert read(text).whole()[0].tz == "Asia/Tokyo"
    assert read(text, tz="Europe/Berlin").whole()[0].tz == "Europe/Berlin"


def test_a_zone_that_only_the_program_knows_is_a_problem_unless_it_is_given() -> None:
    text = f"timezone = get_settings().tz\nbeat_schedule = {ENTRY}"
    assert problems(read(text)) == [(1, "tz")]
    assert read(text, tz="Asia/Tokyo").whole()[0].tz == "Asia/Tokyo"


def test_what_is_no_setting_of_celery_sets_no_zone() -> None:
    text = f"def f():\n    timezone = g()\nself.timezone = g()\nnow(timezone=g())\nbeat_schedule = {ENTRY}"
    assert read(text).whole()[0].tz == "UTC"


@pytest.mark.parametrize(
    ("schedule", "cron"),
    [
        ("crontab()", "* * * * *"),
        ("crontab(minute='*/15')", "*/15 * * * *"),
        ("crontab(minute=0, hour='*/3,8-17')", "0 0,3,6,8-18,21 * * *"),
        ("crontab(hour='0, 6, 12, 18', minute=30)", "30 0,6,12,18 * * *"),
        ("crontab(minute='1,13,30-45,50-59/2')", "1,13,30-45,50,52,54,56,58 * * * *"),
        ("crontab(0, 0, day_of_month='2-30/7')", "0 0 2,9,16,23,30 * *"),
        ("crontab(0, 0, day_of_month='1', month_of_year='*/3')", "0 0 1 */3 *"),
        ("crontab(0, 0, 'sunday')", "0 0 * * 0"),
        ("crontab(0, 0, day_of_week='sat,Mon')", "0 0 * * 1,6"),
        ("crontab(0, 0, day_of_week='fri-mon')", "0 0 * * 0-1,5-6"),
        ("crontab(0, 0, [1, 3, 5])", "0 0 * * 1,3,5"),
        ("crontab(minute=[0, 30], hour={8, 9, 10})", "0,30 8-10 * * *"),
        ("crontab(minute='0-59', hour='22-2')", "* 0-2,22-23 * * *"),
        ("crontab(minute='*/100', hour='*/1')", "0 * * * *"),
        ("celery.schedules.crontab(minute=5)", "5 * * * *"),
        ("crontab(0, 0, day_of_month='*/2', day_of_week=1)", "0 0 */2 * 1"),
    ],
)
def test_a_crontab_means_what_celery_means_by_it(schedule: str, cron: str) -> None:
    spec = one(schedule)
    assert (spec.cron, spec.exclude) == (cron, {})


def test_days_that_celery_wants_both_of_are_both_wanted() -> None:
    spec = one("crontab(0, 9, day_of_month='1-7,15-21', day_of_week=1)")
    assert (spec.cron, spec.exclude) == ("0 9 * * 1", {"other-days-of-month": ("cron:* * 8-14,22-31 * *",)})
    days = [aware(at) for at in timing_of(timing_spec(spec)).upcoming(1_800_000_000_000, 50)]
    first = aware(1_800_000_000_000).replace(hour=9, minute=0)
    year = [first + timedelta(days=n) for n in range(1, 900)]
    assert (
        days
        == [day for day in year if day.isoweekday() == 1 and day.day in {*range(1, 8), *range(15, 22)}][:50]
    )


@pytest.mark.parametrize(
    ("schedule", "every_ms"),
    [
        ("30", 30_000),
        ("1.5", 1_500),
        ("60 * 60 * 24", 86_400_000),
        ("timedelta(days=1, minutes=2)", 86_520_000),
        ("timedelta(0, 90)", 90_000),
        ("datetime.timedelta(seconds=5)", 5_000),
        ("schedule(run_every=timedelta(seconds=5))", 5_000),
        ("schedule(10)", 10_000),
    ],
)
def test_intervals_are_carried_over(schedule: str, every_ms: int) -> None:
    assert one(schedule).every_ms == every_ms


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ("crontab(minute=60)", "minute"),
        ("crontab(minute='60')", "minute"),
        ("crontab(minute='5/10')", "minute"),
        ("crontab(minute='*/0')", "minute"),
        ("crontab(minute='1,,2')", "minute"),
        ("crontab(minute=True)", "minute"),
        ("crontab(minute=1.5)", "minute"),
        ("crontab(minute=[1, '2'])", "minute"),
        ("crontab(minute='mon')", "minute"),
        ("crontab(minute=[])", "minute"),
        ("crontab(hour='-1')", "hour"),
        ("crontab(day_of_week=7)", "day_of_week"),
        ("crontab(day_of_week='7')", "day_of_week"),
        ("crontab(month_of_year='jan')", "month_of_year"),
        ("crontab(month_of_year=0)", "month_of_year"),
        ("crontab(second=1)", "second"),
        ("crontab(nowfun=1)", "nowfun"),
        ("crontab(1, 2, 3, 4, 5, 6)", "schedule"),
        ("crontab(*x)", "schedule"),
        ("crontab(**x)", "schedule"),
        ("solar('sunset', 1, 2)", "schedule"),
        ("'* * * * *'", "schedule"),
        ("None", "schedule"),
        ("True", "schedule"),
        ("timedelta(parsecs=1)", "schedule"),
        ("timedelta(days=10**9)", "schedule"),
        ("timedelta(days=999999999) * 2", "schedule"),
        ("schedule()", "schedule"),
        ("0", "every"),
        ("0.5", "every"),
        ("-5", "every"),
        ("1e999", "every"),
        ("every(5)", "schedule"),
        ("10 / 0", "schedule"),
        ("f'{x}'", "schedule"),
        ("'a' * 10", "schedule"),
        ("crontab(0, 0, day_of_month=31, month_of_year=2)", "cron"),
    ],
)
def test_a_time_that_cannot_be_carried_over_is_told(schedule: str, field: str) -> None:
    assert problems(read(f'beat_schedule = {{\n"a": {{"task": "t", "schedule": {schedule}}}}}')) == [
        (2, field)
    ]


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("3", "schedule"),
        ('{"schedule": 60}', "task"),
        ('{"task": f, "schedule": 60}', "schedule"),
        ('{"task": "t"}', "schedule"),
        ('{"task": "t", "schedule": 60, "args": 3}', "kwargs"),
        ('{"task": "t", "schedule": 60, "kwargs": [3]}', "kwargs"),
        ('{"task": "t", "schedule": 60, "kwargs": {3: 4}}', "kwargs"),
        ('{"task": "t", "schedule": 60, "kwargs": {"a": timedelta(1)}}', "kwargs"),
        ('{"task": "t", "schedule": 60, "args": [1], "kwargs": {"args": 2}}', "args"),
        ('{"task": "t", "schedule": 60, "options": 3}', "options"),
        ('{"task": "t", "schedule": 60, "enabled": False}', "enabled"),
        ('{"task": "日本", "schedule": 60}', "handler"),
    ],
)
def test_an_entry_that_is_none_is_told(entry: str, field: str) -> None:
    assert problems(read(f'beat_schedule = {{\n"a": {entry}}}')) == [(2, field)]


def test_the_same_name_twice_is_told() -> None:
    parsed = read('beat_schedule = {"a": {"task": "t", "schedule": 60},\n"a": {"task": "t", "schedule": 6}}')
    assert problems(parsed) == [(2, "id")]
    assert problems(read(f"beat_schedule = {ENTRY}\napp.conf.beat_schedule = {ENTRY}")) == [(2, "id")]
    two = '"a b": {"task": "t", "schedule": 60}, "A-b": {"task": "t", "schedule": 60}'
    assert problems(read(f"beat_schedule = {{{two}}}")) == [(1, "id")]


def test_schedules_that_are_made_by_code_are_told() -> None:
    text = (
        "@app.on_after_configure.connect\ndef setup(sender, **kw):\n    sender.add_periodic_task(10, f.s())\n"
    )
    assert problems(read(text)) == [(3, "schedule")]
    assert problems(read("beat_schedule = load()")) == [(1, "schedule")]
    assert problems(read('app.conf.beat_schedule[f"{x}"] = {}')) == [(1, "id")]
    assert problems(read("x = 1")) == [(0, "")]


def test_options_are_carried_over_or_told() -> None:
    text = '"options": {"queue": "Q", "time_limit": 30, "expires": later(), "countdown": 3}'
    assert problems(read(f'beat_schedule = {{"a": {{"task": "t", "schedule": 60, {text}}}}}')) == [
        (1, "schedule")
    ]
    spec = one("60", '"options": {"queue": "Q", "time_limit": 30, "countdown": 3}, "relative": True')
    assert (spec.queue, spec.timeout_ms) == ("q", 30_000)


JSON = """
{
  "timezone": "Europe/Berlin",
  "beat_schedule": {
    "a": {"task": "t", "schedule": 30.0, "args": []},
    "b": {"task": "t", "schedule": {"__type__": "crontab", "minute": "*/5", "day_of_week": "mon"}},
    "c": {"task": "t", "schedule": {"__type__": "interval", "every": 60, "relative": false}, "kwargs": {"x": 1}},
    "d": {"task": "t", "schedule": {"sunset": 1}}
  }
}
"""


def test_json_is_read_too() -> None:
    parsed = read(JSON)
    assert [(spec.id, spec.cron, spec.every_ms, spec.tz) for spec in parsed.specs] == [
        ("a", None, 30_000, "Europe/Berlin"),
        ("b", "*/5 * * * 1", None, "Europe/Berlin"),
        ("c", None, 60_000, "Europe/Berlin"),
    ]
    assert problems(parsed) == [(8, "schedule")]
    assert read('{"a": {"task": "t", "schedule": 60}}').whole()[0].id == "a"
    assert problems(read('{"beat_schedule": []}')) == [(0, "")]


def test_nothing_of_the_source_is_run(tmp_path: Any) -> None:
    trap = tmp_path / "trap"
    text = f"open({str(trap)!r}, 'w').write('x')\nimport no_such_module\n1 / 0\nbeat_schedule = {ENTRY}\n"
    assert read(text).whole()
    assert not trap.exists()


LAUGHS = "A = [1, 1]\n" + "".join(f"{chr(66 + n)} = [{', '.join(chr(65 + n) * 10)}]\n" for n in range(12))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("beat_schedule = {", "celery.py:1: no Python: '{' was never closed"),
        ("x = 1\n  y = 2", "celery.py:2: no Python: unexpected indent"),
        ("a = " + "(" * 5_000, "celery.py"),
        ("a = " + "-" * 500_000 + "1", "celery.py: no Python: nested too deeply"),
        ("a = " + "1+" * 100_000 + "1", "celery.py: no Python: nested too deeply"),
        ("a = " + "1" * 5_000, "celery.py:1: no Python"),
        (b"a = '\xff'", "celery.py:1: not UTF-8"),
        ("a\0", "celery.py:1: control character 0x00"),
        ("#" * (1024 * 1024 + 1), "celery.py: longer than 1048576 bytes"),
        ('{"a": {}, "a": {}}', "celery.py: not JSON: the name 'a' twice"),
        ('{"a": ' + "[" * 50_000, "celery.py: nested too deeply"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "celery.py: nested too deeply"),
        ("{", "celery.py: not JSON"),
    ],
)
def test_what_is_neither_python_nor_json_is_refused(content: str | bytes, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(content)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS + 'beat_schedule = {"a": {"task": "t", "schedule": 60, "args": M}}',
        'A = A\nbeat_schedule = {"a": {"task": "t", "schedule": A}}',
        'A = {**A}\nbeat_schedule = {"a": A, **A}',
        "A = B\nB = A\nbeat_schedule = A",
        'beat_schedule = {"a": {"task": "t", "schedule": ' + "9**" * 100 + "9}}",
        'beat_schedule = {"a": {"task": "t", "schedule": ' + "1000000000*" * 90 + "9}}",
        'beat_schedule = {"a": {"task": "t", "schedule": 60, "args": ' + "[" * 80 + "]" * 80 + "}}",
    ],
    ids=range(7),
)
def test_what_would_never_end_is_a_problem(text: str) -> None:
    parsed = read(text)
    assert parsed.problems
    assert not parsed.specs


PARTS = st.sampled_from(
    ["beat_schedule = {", '"a": ', '{"task": "t", ', '"schedule": ', "crontab(", "minute=", "'*/5'", "'mon'", "5", ", ",
     ")", "}", "]", "[", "timedelta(", "solar(", "app.conf.", "timezone = ", "'UTC'", "\n", "**", "-", "*", "/", "None",
     "dict(", "args", "=", "A", "A = ", "...", "lambda: ", "{", '"kwargs": ', '"options": ', "é", "1e999", "|", "x"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=100), st.lists(PARTS, max_size=30).map(lambda parts: "".join(parts).encode())
    )
)
def test_any_bytes_are_a_beat_schedule_or_invalid_input(content: bytes) -> None:
    try:
        read(content)
    except InvalidInput as error:
        assert error.field.startswith("celery.py")  # noqa: PT017 - either way is right


CALLS = st.sampled_from(
    ["crontab(", "crontab(minute=", "timedelta(", "schedule(run_every=", "dict(a=", "solar("]
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=2).map(
            lambda items: f"{{{', '.join(f'{item!r}: {item}' for item in items)}}}"
        ),
        st.tuples(inner, st.sampled_from("+-*/|"), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(CALLS, inner).map(lambda parts: f"{''.join(parts)})"),
    )


EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["1", "-1", "0", "2.5", "1e999", "'x'", "'*/5'", "'mon-fri'", "None", "True", "A", "x()", "b'a'"]
    ),
    larger,
    max_leaves=6,
)


@settings(max_examples=500, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_any_values_are_an_entry_or_a_problem(schedule: str, options: str, a: str) -> None:
    entry = f'{{"task": "t", "schedule": {schedule}, "options": {options}, "kwargs": {{"a": {a}}}}}'
    parsed = read(f'A = {a}\nbeat_schedule = {{"a": {entry}}}')
    assert len(parsed.specs) + len(parsed.problems) == 1
