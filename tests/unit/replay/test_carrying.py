"""Pace and batches of a replay, and what becomes of it when somebody cancels it or nobody answers."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline import codec
from pipeline.core.ids import anonymous_id
from pipeline.core.job import ReplayBatch
from pipeline.core.layout import default_layout
from pipeline.replay.batches import BATCH_BYTES, BATCH_RUNS, Batch, Found, batched, command_of
from pipeline.replay.carrying import BURST_S, LEAST_ROUND, ROUND, Pace

LAYOUT = default_layout(queues={"default": 12})
ID = "3c9c5b1e-0000-4000-8000-000000000000"
T0 = 1_800_000_000_000


def test_rounds_grow_while_they_are_answered_soon_and_shrink_when_not() -> None:
    pace = Pace(None)
    first = pace()
    pace.took(0.1)
    assert pace() == 2 * first
    pace.took(2.0)
    assert pace() == 2 * first
    pace.took(9.0)
    assert pace() == first
    for _ in range(20):
        pace.took(0.0)
    assert pace() == ROUND
    for _ in range(20):
        pace.took(60.0)
    assert pace() == LEAST_ROUND


@pytest.mark.parametrize("rate", [0.5, 7.0, 100.0, 20_000.0])
def test_a_rate_is_kept_to_whatever_the_size_of_a_round(rate: float) -> None:
    pace, now, asked = Pace(rate), 1_000.0, 0
    for _ in range(20):
        pace.took(0.0)
    while now < 1_060.0:
        runs = pace()
        now += pace.delay(runs, now)
        asked += runs
    assert asked / 60 == pytest.approx(rate, rel=0.03, abs=1.5 * runs / 60)


def test_a_pause_is_not_made_up_for_by_a_flood() -> None:
    pace, now = Pace(100.0), 50.0
    pace.delay(20, now)
    now += 600.0  # an owner was away
    asked = 0
    while pace.delay(20, now) == 0.0:
        asked += 20
    assert asked <= 100.0 * BURST_S + 20


def test_batches_are_of_one_home_and_bounded_in_runs_and_bytes() -> None:
    ids = [anonymous_id(T0 + n % 7 * 60_000, n) for n in range(5_000)]
    found = [Found(id_.encode(), b"%d" % n, n % 2 == 0) for n, id_ in enumerate(ids)]
    batches, homeless = batched(found, LAYOUT)
    assert homeless == 0
    assert Counter(value for batch in batches for value in batch.values) == Counter(f.value for f in found)
    for batch in batches:
        assert len(batch.values) <= BATCH_RUNS
        assert {LAYOUT.home(ids[int(value)]) for value in batch.values} == {batch.home}
        assert {int(value) % 2 == 0 for value in batch.values} == {batch.dead}
    large = [Found(ids[0].encode(), bytes(BATCH_BYTES // 2), True)] * 3 + [
        Found(ids[0].encode(), bytes(BATCH_BYTES * 2), True)
    ]
    assert [len(batch.values) for batch in batched(large, LAYOUT)[0]] == [2, 1, 1]


def test_what_has_no_home_is_counted() -> None:
    keys = (b"", b"\xff\xfe", b"nothing", anonymous_id(T0, 1).encode())
    batches, homeless = batched([Found(key, b"v", False) for key in keys], LAYOUT)
    assert (len(batches), homeless) == (1, 3)


def test_the_same_batch_of_the_same_replay_is_the_same_command() -> None:
    batch = Batch(3, True, [b"a", b"b"])
    command = command_of(batch, "default", ID, "ada")
    assert command == command_of(Batch(3, True, [b"a", b"b"]), "default", ID, "ada")
    assert codec.REPLAY_BATCH.decode(command.payload or b"") == ReplayBatch(runs=(b"a", b"b"), dead=True)
    others = [
        command_of(other, "default", ID, "ada").command_id
        for other in (Batch(3, False, [b"a", b"b"]), Batch(3, True, [b"ab"]), Batch(2, True, [b"a", b"b"]))
    ]
    assert len({command.command_id, *others}) == 4
