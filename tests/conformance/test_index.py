"""The `Index` port over memory and RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.adapters import rocks_index
from pipeline.adapters.memory_index import MEMORY_MS, MemoryIndex
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.errors import Refused
from pipeline.core.ids import anonymous_id
from pipeline.core.keys import job_key
from pipeline.ports import Action, Delta, Entry, Index, Position

POSITION = Position("cluster", "topic", "layout", 7, 1, 1_700_000_000_000)


@pytest.fixture(params=["memory", "rocks"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    built: Index = MemoryIndex() if request.param == "memory" else RocksIndex(tmp_path / "index")
    yield built
    built.close()


def entry(
    key: str, fire_at: int, *, action: int = Action.FIRE, value: bytes = b"v", offset: int = 1
) -> Entry:
    return Entry(key.encode(), fire_at, offset, action, value, "email/3")


def put(index: Index, *entries: Entry, partition: int = 0) -> None:
    delta = Delta()
    for new in entries:
        delta.put(new, index.entry(partition, new.record_key))
    index.apply(partition, delta)


def remove(index: Index, *entries: Entry, partition: int = 0) -> None:
    delta = Delta()
    for old in entries:
        delta.remove(old)
    index.apply(partition, delta)


def test_an_empty_index_knows_nothing(index: Index) -> None:
    assert index.position(0) is None
    assert index.entry(0, b"j/a") is None
    assert index.fact(0, b"h/a") is None
    assert index.due(0, 10**13, 10) == []
    assert index.next_due(0) is None
    assert index.entries(0, None, 10) == []
    assert index.ended(0, b"a", 1_700_000_000_000) is None


def test_an_entry_comes_back_as_it_was_put(index: Index) -> None:
    whole = Entry(b"j/a", 5, 77, Action.DEAD, b"\0value\xff", "zu groß")
    plain = Entry(b"j/b", 2**40, 2**40, Action.FIRE, b"", "")
    put(index, whole, plain)
    assert index.entry(0, b"j/a") == whole
    assert index.due(0, 2**40, 10) == [whole, plain]
    assert index.entries(0, None, 10) == [whole, plain]


def test_due_is_ordered_bounded_and_inclusive(index: Index) -> None:
    put(index, entry("j/c", 20), entry("j/b", 10), entry("j/a", 20), entry("j/d", 30))
    assert [e.record_key for e in index.due(0, 20, 10)] == [b"j/b", b"j/a", b"j/c"]
    assert [e.record_key for e in index.due(0, 20, 2)] == [b"j/b", b"j/a"]
    assert index.due(0, 9, 10) == []
    assert index.next_due(0) == 10


def test_due_takes_no_more_bytes_than_there_is_room_for_but_one_entry(index: Index) -> None:
    big = [entry(f"j/{n}", n, value=b"x" * 1_000) for n in range(4)]
    put(index, *big)
    assert index.due(0, 10, 10, 2_100) == big[:2]
    assert index.due(0, 10, 10, 1) == big[:1]
    remove(index, *big[:2])
    assert index.due(0, 10, 10, 1_000_000) == big[2:]


def test_due_does_not_consume(index: Index) -> None:
    put(index, entry("j/a", 1))
    assert index.due(0, 1, 10) == index.due(0, 1, 10) == [entry("j/a", 1)]


def test_what_is_removed_is_never_due_again(index: Index) -> None:
    put(index, *(entry(f"j/{n:03}", n) for n in range(100)))
    for _ in range(10):
        remove(index, *index.due(0, 1000, 10))
    assert index.due(0, 1000, 10) == []
    assert index.next_due(0) is None


def test_an_earlier_entry_is_found_after_later_ones_were_dispatched(index: Index) -> None:
    put(index, entry("j/a", 10), entry("j/b", 20))
    remove(index, *index.due(0, 10, 10))
    put(index, entry("j/c", 5))
    assert [e.record_key for e in index.due(0, 100, 10)] == [b"j/c", b"j/b"]


@pytest.mark.parametrize("together", [True, False])
def test_an_entry_put_among_those_being_dispatched_is_kept(index: Index, together: bool) -> None:
    """The scan's result is dispatched while a new entry arrives between its rows."""
    put(index, entry("j/a", 10), entry("j/b", 20))
    delta = Delta()
    for old in index.due(0, 100, 10):
        delta.remove(old)
    if not together:
        put(index, entry("j/new", 15))
    else:
        delta.put(entry("j/new", 15), None)
    index.apply(0, delta)
    assert [e.record_key for e in index.due(0, 100, 10)] == [b"j/new"]


