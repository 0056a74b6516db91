"""The TOML form of schedules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import NAMES, spec_from_json
from pipeline.crontab import Parsed, parse_toml, parsed

FEW = 200
"""Schedules that a file may have here, so that too many are soon read."""

WHOLE = """\
# every option
[calendars.holidays]
dates = ["2027-01-01", 2027-05-01, "2027-12-24..2027-12-31"]

[calendars."nights"]
dates = ["cron:* 0-6 * * *"]

[defaults]
tz = "Europe/Berlin"
exclude = ["holidays"]
labels = { team = "billing" }

[schedules.nightly]
cron = "30 2 * * *"
handler = "report.nightly"
queue = "slow"
dst_gap = "skip"
dst_overlap = "both"
start = 2027-01-01T00:00:00+01:00
end = "2028-01-01T00:00:00Z"
max_occurrences = 100
jitter = "5m"
misfire = "all(3)"
catch_up = "1d"
misfire_threshold = 30
overlap = "buffer_all(2)"
overlap_timeout = "6h"
pause_after = 3
max_attempts = 2
timeout = "1h"
serial = "reports"
headers = { trace = "on" }
note = "asked for by finance"
payload = { month = "last", shops = [1, 2] }

[schedules."tick.tock"]
every = "90s"
phase = "10s"
handler = "tick"
exclude = []
tz = "UTC"

