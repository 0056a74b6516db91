"""Restoring into another installation in memory: what is written, what is refused, and that it may be killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.backup.test_files import rewrite, source
from unit.backup.town import LAYOUT, T0, Town, memory_scratch, run_of
from unit.backup.town import NAMES as town_names

from pipeline import codec
from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.backup import restore as restoring
from pipeline.backup.records import Plain
from pipeline.backup.take import take_backup
from pipeline.core import ids, keys, queues
from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import InvalidInput, Refused, StoreUnreachable
from pipeline.core.job import AttemptRecord, Heartbeat
from pipeline.core.layout import Layout, default_layout
from pipeline.core.names import Names
from pipeline.core.site import Site
from pipeline.heartbeat import Seen
from pipeline.ports import Action, Put
from pipeline.queues import read_states
from tests.unit.owner import Owner

NEW = Names("new")
SITE = Site(names=NEW, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=10**9)


class Target:
    """`restore.Target` in memory. `fails_at`: the record that is not taken any more."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: T0 + 3_600_000)
        self.found: Layout | None = None
        self.held: Hold | None = None
        self.beats: list[list[Seen]] = []
        """What is heard of the fleet, look by look; then nothing."""
        self.waited = 0
        self.there: list[str] = ["", ""]
        """What is found there, at the first and at the second look."""
        self.fails_at = 1 << 62
        self.written: list[Put] = []
        self.done: list[str] = []

    def layout(self) -> Layout | None:
        return self.found

    def hold(self) -> Hold | None:
        return self.held

    def beating(self, within_ms: int) -> Sequence[Seen]:
        assert within_ms == 5_000
        return self.beats.pop(0) if self.beats else []

    def pause(self) -> None:
        self.waited += 1

    def occupied(self, layout: Layout) -> str:
        assert layout.partitions == LAYOUT.partitions
        return self.there.pop(0)

    def create(self, layout: Layout) -> Sequence[str]:
        self.done.append("create")
        created = [] if self.found else ["new.jobs"]
        self.found = layout
        self.cluster.create_topic(NEW.jobs, layout.partitions)
        self.cluster.create_topic(NEW.meta, 1)
        return created

    def begin(self, id: str, era: int) -> Hold:
        self.done.append("begin")
        self.held = self.held or Hold(id=id, state=HoldState.RESTORING, at=T0, era=era)
        return self.held

    def abandon(self, id: str) -> None:
        self.held = None

    def append(self, put: Put) -> None:
        if len(self.written) >= self.fails_at:
            raise StoreUnreachable("gone")
        self.cluster.append(put)
        self.written.append(put)

    def flush(self) -> None:
        self.done.append("flush")

    def finish(self, id: str) -> Hold:
        assert self.done[-1] == "flush"
        assert self.held is not None
        self.held = replace(self.held, state=HoldState.HELD)
        return self.held


def beat(process: str, at: int, *, role: str = "dispatcher", started_at: int = T0) -> Seen:
    return Seen(
        Heartbeat(
            process=process, role=role, version="0", host="h7", pid=4711, started_at=started_at, generation=1
        ),
        at,
    )


@pytest.fixture
def town() -> Town:
    town = Town(Random(5))
    town.go_on(60)
    town.backlog(12)
    return town


@pytest.fixture
def saved(town: Town, tmp_path: Path) -> Path:
    take_backup(source(town), tmp_path / "backup", memory_scratch)
    return tmp_path / "backup"


@pytest.fixture
def target() -> Target:
    return Target()


def restored(saved: Path, target: Target) -> restoring.Restored:
    return restoring.restore(saved, target, NEW)


def owners(target: Target) -> list[Owner]:
    """Owners of all partitions that have read what was restored."""
    found = []
    for number in range(LAYOUT.partitions):
        owner = Owner(number, SITE)
        log = target.cluster.partition(NEW.jobs, number)
        owner.partition.ingest(log.read(0, log.end + 1)[0], log.end, T0 + 3_600_000)
        found.append(owner)
    return found


def test_every_job_and_every_open_run_is_owed_again_and_nothing_else(
    town: Town, saved: Path, target: Target
) -> None:
    done = restored(saved, target)
    assert (done.hold.state, done.hold.era, done.resumed, done.created) == ("held", 4, False, ("new.jobs",))
    assert done.records == len(target.written) - 1  # beside the mark
    owed = Counter(
        (entry.action, entry.record_key[:2])
        for owner in owners(target)
        for entry in owner.index.entries(owner.number, None, 1000)
    )
    jobs = sum(key.startswith(b"j/") for key in town.pending)
    retries = len(town.pending) - jobs + len(town.open)
    lost = sum(at != LAYOUT.home(run.job_id) for at, run in town.pending.values())
    assert (owed[Action.FIRE, b"j/"], owed[Action.MOVE, b"j/"]) == (jobs - lost, lost)
    assert (owed[Action.FIRE, b"r/"], owed[Action.COMMAND, b"c/"]) == (retries, len(town.commands))
    assert {action for action, _ in owed} <= {Action.FIRE, Action.MOVE, Action.COMMAND, Action.EXPIRE}
    assert jobs > lost > 0 < min(len(town.open), len(town.commands))


