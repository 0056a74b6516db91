"""The text beside a committed offset: one per state, and nothing else is read."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import StopPartition
from pipeline.core.offset_metadata import OffsetMetadata, Start, check_start, decode, encode

VECTORS = json.loads((Path(__file__).parents[3] / "schemas/vectors/offset-metadata.json").read_text())


def expected(vector):
    return OffsetMetadata(
        acks_offset=vector["acks_offset"],
        finished=tuple((first, last) for first, last in vector["finished"]),
        started=tuple(
            (s["offset"], Start(s["starts"], int(s["token"]), s["worker"])) for s in vector["started"]
        ),
    )


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["why"])
def test_vectors(vector):
    assert encode(vector["offset"], expected(vector)) == vector["metadata"]
    assert decode(vector["offset"], vector["metadata"]) == expected(vector)


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: repr(vector["metadata"][:40]))
def test_anything_else_stops_the_partition_in_one_line(vector):
    with pytest.raises(StopPartition) as refusal:
        decode(1000, vector["metadata"])
    assert "\n" not in str(refusal.value)
    assert ("version" in str(refusal.value)) == (not vector["metadata"].startswith("1"))


def test_an_empty_text_is_a_fresh_partition():
    assert decode(1000, "") == OffsetMetadata()


starts = st.builds(
    Start,
    st.integers(1, 255),
    st.integers(1, (1 << 63) - 1),
    st.sampled_from(["w", "worker-1", "host:4711/a.b_c"]),
)


@st.composite
def states(draw):
    """A mark and offsets above it, each skipped, finished or started."""
    mark = draw(st.integers(0, 1 << 62))
    finished, started, offset = [], [], mark
    for gap, kind in draw(
        st.lists(st.tuples(st.integers(1, 1 << 40), st.sampled_from(["run", "start"])), max_size=20)
    ):
        if kind == "run":
            length = draw(st.integers(1, 1 << 40))
            finished.append((offset + gap, offset + gap + length - 1))
            offset += gap + length
        else:
            offset += gap
            started.append((offset, draw(starts)))
    acks = draw(st.integers(0, (1 << 63) - 1))
    return mark, OffsetMetadata(acks_offset=acks, finished=tuple(finished), started=tuple(started))


@given(states())
def test_every_state_reads_back(state):
    mark, metadata = state
    text = encode(mark, metadata)
    assert text.isascii()
    assert decode(mark, text) == metadata


@given(st.text(alphabet="0123456789;,.+@w", max_size=40))
def test_whatever_is_read_is_written_the_same(text):
    try:
        metadata = decode(7, f"1;{text}")
    except StopPartition:
        return
    assert encode(7, metadata) == f"1;{text}"


@pytest.mark.parametrize(
    "start",
    [Start(1, 0, "w"), Start(1, 1 << 63, "w"), Start(1, 1, ""), Start(1, 1, "a;b"), Start(1, 1, "w" * 81)],
)
def test_a_start_that_cannot_be_written_is_a_programming_error(start):
    with pytest.raises(ValueError, match=r"is no token|does not match"):
        check_start(start)


W = Start(1, 1, "w")


@pytest.mark.parametrize(
    "metadata",
    [
        OffsetMetadata(started=((8, Start(1, 1, "a;b")),)),
        OffsetMetadata(started=((8, Start(1, 0, "w")),)),
        OffsetMetadata(started=((8, Start(1, 1 << 63, "w")),)),
        OffsetMetadata(started=((6, W),)),
        OffsetMetadata(started=((9, W), (9, W))),
        OffsetMetadata(started=((1 << 63, W),)),
        OffsetMetadata(started=((9, W),), finished=((8, 10),)),
        OffsetMetadata(finished=((7, 8),)),
        OffsetMetadata(finished=((9, 8),)),
        OffsetMetadata(acks_offset=-1),
        OffsetMetadata(started=tuple((n, W) for n in range(8, 2_000))),
    ],
    ids=lambda metadata: str(metadata)[29:170],
)
def test_what_would_not_be_read_is_not_written(metadata):
    with pytest.raises(ValueError, match="is no offset metadata"):
        encode(7, metadata)
