"""Pages that name tests or outcomes say what is there."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.core.times import parse_duration
from tests.integration.foreign_records import CASES, in_words

ROOT = Path(__file__).parents[2]


def rows(page: str) -> list[list[str]]:
    lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]


def test_every_hole_has_its_rule_and_tests_that_exist_and_carry_its_number() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    listed = {number: re.findall(r"`(test_\w+)`", tests) for number, _, _, tests in rows("holes.md")[1:]}
    assert [*listed] == [f"H{n}" for n in range(1, 34)]
    for number, tests in listed.items():
        assert tests, number
        for test in tests:
            assert number.lower() in test.split("_"), f"{test} does not carry {number}"
            assert test in there, f"{test} of {number} does not exist"


def test_the_page_of_bad_input_has_every_record_with_its_outcome() -> None:
    written = [row for row in rows("bad-input.md") if len(row) == 2 and row != ["record", "outcome"]]
    assert written == [[name, in_words(outcome)] for name, (_, outcome) in CASES.items()]


REASONS = (
    r'Dead(?:End|Letter)\(\s*reason="(\w+)"',
    r'Action\.DEAD, f?"(\w+): ',
    r'condemn\(entry, f?"(\w+): ',
    r'problem=f?"(\w+): ',
    r'\("(\w+)", head\.\w+\)',
)
"""How the code says why a record becomes a dead letter."""


def test_the_page_of_jobs_has_every_reason_of_a_dead_letter() -> None:
    code = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "pipeline").glob("**/*.py")))
    said = {word for pattern in REASONS for word in re.findall(pattern, code)}
    tables = [row for row in rows("jobs.md") if len(row) == 3]
    written = [word for reason, _, _ in tables for word in re.findall(r"`(\w+)`", reason)]
    assert sorted(set(written)) == sorted(written), "each once"
    assert set(written) == said


def test_the_page_of_jobs_says_what_a_duration_is() -> None:
    given = {
        word: meaning
        for row in rows("jobs.md")
        if len(row) == 2
        for word, meaning in [row]
        if row != ["you write", "it is"]
    }
    texts = [text for cell in given for text in re.findall(r"`([0-9][\w.]*[a-z])`", cell)]
    assert {text: parse_duration("in_", text) for text in texts} == {
        "90s": 90_000, "500ms": 500, "10m": 600_000, "1h30m": 5_400_000, "1.5h": 5_400_000,
        "2d": 172_800_000, "1w": 604_800_000,
    }  # fmt: skip
    assert parse_duration("in_", timedelta(minutes=10)) == 600_000
    assert parse_duration("in_", 2.5) == 2_500
    for refused in ("10", "m", "-1s", "10 m", "30m1h", "201000w"):
        with pytest.raises(InvalidInput, match="in_"):
            parse_duration("in_", refused)
    assert parse_duration("in_", "0.1ms") == 1