def test_a_job_that_was_made_long_ago_is_not_taken_for_a_late_copy(saved: Path, target: Target) -> None:
    """The control: without its header it would be."""
    restored(saved, target)
    put = next(put for put in target.written if put.key.startswith(b"j/") and put.partition == home(put))
    assert put.headers == [("moved", b"restored")]
    owner = Owner(put.partition, SITE)
    owner.read(put.key, put.value, at=T0 + 3_600_000, headers=put.headers)
    assert owner.entry(put.key).action == Action.FIRE
    owner.read(put.key, put.value, at=T0 + 3_600_000)
    assert owner.entry(put.key).detail.startswith("too_old")


def home(put: Put) -> int:
    return LAYOUT.home(put.key[2:].decode())


def opened(run: Any, **more: Any) -> Plain:
    return {"key": b"x", "value": codec.RUN.encode(run), "at": T0, "starts": 0, "token": None, **more}


def test_an_open_run_comes_back_as_a_retry_with_the_same_idempotency_key() -> None:
    id_ = ids.anonymous_id(T0, 7)
    run = run_of(id_, run=2, failures=1, idempotency_key="invoice-55")
    put = restoring.run_put(opened(run, starts=2), LAYOUT, NEW)
    assert (put.topic, put.partition, put.key) == (NEW.jobs, LAYOUT.home(id_), keys.retry_key(id_, 2))
    lost = [AttemptRecord(run=2, attempt=n, worker="", token=0, at=T0, outcome="lost") for n in (1, 2)]
    assert codec.RUN.decode(put.value or b"") == replace(run, run=3, history=tuple(lost))


def test_an_open_run_that_was_never_started_tells_of_no_attempt() -> None:
    put = restoring.run_put(opened(run_of(ids.anonymous_id(T0, 7))), LAYOUT, NEW)
    assert codec.RUN.decode(put.value or b"").history == ()


def test_a_run_of_no_job_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"runs\.avro: run of b'x'"):
        restoring.run_put(opened(run_of("nonsense")), LAYOUT, NEW)


def test_schemas_of_this_version_are_announced(saved: Path, target: Target) -> None:
    restored(saved, target)
    assert target.found is not None
    assert set(codec.fingerprints()) <= set(target.found.fingerprints)


def test_a_queue_that_was_paused_is_paused_and_a_purge_of_topics_that_are_gone_means_nothing(
    town: Town, target: Target, tmp_path: Path
) -> None:
    purge = queues.Purge(id="p", by="x", at=1, topic_id="of the old topic", ends=(9, 9))
    state = queues.purged(queues.paused(None, "default", queues.Pause(by="ann@h1", at=7)), "default", purge)
    value = codec.EVENT.encode(queues.to_event(state))
    town.cluster.append(Put(town_names.meta, 0, keys.queue_key("default"), value))
    take_backup(source(town), tmp_path / "paused", memory_scratch)
    restored(tmp_path / "paused", target)
    there = read_states(MemoryReader(target.cluster), NEW.meta)["default"]
    assert there.pause == state.pause
    gate = queues.Gate()
    gate.follow(there, "of the new topic")
    assert (gate.closed, gate.end(0)) == (True, 0)


# -- what is refused ----------------------------------------------------------------------------------------


def refused(saved: Path, target: Target, match: str) -> None:
    with pytest.raises(Refused, match=match):
        restored(saved, target)
    assert target.written == []


def test_a_target_that_is_not_empty_is_refused_before_anything_is_made(saved: Path, target: Target) -> None:
    target.found, target.there = LAYOUT, ["new.jobs holds records (3 offsets)"]
    refused(saved, target, r"new\.jobs holds records \(3 offsets\): .*empty topics only")
    assert target.done == []


def test_an_owner_that_came_in_between_is_found_by_the_second_look(saved: Path, target: Target) -> None:
    target.there = ["", "new.jobs holds records (1 offsets)"]
    refused(saved, target, "holds records")
    assert target.done == ["create", "begin"]
    assert target.held is None


def test_another_layout_is_refused_with_the_difference(saved: Path, target: Target) -> None:
    target.found = default_layout(shards=2, ring=2, queues={"default": 3})
    refused(saved, target, "layout mismatch: queue default: 2 here, 3 there")
    target.found = default_layout(shards=1, ring=4, queues={"default": 2})
    refused(saved, target, "layout mismatch: shards: 2 here, 1 there")
    assert target.done == []


def test_nothing_is_restored_under_running_processes(saved: Path, target: Target) -> None:
    """Those that beat again; another one is silent."""
    target.found = LAYOUT
    target.beats = [[beat("d1", 1), beat("d2", 2), beat("w1", 3, role="worker")]] * 2
    target.beats += [[beat("d1", 1), beat("d2", 1002), beat("w1", 1003, role="worker")]]
    refused(
        saved,
        target,
        r"there runs dispatcher d2 \(process 4711 on h7\), worker w1 \(process 4711 on h7\): stop before a restore",
    )
    assert target.waited == 2


