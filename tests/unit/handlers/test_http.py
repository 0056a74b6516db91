"""What is made of an answer, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.core.handler import RESULT_LIMIT, encode_result
from pipeline.handlers.fields import end_within, start_within
from pipeline.handlers.http import Answer, asked_wait, result
from pipeline.handlers.secrets import mask

NOON = "Sun, 06 Nov 1994 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "12"}, 12),
        ({"retry-after": " 12 "}, 12),
        ({"retry-after": "0"}, 1),
        ({"retry-after": "9999999999"}, 3_600),
        ({"retry-after": "Sun, 06 Nov 1994 12:00:40 GMT", "date": NOON}, 40),
        ({"retry-after": "Sun, 06 Nov 1994 12:00:40 -0000", "date": NOON}, 40),
        ({"retry-after": "Sun, 06 Nov 1994 11:00:00 GMT", "date": NOON}, 1),
        ({"retry-after": "Sun, 06 Nov 1994 12:00:40 GMT", "date": "garbage"}, 30),
        ({"retry-after": "Sun, 06 Nov 9999999 12:00:40 GMT"}, None),
        ({"retry-after": "Sun, 99 Nov 1994 12:00:40 GMT"}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], wait: float | None) -> None:
    assert asked_wait(headers, now=784_123_200 + 10) == wait


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"", {"body": ""}),
        ("ä".encode(), {"body": "ä"}),
        (b"\xff\0", {"body_base64": "/wA="}),
    ],
)
def test_a_body_is_kept_as_text_if_it_is_text(body: bytes, kept: dict[str, Any]) -> None:
    assert result(Answer(200, {}, body, False)) == {"status": 200, "headers": {}, **kept}


@pytest.mark.parametrize(
    "body", [b"x" * 900_000, "ä€".encode() * 90_000, b"\x01" * 900_000, b"\xff" * 900_000, b'"' * 99_000]
)
def test_whatever_the_body_the_result_can_be_kept(body: bytes) -> None:
    headers = dict.fromkeys(("etag", "location", "content-type", "x-request-id", "retry-after"), "ÿ" * 500)
    answer = result(Answer(200, headers, body, False))
    data = encode_result(answer) or b""
    assert answer["truncated"] is True
    assert RESULT_LIMIT * 0.5 < len(data) <= RESULT_LIMIT
    assert b"result_dropped" not in data


def test_a_character_cut_in_two_by_our_limit_does_not_make_a_text_binary() -> None:
    assert result(Answer(200, {}, "aä".encode()[:2], True))["body"] == "a"
    assert "body_base64" in result(Answer(200, {}, "aä".encode()[:2], False))


def test_text_within_room_is_the_start_or_the_end() -> None:
    assert start_within("abc", 100) == "abc"
    assert start_within("a" * 100, 12) == "a" * 10
    assert end_within("b" + "a" * 100 + "c", 12).endswith("ac")
    assert len(json.dumps(start_within("\x01\x02" * 1_000, 100))) <= 100


def test_a_secret_is_hidden_in_every_form_in_which_it_comes_back() -> None:
    secret = 'pa"ss /+w'
    hidden = mask([secret, "pa"])
    for form in (secret, "pa%22ss%20/%2Bw", "pa%22ss%20%2F%2Bw", 'pa\\"ss /+w'):
        assert hidden.text(f"<{form}>") == "<***>"
        assert hidden.data(f"<{form}>".encode()) == b"<***>"
