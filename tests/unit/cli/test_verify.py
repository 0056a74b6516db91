"""`dueline verify`, over a store in memory; indexes are compared in tests/integration/test_outage.py."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import codec
from pipeline.core.job import AckState, Event
from pipeline.core.keys import restored_key
from pipeline.core.times import format_instant
from tests.unit.survey.conftest import DUE, Yard

FROM = format_instant(DUE)


@pytest.fixture
def yard(store: Any) -> Yard:
    yard = Yard(store)
    yard.ack(yard.fire(yard.run(0)), AckState.SUCCEEDED)
    yard.commit_all()
    store.clock.advance(60_000)
    return yard


def test_nothing_is_wrong(dueline: Any, yard: Yard) -> None:
    ran = dueline("verify", "--from", FROM, "--no-index", "--json")
    report = ran.json("verify")
    assert (ran.code, report["ok"], report["occurrences"], report["runs"]) == (0, True, 1, 1)
    assert [report[name] for name in ("pending", "fired", "waiting", "restored")] == [0, 1, 0, 0]
    assert {each["kind"]: each["count"] for each in report["findings"]} == dict.fromkeys(
        ("lost", "doubled", "early", "unacked", "token", "index"), 0
    )
    assert report["not_here"] is None
    assert dueline("verify", "--no-index").out.splitlines()[1:] == [
        "indexes were not compared",
        "nothing is wrong",
    ]


def test_pending_fired_and_waiting_are_told_apart(dueline: Any, yard: Yard) -> None:
    yard.store.put(yard.run(1))
    yard.fire(yard.run(2))
    report = dueline("verify", "--from", FROM, "--no-index", "--json").json("verify")
    assert [report[name] for name in ("occurrences", "pending", "fired", "waiting")] == [3, 1, 2, 1]
    out = dueline("verify", "--from", FROM, "--no-index").out
    assert "3 occurrences due: 1 pending, 2 fired in 2 runs, 1 of these waiting for a worker" in out


def test_what_fired_before_a_restore_is_counted_and_no_finding(dueline: Any, yard: Yard) -> None:
    yard.store.clock.advance(60_000)
    yard.ack(yard.fire(yard.again(yard.run(1)), told=False), AckState.SUCCEEDED)
    yard.commit_all()
    assert dueline("verify", "--from", FROM, "--no-index").code == 1
    event = Event(id="b", kind="restore", at=DUE + 30_000, detail={})
    yard.meta(restored_key(2), codec.EVENT.encode(event))
    ran = dueline("verify", "--from", FROM, "--no-index", "--json")
    assert (ran.code, ran.json("verify")["restored"]) == (0, 1)
    assert "2 fired in 2 runs, 1 of them before a restore" in dueline("verify", "--no-index").out


def test_what_is_no_longer_kept_is_not_looked_at(dueline: Any, yard: Yard) -> None:
    """Its first run is gone, a later one is still there."""
    first = yard.run(1)
    yard.fire(first)
    partition, offset = yard.offsets[first.occurrence_id, 1]
    yard.store.clock.advance(60_000)
    yard.ack(yard.fire(yard.again(first), told=False), AckState.SUCCEEDED)
    yard.store.cluster.partition(yard.store.names.work("default"), partition).start = offset + 1
    yard.commit_all()
    yard.store.clock.advance(60_000)
    ran = dueline("verify", "--from", FROM, "--no-index", "--json")
    assert (ran.code, ran.json("verify")["fired"]) == (0, 0)
    assert "is no longer kept" in ran.err


def test_what_is_wrong_is_named_and_the_exit_code_is_1(dueline: Any, yard: Yard) -> None:
    run = yard.run(1)
    for _ in range(2):
        yard.fire(run)
    yard.commit_all()
    ran = dueline("verify", "--from", FROM, "--no-index", "--json")
    report = ran.json("verify")
    assert (ran.code, report["ok"]) == (1, False)
    found = {
        each["kind"]: [one["id"] for one in each["first"]] for each in report["findings"] if each["count"]
    }
    assert found == {"doubled": [run.job_id], "unacked": [run.job_id] * 2}
    out = dueline("verify", "--from", FROM, "--no-index").out
    assert out.splitlines()[2].split() == ["WHAT", "OF", "ID", "DETAIL"]
    assert f"doubled  1   {run.job_id}" in out


def test_without_an_index_on_this_machine_its_partitions_are_named(dueline: Any, yard: Yard) -> None:
    ran = dueline("verify", "--from", FROM, "--json")
    assert ran.json("verify")["not_here"] == [*range(24)]
    assert ran.code == 0
    assert "no index on this machine of partitions 0 1 2" in dueline("verify").out


def test_the_last_hour_is_looked_at_unless_a_window_is_given(dueline: Any, yard: Yard) -> None:
    report = dueline("verify", "--no-index", "--json").json("verify")
    assert report["from"] == format_instant(DUE + 60_000 - 3_600_000)
    to = format_instant(DUE + 1_000)
    report = dueline("verify", "--to", to, "--no-index", "--json").json("verify")
    assert (report["from"], report["to"]) == (format_instant(DUE + 1_000 - 3_600_000), to)


def test_bad_input(dueline: Any, yard: Yard) -> None:
    ran = dueline("verify", "--from", "2150-01-01T00:00:00Z")
    assert (ran.code, ran.out) == (2, "")
    assert "is in the future" in ran.err


def test_a_reversed_window_is_refused_before_the_store_is_asked(dueline: Any, yard: Yard) -> None:
    yard.store.cluster.reachable = False
    ran = dueline("verify", "--from", FROM, "--to", format_instant(DUE - 5))
    assert (ran.code, ran.err) == (
        2,
        f"dueline: --to: {format_instant(DUE - 5)} is not after --from, {FROM}\n",
    )
