"""The life of an owned partition."""

from itertools import product

import pytest

from pipeline.core.states import PartitionState

A, S, R, C = (
    PartitionState.ASSIGNED,
    PartitionState.RESTORING,
    PartitionState.RUNNING,
    PartitionState.CLOSED,
)
LEGAL = {(A, S), (S, R), (S, A), (R, A), (A, C), (S, C), (R, C), (C, C)}


@pytest.mark.parametrize(("state", "to"), sorted(LEGAL, key=str))
def test_legal(state, to):
    assert state.advance(to) is to


@pytest.mark.parametrize(("state", "to"), sorted(set(product(PartitionState, repeat=2)) - LEGAL, key=str))
def test_illegal(state, to):
    with pytest.raises(ValueError, match=f"from {state.name} to {to.name}"):
        state.advance(to)
