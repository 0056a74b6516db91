"""What comes in: JSON of any malice, named by what is wrong with it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.server import body
from pipeline.server.body import DEPTH, Malformed, job_request, lines, object_of, parse_json, too_deep

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES)
def test_what_is_json_is_read_as_it_is(value: Any) -> None:
    try:
        data = json.dumps(value).encode()
    except UnicodeEncodeError:
        return
    assert parse_json(data) == value


@pytest.mark.parametrize("data", [b'{"a":1}\r', b'{"a":1} \t\r\n', b' {"a":1}', b'\n\t{"a":1}\n'])
def test_spaces_at_its_ends_mean_nothing(data: bytes) -> None:
    assert parse_json(data) == {"a": 1}


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_told(data: bytes) -> None:
    with contextlib.suppress(Malformed, InvalidInput):
        parse_json(data)


def test_numbers_keep_every_digit() -> None:
    assert parse_json(b"123456789012345678901234567890") == 123456789012345678901234567890


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"-Infinity",
        b'{"a":Infinity}',
        b"\xff",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"9" * 5000,
        b"{}x",
        b"{} {}",
        b"{}\x0c",
    ],
)
def test_what_is_no_json_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_json(data)


def test_a_name_twice_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_json(b'{"a":{"b":1,"b":2}}')
    assert error.value.field == "b"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    parse_json(opening * DEPTH + b"1" + closing * DEPTH)
    for depth in (DEPTH + 1, 100_000):
        with pytest.raises(InvalidInput) as error:
            parse_json(opening * depth + b"1" + closing * depth)
        assert error.value.field == "body"


def depth_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@given(
    st.recursive(
        st.text('[]{}\\"x', max_size=5),
        lambda some: (
            st.lists(some, max_size=3) | st.dictionaries(st.text('[{"', max_size=2), some, max_size=3)
        ),
        max_leaves=20,
    ),
    st.integers(0, 8),
)
def test_depth_is_that_of_arrays_and_objects_within_each_other(value: Any, most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(body, "DEPTH", most)
        assert too_deep(json.dumps(value).encode()) == (depth_of(value) > most)


@pytest.mark.parametrize("text", [b"]" * 500, b"[" * DEPTH, b"}{" * 500, b"[" * 50 + b"{}]" * 80])
def test_the_depth_of_what_is_no_json_is_told_too(text: bytes) -> None:
    assert not too_deep(text)
    assert too_deep(text + b"[" * DEPTH + b"1" + b"]" * DEPTH + b"[")


def test_brackets_in_texts_are_no_depth() -> None:
    assert not too_deep(json.dumps(["[" * 500, '"{' * 500, "\\"]).encode())
    assert parse_json(json.dumps(["[" * 500, {"{": '\\"'}]).encode())


def test_an_object_has_no_names_but_these() -> None:
    assert object_of({"a": 1}, ("a", "b")) == {"a": 1}
    for value, field in (
        ({"c": 1}, "c"),
        ({"": 1}, "''"),
        ([], "body"),
        (None, "body"),
        ("x", "body"),
        (1, "body"),
    ):
        with pytest.raises(InvalidInput) as error:
            object_of(value, ("a", "b"))
        assert error.value.field == field


def test_a_job_has_in_and_not_what_python_calls_it() -> None:
    assert job_request({"handler": "h", "in": "1s"}) == {"handler": "h", "in_": "1s"}
    for value in ({"in_": 1}, {"wait": "1s"}, [], True, {"in": "1s", "at": "x"}):
        with pytest.raises(InvalidInput):
            job_request(value)


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (body.text, ["a", None], [1, [], True, "\ud800"]),
        (body.flag, [True, None], [1, "true"]),
        (lambda b, n: body.whole(b, n, 1, 3), [1, None], [0, 4, 1.0, True, "1"]),
        (lambda b, n: body.number(b, n, 0.5, 3), [1, 0.5, None], [0, 4, True, "1"]),
        (lambda b, n: body.texts(b, n, 2), [["a", "b"], [], None], ["a", ["a", 1], ["a"] * 3]),
        (body.mapping, [{}, None], [[], "a"]),
    ],
)
def test_fields_are_of_their_kind(read: Callable[..., Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        read({"x": value}, "x")
    for value in bad:
        with pytest.raises(InvalidInput) as error:
            read({"x": value}, "x")
        assert error.value.field == "x"
    with pytest.raises(InvalidInput):
        body.required_text({}, "x")


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_do_not_depend_on_how_they_are_cut(wanted: list[bytes], size: int) -> None:
    data = b"\n".join(wanted)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = list(lines(pieces))
    assert found == (data.split(b"\n") if not data.endswith(b"\n") and data else data.split(b"\n")[:-1])


def test_a_line_without_an_end_is_given_up() -> None:
    with pytest.raises(InvalidInput) as error:
        list(lines(b"x" * 100_000 for _ in range(1_000)))
    assert error.value.field == "line"
