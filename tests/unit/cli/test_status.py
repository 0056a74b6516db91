"""`dueline status` over a store in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.core.ids import anonymous_id, keyed_id, occurrence_of_keyed
from pipeline.core.job import Held, InFlight, Owned
from pipeline.ports import CommittedOffset, Put

NOW = 1_800_000_000_000
"""Where the store's clock stands: 2027-01-15T08:00:00Z."""


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


# -- workers -------------------------------------------------------------------------------------------------


def flight(**changes: Any) -> InFlight:
    plain = {"occurrence_id": anonymous_id(NOW, 1), "run": 1, "attempt": 1, "token": 7, "handler": "send"}
    return InFlight(**{**plain, "started_at": NOW - 3_000, **changes})


def queue(dueline: Any, name: str = "default") -> dict[str, Any]:
    view = dueline("status", "--json").json("status")
    (found,) = [queue for queue in view["queues"] if queue["queue"] == name]
    return dict(found)


def test_runs_in_flight_are_shown_with_what_their_handlers_say(dueline: Any, store: Any) -> None:
    occurrence = occurrence_of_keyed(keyed_id("night"), 4)
    slow = flight(
        occurrence_id=occurrence,
        run=2,
        attempt=3,
        started_at=NOW - 90_000,
        progress_permille=425,
        note="page 17\x1b[2J",
    )
    store.beat("w1", queues=("default",), in_flight=(flight(), slow))
    ran = dueline("status", "--json").json("status")
    assert [run["job"] for run in ran["runs"]] == [keyed_id("night"), anonymous_id(NOW, 1)], "oldest first"
    assert ran["runs"][0] == {
        "job": keyed_id("night"),
        "occurrence": occurrence,
        "run": 2,
        "attempt": 3,
        "handler": "send",
        "queue": "default",
        "worker": "w1",
        "started_at": "2027-01-15T07:58:30.000Z",
        "age_ms": 90_000,
        "progress": 0.425,
        "note": "page 17\x1b[2J",
        "held": False,
        "stuck": False,
    }
    assert (ran["runs"][1]["progress"], ran["runs"][1]["note"]) == (None, None)
    text = dueline("status").out
    assert "90 s  42%       page 17·[2J" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("age_ms", "stuck"), [(600_000, False), (600_001, True)])
def test_a_run_without_a_time_out_is_stuck_after_ten_minutes(
    dueline: Any, store: Any, age_ms: int, stuck: bool
) -> None:
    store.beat("w1", queues=("default",), in_flight=(flight(started_at=NOW - age_ms),))
    (run,) = dueline("status", "--json").json("status")["runs"]
    assert run["stuck"] is stuck
    assert ("stuck" in dueline("status").out) is stuck


@pytest.mark.parametrize(("timeout_ms", "stuck"), [(2_999, True), (3_000, False), (3_600_000, False)])
def test_a_run_is_stuck_once_its_time_out_is_over(
    dueline: Any, store: Any, timeout_ms: int, stuck: bool
) -> None:
    store.beat("w1", queues=("default",), in_flight=(flight(timeout_ms=timeout_ms),))
    (run,) = dueline("status", "--json").json("status")["runs"]
    assert run["stuck"] is stuck


def test_a_run_whose_partition_moved_on_is_shown_as_held(dueline: Any, store: Any) -> None:
    held = Held(occurrence_id=anonymous_id(NOW, 1), run=1, token=7, worker="w1", work_partition=2)
    store.beat("w1", queues=("default",), in_flight=(flight(), flight(token=8)))
    store.beat("w2", queues=("default",), held=(held,))
    view = dueline("status", "--json").json("status")
    assert [run["held"] for run in view["runs"]] == [True, False], "of the same run another attempt is not"
    assert queue(dueline)["held"] == 1


def test_a_run_of_a_foreign_id_is_shown_by_it(dueline: Any, store: Any) -> None:
    store.beat("w1", queues=("default",), in_flight=(flight(occurrence_id="nonsense"),))
    (run,) = dueline("status", "--json").json("status")["runs"]
    assert run["job"] == "nonsense"


def test_a_queue_tells_its_workers_and_handlers(dueline: Any, store: Any) -> None:
    store.add_queues({"mail": 2})
    store.beat("w1", queues=("default",), handlers=("b", "a"), in_flight=(flight(),))
    store.beat("w2", queues=("default",), handlers=("c",), parked=3)
    store.beat("d1", role="dispatcher", queues=("default",))
    found = queue(dueline)
    assert (found["workers"], found["in_flight"], found["handlers"]) == (2, 1, ["a", "b", "c"])
    assert found["parked"] == 3
    assert (queue(dueline, "mail")["workers"], queue(dueline, "mail")["lag"]) == (0, 0)


def test_in_a_queue_waits_what_nobody_has_started(dueline: Any, store: Any) -> None:
    names = store.names
    for _ in range(3):
        store.cluster.append(Put(names.work("default"), 1, b"k", b"v"))
        store.clock.advance(1_000)
    assert (queue(dueline)["lag"], queue(dueline)["oldest_unacked"]) == (3, "2027-01-15T08:00:00.000Z")
    group = store.cluster.group(names.worker_group("default"), names.work("default"))
    group.committed[1] = CommittedOffset(2)
    assert (queue(dueline)["lag"], queue(dueline)["oldest_unacked"]) == (1, "2027-01-15T08:00:02.000Z")
    group.committed[1] = CommittedOffset(3)
    assert (queue(dueline)["lag"], queue(dueline)["oldest_unacked"]) == (0, None)


def test_a_marker_at_the_end_is_no_backlog(dueline: Any, store: Any) -> None:
    """Nobody acks it, and every emission leaves one."""
    names = store.names
    log = store.cluster.partition(names.work("default"), 0)
    store.cluster.append(Put(names.work("default"), 0, b"k", b"v"))
    log.entries.append(None)
    store.cluster.group(names.worker_group("default"), names.work("default")).committed[0] = CommittedOffset(
        1
    )
    assert (queue(dueline)["lag"], queue(dueline)["oldest_unacked"]) == (0, None)
