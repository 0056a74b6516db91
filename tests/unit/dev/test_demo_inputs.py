"""The night on file: what the example files hold, how they are read, and how time is compressed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.dev.demo.handlers import DUNNING, NIGHT_JOB
from pipeline.dev.demo.inputs import (
    Night,
    examples,
    night_of,
    read_crontab,
    read_invoices,
)
from pipeline.dev.demo.script import LEAD_MS, NIGHT_MS, requests, script

NIGHT = Night(
    starts=datetime(2026, 11, 29, 20, tzinfo=UTC),
    ends=datetime(2026, 11, 30, 8, tzinfo=UTC),
)
HEADER = "invoice,customer,email,amount,currency,due_local,zone\n"


def invoices(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "invoices.csv"
    path.write_text(HEADER + "".join(line + "\n" for line in lines))
    return path


def crontab(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "night.crontab"
    path.write_text(text)
    return path


# -- the committed files
# --------------------------------------------------------------------------------------


def test_the_committed_invoices_are_a_night_of_a_thousand_mails_in_many_zones() -> None:
    jobs = read_invoices(examples() / "invoices.csv")
    assert len(jobs) == 1000
    assert len({job.idempotency_key for job in jobs}) == 1000
    zones = {job.payload["zone"] for job in jobs}
    assert zones > {"Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata"}
    assert all(
        job.payload["email"].endswith(("@example.com", "@example.org", "@example.net")) for job in jobs
    )
    assert night_of(jobs) == NIGHT


def test_the_generator_still_writes_the_committed_invoices() -> None:
    made = subprocess.run(
        [sys.executable, str(examples() / "make_invoices.py")], capture_output=True, check=True
    )
    assert made.stdout == (examples() / "invoices.csv").read_bytes()


def test_the_committed_crontab_is_the_usual_night() -> None:
    jobs = read_crontab(examples() / "night.crontab", NIGHT)
    commands = Counter(job.payload["command"] for job in jobs)
    assert commands["sessions clean-up --older-than 24h"] == 73, "every 10 minutes, both ends included"
    assert commands["database backup --full --verify"] == 1
    assert commands["report aging --week"] == 1, "the night ends on a Monday"
    assert len({job.idempotency_key for job in jobs}) == len(jobs)


@pytest.mark.parametrize("invoices", [None, 55, 100, 1000])
def test_the_story_is_about_invoice_55(invoices: int | None) -> None:
    assert script(invoices).victim == "dunning_invoice_55"


def test_fewer_invoices_are_the_first_ones_of_the_same_night() -> None:
    few = script(3)
    mails = [job.idempotency_key for job in few.jobs if job.handler == DUNNING]
    assert mails == ["dunning_invoice_1", "dunning_invoice_2", "dunning_invoice_3"]
    assert few.night == NIGHT
    assert few.victim in mails


# -- reading ------------------------------------------------------------------------------------------------


def test_an_invoice_is_due_at_its_local_time(tmp_path: Path) -> None:
    path = invoices(tmp_path, "55,North Loom,a@example.com,12.50,EUR,2026-11-30T09:00:00,Europe/Berlin")
    (job,) = read_invoices(path)
    assert job.due == datetime(2026, 11, 30, 8, tzinfo=UTC)
    assert job.idempotency_key == "dunning_invoice_55"
    assert job.payload["invoice"] == 55
    assert job.payload["amount"] == "12.50", "money is never a float"


@pytest.mark.parametrize(
    "line",
    [
        "x,North Loom,a@example.com,1,EUR,2026-11-30T09:00:00,Europe/Berlin",
        "1,North Loom,a@example.com,1,EUR,tomorrow,Europe/Berlin",
        "1,North Loom,a@example.com,1,EUR,2026-11-30T09:00:00,Europe/Atlantis",
        "1,North Loom,a@example.com,1,EUR",
    ],
)
def test_a_line_that_is_no_invoice_is_named(tmp_path: Path, line: str) -> None:
    good = "1,North Loom,a@example.com,1,EUR,2026-11-30T09:00:00,Europe/Berlin"
    with pytest.raises(InvalidInput, match=r"invoices\.csv line 3"):
        read_invoices(invoices(tmp_path, good, line))


def test_a_crontab_line_runs_in_the_zone_above_it(tmp_path: Path) -> None:
    text = "# night\n\n0 3 * * * backup\nCRON_TZ=Asia/Tokyo\n0 9 * * 1-5 report --jp  # as it stands\n"
    backup, report = read_crontab(crontab(tmp_path, text), NIGHT)
    assert backup.due == datetime(2026, 11, 30, 3, tzinfo=UTC)
    assert report.due == datetime(2026, 11, 30, 0, tzinfo=UTC)
    assert report.handler == NIGHT_JOB
    assert report.payload["command"] == "report --jp  # as it stands", "cron has no comments behind a command"
    assert report.idempotency_key == "night_report_jp_as_it_stands_20261130T0000Z"


def test_both_ends_of_the_night_belong_to_it(tmp_path: Path) -> None:
    jobs = read_crontab(crontab(tmp_path, "0 20,8 * * * edge\n@hourly tick\n"), NIGHT)
    edges = [job.due for job in jobs if job.payload["command"] == "edge"]
    assert edges == [NIGHT.starts, NIGHT.ends]
    assert len(jobs) == 2 + 13


def test_a_sixth_field_is_the_command(tmp_path: Path) -> None:
    jobs = read_crontab(crontab(tmp_path, "0 3 * * * * x y\n"), NIGHT)
    assert [job.payload["command"] for job in jobs] == ["* x y"]


@pytest.mark.parametrize("line", ["0 3 * * *", "61 * * * * x", "@sometimes x", "0 3 31 2 * x"])
def test_a_line_that_is_no_cron_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidInput, match=r"night\.crontab line 2"):
        read_crontab(crontab(tmp_path, f"#\n{line}\n"), NIGHT)


def test_an_unknown_zone_is_named_with_the_line_that_needs_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"night\.crontab line 2: .*Nowhere"):
        read_crontab(crontab(tmp_path, "CRON_TZ=Nowhere\n0 3 * * * x\n"), NIGHT)


# -- compressing
# ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12 * 3600), min_size=2))
def test_compressing_keeps_order_and_stays_inside(seconds: list[int]) -> None:
    dues = [datetime.fromtimestamp(NIGHT.starts.timestamp() + s, UTC) for s in sorted(seconds)]
    instants = [NIGHT.compressed(due, 1_000, 12_000) for due in dues]
    assert instants == sorted(instants)
    assert all(1_000 <= instant <= 13_000 for instant in instants)


def test_the_ends_of_the_night_are_the_ends_of_its_seconds() -> None:
    assert NIGHT.compressed(NIGHT.starts, 5_000, 12_000) == 5_000
    assert NIGHT.compressed(NIGHT.ends, 5_000, 12_000) == 17_000


def test_a_night_of_one_instant_can_be_compressed() -> None:
    single = Night(starts=NIGHT.starts, ends=NIGHT.starts)
    assert single.compressed(NIGHT.starts, 5_000, 12_000) == 5_000


def test_requests_are_what_schedule_many_takes() -> None:
    played = script(10)
    opening = 1_800_000_000_000
    made = list(requests(played, opening))
    assert [item["idempotency_key"] for item in made] == [job.idempotency_key for job in played.jobs]
    assert all(item.keys() == {"handler", "payload", "at", "idempotency_key"} for item in made)
    dues = [item["at"].timestamp() * 1000 - opening for item in made]
    assert 0 <= min(dues) <= max(dues) <= NIGHT_MS
    assert LEAD_MS + NIGHT_MS == 15_000, "all within 15 s, as the product promises to show"
