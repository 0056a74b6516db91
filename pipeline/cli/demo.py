"""`dueline demo`: the product's main job on real input, with a crash at the worst moment, and the proof."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.output import emit


@click.command()
@click.option("--jobs", type=click.IntRange(1, 1000), help="Only the first so many invoices.")
@click.option("--store", metavar="HOST:PORT", help="Use this Kafka instead of the embedded one.")
@click.option("--keep", is_flag=True, help="Keep the topics and the mail store to look around in.")
def demo(jobs: int | None, store: str | None, keep: bool) -> int:
    """Send 1,000 dunning mails through a crash, each exactly once.

    A company's night, compressed to 12 s: reminders due in many time zones and a crontab of night jobs, run
    by a dispatcher and two workers. One worker is killed after it sent a mail and before its ack. Everything
    in the report is read back from the topics and the mail store; exit code 1 if a promise was broken.
    """
    from pipeline.dev.demo.play import play
    from pipeline.dev.demo.screen import screen
    from pipeline.dev.demo.script import script

    with screen() as shown:
        found = play(script(jobs), told=store, keep=keep, screen=shown)
    emit(found, _text)
    return 0 if found["ok"] else 1


def _text(found: dict[str, Any]) -> str:
    stopped, kinds = found["duplicates_stopped"], found["jobs_by_kind"]
    by = f"{stopped['by_lookup']} by look-up, {stopped['by_server']} by the mail server"
    lines = [
        *_rows(
            ("jobs", f"{found['jobs']} ({kinds['mails']} mails, {kinds['night_jobs']} night jobs)"),
            ("runs", found["runs"]),
            ("attempts", f"{found['attempts']} ({found['restarted_runs']} runs started again)"),
            ("mails sent", found["mails_sent"]),
            ("duplicates stopped by key", f"{stopped['total']} ({by})"),
            ("lateness", _spread(found["lateness_ms"])),
            ("emit delay", _spread(found["emit_delay_ms"])),
            ("lost, doubled, early", f"{found['lost']}, {found['doubled']}, {found['early']}"),
        ),
        *_kill(found["kill"]),
        "",
        *(f"{'ok    ' if c['holds'] else 'BROKEN'} {c['name']} ({c['detail']})" for c in found["invariants"]),
    ]
    if found["kept"]:
        lines += ["", f"kept: mails and logs in {found['kept']}{_kept_topics(found['store'])}"]
    return "\n".join([*lines, "", _verdict(found["invariants"])])


def _verdict(invariants: list[dict[str, Any]]) -> str:
    broken = sum(not check["holds"] for check in invariants)
    total = len(invariants)
    return f"{broken} of {total} promises broken" if broken else f"all {total} promises held"


def _kept_topics(store: dict[str, str]) -> str:
    """Those of an embedded store are gone with its broker."""
    return "" if store["kind"] == "embedded" else f", topics {store['prefix']}.* at {store['bootstrap']}"


def _rows(*rows: tuple[str, object]) -> list[str]:
    return [f"{name:<26}{value}" for name, value in rows]


def _spread(values: dict[str, Any]) -> str:
    return f"p50 {values['p50']} ms, p99 {values['p99']} ms, max {values['max']} ms, min {values['min']} ms"


def _worker(entry: dict[str, Any]) -> str:
    """As the lines before the report call it, and as the topics do; one of them if the other is not known."""
    name, process = entry["name"], entry["worker"]
    return f"{name} ({process})" if name and process else str(name or process)


def _kill(kill: dict[str, Any] | None) -> list[str]:
    if kill is None:
        return []
    lines = _rows(
        ("killed with SIGKILL", f"{_worker(kill)} after it sent {kill['idempotency_key']}"),
        ("taken over after", f"{kill['takeover_ms']} ms"),
    )
    for attempt in kill["attempts"]:
        text = f"{attempt['outcome']}, mail {attempt['mail']}, by {_worker(attempt)}"
        lines += _rows((f"  attempt {attempt['attempt']}", text))
    return lines
