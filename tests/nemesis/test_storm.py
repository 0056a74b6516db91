"""A short storm, from a fixed seed: what an outside program that knows only `schemas/` and the command line sees.

By hand and for longer: `python tests/nemesis/storm.py --help`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nemesis import storm_wire as wire
from nemesis.storm import play
from nemesis.storm_check import Check, Row
from nemesis.storm_clients import Job, Ledger, Sent

SECONDS = 20
LAYOUT = wire.Layout(
    {
        "partitions": 6,
        "shards": 2,
        "ring": 3,
        "skew": [0, 0],
        "bucket_width_ms": 1_000,
        "queues": {"default": 4, "slow": 2},
    }
)
DUE = 1_800_000_000_000
ID = wire.anonymous(DUE, 7)


@pytest.mark.timeout(180)
def test_after_a_storm_every_job_fired_once_never_early_and_no_answer_was_wrong(
    broker: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    seen = play(broker, tmp_path, seed=4, seconds=SECONDS)
    report(seen.line())
    assert not seen.verdict.found, {kind: found[:5] for kind, found in seen.verdict.found.items()}
    assert not seen.notes
    assert seen.verdict.fired > 500
    assert seen.verdict.outcomes.keys() >= {"created", "cancelled", "rescheduled", "updated", "fired"}
    assert sum(seen.faults.values()) >= 5


def run_record(at: int, *, number: int = 1, offset: int = 0, **changes: Any) -> Row:
    run = {
        "job_id": ID,
        "occurrence_id": ID,
        "due_at": DUE,
        "run": number,
        "queue": "default",
        "handler": "h",
    }
    run |= {"created_at": DUE, "nominal_at": DUE, "idempotency_key": ID, "payload": b"1"}
    value = wire.write("run", run | changes)
    return Row(LAYOUT.work("default", ID), offset, ID, value, at, {})


def answer(outcome: str, offset: int = 0, **more: Any) -> Row:
    event = {"id": "c", "kind": "answer", "at": DUE, "job_id": ID, "occurrence_id": ID, "command_id": "c"}
    return Row(
        LAYOUT.home(ID), offset, "c", wire.write("event", event | {"outcome": outcome} | more), DUE, {}
    )


def verdict(
    monkeypatch: pytest.MonkeyPatch, work: list[Row], events: list[Row], verb: str = "cancel", **fields: Any
) -> set[str]:
    """Kinds of what is found wrong where one job was created and one command put."""
    ledger = Ledger()
    ledger.jobs[ID] = Job(ID, DUE, b"1", DUE - 5, offset=0)
    ledger.commands["c"] = Sent(
        "c", {"verb": verb, "job_id": ID, **fields}, LAYOUT.home(ID), DUE, [(LAYOUT.home(ID), 3)]
    )
    topics = {"x.events": events, "x.work.default": work}
    monkeypatch.setattr("nemesis.storm_check.read_all", lambda _broker, topic, _count: topics.get(topic, []))
    return set(Check("", "x", LAYOUT, ledger, DUE + 60_000).run().found)


def test_the_check_is_content_with_a_cancelled_job_and_with_a_fired_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert verdict(monkeypatch, [], [answer("cancelled")]) == set()
    assert verdict(monkeypatch, [run_record(DUE)], [answer("fired")]) == set()


@pytest.mark.parametrize(
    ("wrong", "work", "events"),
    [
        ("lost", [], [answer("fired")]),
        ("lost", [run_record(DUE)], []),
        ("doubled", [run_record(DUE), run_record(DUE, offset=1)], [answer("fired")]),
        ("early", [run_record(DUE - 1)], [answer("fired")]),
        ("contradiction", [run_record(DUE)], [answer("cancelled")]),
        ("contradiction", [run_record(DUE)], [answer("not_found")]),
        ("contradiction", [run_record(DUE)], [answer("fired"), answer("cancelled", offset=1)]),
        ("odd", [run_record(DUE), run_record(DUE, offset=1, occurrence_id=ID[:-1] + "z")], [answer("fired")]),
    ],
)
def test_the_check_finds(
    monkeypatch: pytest.MonkeyPatch, wrong: str, work: list[Row], events: list[Row]
) -> None:
    assert wrong in verdict(monkeypatch, work, events)


def test_the_check_finds_a_change_that_was_answered_and_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = answer("rescheduled", detail={"due_at": str(DUE + 5)})
    changed = {"verb": "reschedule", "due_at": DUE + 5}
    carried = run_record(DUE + 5, due_at=DUE + 5)
    assert verdict(monkeypatch, [carried], [moved], **changed) == set()
    assert verdict(monkeypatch, [run_record(DUE + 5)], [moved], **changed) == {"contradiction"}
