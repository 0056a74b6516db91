"""Tokens grow strictly, or are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import TokenExhausted, Undecodable
from pipeline.core.token import TokenParts, make_token, split_token, token_text

VECTORS = json.loads((Path(__file__).parents[3] / "schemas/vectors/token.json").read_text())

parts = st.builds(
    TokenParts,
    era=st.integers(0, 255),
    run=st.integers(1, 65_535),
    generation=st.integers(1, 2_147_483_647),
    attempt=st.integers(1, 255),
)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["token"])
def test_vectors(vector):
    expected = TokenParts(*(vector[field] for field in TokenParts._fields))
    assert token_text(make_token(*expected)) == vector["token"]
    assert split_token(int(vector["token"])) == expected


@pytest.mark.parametrize("vector", VECTORS["exhausted"], ids=str)
def test_a_full_part_is_an_error_never_a_wrap(vector):
    with pytest.raises(TokenExhausted, match="does not fit"):
        make_token(**vector)


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["token"])
def test_what_is_no_token_is_refused(vector):
    with pytest.raises(Undecodable, match="is no token"):
        split_token(int(vector["token"]))


@pytest.mark.parametrize("part", TokenParts._fields)
def test_a_part_below_its_least_is_a_programming_error(part):
    least = TokenParts(era=0, run=1, generation=1, attempt=1)
    too_small = least._replace(**{part: getattr(least, part) - 1})
    with pytest.raises(ValueError, match=f"{part} of a token is at least"):
        make_token(*too_small)


@given(parts, parts)
def test_tokens_grow_as_their_parts_do(a, b):
    assert (make_token(*a) < make_token(*b)) == (a < b)


@given(parts)
def test_a_token_is_a_positive_63_bit_number_that_reads_back(made_of):
    token = make_token(*made_of)
    assert 0 < token < 1 << 63
    assert split_token(token) == made_of


def test_later_attempts_of_an_occurrence_have_larger_tokens():
    """An attempt more, a run more whatever the generation, an era more whatever else."""
    story = [(0, 1, 5, 1), (0, 1, 5, 2), (0, 1, 6, 3), (0, 2, 3, 1), (0, 2, 4, 2), (1, 2, 1, 1)]
    tokens = [make_token(*attempt) for attempt in story]
    assert tokens == sorted(set(tokens))
