"""Drills of docs/runbook.md that need a process or a broker to be hurt: a full disk, a state directory that is gone,
a log that was cut while its broker was down."""

from __future__ import annotations

import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from history import Kind
from nemesis.stage import Actor, Stage, stage, until
from ports import free_port

from pipeline.adapters.kafka_admin import load_layout
from pipeline.adapters.kafka_checkup import Checkup
from pipeline.dev.broker import EmbeddedBroker
from pipeline.doctor import Finding, Severity, examine
from pipeline.doctor.facts import Place

JOBS, APART_MS = 1_000, 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def scene(broker: str, tmp_path: Path) -> Iterator[Stage]:
    with stage(broker, tmp_path) as built:
        yield built


def firing(scene: Stage) -> Actor:
    """A dispatcher in the middle of a load."""
    actor = scene.dispatcher("first")
    until(lambda: scene.covered(actor), "it runs all partitions")
    scene.create(JOBS, first_in_ms=500, apart_ms=APART_MS)
    until(lambda: len(scene.committed.seen) > JOBS // 10, "jobs are being fired")
    return actor


def test_a_full_disk_ends_the_dispatcher_and_costs_nothing_else(scene: Stage) -> None:
    """What the kernel says of a file over its limit, RocksDB takes for a disk that takes no more."""
    first = firing(scene)
    resource.prlimit(first.process.pid, resource.RLIMIT_FSIZE, (1, 1))
    until(lambda: first.process.poll() is not None, "it ends by itself")
    assert first.process.returncode not in (0, None)
    scene.dispatcher("second")
    until(scene.seen, "every job was seen", 60)
    scene.finish()
    assert scene.anomalies() == []


def test_a_state_directory_that_is_gone_costs_a_rebuild_and_nothing_else(scene: Stage) -> None:
    first = firing(scene)
    shutil.rmtree(scene.settings.state_dir)
    seen = len(scene.committed.seen)
    until(
        lambda: len(scene.committed.seen) > seen + 50 or first.process.poll() is not None,
        "it goes on, or ends",
    )
    first.process.kill()
    first.process.wait(60)
    scene.dispatcher("second")
    until(scene.seen, "every job was seen", 60)
    scene.finish()
    assert scene.anomalies() == []


# -- a log that was cut --------------------------------------------------------------------------------------


LATER_MS = 40_000
"""Until the jobs come due: a stop and a start of a broker, and what is looked at between."""


def look(scene: Stage) -> dict[str, Finding]:
    """Errors by check."""
    with Checkup(scene.settings) as checkup:
        return {name: found for name, found in examine(checkup.facts()) if found.severity is Severity.ERROR}


def indexed(scene: Stage) -> bool:
    """Whether the index has come to the end of every partition."""
    with Checkup(scene.settings) as checkup:
        facts = checkup.facts()
    assert facts.local is not None
    (index,) = facts.local.indexes
    jobs = scene.settings.names.jobs
    return all(index.positions[n].offset >= facts.ends[Place(jobs, n)].last for n in index.positions)


def cut(segment: Path) -> None:
    """The last third of a log is gone, as after a disk that lied about what it had written; and its broker was not
    stopped in order, so that it looks at what there is."""
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.truncate(size * 2 // 3)
    (segment.parents[1] / ".kafka_cleanshutdown").unlink()


def test_a_log_that_was_cut_is_told_by_the_doctor_and_what_is_left_fires(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "store", port=free_port())
    broker.start()
    try:
        with stage(broker.bootstrap, tmp_path / "scene") as scene:
            first = scene.dispatcher("first")
            until(lambda: scene.covered(first), "it runs all partitions")
            for _ in range(5):  # each a batch of its own in the log, and over a turn of the ring
                scene.create(JOBS, first_in_ms=LATER_MS, apart_ms=1)
            home = load_layout(scene.settings).home
            homes = {job: home(job) for job in scene.created}
            number = Counter(homes.values()).most_common(1)[0][0]
            until(lambda: indexed(scene), "all of them are indexed")
            first.process.terminate()
            assert first.process.wait(60) == 0
            assert "index" not in look(scene)
            broker.stop()
            log = tmp_path / "store" / "kafka" / "data" / f"{scene.settings.names.jobs}-{number}"
            cut(log / f"{0:020}.log")
            broker.start()
            told = look(scene)["index"]
            assert f"stands behind the end of partitions {number} of" in told.problem
            assert "Lost broker disk" in told.remedy

            second = scene.dispatcher("second")
            until(lambda: scene.covered(second), "it runs all partitions")
            assert [
                event["partition"] for event in second.events() if event["action"] == "index_rebuild"
            ] == [number]
            here = {job for job in homes if homes[job] == number}
            until(lambda: scene.created.keys() - here <= scene.committed.seen.keys(), "all others fire")
            until(lambda: here & scene.committed.seen.keys(), "so does what is left here")
            scene.finish()
            lost = scene.anomalies()
            assert {found.kind for found in lost} == {Kind.LOST}
            assert {found.occurrence for found in lost} < here
    finally:
        broker.stop()
