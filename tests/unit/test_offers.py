"""Offers: records as bytes, in chunks, complete or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import codec, offers
from pipeline.core.errors import Undecodable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Offered
from pipeline.offers import Offer, OfferId, offer, pack, read_chunk, unpack
from pipeline.ports import Put

ID = OfferId(anonymous_id(0, 1), 2, 77)

HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), min_size=1, max_size=3)
PUTS = st.lists(
    st.builds(
        Put, st.text(min_size=1, max_size=20), st.integers(0, 999), st.binary(max_size=30),
        st.none() | st.binary(max_size=200), HEADERS,
    ),
    max_size=5,
)  # fmt: skip


@given(PUTS)
def test_what_is_packed_is_unpacked(puts: list[Put]) -> None:
    assert unpack(pack(puts)) == puts


@given(PUTS.filter(bool), st.data())
def test_cut_bytes_are_refused(puts: list[Put], data: st.DataObject) -> None:
    whole = pack(puts)
    ends = {len(pack(puts[:count])) for count in range(len(puts) + 1)}
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at not in ends))
    with pytest.raises(Undecodable):
        unpack(whole[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        puts = unpack(data)
    except Undecodable:
        return
    assert all(isinstance(put, Put) for put in puts)


def test_a_large_outcome_is_cut_and_complete_with_its_last_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "CHUNK_BYTES", 100)
    puts = [Put("t.jobs", 3, b"k", b"v" * 250)]
    chunks = offer(ID, "w", puts, "t.acks.default", 3)
    assert [(c.topic, c.partition) for c in chunks] == [("t.acks.default", 3)] * 3
    built = Offer(10)
    for number in (2, 0, 1):
        assert not built.complete
        built.add(read_chunk(chunks[number].key, chunks[number].value or b""))
    assert built.complete
    assert built.puts() == puts
    assert (built.since, built.size) == (10, len(pack(puts)))


def test_a_chunk_under_another_key_is_refused() -> None:
    (chunk,) = offer(ID, "w", [Put("t.jobs", 0, b"k", None)], "t.acks.default", 0)
    with pytest.raises(Undecodable):
        read_chunk(chunk.key + b"1", chunk.value or b"")


def test_a_chunk_number_beyond_the_limit_is_refused() -> None:
    far = Offered(occurrence_id=ID[0], run=2, token=77, worker="w", chunk=10**6, last=True, body=b"")
    with pytest.raises(Undecodable):
        read_chunk(b"f/x", codec.OFFERED.encode(far))
