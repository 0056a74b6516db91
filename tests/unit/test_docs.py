"""Pages that name tests or outcomes say what is there."""

from __future__ import annotations

import re
from pathlib import Path

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
