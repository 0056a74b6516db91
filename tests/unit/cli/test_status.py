"""`dueline status` over a store in memory."""

from __future__ import annotations

import json
from typing import Any

from pipeline.core.job import InFlight, Owned


def test_nobody_is_there(dueline: Any, store: Any) -> None:
    view = dueline("status", "--json").json("status")
    assert (view["prefix"], view["pending"], view["oldest_overdue"]) == ("unit", 0, None)
    assert len(view["partitions"]) == store.layout.partitions + 3
    assert {p["owner"] for p in view["partitions"]} == {None}
    assert (view["processes"], view["handlers"]) == ([], [])
    assert "No process is alive" in dueline("status").out


def test_owners_backlog_and_handlers(dueline: Any, store: Any) -> None:
    jobs, work = store.names.jobs, store.names.work("default")
    store.beat(
        "d1", role="dispatcher", generation=7, owned=(Owned(topic=jobs, partition=0, state="running"),)
    )
    flight = InFlight(occurrence_id="j", run=1, attempt=1, token=1, handler="a", started_at=1)
    store.beat(
        "w1",
        handlers=("b", "a"),
        queues=("default",),
        owned=(Owned(topic=work, partition=2, state="restoring"),),
        in_flight=(flight,),
    )
    dueline("job", "create", "a", "--now")
    dueline("job", "create", "a", "--in", "1h")
    store.clock.advance(1_000)
    view = dueline("status", "--json").json("status")
    assert (view["pending"], view["oldest_overdue"]) == (2, "2027-01-15T08:00:00.000Z")
    assert sum(p["pending"] or 0 for p in view["partitions"]) == 2
    owned = {(p["topic"], p["partition"]): p for p in view["partitions"] if p["owner"]}
    assert owned[jobs, 0] | {"pending": None} == {
        "topic": jobs,
        "partition": 0,
        "owner": "d1",
        "state": "running",
        "generation": 7,
        "pending": None,
    }
    assert (owned[work, 2]["owner"], owned[work, 2]["state"], len(owned)) == ("w1", "restoring", 2)
    assert view["handlers"] == ["a", "b"]
    assert [(p["process"], p["owned"], p["in_flight"]) for p in view["processes"]] == [
        ("d1", 1, 0),
        ("w1", 1, 1),
    ]
    text = dueline("status").out
    assert "pending 2, overdue since 2027-01-15T08:00:00.000Z" in text
    assert "b a" in text


def test_fast_counts_nothing(dueline: Any) -> None:
    dueline("job", "create", "a", "--now")
    view = dueline("status", "--fast", "--json").json("status")
    assert (view["pending"], view["oldest_overdue"]) == (None, None)
    assert {p["pending"] for p in view["partitions"]} == {None}
    assert "pending not counted" in dueline("status", "--fast").out


def test_an_unreachable_store_is_exit_code_5(dueline: Any, store: Any) -> None:
    store.cluster.reachable = False
    assert dueline("status").code == 5


def test_a_forged_heartbeat_does_not_end_the_command(dueline: Any, store: Any) -> None:
    store.beat("w1", started_at=2**62)
    ran = dueline("status", "--json")
    assert (ran.code, json.loads(ran.out)["processes"][0]["started_at"]) == (0, str(2**62))
