"""One handler that does not come back for ten minutes: what becomes of the other runs of its partition, and of what
the worker writes and remembers meanwhile."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable

import pytest
from unit.shop import Hands, Shop, steps, wait_out

from pipeline import Retry
from pipeline.core.job import AckState
from pipeline.core.offset_metadata import BROKER_LIMIT, WINDOW_LIMIT
from pipeline.ports import Call

pytestmark = pytest.mark.timeout(180)  # allocations are traced, and lines too where coverage is measured
TICK_MS = 1_000
MINUTES = 10
A_TICK = 5
"""Runs fired in each."""


class Blocked(Hands):
    """The first calls given to it begin and do not come back."""

    def __init__(self, blocked: int) -> None:
        super().__init__()
        self._left = blocked

    def submit(self, call: Call) -> None:
        if self._left:
            self._left -= 1
        else:
            super().submit(call)

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        return set()


def play(shop: Shop, blocked: int, *, weighed: bool = False) -> tuple[int, list[int]]:
    """Ten minutes of five runs a tick, behind some that do not end. (Longest offset metadata; if `weighed`, which
    triples the time, bytes of memory after one minute and at the end)."""
    worker = shop.worker(concurrency=8)
    shop.executors["w"] = hands = Blocked(blocked)
    worker._executor = worker._calls._executor = worker._hooks._executor = hands
    for _ in range(blocked):
        shop.fire()
    steps(worker)
    memory, longest = [], 0
    if weighed:
        tracemalloc.start()
    for tick in range(MINUTES * 60_000 // TICK_MS):
        for n in range(A_TICK):
            shop.answers.append(Retry(after="1h") if n == tick % 7 else None)
            shop.fire()
        steps(worker, 4)
        shop.clock.advance(TICK_MS)
        steps(worker, 4)
        shop.seen.clear()
        committed = shop.logs["w"].committed([0], 0)[0]
        assert committed is not None
        assert committed.offset == 0, "the low-water mark is the first that did not come back"
        longest = max(longest, len(committed.metadata))
        if weighed and tick in (60_000 // TICK_MS, MINUTES * 60_000 // TICK_MS - 1):
            memory.append(sum(one.size for one in _of_the_worker()))
    tracemalloc.stop()
    return longest, memory


def _of_the_worker() -> list[tracemalloc.Statistic]:
    wanted = [
        tracemalloc.Filter(True, f"*/pipeline/{name}.py")
        for name in ("lane", "ledger", "core/acks", "worker", "starts", "calls")
    ]
    gc.collect()  # what nobody holds is not kept, whenever the collector would have come by
    return tracemalloc.take_snapshot().filter_traces(wanted).statistics("filename")


def test_beside_a_handler_blocked_for_ten_minutes_other_runs_finish_and_commit_for_good() -> None:
    shop = Shop()
    longest, memory = play(shop, 1, weighed=True)
    others = MINUTES * 60_000 // TICK_MS * A_TICK
    ended = shop.terminal()
    assert len(ended) == len({ack.occurrence_id for ack in ended}) == others
    assert {ack.state for ack in ended} == {AckState.SUCCEEDED, AckState.RETRYING}
    assert longest < 200, "one range of finished runs, one start"
    assert memory[1] < 1.2 * memory[0] + 20_000, memory
    assert not {"revoked", "lost"} & set(shop.told.lines)
    before = shop.started()
    shop.logs["w"].expire()
    other = shop.worker("other")
    wait_out(shop, other, 30_000)
    (again,) = shop.started()[len(before) :]
    assert (again.work_offset, again.attempt) == (0, 2)
    committed = shop.logs["other"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 1 + MINUTES * 60_000 // TICK_MS * A_TICK


def test_many_blocked_handlers_keep_the_offset_metadata_within_what_a_broker_takes() -> None:
    shop = Shop()
    longest, _ = play(shop, 7)
    assert longest < WINDOW_LIMIT < BROKER_LIMIT
    assert len(shop.terminal()) == MINUTES * 60_000 // TICK_MS * A_TICK
