"""What the in-memory cluster does beyond the ports, for the simulation."""

from __future__ import annotations

from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryGroupLog
from pipeline.adapters.memory_cluster import MemoryCluster, MemoryRecord
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.ports import Action, CommittedOffset, Delta, Entry, Put

HOUR = 3_600_000


class Listener:
    def assigned(self, partitions: object) -> dict[int, int]:
        return {0: 0}

    def revoked(self, partitions: object) -> None: ...
    def lost(self, partitions: object) -> None: ...


def built() -> tuple[MemoryCluster, MemoryClock]:
    clock = MemoryClock()
    cluster = MemoryCluster(clock.now)
    cluster.create_topic("jobs", 1)
    return cluster, clock


def values(cluster: MemoryCluster) -> list[bytes | None]:
    return [record.value() for record in cluster.partition("jobs", 0).read(0, 100)[0]]


def test_a_tombstone_goes_a_retention_after_the_first_cleaning_that_met_it() -> None:
    cluster, clock = built()
    appender, log = MemoryAppender(cluster), cluster.partition("jobs", 0)
    for value in (b"v", None):
        appender.append(Put("jobs", 0, b"k", value))
    seen = []
    for hours in (1, 2, 3, 1):
        clock.advance(hours * HOUR)
        log.clean(clock.now(), lag_ms=2 * HOUR, retention_ms=4 * HOUR)
        seen.append(values(cluster))
    # 1 h old: too young to be cleaned; 3 h: met for the first time; 6 h: kept; 7 h: four since it was met.
    assert seen == [[b"v", None], [None], [None], []]


def test_records_are_seen_when_they_are_committed_in_the_order_of_the_commits() -> None:
    cluster, _ = built()
    told: list[list[bytes]] = []

    def saw(records: object) -> None:
        assert isinstance(records, (list, tuple))
        told.append([record.key() for record in records if isinstance(record, MemoryRecord)])

    cluster.saw = saw
    log = MemoryGroupLog(cluster, "jobs", "g", Listener(), ["a"])
    log.poll(10, 0)

    def between(stage: str, id_: str) -> None:
        if stage == "commit":
            MemoryAppender(cluster).append(Put("jobs", 0, b"plain", b""))

    cluster.hook = between
    puts = [Put("jobs", 0, key, b"") for key in (b"a", b"b")]
    log.commit(puts, {0: CommittedOffset(0)}, log.membership())
    epoch = cluster.init_transactions("other")
    cluster.begin("other", epoch)
    cluster.transactional_append("other", epoch, Put("jobs", 0, b"aborted", b""))
    cluster.time_out("other")
    assert told == [[b"plain"], [b"a", b"b"]]


def test_a_copy_of_an_index_does_not_follow_it() -> None:
    index, delta = MemoryIndex(), Delta()
    delta.put(Entry(b"j/1", 5, 0, Action.FIRE, b"v"), None)
    index.apply(0, delta)
    copy = index.copy()
    index.wipe(0)
    assert ([e.record_key for e in copy.due(0, 9, 9)], index.due(0, 9, 9)) == ([b"j/1"], [])
