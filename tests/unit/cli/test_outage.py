"""`dueline outage`, over a store in memory."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import codec
from pipeline.cli import outage as command
from pipeline.core.job import AckState, Event
from pipeline.core.keys import restored_key
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.core.times import format_instant
from pipeline.ports import Put
from tests.unit.survey.conftest import DUE, T0, Yard

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


ZERO = dict.fromkeys(("running", "retrying", "cancelled", "unreadable"), 0)
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
    assert (report["to"], report["by_ms"]) == (format_instant(DUE + 180_000), 60_000)
    assert (report["gone_until"], report["began_at"], report["restored_at"]) == (None, None, None)
    assert report["newer_records"] == 0
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
        "unreadable",
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
    ran = dueline("outage", "--from", FROM, "--key-prefix", "none")
    assert (ran.code, ran.err) == (0, "")
    assert "nothing was due" in ran.out


def test_names_that_nobody_knows_are_said(dueline: Any, yard: Yard) -> None:
    ran = dueline("outage", "--from", FROM, "--handler", "mail.sned", "--schedule", "nihgtly")
    assert ran.code == 0
    assert ran.err.splitlines() == [
        "dueline: --handler: nothing of mail.sned was due, and no live worker knows it",
        "dueline: --schedule: nothing of nihgtly was due, and there is no schedule of this id",
    ]
    yard.store.beat("w", handlers=("mail.sned",))
    yard.put_schedule(
        Schedule(
            spec=ScheduleSpec(id="nightly", handler="x", cron="0 0 1 1 *"),
            incarnation=1,
            revision=1,
            created_at=DUE,
            changed_at=DUE,
            last_nominal=DUE,
        )
    )
    assert dueline("outage", "--from", FROM, "--handler", "mail.sned", "--schedule", "nightly").err == ""


def test_what_was_before_the_store_is_said(dueline: Any, yard: Yard) -> None:
    early = format_instant(T0 - 3_600_000)
    ran = dueline("outage", "--from", early, "--to", format_instant(DUE), "--json")
    began = format_instant(T0)
    assert ran.json("outage")["began_at"] == began
    assert ran.err == f"dueline: the store began at {began}: nothing is known of before, 50% of the window\n"
    ran = dueline("verify", "--from", early, "--to", format_instant(T0 - 1), "--no-index")
    assert ran.code == 0
    assert ran.err == f"dueline: the store began at {began}: nothing is known of before, all of the window\n"
    event = Event(id="b", kind="restore", at=DUE + 60_000, detail={})
    yard.meta(restored_key(2), codec.EVENT.encode(event))
    ran = dueline("outage", "--from", FROM, "--json")
    assert ran.json("outage")["restored_at"] == format_instant(DUE + 60_000)
    assert "the store was restored at" in ran.err
    assert "33% of the window" in ran.err


def test_records_of_a_newer_version_are_said(dueline: Any, yard: Yard) -> None:
    yard.store.layout = replace(yard.store.layout, fingerprints=(f"{77:016x}",))
    value = bytes.fromhex("c301") + (77).to_bytes(8, "little")
    yard.store.cluster.append(Put(yard.store.names.work("default"), 0, b"j-x", value))
    yard.store.clock.advance(1_000)
    ran = dueline("outage", "--from", FROM, "--json")
    report = ran.json("outage")
    assert (report["newer_records"], report["total"]["unreadable"]) == (1, 1)
    assert "dueline: records of a newer version on unit.work.default cannot be read here (1): " in ran.err
    ran = dueline("verify", "--no-index", "--json")
    assert ran.json("verify")["newer_records"] == 1
    assert "dueline: records of a newer version on unit.work.default" in ran.err


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
        (("--from", FROM, "--queue", "none"), "--queue: 'none' is unknown: there are default"),
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


def test_the_table_and_the_picture_are_two_files(dueline: Any, yard: Yard, tmp_path: Path) -> None:
    file = tmp_path / "o.svg"
    ran = dueline("outage", "--from", FROM, "--csv", str(file), "--plot", str(tmp_path / "." / "o.svg"))
    assert (ran.code, ran.err) == (2, "dueline: --plot: o.svg is the file of --csv\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--to", format_instant(DUE - 1)), f"--to: {format_instant(DUE - 1)} is not after --from, {FROM}"),
        (("--to", format_instant(DUE + 60_000), "--by", "1ms"), "--by: gives more than 10000 buckets"),
        (("--csv", "/nowhere/o.csv"), "--csv: cannot write /nowhere/o.csv: No such file or directory"),
        (("--csv", "/dev/null/o.csv"), "--csv: cannot write /dev/null/o.csv: Not a directory"),
        (("--plot", "/nowhere/o.svg"), "--plot: cannot write /nowhere/o.svg: No such file or directory"),
        (("--plot", "o.gif"), "--plot: o.gif ends in neither .svg nor .png"),
        (("--csv", "o.csv"), "--csv: cannot write o.csv: Permission denied"),
        (("--plot", "o.png"), "--plot: cannot write o.png: Permission denied"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_store_is_asked(
    dueline: Any,
    yard: Yard,
    words: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.os, "access", lambda path, mode: False)  # whoever runs this may be root
    yard.store.cluster.reachable = False
    ran = dueline("outage", "--from", FROM, *words)
    assert (ran.code, ran.err) == (2, f"dueline: {error}\n") or ran.err.startswith(f"dueline: {error}:")
    assert list(tmp_path.iterdir()) == []


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
