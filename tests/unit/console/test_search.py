"""The search language: what each word means, and which word an error is about."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.readmodel.questions import JobsWanted
from pipeline.server.console.search import instead, meanings, parse, quoted, relative, written

NOW = 1_796_000_000_123
DAY = 86_400_000
TODAY = NOW // DAY * DAY
SEPTEMBER = 1_788_220_800_000  # 2026-09-01T00:00:00Z


def wanted(text: str) -> JobsWanted:
    return parse(text, now=NOW)


def test_the_search_of_the_docs() -> None:
    assert wanted("handler:email.send status:dead key:invoice_* due>2026-09-01") == JobsWanted(
        handler="email.send",
        statuses=frozenset({JobStatus.DEAD}),
        key_prefix="invoice_",
        due_from=SEPTEMBER + 1,
        order="-due",
    )


def test_nothing_is_everything() -> None:
    assert wanted("") == wanted("  \n ") == JobsWanted(order="-due")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("status:dead,retrying", JobsWanted(statuses=frozenset({JobStatus.DEAD, JobStatus.RETRYING}))),
        ("status:dead status:queued", JobsWanted(statuses=frozenset({JobStatus.DEAD, JobStatus.QUEUED}))),
        ("queue:mail schedule:daily-report", JobsWanted(queue="mail", schedule="daily-report")),
        ("label:tenant=acme label:x=", JobsWanted(labels={"tenant": "acme", "x": ""})),
        ('label:"a b=c d"', JobsWanted(labels={"a b": "c d"})),
        ("label:a=b=c", JobsWanted(labels={"a": "b=c"})),
        ("key:invoice_", JobsWanted(key="invoice_")),
        ("key:*", JobsWanted(key_prefix="")),
        ('key:"a*"', JobsWanted(key="a*")),
        ('key:"a*"*', JobsWanted(key_prefix="a*")),
        ('key:"invoice 5"*', JobsWanted(key_prefix="invoice 5")),
        (r'key:"a\"b\\c"', JobsWanted(key=r"a\b".replace("\\", '"') + "\\c")),
        ("invoice", JobsWanted(text="invoice")),
        ('"status:dead"', JobsWanted(text="status:dead")),
        ('"two words"', JobsWanted(text="two words")),
        ("s:daily-report:1:g::1796000000000", JobsWanted(text="s:daily-report:1:g::1796000000000")),
        ("order:-due", JobsWanted(order="-due")),
        ("due>=2026-09-01", JobsWanted(due_from=SEPTEMBER)),
        ("due<2026-09-01", JobsWanted(due_to=SEPTEMBER)),
        ("due<=2026-09-01T12:30", JobsWanted(due_to=SEPTEMBER + 45_000_000 + 1)),
        ("due>=2026-09-01T12:30Z", JobsWanted(due_from=SEPTEMBER + 45_000_000)),
        ("due>=2026-09-01T12:30:05Z", JobsWanted(due_from=SEPTEMBER + 45_005_000)),
        ("due>=2026-09-01T14:30:00+02:00", JobsWanted(due_from=SEPTEMBER + 45_000_000)),
        ("due:2026-09-01", JobsWanted(due_from=SEPTEMBER, due_to=SEPTEMBER + DAY)),
        ("due>=now", JobsWanted(due_from=NOW)),
        ("due:yesterday", JobsWanted(due_from=TODAY - DAY, due_to=TODAY)),
        ("due>=today due<tomorrow", JobsWanted(due_from=TODAY, due_to=TODAY + DAY)),
        ("due>=-2h due<+1d", JobsWanted(due_from=NOW - 7_200_000, due_to=NOW + DAY)),
        ("due>=-2h due>=-1h", JobsWanted(due_from=NOW - 3_600_000)),
    ],
)
def test_words(text: str, meant: JobsWanted) -> None:
    assert replace(wanted(text), order="due") == replace(meant, order="due")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("", "-due"),
        ("handler:a", "-due"),
        ("status:dead", "-due"),
        ("status:pending", "due"),
        ("status:pending,retrying", "due"),
        ("status:pending,dead", "-due"),
        ("due<=now", "-due"),
        ("due>now", "due"),
        ("due>=now", "due"),
        ("due>-1d", "-due"),
        ("status:pending order:-due", "-due"),
        ("status:dead order:due", "due"),
    ],
)
def test_the_latest_come_first_but_of_what_is_to_come(text: str, order: str) -> None:
    assert wanted(text).order == order


@pytest.mark.parametrize(
    ("text", "names", "words", "becomes"),
    [
        (
            "handler:a status:dead order:-due",
            ("status", "order"),
            ["status:queued"],
            "handler:a status:queued",
        ),
        ("due<=now due>-1d x", ("due",), ["due>now"], "x due>now"),
        ('key:"a b"* "status:dead"', ("status",), [], 'key:"a b"* "status:dead"'),
        ("due<=now", ("due",), [], ""),
    ],
)
def test_words_of_a_search_take_the_place_of_others(
    text: str, names: tuple[str, ...], words: list[str], becomes: str
) -> None:
    assert instead(text, names, *words) == becomes


def test_what_depends_on_when_it_is_asked() -> None:
    assert [relative(text) for text in ("due>-2h", "due<=now", "due>2026-09-01 due<+1d")] == [True] * 3
    assert [relative(text) for text in ("", "status:dead", "due<2026-09-01")] == [False] * 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("statsu:dead", "statsu:dead: there is no filter 'statsu', only status, handler"),
        ("https://x", "https://x: there is no filter 'https'"),
        ("status:failed", "status:failed: a status is one of pending, queued"),
        ("status:dead,", "status:dead,: a status is one of"),
        (
            "status:failed,dead",
            "status:failed,dead: a status is one of pending, queued, running, retrying, succeeded,",
        ),
        ("handler:", "handler: has no value"),
        ('handler:""', 'handler:"" has no value'),
        ("handler>x", "handler>x: only due can be compared; write handler:"),
        ("handler:a handler:b", "handler:b: a search can have only one handler"),
        ("key:a key:b", "key:b: a search can have only one key"),
        ("key:a key:b*", "key:b*: a search can have only one key"),
        ("one two", "two: a search can have only one word without a filter"),
        ("label:x", "label:x: a label is written label:name=value"),
        ("label:=x", "label:=x: a label is written label:name=value"),
        ("key:a*b", "key:a*b: only the start of a key can be matched, so * must come last"),
        ("order:id", "order:id: the order is due or -due"),
        ("due>soon", "due>soon: 'soon' is not a date (2026-09-01)"),
        ("due>2026-13-01", "due>2026-13-01: '2026-13-01' is not a date"),
        ("due>-2", "due>-2: '-2' is not a date"),
        ("due:now", "due:now: due: takes a date; for anything else use due> and due<"),
        ('queue:mail key:"a b', '"a b: a quote is not closed'),
        ('x"', '": a quote is not closed'),
        ("x" * 1_001, "is longer than 1,000 characters"),
    ],
)
def test_errors_name_the_word(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wanted(text)
    assert caught.value.field == "search"
    assert caught.value.problem.startswith(problem)
    assert "\n" not in str(caught.value)


def test_a_long_word_is_cut_in_its_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        wanted("status:" + "x" * 500)
    assert len(caught.value.problem) < 250


values = st.text(min_size=1, max_size=20)
instants = st.integers(946_684_800_000, 4_000_000_000_000)


@given(
    st.builds(
        JobsWanted,
        statuses=st.frozensets(st.sampled_from(JobStatus)),
        handler=st.none() | values,
        queue=st.none() | values,
        schedule=st.none() | values,
        labels=st.dictionaries(values.filter(lambda name: "=" not in name), st.text(max_size=20), max_size=3),
        due_from=st.none() | instants,
        due_to=st.none() | instants,
        text=st.none() | values,
        order=st.sampled_from(("due", "-due")),
    ),
    st.fixed_dictionaries({}, optional={"key": values}) | st.fixed_dictionaries({"key_prefix": values}),
)
def test_what_is_written_is_read_back(some: JobsWanted, keyed: dict[str, str]) -> None:
    some = replace(some, **keyed)
    text = written(some)
    if len(text) <= 1_000:
        assert parse(text, now=NOW) == some


@given(st.text(max_size=60))
def test_whatever_is_typed_is_a_search_or_one_error(text: str) -> None:
    with suppress(InvalidInput):
        parse(text, now=NOW)


@pytest.mark.parametrize(
    ("value", "shown"), [("a.b", "a.b"), ("a b", '"a b"'), ("status:x", '"status:x"'), ("", '""')]
)
def test_quoted(value: str, shown: str) -> None:
    assert quoted(value) == shown


def test_every_filter_is_explained() -> None:
    assert set(meanings()) == {"status", "handler", "queue", "schedule", "label", "key", "due", "order"}
