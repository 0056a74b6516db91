"""`dueline outage`, over a store in memory."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import outage as command
from pipeline.core.job import AckState
from pipeline.core.times import format_instant
from tests.unit.survey.conftest import DUE, Yard

FROM = format_instant(DUE)


@pytest.fixture
def yard(store: Any) -> Yard:
    """One of each: on time and succeeded, late and dead, waiting, unacked, pending, skipped."""
    yard = Yard(store)
    yard.ack(yard.fire(yard.run(0)), AckState.SUCCEEDED)
    unacked = yard.fire(yard.run(1))
    store.put(yard.run(2, after=90_000))
    yard.skip(first=str(DUE), last=str(DUE), count="1")
    store.clock.advance(120_000)
    late = yard.ack(yard.fire(yard.run(3, after=60_000)), AckState.DEAD)
    yard.commit_all()
    waiting = yard.fire(yard.run(4, after=60_000, handler="bill"))
    assert unacked.due_at < late.due_at == waiting.due_at
    store.clock.advance(60_000)
    return yard


ZERO = dict.fromkeys(("running", "retrying", "cancelled"), 0)
FIRST = {
    **ZERO, "due": 3, "on_time": 2, "late": 0, "emit_delay_ms": None, "skipped": 1, "skips": {"misfire": 1},
    "failed": 0, "succeeded": 1, "dead": 0, "unacked": 1, "waiting": 0, "pending": 0,
}  # fmt: skip
SECOND = {
    **ZERO, "due": 3, "on_time": 0, "late": 2, "emit_delay_ms": {"p50": 60_000, "p99": 60_000, "max": 60_000},
    "skipped": 0, "skips": {}, "failed": 1, "succeeded": 0, "dead": 1, "unacked": 0, "waiting": 1, "pending": 1,
}  # fmt: skip
NOTHING = {**FIRST, **dict.fromkeys(("due", "on_time", "skipped", "succeeded", "unacked"), 0), "skips": {}}


def test_each_bucket_and_the_total(dueline: Any, yard: Yard) -> None:
    ran = dueline("outage", "--from", FROM, "--json")
    report = ran.json("outage")
    assert (ran.code, ran.err) == (0, "")
    buckets = [{name: value for name, value in each.items() if name != "from"} for each in report["buckets"]]
    assert buckets == [FIRST, SECOND, NOTHING]
    assert [each["from"] for each in report["buckets"]] == [
        format_instant(DUE + n * 60_000) for n in range(3)
    ]
    assert (report["to"], report["by_ms"], report["gone_until"]) == (
        format_instant(DUE + 180_000),
        60_000,
        None,
    )
    total = report["total"]
    assert (total["due"], total["on_time"], total["late"]) == (6, 2, 2)
    states = (
        "succeeded",
        "failed",
        "cancelled",
        "unacked",
        "waiting",
        "running",
        "retrying",
        "pending",
        "skipped",
    )
    assert sum(total[state] for state in states) == total["due"]


def test_a_table_for_people_leaves_out_what_is_empty(dueline: Any, yard: Yard) -> None:
    out = dueline("outage", "--from", FROM).out
    assert out.splitlines()[1].split()[:5] == ["FROM", "DUE", "ON_TIME", "LATE", "EMIT_DELAY_P50"]
    assert (
        len(out.splitlines()) == 2 + 2 + 1 + 1
    )  # no line for the bucket without any, but the total, and the reasons
    assert ", by 60 s of due time, as of " in out
    assert out.splitlines()[4].split()[4:7] == ["60", "s", "60"]
    assert out.endswith("skipped: misfire=1\n")
    assert "RETRYING" not in out


def test_by_filter_and_end(dueline: Any, yard: Yard) -> None:
    to = format_instant(DUE + 120_000)
    report = dueline("outage", "--from", FROM, "--to", to, "--by", "2m", "--handler", "bill", "--json").json(
        "outage"
    )
    assert [(each["due"], each["waiting"]) for each in report["buckets"]] == [(1, 1)]


def test_nothing_was_due(dueline: Any, yard: Yard) -> None:
    assert "nothing was due" in dueline("outage", "--from", FROM, "--queue", "none").out


def test_csv(dueline: Any, yard: Yard, tmp_path: Path) -> None:
    assert dueline("outage", "--from", FROM, "--csv", str(tmp_path / "o.csv")).code == 0
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    assert [row["due"] for row in rows] == ["3", "3", "0"]
    assert [(row["emit_delay_max"], row["skips"]) for row in rows] == [
        ("", "misfire=1"),
        ("60000", ""),
        ("", ""),
    ]


@pytest.mark.parametrize(("name", "begin"), [("o.svg", b"<?xml"), ("o.png", b"\x89PNG")])
def test_a_picture(dueline: Any, yard: Yard, tmp_path: Path, name: str, begin: bytes) -> None:
    assert dueline("outage", "--from", FROM, "--plot", str(tmp_path / name)).code == 0
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--from", "yesterday"), "--from: 'yesterday' is no RFC 3339 instant"),
        (("--from", "2150-01-01T00:00:00Z"), "--from: 2150-01-01T00:00:00.000Z is in the future"),
        (("--from", FROM, "--to", "2150-01-01T00:00:00Z"), "--to: 2150-01-01T00:00:00.000Z is in the future"),
        (("--from", FROM, "--to", FROM), f"--to: {FROM} is not after --from, {FROM}"),
        (("--from", FROM, "--by", "1ms"), "--by: gives more than 10000 buckets"),
        (("--from", FROM, "--by", "soon"), "--by: 'soon' is no duration"),
        (("--from", FROM, "--label", "x"), "--label: 'x' is not name=value"),
        (("--from", FROM, "--handler", "No"), "--handler: 'No' does not match"),
        (("--from", FROM, "--plot", "o.gif"), "--plot: o.gif ends in neither .svg nor .png"),
        (("--from", FROM, "--plot", "/nowhere/o.svg"), "--plot: cannot write /nowhere/o.svg: No such file"),
        (("--from", FROM, "--csv", "/nowhere/o.csv"), "--csv: cannot write /nowhere/o.csv: No such file"),
        ((), "Missing option '--from'"),
    ],
)
def test_bad_input(dueline: Any, yard: Yard, words: tuple[str, ...], error: str) -> None:
    ran = dueline("outage", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dueline: {error}")
    assert len(ran.err.splitlines()) == 1


def test_without_the_extra_a_picture_is_refused_before_anything_is_read(
    dueline: Any, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    yard.store.cluster.reachable = False
    ran = dueline("outage", "--from", FROM, "--plot", "o.svg")
    assert (ran.code, ran.err) == (2, "dueline: --plot: needs matplotlib: pip install 'dueline[plot]'\n")


def test_what_is_gone_is_said(dueline: Any, yard: Yard) -> None:
    for n in range(4):  # on three partitions
        yard.fire(yard.run(70 + n, after=170_000))
    partition, offset = next(place for place in yard.offsets.values() if place[1])
    yard.store.cluster.partition(yard.store.names.work("default"), partition).start = offset
    yard.store.clock.advance(60_000)
    ran = dueline("outage", "--from", FROM, "--json")
    assert ran.json("outage")["gone_until"] is not None
    assert "is no longer kept, in whole or in part: it is not counted" in ran.err


def test_the_store_cannot_be_reached(dueline: Any, yard: Yard) -> None:
    yard.store.cluster.reachable = False
    assert dueline("outage", "--from", FROM).code == 5
