"""Minted ids are ids like any other, and live where the layout says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import minting
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import anonymous_id, due_of
from pipeline.core.layout import default_layout
from pipeline.core.minting import BLOCK, Mint

NOW = 1_800_000_000_000
LAYOUT = default_layout()
dues = st.integers(0, (1 << 48) - 1) | st.integers(NOW, NOW + 3_600_000)


def bits(seed: int = 7) -> Callable[[int], int]:
    return random.Random(seed).getrandbits


@given(
    due=st.lists(dues, min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    layout=st.sampled_from(
        [LAYOUT, default_layout(shards=3, ring=5), default_layout(shards=1, ring=1, bucket_width_ms=1_000)]
    ),
)
def test_a_minted_id_gives_its_due_time_back_and_lives_at_its_home(due, seed, layout) -> None:
    mint = Mint(layout, bits(seed))
    for due_at in due:
        job_id, home = mint.mint(due_at)
        assert len(job_id) == 27
        assert due_of(job_id) == due_at
        assert home == layout.home(job_id)


def test_ids_of_one_instant_differ_within_and_across_blocks() -> None:
    mint = Mint(LAYOUT, bits())
    ids = [mint.mint(NOW) for _ in range(3 * BLOCK)]
    assert len({job_id for job_id, _ in ids}) == 3 * BLOCK
    assert len({job_id[:25] for job_id, _ in ids}) == 3
    assert all(LAYOUT.home(job_id) == home for job_id, home in ids)


def test_all_eighty_bits_of_a_first_id_are_drawn() -> None:
    drawn = {1: (1 << 70) - 1, 0: 0}
    for value in (0, 1):
        mint = Mint(LAYOUT, lambda n, value=value: drawn[value] if n == 70 else (1 << n) - 1 if value else 0)
        job_id, _ = mint.mint(NOW)
        # The count goes on from what was drawn, and round.
        assert job_id == anonymous_id(NOW, drawn[value] << 10 | (0 if value else 1))


def test_ids_of_a_bucket_are_spread_over_every_shard() -> None:
    mint = Mint(LAYOUT, bits())
    homes = [mint.mint(NOW)[1] for _ in range(4_000)]
    counts = [homes.count(home) for home in set(homes)]
    assert len(counts) == LAYOUT.shards
    assert min(counts) > 800


def test_windows_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minting, "_WINDOWS", 2)
    mint = Mint(LAYOUT, bits())
    for n in range(10):
        job_id, home = mint.mint(NOW + n * (1 << minting.WINDOW_BITS))
        assert LAYOUT.home(job_id) == home
        assert len(mint._windows) <= 2


@pytest.mark.parametrize("due", [-1, 1 << 48])
def test_a_due_time_without_a_form_is_refused(due: int) -> None:
    with pytest.raises(InvalidInput, match="is not within 48 bits"):
        Mint(LAYOUT, bits()).mint(due)