def test_an_entry_after_the_last_one_of_a_limited_scan_is_kept(index: Index) -> None:
    put(index, entry("j/a", 10), entry("j/b", 20))
    remove(index, *index.due(0, 100, 1))
    assert [e.record_key for e in index.due(0, 100, 10)] == [b"j/b"]


def test_a_scan_from_earlier_on_sees_what_one_from_later_on_went_past(index: Index) -> None:
    put(index, entry("k/a", 1), entry("k/b", 5))
    remove(index, *index.due(0, 9, 9, since=5))
    assert [e.record_key for e in index.due(0, 9, 9, since=0)] == [b"k/a"]


def test_what_replaces_the_last_entry_behind_a_backlog_at_its_own_time_is_seen(index: Index) -> None:
    put(index, entry("k/a", 5))
    assert index.due(0, 9, 9, since=5) == [entry("k/a", 5)]
    put(index, entry("k/a", 5, value=b"new", offset=9))
    assert index.due(0, 9, 9, since=5) == [entry("k/a", 5, value=b"new", offset=9)]


def test_an_entry_that_comes_among_those_of_a_scan_behind_a_backlog_as_they_go_is_seen(index: Index) -> None:
    put(index, entry("k/a", 5), entry("k/c", 5))
    delta = Delta()
    for old in index.due(0, 9, 9, since=5):
        delta.remove(old)
    delta.put(entry("k/b", 5), None)
    index.apply(0, delta)
    assert index.due(0, 9, 9, since=5) == [entry("k/b", 5)]


def test_entries_before_one_that_went_alone_after_a_scan_behind_a_backlog_are_seen(index: Index) -> None:
    put(index, entry("k/a", 5), entry("k/b", 5))
    remove(index, index.due(0, 9, 9, since=5)[-1])
    assert index.due(0, 9, 9, since=5) == [entry("k/a", 5)]


def test_replacing_moves_the_entry_in_time(index: Index) -> None:
    put(index, entry("a/x", 10))
    put(index, entry("a/x", 50, value=b"new", offset=9))
    assert index.due(0, 49, 10) == []
    assert index.due(0, 50, 10) == [entry("a/x", 50, value=b"new", offset=9)]
    put(index, entry("a/x", 10))
    assert index.next_due(0) == 10


def test_the_last_change_of_a_delta_wins(index: Index) -> None:
    put(index, entry("a/x", 10))
    delta = Delta()
    delta.put(entry("a/x", 20), entry("a/x", 10))
    delta.put(entry("a/x", 30), entry("a/x", 20))
    index.apply(0, delta)
    assert index.due(0, 99, 10) == [entry("a/x", 30)]


def test_put_and_removed_in_one_delta_leaves_nothing(index: Index) -> None:
    delta = Delta()
    delta.put(entry("j/a", 10), None)
    delta.remove(entry("j/a", 10))
    index.apply(0, delta)
    assert index.entry(0, b"j/a") is None
    assert index.next_due(0) is None


def test_hold_is_known_but_never_due(index: Index) -> None:
    held = entry("k/x", 10, action=Action.HOLD)
    put(index, held, entry("j/a", 20))
    assert index.next_due(0) == 20
    assert index.due(0, 99, 10) == [entry("j/a", 20)]
    assert index.entry(0, b"k/x") == held
    assert index.entries(0, None, 10) == [entry("j/a", 20), held]


