"""Payloads as they are typed."""

from __future__ import annotations

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.server.console.payload import object_of


def test_every_digit_is_kept() -> None:
    assert object_of('{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "must be an object"),
        ("{", "is not valid JSON: .* at character 1"),
        ('{"a": 1, "n": {"b": 1, "b": 2}}', "b: stands twice in one object"),
        ("[" * 9_999 + "]" * 9_999, "is nested deeper than"),
        ('{"a": NaN}', "is not valid JSON: NaN is no number"),
    ],
)
def test_what_is_no_payload(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"^payload: {problem}"):
        object_of(text)