[schedules.after]
every = "10m"
after = "finish"
handler = "tick"
exclude = ["nights"]
[schedules.after.payload]
deep.er = true
"""


def read(text: str | bytes) -> Parsed:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_toml(content, source="file:jobs", name="jobs.toml")


def told(text: str) -> list[str]:
    return [str(problem) for problem in read(text).problems]


def test_every_option_is_that_of_json() -> None:
    nightly, tick, after = read(WHOLE).whole()
    fields: dict[str, Any] = {
        "id": "nightly", "cron": "30 2 * * *", "handler": "report.nightly", "queue": "slow", "tz": "Europe/Berlin",
        "dst_gap": "skip", "dst_overlap": "both", "start": "2026-12-31T23:00:00Z", "end": "2028-01-01T00:00:00Z",
        "max_occurrences": 100, "jitter": "5m", "misfire": "all(3)", "catch_up": "1d", "misfire_threshold": "30s",
        "overlap": "buffer_all(2)", "overlap_timeout": "6h", "pause_after": 3, "max_attempts": 2, "timeout": "1h",
        "serial": "reports", "headers": {"trace": "on"}, "note": "asked for by finance", "labels": {"team": "billing"},
        "payload": {"month": "last", "shops": [1, 2]}, "source": "file:jobs",
        "exclude": {"holidays": ["2027-01-01", "2027-05-01", "2027-12-24..2027-12-31"]},
    }  # fmt: skip
    assert nightly == spec_from_json(fields)
    assert {*fields} | {"every", "after", "phase", "version"} == {*NAMES}
    assert (tick.id, tick.tz, tick.exclude, tick.every_ms, tick.phase_ms) == (
        "tick.tock",
        "UTC",
        {},
        90_000,
        10_000,
    )
    assert (after.after_ms, after.every_ms) == (600_000, None)
    assert json.loads(after.payload) == {"deep": {"er": True}}
    assert after.exclude == {"nights": ("cron:* 0-6 * * *",)}


A = '[schedules.a]\ncron = "* * * * *"\nhandler = "x"\n'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x = 1\n" + A, "jobs.toml:1: x: no such table"),
        ("schedule.a.cron = 1", "jobs.toml:1: schedule: no such table"),
        ("\nschedules = 3", "jobs.toml:2: schedules: must be tables"),
        ("[schedules]\na = 3", "jobs.toml:2: a: must be a table"),
        ("calendars = []", "jobs.toml:1: calendars: must be tables"),
        ("defaults = 1\n", "jobs.toml:1: defaults: must be a table"),
        ("[defaults]\n\ncron = 1", "jobs.toml:3: cron: no such default"),
        ("[defaults]\nqueues = 1", "jobs.toml:2: queues: no such default"),
        ("[calendars.a]\ndate = []\ndates = []", "jobs.toml:2: date: no such field of a calendar"),
        ("[calendars.a]\n", "jobs.toml:1: dates: must be a list"),
        ("[calendars.a]\ndates = 1", "jobs.toml:2: dates: must be a list"),
        (A + "croon = 1", "jobs.toml:4: croon: no such field of a schedule (schedule 'a')"),
        (A + 'id = "b"', "jobs.toml:4: id: it is not given here"),
        (A + 'source = "cli"', "jobs.toml:4: source: it is not given here"),
        (A + 'overlap = "never"', "jobs.toml:4: overlap: 'never' is none of"),
        (A + "# x\njitter = true", "jobs.toml:5: jitter: True is no duration"),
        (A + "jitter = nan", "jobs.toml:4: jitter: nan is no duration"),
        (A + "start = 2027-01-01T00:00:00", "jobs.toml:4: start: '2027-01-01T00:00:00' has no offset"),
        (A + "start = 2027-01-01", "jobs.toml:4: start: '2027-01-01' is no RFC 3339 instant"),
        (A + "payload = 1", "jobs.toml:4: payload: must be an object"),
        (A + "payload.x = inf", "jobs.toml:4: payload: is not JSON"),
        (A + 'exclude = ["b"]', "jobs.toml:4: exclude: there is no [calendars.b]"),
        (A + "exclude = [[1]]", "jobs.toml:4: exclude: there is no [calendars.[1]]"),
        (A + 'exclude = "b"', "jobs.toml:4: exclude: must be an object of calendars"),
        (A + 'every = "1m"', "jobs.toml:2: cron: give exactly one of cron and every"),
        ('[schedules.a]\ncron = "* * * * *"', "jobs.toml:1: handler: missing"),
        ('[schedules.a]\nhandler = "x"\ncron = "61 * * * *"', "jobs.toml:3: cron: "),
        ('[schedules.a]\nhandler = "x"', "jobs.toml:1: cron: give exactly one of cron and every"),
        ('[defaults]\ntz = "Europe/Atlantis"\n' + A, "jobs.toml:2: tz: "),
        (A.replace("[schedules.a]", "[schedules.A]"), "jobs.toml:1: id: 'A' does not match"),
        (A.replace(".a]", '."a b"]'), "jobs.toml:1: id: 'a b' does not match"),
        (A + "payload = " + "{a = " * 40 + "1" + "}" * 40, "jobs.toml:4: payload: nested too deeply"),
    ],
)
def test_each_mistake_is_told_by_file_line_and_field(text: str, place: str) -> None:
    (problem,) = told(text)
    assert problem.startswith(place)


def test_all_mistakes_are_told_and_the_rest_is_read() -> None:
    parsed = read(
        A + A.replace(".a]", ".b]").replace("* * * * *", "x") + A.replace(".a]", ".c]").replace("x", "X")
    )
    assert [spec.id for spec in parsed.specs] == ["a"]
    assert [(problem.line, problem.field) for problem in parsed.problems] == [(5, "cron"), (9, "handler")]
    with pytest.raises(InvalidInput, match=r"^jobs\.toml:5: cron: "):
        parsed.whole()


LINES = '''\
[calendars.c]
dates = [
  "[schedules.a]", # "
  "x = 1",
  [3],
]
[schedules.a]
note = """
[schedules.b]
cron = 1 " ""\\"""
"""
serial = \'\'\'
[schedules.b]\'\'\'\'
payload = { "a]" = ["[", { b = "# no" }],
}
  [ schedules . "b" ] # x
  "cron" = 7
'''.replace('],\n}', '] }')  # fmt: skip


def test_a_line_is_found_behind_lists_and_texts_of_many_lines() -> None:
    problems = [(problem.line, problem.field) for problem in read(LINES).problems]
    assert problems == [(7, "handler"), (16, "cron")]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (A + A, "jobs.toml:4: no TOML: Cannot declare ('schedules', 'a') twice"),
        (A + "cron = 2", "jobs.toml:4: no TOML: Cannot overwrite a value"),
        ("[schedules.a]\ncron = ", "jobs.toml:2: no TOML: Invalid value"),
        ("a = [\n\n", "jobs.toml:3: no TOML: "),
        ("a = " + "1" * 5_000, "jobs.toml"),
        ("a = " + "[" * 100_000, "jobs.toml: nested too deeply"),
        ('note = "a\0"', "jobs.toml:1: control character 0x00"),
        ('x = 1\nnote = "a\r"', "jobs.toml:2: control character 0x0d"),
        ("\n[schedules.a" + ".b" * 40 + "]", "jobs.toml:2: a key of more than 32 parts"),
        ("x = '''\n'''\n" + '"a" . ' * 40 + "b = 1", "jobs.toml:3: a key of more than 32 parts"),
        (b'note = "\xff"', "jobs.toml:1: not UTF-8"),
        (b"#" * (10 * 1024 * 1024), "jobs.toml: longer than"),
        ("x\n" * 100_000, "jobs.toml:1: no TOML"),
        ("".join(A.replace(".a]", f".a{n}]") for n in range(FEW + 1)), "more than 200 schedules"),
        ("".join(f"[schedules.a{n}]\n" for n in range(FEW + 1)), "more than 200 schedules"),
        ("[defaults]\npayload.a = '" + "a" * 900_000 + "'\n" + "".join(A.replace(".a]", f".a{n}]") for n in range(99)),
         "take more than"),
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_toml_or_too_much_is_refused_with_its_line(
    content: str | bytes, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsed, "SCHEDULE_LIMIT", FEW)
    with pytest.raises(InvalidInput) as caught:
        read(content)
    assert where in str(caught.value)


def test_points_that_are_not_in_keys_are_no_parts() -> None:
    numbers = "[" + "1.5, " * 100 + "]"
    assert not read(A + f'payload = {{ a = {numbers}, b = "{"1." * 100}" }} # {"." * 100}').problems


def test_tabs_line_ends_and_a_byte_order_mark_make_no_difference() -> None:
    other = b"\xef\xbb\xbf" + WHOLE.replace(" = ", "\t=\t").replace("\n", "\r\n").encode()
    assert read(other).whole() == read(WHOLE).whole()


@pytest.mark.parametrize(
    "unit", ["a.", "[", "{", '"', "'", '""', "a=[]\n", "[a]\n", "[[a]]\n", "#", "\n", "a", "1_0"]
)
@pytest.mark.parametrize("head", ["", "[schedules.", "x = ", "schedules.a.payload = ", "[schedules.a]\n"])
def test_a_hundred_kilobytes_of_anything_are_read_at_once(head: str, unit: str) -> None:
    try:
        read(head + unit * (100_000 // len(unit)))
    except InvalidInput as error:
        assert error.field.startswith("jobs.toml")  # noqa: PT017 - either way is right


WORDS = st.sampled_from(
    ["[", "]", "{", "}", "\n", "\n[schedules.a]\n", "\n[defaults]\n", "\n[calendars.b]\n", "dates", " = ", '"', "'",
     '"* * * * *"', "cron", "handler", "every", "exclude", "payload", "1", "true", "nan", "2027-01-01", ",", ".", "#",
     '"""', "\\", "a", "é", "[[", "]]", "07:32:00"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=100), st.lists(WORDS, max_size=30).map(lambda words: "".join(words).encode())
    )
)
def test_any_bytes_are_toml_or_invalid_input(content: bytes) -> None:
    try:
        parsed = read(content)
    except InvalidInput as error:
        assert error.field.startswith("jobs.toml")  # noqa: PT017 - either way is right
    else:
        assert all(0 < problem.line <= content.count(b"\n") + 1 for problem in parsed.problems)


VALUES: Any = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "a", "1m", "* * * * *", "finish"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=5,
)


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case bool() | str():
            return json.dumps(value)
        case _:
            return str(value)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=5, unique_by=lambda pair: pair[0]))
def test_any_values_are_schedules_or_problems_at_their_lines(pairs: list[tuple[str, Any]]) -> None:
    lines = [f"{name} = {toml(value)}" for name, value in pairs]
    parsed = read("[schedules.a]\n" + "\n".join(lines))
    assert len(parsed.specs) + len(parsed.problems) == 1
    for problem in parsed.problems:
        names = [name for name, _ in pairs]
        key = problem.field.partition(".")[0]
        assert problem.line == (names.index(key) + 2 if key in names else 1)