def test_one_that_starts_meanwhile_is_named_at_once_and_of_many_some(saved: Path, target: Target) -> None:
    target.found = LAYOUT
    target.beats = [[beat("d1", 1)], [beat(f"d{n}", n) for n in range(1, 9)]]
    refused(
        saved, target, r"there runs dispatcher d2 .*, dispatcher d6 \(process 4711 on h7\) and 2 more: stop"
    )


def test_who_was_killed_a_moment_ago_is_waited_for(saved: Path, target: Target) -> None:
    told: list[str] = []
    target.found, target.beats = LAYOUT, [[beat("d1", 1), beat("d2", 2)], [beat("d2", 2)]]
    assert restoring.restore(saved, target, NEW, told.append).hold.state is HoldState.HELD
    assert target.waited == 2
    (line,) = told
    assert line.startswith(
        "waiting for dispatcher d1 (process 4711 on h7), dispatcher d2 (process 4711 on h7)"
    )
    assert line.endswith("to count as gone 5 s after the last time")


# -- what marks it ------------------------------------------------------------------------------------------


def test_everything_on_jobs_is_marked_as_restored_once(saved: Path, target: Target) -> None:
    restored(saved, target)
    there = [put for put in target.written if put.topic == NEW.jobs]
    assert {put.key[:2] for put in there} >= {b"j/", b"r/", b"c/"}
    assert {tuple(put.headers or ()) for put in there} == {(("moved", b"restored"),)}
    record = {
        "partition": 0,
        "key": b"h/x",
        "value": b"",
        "headers": [{"name": "moved", "value": b"restored"}],
    }
    record["headers"].append({"name": "until", "value": b"7"})
    again = restoring.job_put(record, NEW).headers
    assert again == [("until", b"7"), ("moved", b"restored")]


def test_the_restore_is_told_on_meta_for_good(saved: Path, target: Target) -> None:
    done = restored(saved, target)
    (put,) = (put for put in target.written if put.key.startswith(b"restored/"))
    assert (put.topic, put.key) == (NEW.meta, b"restored/4")
    event = codec.EVENT.decode(put.value or b"")
    assert (event.id, event.kind, event.at) == (done.manifest.id, "restore", done.hold.at)
    assert event.detail == {"era": "4", "created_at": str(done.manifest.created_at)}


@pytest.mark.parametrize("state", HoldState)
def test_another_backup_in_the_way_is_named(saved: Path, target: Target, state: HoldState) -> None:
    target.found, target.held = LAYOUT, Hold(id="other", state=state, at=T0, era=4)
    refused(saved, target, f"backup other was restored here and is {state}")


def test_a_second_restore_of_the_same_is_refused(saved: Path, target: Target) -> None:
    restored(saved, target)
    with pytest.raises(Refused, match="is restored already: run `dueline release`"):
        restored(saved, target)


def test_the_last_era_is_refused(saved: Path, target: Target) -> None:
    rewrite(saved, lambda found: found.update(era=255))
    refused(saved, target, "era 255 of the backup is the last")


def test_a_damaged_backup_is_refused_before_the_target_is_looked_at(saved: Path) -> None:
    (saved / "runs.avro").write_bytes((saved / "runs.avro").read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"runs\.avro: is not what was written"):
        restoring.restore(saved, None, NEW)  # type: ignore[arg-type]


# -- killed half way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [0, 1, 20])
def test_a_restore_that_was_cut_off_goes_on_and_owes_the_same(
    saved: Path, target: Target, fails_at: int
) -> None:
    target.fails_at = fails_at
    with pytest.raises(StoreUnreachable):
        restored(saved, target)
    assert target.held is not None
    assert target.held.state is HoldState.RESTORING
    target.fails_at, target.there = 1 << 62, []
    target.beats = [[beat("d1", n, started_at=T0)] for n in (1, 2)]  # started meanwhile, and held
    done = restored(saved, target)
    assert (done.resumed, done.hold.state, done.hold.era) == (True, "held", 4)
    whole = Target()
    restored(saved, whole)
    assert owed(target) == owed(whole)


def owed(target: Target) -> list[list[tuple[bytes, int, bytes]]]:
    return [
        [(e.record_key, e.action, e.value) for e in owner.index.entries(owner.number, None, 1000)]
        for owner in owners(target)
    ]


def test_it_does_not_go_on_under_an_owner_that_may_not_have_seen_the_hold(
    saved: Path, target: Target
) -> None:
    target.fails_at = 0
    with pytest.raises(StoreUnreachable):
        restored(saved, target)
    target.beats = [[beat("d1", n, started_at=T0 - 1)] for n in (1, 2)]
    refused(saved, target, "there runs dispatcher d1 .*: stop before a restore")


def test_memory_is_bounded_by_what_is_on_its_way(
    saved: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "AT_ONCE", 5)
    done = restored(saved, target)
    assert target.done.count("flush") == done.records // 5 + 1
    monkeypatch.setattr(restoring, "BYTES_AT_ONCE", 1)
    other = Target()
    restored(saved, other)
    assert other.done.count("flush") == done.records + 1
