"""One broker of three is killed while jobs come due: none is lost, doubled or early, and the worst waits some seconds
(H18, H26: a new leader, a new coordinator)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nemesis.cluster import NODES, Cluster
from nemesis.stage import stage, until

JOBS, APART_MS = 1_200, 25
WORST_MS = 20_000


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as three:
        yield three


@pytest.mark.timeout(300)
@pytest.mark.parametrize("node", NODES)
def test_jobs_fire_once_and_within_twenty_seconds_when_a_broker_of_three_is_killed(
    node: int, cluster: Cluster, tmp_path: Path, report: Callable[[str], None]
) -> None:
    with stage(cluster.bootstrap, tmp_path) as scene:
        one, two = scene.dispatcher("one"), scene.dispatcher("two")
        until(lambda: scene.covered(one, two), "both run their share", 90)
        scene.create(JOBS, first_in_ms=500, apart_ms=APART_MS)
        until(lambda: len(scene.committed.seen) > JOBS // 10, "jobs are being fired", 60)
        cluster.kill(node)
        until(scene.seen, "every job was seen", 120)
        cluster.start(node)
        cluster.wait_until(set(NODES))
        scene.finish()
        assert scene.anomalies() == []
        worst = scene.worst_lateness()
        report(f"broker {node} of three killed: {len(scene.created)} jobs, worst lateness {worst} ms")
        assert worst <= WORST_MS
