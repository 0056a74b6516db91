"""`dueline backup`, `restore` and `release` over a store in memory; the real one: tests/integration/test_backup.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.backup.test_files import source
from unit.backup.test_restore import Target, beat
from unit.backup.town import LAYOUT, Town, memory_scratch, run_of

from pipeline import codec
from pipeline.adapters import kafka_hold, kafka_restore
from pipeline.backup.take import KINDS, OPEN_RUNS, OTHER, PENDING, UNREADABLE, take_backup
from pipeline.cli import backup as command
from pipeline.core import ids
from pipeline.core.backup import Hold, HoldState
from pipeline.core.keys import HOLD_KEY
from pipeline.ports import Put

SERVERS = "127.0.0.1:9"


@pytest.fixture
def town() -> Town:
    town = Town(Random(5))
    town.backlog(12)
    return town


@pytest.fixture
def saved(town: Town, tmp_path: Path) -> Path:
    take_backup(source(town), tmp_path / "backup", memory_scratch)
    return tmp_path / "backup"


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", SERVERS)


# -- backup -------------------------------------------------------------------------------------------------


def test_a_backup_tells_what_is_in_it(
    dueline: Any, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def of_the_town(_settings: object, _store: object) -> Iterator[Any]:
        yield source(town)

    monkeypatch.setattr(command, "_source", of_the_town)
    ran = dueline("backup", str(tmp_path / "one"), "--json")
    assert ran.code == 0, ran.err
    answer = ran.json("backup")
    assert (answer["path"], answer["counts"]["commands"]) == (str(tmp_path / "one"), len(town.commands))
    again = dueline("backup", str(tmp_path / "one"))
    assert (again.code, again.out) == (4, "")
    assert "is there already" in again.err
    jobs, retries = (sum(key.startswith(kind) for key in town.pending) for kind in (b"j/", b"r/"))
    assert answer["counts"]["pending"] == jobs
    told = dueline("backup", str(tmp_path / "two")).out
    words = f"{jobs} pending jobs, {retries} retries, 0 schedules, {len(town.open)} open runs"
    assert told.rstrip().endswith(f": {words}, {len(town.commands)} commands not executed yet")


def test_what_is_pending_is_told_though_there_is_none() -> None:
    none = dict.fromkeys((*KINDS.values(), OTHER, OPEN_RUNS, UNREADABLE, PENDING), 0)
    assert command._counted(none) == "0 pending jobs, 0 retries, 0 schedules, 0 open runs"
    some = none | {"highest": 233, "keys": 4, PENDING: 1, "retries": 1, UNREADABLE: 2}
    assert command._counted(some) == (
        "1 pending job, 1 retry, 0 schedules, 0 open runs, 2 unreadable runs left out"
    )
    del some[PENDING]
    assert command._counted(some | {"jobs": 2, "changed": 3}).startswith("5 pending jobs, ")


def test_no_store_is_exit_5_and_leaves_nothing(dueline: Any, store: Any, tmp_path: Path) -> None:
    store.cluster.reachable = False
    assert dueline("backup", str(tmp_path / "one")).code == 5
    assert list(tmp_path.glob("*one*")) == []


# -- restore ------------------------------------------------------------------------------------------------


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()
    made.close = lambda: made.done.append("closed")  # type: ignore[attr-defined]
    monkeypatch.setattr(kafka_restore, "KafkaTarget", lambda settings: made)
    monkeypatch.setenv("DUELINE_PREFIX", "new")
    return made


def test_a_restore_tells_what_comes_next(dueline: Any, saved: Path, target: Target) -> None:
    ran = dueline("restore", str(saved), "--json")
    assert ran.code == 0, ran.err
    answer = ran.json("restore")
    assert (answer["state"], answer["era"], answer["resumed"]) == ("held", 4, False)
    assert "run `dueline release`" in ran.err
    assert target.done[-1] == "closed"


def test_a_damaged_file_is_named_and_nothing_is_written(dueline: Any, saved: Path, target: Target) -> None:
    (saved / "jobs.avro").write_bytes(b"")
    ran = dueline("restore", str(saved))
    assert ran.code == 2
    assert f"{saved / 'jobs.avro'}: is not what was written: 0 bytes" in ran.err
    assert target.done == ["closed"]


def test_a_directory_that_is_none_is_named(dueline: Any, target: Target, tmp_path: Path) -> None:
    ran = dueline("restore", str(tmp_path / "nowhere"))
    assert (ran.code, target.done) == (2, [])
    assert "'DIRECTORY': Directory" in ran.err
    assert "does not exist" in ran.err


def test_whoever_still_runs_is_named_after_a_word_of_what_is_waited_for(
    dueline: Any, saved: Path, target: Target
) -> None:
    target.found = LAYOUT
    target.beats = [[beat("d1", at, started_at=1)] for at in (1, 2)]
    ran = dueline("restore", str(saved))
    assert (ran.code, target.written) == (4, [])
    assert "waiting for dispatcher d1 (process 4711 on h7) to beat again" in ran.err
    assert "there runs dispatcher d1 (process 4711 on h7): stop before a restore" in ran.err


# -- release ------------------------------------------------------------------------------------------------


@pytest.fixture
def lifted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(kafka_hold, "lift", lambda meta, id: made.append(id))
    return made


def hold(store: Any, state: HoldState = HoldState.HELD) -> None:
    store.cluster.create_topic(store.names.meta, 1)
    found = Hold(id="b1", state=state, at=store.clock.now(), era=2)
    store.cluster.append(Put(store.names.meta, 0, HOLD_KEY, codec.HOLD.encode(found)))


def jobs(store: Any, count: int, due_in: int) -> None:
    for number in range(count):
        due = store.clock.now() + due_in
        store.put(run_of(ids.anonymous_id(due, number), due_at=due))


def test_a_release_says_how_much_is_overdue(dueline: Any, store: Any, lifted: list[str]) -> None:
    hold(store)
    jobs(store, 3, -60_000)
    jobs(store, 5, 60_000)
    ran = dueline("release", "--json")
    assert ran.json("release") == {"outcome": "released", "backup": "b1", "overdue": 3, "pending": 8}
    assert lifted == ["b1"]
    assert "3 of 8 runs are overdue and fire now" in dueline("release").out


def test_many_overdue_runs_want_a_second_word(
    dueline: Any, store: Any, lifted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "OVERDUE_LIMIT", 2)
    hold(store)
    jobs(store, 3, -60_000)
    ran = dueline("release")
    assert (ran.code, lifted) == (4, [])
    assert "3 of 3 runs are overdue and would fire at once: release them with --yes" in ran.err
    assert dueline("release", "--yes").code == 0
    assert lifted == ["b1"]


def test_what_is_not_held_is_not_released(dueline: Any, lifted: list[str]) -> None:
    ran = dueline("release", "--json")
    assert ran.json("release")["outcome"] == "not_held"
    assert (ran.code, lifted) == (0, [])


def test_a_half_restored_backup_is_not_released(dueline: Any, store: Any, lifted: list[str]) -> None:
    hold(store, HoldState.RESTORING)
    ran = dueline("release", "--yes")
    assert (ran.code, lifted) == (4, [])
    assert "the restore of backup b1 is not finished: run the same `dueline restore` again" in ran.err


def test_processes_of_the_era_before_are_restarted_first(dueline: Any, store: Any, lifted: list[str]) -> None:
    hold(store)
    store.beat("w1", started_at=store.clock.now() - 1)
    store.beat("d1", role="dispatcher", started_at=store.clock.now())
    ran = dueline("release")
    assert (ran.code, lifted) == (4, [])
    assert "1 worker started before the restore" in ran.err
    store.leave("w1")
    assert dueline("release").code == 0


def test_status_says_that_nothing_fires(dueline: Any, store: Any) -> None:
    assert dueline("status", "--json").json("status")["held"] is None
    hold(store, HoldState.RESTORING)
    held = dueline("status", "--json").json("status")["held"]
    assert (held["backup"], held["state"], held["era"]) == ("b1", "restoring", 2)
    assert "run `dueline restore` of the same backup again" in dueline("status", "--fast").out
    hold(store)
    assert "HELD: nothing fires since" in dueline("status", "--fast").out
