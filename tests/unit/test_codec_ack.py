"""The straight lines of the Ack, and the writer of a worker's acks: the same bytes as fastavro's."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.codec import ack_wire, acks, wire
from pipeline.codec.registry import FRAME, Codec
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Ack, AckState, Failure, Run

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["x" * 63, "é" * 700])
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2**42) | st.sampled_from([(1 << 13) - 1, 1 << 13])
FAILURE = st.builds(Failure, type=TEXT, message=TEXT, trace=st.none() | TEXT)
ACKS = st.builds(
    Ack,
    job_id=TEXT,
    occurrence_id=TEXT,
    run=INT,
    attempt=INT,
    token=LONG,
    worker=TEXT,
    handler=TEXT,
    state=st.sampled_from(AckState),
    at=LONG,
    work_offset=LONG,
    started_at=st.none() | LONG,
    error=st.none() | FAILURE,
    result=st.none() | st.binary(max_size=300) | st.just(b"x" * 9_000),
    log_tail=st.none() | TEXT,
    retry_at=st.none() | LONG,
)
# Most acks repeat their job id, and most are of plain successes.
PLAIN = ACKS.map(
    lambda ack: replace(ack, occurrence_id=ack.job_id, error=None, result=None, log_tail=None, retry_at=None)
)
BY_FASTAVRO: Codec[Ack] = Codec(codec._RELEASED, "dueline.Ack", codec._TYPES)
ACK = Ack(
    job_id="j", occurrence_id="o", run=1, attempt=1, token=7, worker="w", handler="h", state=AckState.SUCCEEDED,
    at=1_800_000_000_000, work_offset=99_999, started_at=1_799_999_999_999,
)  # fmt: skip


@settings(CALM, max_examples=200)
@given(ack=ACKS | PLAIN)
def test_writing_gives_the_bytes_of_fastavro_and_reading_gives_the_ack(ack: Ack) -> None:
    data = codec.ACK.encode(ack)
    assert data == BY_FASTAVRO.encode(ack)
    assert codec.ACK.decode(data) == BY_FASTAVRO.decode(data) == ack


def run_of(ack: Ack) -> Run:
    return Run(
        job_id=ack.job_id, occurrence_id=ack.occurrence_id, run=ack.run, handler=ack.handler, due_at=0, queue="q",
        created_at=0, nominal_at=0, idempotency_key="i", payload=b"",
    )  # fmt: skip


WRITERS: dict[str, codec.AckWriter] = {}


@settings(CALM, max_examples=200)
@given(ack=ACKS | PLAIN)
def test_the_writer_of_a_worker_gives_the_bytes_of_the_codec(ack: Ack) -> None:
    """One writer for many acks: what it remembers belongs to the right ones."""
    writer = WRITERS.setdefault(ack.worker, codec.AckWriter(ack.worker))
    opening = writer.opening(run_of(ack), ack.attempt, ack.token)
    written = writer.write(
        opening,
        ack.state,
        ack.at,
        ack.work_offset,
        ack.started_at,
        ack.error,
        ack.result,
        ack.log_tail,
        ack.retry_at,
    )
    assert written == codec.ACK.encode(ack)
    started = writer.write(opening, AckState.STARTED, ack.at, ack.work_offset)
    assert codec.ACK.decode(started) == replace(
        ack, state=AckState.STARTED, started_at=None, error=None, result=None, log_tail=None, retry_at=None
    )


@pytest.mark.parametrize(
    "change",
    [
        {"run": 2},
        {"attempt": 2},
        {"token": 8},
        {"handler": "other"},
        {"job_id": "k"},
        {"at": 7},
        {"state": AckState.CANCELLED},
    ],
)
def test_what_the_writer_remembers_is_told_apart(change: dict[str, Any]) -> None:
    writer = codec.AckWriter(ACK.worker)
    for ack in (ACK, replace(ACK, **change), ACK):
        opening = writer.opening(run_of(ack), ack.attempt, ack.token)
        written = writer.write(opening, ack.state, ack.at, ack.work_offset, ack.started_at)
        assert codec.ACK.decode(written) == ack


def test_the_writer_forgets_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "REMEMBERED", 2)
    writer = codec.AckWriter("w")
    for token in (1, 2, 3, 4, 3, 1):
        opening = writer.opening(run_of(ACK), 1, token)
        written = writer.write(opening, ACK.state, 0, 0)
        assert codec.ACK.decode(written).token == token
        assert len(writer._shared) <= 2


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(codec.ACK.encode(draw(ACKS | PLAIN)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(FRAME, len(data)))
        match draw(st.sampled_from(["set", "cut", "insert", "end", "lengthen"])):
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0, 1, 2, 3, 127, 128, 129, 255]) | st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 12))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=10))
            case "end":
                del data[at:]
            case "lengthen" if at < len(data) and data[at] < 128:
                data[at : at + 1] = bytes((data[at] | 128, 0))  # the same number in a byte too many
    return bytes(data)


@settings(CALM, max_examples=400)
@given(data=damaged())
@example(data=ack_wire.FRAME)
def test_hostile_bytes_are_refused_exactly_where_fastavro_and_a_second_writing_refuse(data: bytes) -> None:
    try:
        expected: Ack | None = BY_FASTAVRO.decode(data)
    except Undecodable:
        expected = None
    try:
        read: Ack | None = codec.ACK.decode(data)
    except Undecodable:
        read = None
    assert read == expected


@pytest.mark.parametrize("state", [b"", b"Started", b"undone", b"\xff\xfe"])
def test_a_state_that_is_none_is_refused(state: bytes) -> None:
    written = b"\x12succeeded"
    data = codec.ACK.encode(ACK)
    assert data.count(written) == 1
    with pytest.raises(Undecodable, match=r"^dueline\.Ack: no such state"):
        codec.ACK.decode(data.replace(written, bytes((len(state) << 1,)) + state))


FULL = replace(
    ACK,
    error=Failure(type="E", message="m", trace="t"),
    result=b"{}",
    log_tail="l",
    retry_at=1_800_000_000_001,
)


@pytest.mark.parametrize("ack", [ACK, FULL], ids=["plain", "full"])
def test_an_ack_that_ends_too_soon_is_refused(ack: Ack) -> None:
    data = codec.ACK.encode(ack)
    for end in range(FRAME, len(data)):
        with pytest.raises(Undecodable):
            codec.ACK.decode(data[:end])
    with pytest.raises(Undecodable, match="trailing"):
        codec.ACK.decode(data + b"\0")


@pytest.mark.parametrize("ack", [ACK, FULL], ids=["plain", "full"])
def test_no_branch_but_the_two_of_a_union_is_taken(ack: Ack) -> None:
    data = codec.ACK.encode(ack)
    union = len(data) - 4 if ack is ACK else data.index(b"\x02\x02E")
    with pytest.raises(Undecodable, match="no such branch"):
        codec.ACK.decode(data[:union] + b"\x04" + data[union + 1 :])


@pytest.mark.parametrize(
    ("field", "value"),
    [("run", 2**31), ("attempt", -(2**31) - 1), ("token", 2**63), ("at", -(2**64)), ("retry_at", 2**63)],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_not_written(field: str, value: int) -> None:
    with pytest.raises(InvalidInput, match="does not fit") as refused:
        codec.ACK.encode(replace(ACK, **{field: value}))
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["job_id", "worker", "log_tail"])
def test_half_a_surrogate_pair_is_not_written_and_the_field_is_named(field: str) -> None:
    with pytest.raises(InvalidInput, match="not valid Unicode") as refused:
        codec.ACK.encode(replace(ACK, **{field: "\udfff"}))
    assert refused.value.field == field


def test_nothing_that_a_handler_may_leave_is_too_much_for_an_ack() -> None:
    huge = replace(
        FULL, error=Failure(type="E" * 10_000, message="é" * 100_000, trace="t" * 1_000_000),
        result=b"x" * 1_000_000, log_tail="\0\n" * 100_000,
    )  # fmt: skip
    data = codec.ACK.encode(huge)
    assert codec.ACK.decode(data) == huge
    assert data == BY_FASTAVRO.encode(huge)


def test_an_ack_that_was_read_is_as_frozen_as_one_that_was_made() -> None:
    read = codec.ACK.decode(codec.ACK.encode(FULL))
    assert type(read) is Ack
    assert type(read.error) is Failure
    assert not hasattr(read, "__dict__")
    with pytest.raises(FrozenInstanceError):
        read.at = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        read.error.type = "F"  # type: ignore[misc]


@pytest.mark.parametrize("value", [0, 1, 8191, 8192, 8193, 2**42, 2**62, 2**63 - 1, -1, -8192, -(2**63)])
def test_a_long_is_written_the_same_way_whether_its_high_bits_are_known_or_not(value: int) -> None:
    for _ in range(2):
        assert wire.read_long(wire.write_long(value, "x"), 0)[0] == value