def test_hold_becomes_due_and_back(index: Index) -> None:
    held, free = entry("k/x", 10, action=Action.HOLD), entry("k/x", 10)
    put(index, held)
    put(index, free)
    assert index.due(0, 99, 10) == [free]
    put(index, held)
    assert index.due(0, 99, 10) == []
    remove(index, held)
    assert index.entries(0, None, 10) == []


@pytest.mark.parametrize("vanish", [True, False])
def test_pages_cover_every_entry_once(index: Index, vanish: bool) -> None:
    put(index, *(entry(f"j/{n}", 100 - n) for n in range(10)))
    seen: list[bytes] = []
    while page := index.entries(0, seen[-1] if seen else None, 3):
        seen += [e.record_key for e in page]
        if vanish:
            remove(index, page[-1])  # the cursor of the next page is gone by then
    assert seen == [b"j/%d" % n for n in range(10)]


def test_a_page_may_begin_behind_all_jobs(index: Index) -> None:
    says_itself = Entry(job_key(anonymous_id(30, 7)), 30, 0, Action.FIRE, b"v", "q/0")
    rest = [entry("s/a", 10), entry("s/b", 5), entry("x/j", 20)]
    put(index, says_itself, entry("j/odd", 40), *rest)
    assert index.entries(0, b"s/", 10) == rest
    assert index.entries(0, b"s/a", 1) == [rest[1]]


def test_facts(index: Index) -> None:
    delta = Delta()
    delta.facts = {b"h/a": b"1", b"h/b": b""}
    index.apply(0, delta)
    assert (index.fact(0, b"h/a"), index.fact(0, b"h/b")) == (b"1", b"")
    delta = Delta()
    delta.facts = {b"h/a": None, b"h/b": b"2"}
    index.apply(0, delta)
    assert (index.fact(0, b"h/a"), index.fact(0, b"h/b")) == (None, b"2")


def end(index: Index, id_: str, at: int) -> None:
    delta = Delta()
    delta.ended[id_.encode()] = at, b"fired"
    index.apply(0, delta)


def test_ended_ids_are_remembered_for_half_an_hour_of_log_time(index: Index) -> None:
    at = 1_700_000_000_000
    end(index, "a", at)
    assert index.ended(0, b"a", at) == b"fired"
    assert index.ended(0, b"a", at + MEMORY_MS - 1) == b"fired"
    assert index.ended(0, b"b", at) is None
    assert index.ended(1, b"a", at) is None


def test_ended_ids_are_remembered_by_a_leader_whose_clock_is_late(index: Index) -> None:
    at = 1_700_000_000_000
    end(index, "a", at)
    end(index, "later", at + MEMORY_MS)
    assert index.ended(0, b"a", at - 60_000) == b"fired"


def test_ended_ids_are_forgotten_in_the_end(index: Index) -> None:
    at = 1_700_000_000_000
    end(index, "a", at)
    end(index, "b", at + 4 * MEMORY_MS)
    assert index.ended(0, b"a", at + 4 * MEMORY_MS) is None
    assert index.ended(0, b"b", at + 4 * MEMORY_MS) == b"fired"


def test_partitions_are_apart(index: Index) -> None:
    put(index, entry("j/a", 1), partition=0)
    put(index, entry("j/a", 2), partition=1)
    put(index, entry("j/b", 0), partition=65_535)
    remove(index, entry("j/a", 1), partition=0)
    assert index.due(0, 99, 10) == []
    assert index.due(1, 99, 10) == [entry("j/a", 2)]
    assert index.entries(65_535, None, 10) == [entry("j/b", 0)]


