"""What is shown: lines where stderr is no terminal, bars on one, never on stdout; and the report as text."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from pipeline.cli.demo import _text
from pipeline.dev.demo.bars import Bars
from pipeline.dev.demo.screen import Counts, Lines, screen

COUNTS = Counts(jobs=1143, mails=1000, due=500, fired=499, started=480, sent=420)
REPORT: dict[str, Any] = {
    "jobs": 4,
    "jobs_by_kind": {"mails": 3, "night_jobs": 1},
    "runs": 4,
    "attempts": 5,
    "restarted_runs": 1,
    "mails_sent": 3,
    "duplicates_stopped": {"total": 2, "by_lookup": 1, "by_server": 1},
    "lost": 0,
    "doubled": 0,
    "early": 0,
    "lateness_ms": {"min": 1, "p50": 4, "p99": 9, "max": 12},
    "emit_delay_ms": {"min": 0, "p50": 2, "p99": 5, "max": 6},
    "kill": {
        "idempotency_key": "dunning_invoice_55",
        "name": "worker 1",
        "worker": "one",
        "takeover_ms": 3400,
        "attempts": [
            {"attempt": 1, "outcome": "no ack", "mail": "sent", "name": "worker 1", "worker": "one"},
            {"attempt": 2, "outcome": "succeeded", "mail": "stopped", "name": None, "worker": "two"},
        ],
    },
    "invariants": [
        {"name": "nothing is lost", "holds": True, "detail": "0 lost"},
        {"name": "one mail for each invoice", "holds": False, "detail": "1 wrong: invoice 55: 2"},
    ],
    "kept": None,
    "store": {"kind": "running", "bootstrap": "b:1", "prefix": "demo-0"},
}


def test_lines_come_once_a_second_and_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instants = iter((10.0, 10.5, 11.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(instants))
    with Lines() as shown:
        for _ in range(3):
            shown.show(COUNTS)
        shown.tell("worker 1 killed")
    out, err = capsys.readouterr()
    line = "dueline: due 500/1143 · fired 499 · started 480 · mails 420/1000\n"
    assert out == ""
    assert err == line * 2 + "dueline: worker 1 killed\n"


def test_bars_show_the_counts_with_the_moments_above() -> None:
    terminal = io.StringIO()
    bars = Bars(Console(file=terminal, force_terminal=True, width=100))
    with bars as shown:
        shown.tell("ready: [dispatcher]")
        shown.show(COUNTS)
    text = terminal.getvalue()
    assert "ready: [dispatcher]" in text, "as it is, not as markup"
    assert "500/1143" in text
    assert "420/1000" in text


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bars), (False, Lines)])
def test_the_screen_fits_where_stderr_goes(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(screen()) is kind


def test_the_report_names_what_is_broken() -> None:
    text = _text(REPORT)
    assert "BROKEN one mail for each invoice (1 wrong: invoice 55: 2)" in text
    assert "ok     nothing is lost (0 lost)" in text
    assert "p50 4 ms, p99 9 ms, max 12 ms" in text
    assert "jobs                      4 (3 mails, 1 night jobs)" in text
    assert "killed with SIGKILL       worker 1 (one) after it sent dunning_invoice_55" in text
    assert "attempt 1               no ack, mail sent, by worker 1 (one)" in text
    assert "attempt 2               succeeded, mail stopped, by two" in text
    assert "2 (1 by look-up, 1 by the mail server)" in text
    assert "kept" not in text
    assert text.endswith("\n\n1 of 2 promises broken")


def test_the_last_line_of_a_good_night_says_so() -> None:
    held = [{**check, "holds": True} for check in REPORT["invariants"]]
    assert _text({**REPORT, "invariants": held}).endswith("\n\nall 2 promises held")


def test_the_report_says_what_was_kept_and_that_nobody_was_killed() -> None:
    text = _text({**REPORT, "kept": "/tmp/x", "kill": None})
    assert "kept: mails and logs in /tmp/x, topics demo-0.* at b:1\n" in text
    assert "SIGKILL" not in text
