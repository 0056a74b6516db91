"""JSON as a tree: exact, bounded, and an error for what is none."""

from __future__ import annotations

import json

import pytest

from pipeline.server.console.parts.json_view import NODES, tree_of


def test_numbers_stay_as_they_were_written() -> None:
    text = '{"big": 123456789012345678901234567890, "long": 0.10000000000000000001, "exp": 1E400, "nan": NaN}'
    assert tree_of(text) == (
        None,
        "object",
        [
            ("big", "number", "123456789012345678901234567890"),
            ("long", "number", "0.10000000000000000001"),
            ("exp", "number", "1E400"),
            ("nan", "number", "NaN"),
        ],
        4,
    )


def test_kinds() -> None:
    assert tree_of('["1", null, true, {}, []]') == (
        None,
        "array",
        [
            (0, "string", "1"),
            (1, "literal", "null"),
            (2, "literal", "true"),
            (3, "object", [], 0),
            (4, "array", [], 0),
        ],
        5,
    )


def test_half_a_pair_can_be_sent() -> None:
    json.dumps(tree_of('"\\ud83d"')).encode()


def test_a_large_one_is_cut() -> None:
    _, _, items, size = tree_of(json.dumps(list(range(5 * NODES))))
    assert size == 5 * NODES
    assert len(items) <= NODES
    assert items[-1][1] == "more"
    assert f"{5 * NODES - len(items) + 1:,} more" in items[-1][2]


def test_a_long_text_is_cut() -> None:
    _, kind, text = tree_of(json.dumps("x" * 10_000))
    assert kind == "string"
    assert text.endswith("(10,000 characters)")


def test_a_deep_one_is_cut() -> None:
    shown = json.dumps(tree_of("[" * 500 + "]" * 500))
    assert "more; copy it" in shown


@pytest.mark.parametrize("text", ["", "{not json", "[" * 100_000])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # as json says it
        tree_of(text)
