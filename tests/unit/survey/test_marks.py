"""What is read of an ack and of a run by where its bytes stand is what decoding them says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Ack, AckState, Failure, Run
from pipeline.core.token import make_token, split_token
from pipeline.ports import Put, Span
from pipeline.survey.heads import Sight, due_order, read_due, read_run, sight_of
from pipeline.survey.marks import RUN_AT, Marks, read_ack, run_hash, token_of

DUE = 1_800_000_000_000
ids = st.sampled_from(
    [
        (id_ := anonymous_id(DUE, 7), id_),
        (keyed := keyed_id("a"), f"{keyed}.12"),
        ("s:x:1:g::5",) * 2,
        ("j" * 70,) * 2,
    ]
)
names = st.sampled_from(["a", "email.send", "b" * 64, "c" * 80])
offsets = st.sampled_from([0, 1, 63, 64, 8191, 8192, 99_999])
instants = st.sampled_from([0, 1, DUE, 1 << 34, 1 << 41, 1 << 45])
acks = st.builds(
    lambda pair, **fields: Ack(job_id=pair[0], occurrence_id=pair[1], **fields),
    ids,
    run=st.sampled_from([1, 2, 63, 64, 40_000]),
    attempt=st.sampled_from([1, 63, 64, 200]),
    token=st.sampled_from([5, make_token(1, 1, 7, 1), make_token(255, 9, 9, 9)]),
    worker=names,
    handler=names,
    state=st.sampled_from(AckState),
    at=instants,
    work_offset=offsets,
    started_at=st.none() | instants,
    error=st.none() | st.builds(Failure, type=names, message=names),
    result=st.none() | st.binary(max_size=9),
)
runs = st.builds(
    lambda pair, **fields: Run(
        job_id=pair[0], occurrence_id=pair[1], idempotency_key=fields.pop("own_key") or pair[0], **fields
    ),
    ids,
    own_key=st.none() | names,
    due_at=instants,
    run=st.sampled_from([1, 2, 70]),
    queue=names,
    handler=names,
    created_at=instants,
    nominal_at=instants,
    payload=st.sampled_from([b"", b"x" * 63, b"x" * 64, b"x" * 9_000]),
    serial=st.none() | names,
    schedule_id=st.none() | names,
    key=st.none() | names,
    labels=st.just({}) | st.just({"a": "b"}),
)


def key_of(ack: Ack) -> bytes:
    if ack.state.terminal:
        return keys.terminal_key(ack.occurrence_id, ack.run, ack.attempt)
    return keys.started_key(ack.occurrence_id, ack.run, ack.token)


def record(key: bytes, value: bytes | None, offset: int) -> MemoryRecord:
    return MemoryRecord(Put("t", 0, key, value), offset, 0, None)


@given(st.lists(acks, min_size=1, max_size=12))
def test_acks_read_by_their_places_say_what_they_say_decoded(given_: list[Ack]) -> None:
    """The second time around the kind of each is known."""
    with Marks(Span(0, 0, 100_000)) as marks:
        for ack in given_ * 2:
            key, value = key_of(ack), codec.ACK.encode(ack)
            code, offset = marks._peek(value)
            word = read_ack(key, value)
            assert word is not None
            assert code == 0 or (code & 15, offset) == (word.code, word.offset)
            if code and ack.state.terminal:
                assert code >> RUN_AT in (0, split_token(ack.token).run)
            assert word.mark == run_hash(ack.occurrence_id.encode(), ack.run)
            assert token_of(value) == ack.token
            marks.learn([record(key, value, 5)], 0)
            assert marks.code(ack.work_offset, ack.occurrence_id.encode(), ack.run) != 0


@given(acks, st.data())
def test_acks_that_are_cut_short_or_damaged_raise_nothing(ack: Ack, data: Any) -> None:
    value = codec.ACK.encode(ack)
    cut = data.draw(st.integers(0, len(value)))
    at = data.draw(st.integers(0, len(value) - 1))
    with Marks(Span(0, 0, 100)) as marks:
        marks.learn([record(key_of(ack), codec.ACK.encode(ack), 0)], 0)
        marks.learn([record(key_of(ack), value[:cut], 1)], 0)
        marks.learn([record(key_of(ack), value[:at] + b"\xff" + value[at + 1 :], 2)], 0)
        assert token_of(value[:15]) is None
        assert token_of(b"junk") is None
        marks.learn([record(key_of(ack), None, 3), record(b"t/", b"", 4), record(b"", b"", 5)], 0)


def test_the_acks_of_our_workers_need_no_decoding() -> None:
    """Else a million of them would take half a minute."""
    id_ = anonymous_id(DUE, 7)
    with Marks(Span(0, 0, 100_000)) as marks:
        for state in (AckState.STARTED, AckState.SUCCEEDED, AckState.DEAD):
            for offset in (0, 63, 64, 99_999):
                ack = Ack(
                    job_id=id_, occurrence_id=id_, run=1, attempt=1, token=make_token(1, 1, 7, 1), worker="w",
                    handler="h", state=state, at=DUE, work_offset=offset, started_at=DUE,
                )  # fmt: skip
                assert marks._peek(codec.ACK.encode(ack))[1] == offset
                assert marks._peek(codec.ACK.encode(ack))[0] != 0
        assert len(marks._openings) == 3


@given(st.lists(runs, min_size=1, max_size=8))
def test_runs_read_by_their_places_say_what_they_say_decoded(given_: list[Run]) -> None:
    for run in given_ * 2:
        key, value = run.occurrence_id.encode(), codec.RUN.encode(run)
        assert read_run(key, value) == sight_of(run)
        of_itself = run.run == 1 and run.job_id == run.occurrence_id and len(key) < 64
        plain = of_itself and 1 << 34 <= run.due_at < 1 << 41
        assert read_due(key, value) == (due_order(run.due_at) if plain else None)


def test_a_later_run_with_nothing_special_is_no_first_run() -> None:
    id_ = anonymous_id(DUE, 7)
    for number in (1, 2, 1):
        run = Run(
            job_id=id_, occurrence_id=id_, due_at=DUE, run=number, queue="q", handler="h", created_at=DUE,
            nominal_at=DUE, idempotency_key=id_, payload=b"{}",
        )  # fmt: skip
        assert read_run(id_.encode(), codec.RUN.encode(run)) == sight_of(run)


@given(runs, st.data())
def test_a_run_that_is_cut_short_or_of_another_key_is_none(run: Run, data: Any) -> None:
    key, value = run.occurrence_id.encode(), codec.RUN.encode(run)
    cut = data.draw(st.integers(0, len(value) - 1))
    found = read_run(key, value[:cut])
    # What is cut off the payload is not looked at.
    assert found is None or (isinstance(found, Sight) and cut > len(value) - len(run.payload) - 3)
    assert read_run(b"j-other", value) is None
    assert read_due(b"j-other", value) is None
    assert read_due(key, value[:cut]) in (None, due_order(run.due_at))


@given(st.integers(-5, 1 << 45), st.integers(-5, 1 << 45))
def test_due_times_are_in_order(one: int, other: int) -> None:
    assert due_order(one) <= due_order(other) or one > other
    if min(one, other) >= 1 << 34 and max(one, other) < 1 << 41:
        assert (due_order(one) < due_order(other)) == (one < other)