def test_wipe_takes_one_partition_and_leaves_it_usable(index: Index) -> None:
    for partition in (0, 1):
        delta = Delta()
        delta.put(entry("j/a", 10), None)
        delta.put(entry("k/h", 10, action=Action.HOLD), None)
        delta.facts[b"h/a"] = b"1"
        delta.ended[b"x"] = 1_700_000_000_000, b"fired"
        delta.position = POSITION
        index.apply(partition, delta)
    index.wipe(0)
    assert index.position(0) is None
    assert index.fact(0, b"h/a") is None
    assert index.entries(0, None, 10) == []
    assert index.next_due(0) is None
    assert index.ended(0, b"x", 1_700_000_000_000) is None
    assert index.position(1) == POSITION
    assert len(index.entries(1, None, 10)) == 2
    put(index, entry("j/b", 5))
    assert index.due(0, 99, 10) == [entry("j/b", 5)]


def test_memory_index_refuses_a_delta_that_replaces_another_row() -> None:
    """A wrong `replaces` would leave a ghost row in RocksDB, which cannot afford to check."""
    index = MemoryIndex()
    put(index, entry("a/x", 10))
    delta = Delta()
    delta.put(entry("a/x", 20), None)
    with pytest.raises(ValueError, match="a/x"):
        index.apply(0, delta)


# -- what only a store on disk can do -----------------------------------------------------------------------


def filled(path: Path) -> RocksIndex:
    index = RocksIndex(path)
    delta = Delta()
    delta.put(entry("j/a", 10), None)
    delta.put(entry("k/h", 10, action=Action.HOLD), None)
    delta.ended[b"x"] = 1_700_000_000_000, b"fired"
    delta.position = POSITION
    index.apply(3, delta)
    return index


def test_everything_survives_a_reopen(tmp_path: Path) -> None:
    filled(tmp_path / "index").close()
    index = RocksIndex(tmp_path / "index")
    assert index.wiped is None
    assert index.position(3) == POSITION
    assert index.due(3, 99, 10) == [entry("j/a", 10)]
    assert index.ended(3, b"x", 1_700_000_000_000) == b"fired"
    remove(index, entry("k/h", 10, action=Action.HOLD), partition=3)
    assert index.entries(3, None, 10) == [entry("j/a", 10)]
    index.close()


def test_h25_a_scan_leaves_no_iterator_that_would_hold_the_lock(tmp_path: Path) -> None:
    index = filled(tmp_path / "index")
    index.due(3, 99, 1)
    index.next_due(3)
    index.entries(3, None, 1)
    index.close()
    RocksIndex(tmp_path / "index").close()


def test_the_directory_is_private(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir(mode=0o755)
    filled(tmp_path / "index").close()
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o700


def test_an_index_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    index = filled(tmp_path / "index")
    with pytest.raises(Refused, match="index"):
        RocksIndex(tmp_path / "index")
    assert index.position(3) == POSITION
    index.close()


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("mine")
    with pytest.raises(Refused, match="index"):
        RocksIndex(tmp_path / "index")
    assert (tmp_path / "index").read_text() == "mine"


@pytest.mark.parametrize("victim", ["MANIFEST-*", "*.sst"])
def test_a_damaged_index_is_begun_anew(tmp_path: Path, victim: str) -> None:
    path = tmp_path / "index"
    filled(path).close()
    for file in path.glob(victim):
        file.unlink() if victim == "*.sst" else file.write_bytes(b"junk" * 100)
    index = RocksIndex(path)
    assert index.wiped is not None
    assert index.position(3) is None
    put(index, entry("j/b", 1))
    assert index.next_due(0) == 1
    index.close()


def test_no_row_is_left_behind(tmp_path: Path) -> None:
    index = RocksIndex(tmp_path / "index")
    put(index, entry("k/x", 10, action=Action.HOLD), entry("j/a", 1))
    put(index, entry("k/x", 20))
    remove(index, entry("k/x", 20), entry("j/a", 1))
    assert list(index._db.keys()) == []
    index.close()


def test_dead_rows_are_swept_and_live_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_index, "SWEEP", 5)
    index = RocksIndex(tmp_path / "index")
    put(index, *(entry(f"j/{n:03}", n) for n in range(100)))
    for _ in range(9):
        remove(index, *index.due(0, 1000, 10))
    assert [e.fire_at for e in index.due(0, 1000, 99)] == list(range(90, 100))
    index.close()
