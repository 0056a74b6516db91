"""Who is stale: by our own reading, our own clock, and only while we can hear (DESIGN §7)."""

from __future__ import annotations

import pytest

from pipeline.adapters.memory import MemoryAppender, MemoryClock
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_feed import MemoryFeed
from pipeline.core.hashing import text_hash
from pipeline.liveness import CROWD, REMEMBERED, Liveness
from pipeline.ports import Put

FLEET = "t.fleet"
PARTITIONS = 3


class Hall:
    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        self.cluster.create_topic(FLEET, PARTITIONS)
        self.others = MemoryAppender(self.cluster)
        self.opened = 0
        self.liveness = Liveness(
            open_feed=self._open, appender=MemoryAppender(self.cluster), fleet=FLEET, partitions=PARTITIONS,
            clock=self.clock, timeout_ms=3_000, process="me",
        )  # fmt: skip

    def _open(self) -> MemoryFeed:
        self.opened += 1
        return MemoryFeed(self.cluster, FLEET)

    def beat(self, name: str, value: bytes | None = b"x") -> None:
        self.others.append(Put(FLEET, text_hash(name) % PARTITIONS, name.encode(), value))

    def watch(self, *names: str, ms: int, step: int = 250, beating: tuple[str, ...] = ()) -> None:
        for _ in range(ms // step):
            self.clock.advance(step)
            for name in beating:
                self.beat(name)
            self.liveness.watch(names)


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_who_is_silent_for_the_time_out_is_stale_and_who_beats_is_not(hall: Hall) -> None:
    hall.watch("dead", "alive", ms=3_000, beating=("alive",))
    assert not hall.liveness.stale("dead")
    hall.watch("dead", "alive", ms=1_000, beating=("alive",))
    assert hall.liveness.stale("dead")
    assert not hall.liveness.stale("alive")


def test_a_heartbeat_begins_the_silence_anew(hall: Hall) -> None:
    hall.watch("p", ms=2_500)
    hall.watch("p", ms=250, beating=("p",))
    hall.watch("p", ms=2_500)
    assert not hall.liveness.stale("p")


def test_while_our_probes_do_not_come_back_nobody_becomes_stale(hall: Hall) -> None:
    hall.watch("p", ms=1_000)
    hall.cluster.reachable = False
    hall.watch("p", ms=60_000)
    # What was sent before the cut counts as heard for a second.
    assert not hall.liveness.stale("p")
    hall.cluster.reachable = True
    hall.watch("p", ms=1_000, beating=("p",))
    assert not hall.liveness.stale("p")


def test_after_a_long_deafness_everybody_has_the_whole_time_out_to_come_back(hall: Hall) -> None:
    """The store was restarted: others find their way back to it later than we do, and they live."""
    hall.watch("p", ms=1_500)
    hall.cluster.reachable = False
    hall.watch("p", ms=5_000)
    hall.cluster.reachable = True
    hall.watch("p", ms=2_500)
    assert not hall.liveness.stale("p")
    hall.watch("p", ms=1_500)
    assert hall.liveness.stale("p")


def test_a_short_deafness_gives_nobody_more_time(hall: Hall) -> None:
    hall.watch("p", ms=2_000)
    hall.cluster.reachable = False
    hall.watch("p", ms=2_000)
    hall.cluster.reachable = True
    hall.watch("p", ms=1_500)
    assert hall.liveness.stale("p")


def test_time_in_which_we_were_frozen_does_not_count(hall: Hall) -> None:
    hall.watch("p", ms=1_000)
    hall.clock.advance(600_000)
    hall.liveness.watch(["p"])
    assert not hall.liveness.stale("p")


def test_whoever_says_that_it_leaves_is_stale_once_its_last_words_could_be_read(hall: Hall) -> None:
    hall.watch("p", ms=500)
    hall.beat("p", None)
    hall.watch("p", ms=250)
    assert not hall.liveness.stale("p")
    hall.watch("p", ms=250)
    assert hall.liveness.stale("p")


def test_somebody_elses_probe_is_no_heartbeat_and_no_leave(hall: Hall) -> None:
    hall.watch("p", ms=2_000)
    place = text_hash("p") % PARTITIONS
    for key in (b"probe", b"probe/other/1", b"\xff"):
        hall.others.append(Put(FLEET, place, key, None))
    hall.watch("p", ms=250)
    assert not hall.liveness.stale("p")
    hall.watch("p", ms=2_000)
    assert hall.liveness.stale("p")


def test_it_listens_before_it_is_asked(hall: Hall) -> None:
    """A holder that died is silent for long when its partition comes here."""
    hall.watch(ms=2_000, beating=("dead", "alive"))
    hall.watch(ms=3_250, beating=("alive",))
    hall.watch("dead", "alive", ms=250, beating=("alive",))
    assert hall.liveness.stale("dead")
    assert not hall.liveness.stale("alive")


def test_a_leave_is_heard_before_it_is_asked_about(hall: Hall) -> None:
    hall.watch(ms=1_000, beating=("p",))
    hall.beat("p", None)
    hall.watch(ms=250)
    hall.watch("p", ms=500)
    assert hall.liveness.stale("p")


def test_who_is_not_asked_about_is_forgotten_in_the_end(hall: Hall) -> None:
    hall.watch(ms=1_000, beating=("gone", "kept"))
    hall.watch("kept", ms=(REMEMBERED + 1) * 3_000)
    assert hall.liveness.stale("kept")
    hall.watch("kept", "gone", ms=250)
    assert not hall.liveness.stale("gone")


def test_in_a_crowd_it_listens_only_when_it_is_asked(hall: Hall) -> None:
    crowd = tuple(f"p{n}" for n in range(CROWD + 1))
    hall.watch(ms=1_000, beating=crowd)
    assert hall.opened == 1
    hall.watch("p0", ms=250)
    assert hall.opened == 2
    hall.watch("p0", ms=2_000)
    assert not hall.liveness.stale("p0")
    hall.watch("p0", ms=2_000)
    assert hall.liveness.stale("p0")
