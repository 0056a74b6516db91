"""Lengths, numbers, and text that is safe to look at."""

from __future__ import annotations

import pytest

from pipeline.server.console import links
from pipeline.server.console.words import clean, instants_in, length, number, plural, sendable, size


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (9_940, "9.9 s"),
        (10_000, "10 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "1 d"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_length(ms: int, shown: str) -> None:
    assert length(ms) == shown


def test_numbers() -> None:
    assert [number(each) for each in (None, 0, 1234, 418.0, 420.55)] == [
        "\N{EN DASH}",
        "0",
        "1,234",
        "418",
        "420.6",
    ]
    assert [plural(each, "job") for each in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]
    assert plural(2, "process", "processes") == "2 processes"
    assert [size(each) for each in (1, 1023, 1536, 3 << 20)] == [
        "1 byte",
        "1,023 bytes",
        "1.5 KiB",
        "3.0 MiB",
    ]


def test_clean() -> None:
    assert clean("plain\ttext\n") == "plain\ttext\n"
    assert clean("a\u202eb\x00c\u200bd") == "a\\u202eb\\u0000c\\u200bd"
    assert clean("half \ud83d") == "half ?"
    assert clean("x" * 20, 10) == "x" * 9 + "\N{HORIZONTAL ELLIPSIS}"
    assert sendable("\u202e\ud83d") == "\u202e?"


def test_links_hold_whatever_an_id_is() -> None:
    assert links.schedule("..") == "/console/schedule?id=.."
    assert links.job("s:a:1:g::5&x=#") == "/console/job?id=s%3Aa%3A1%3Ag%3A%3A5%26x%3D%23"
    assert links.to("dead", handler="", queue=None, after="7") == "/console/dead?after=7"


def test_instants_in_a_sentence() -> None:
    assert instants_in("it waits for a worker") == [("it waits for a worker", "")]
    said = "due 2026-12-02T09:00:00Z, tried until 2026-12-02T10:00:00.250Z."
    assert instants_in(said) == [
        ("due ", "2026-12-02T09:00:00Z"),
        (", tried until ", "2026-12-02T10:00:00.250Z"),
        (".", ""),
    ]
