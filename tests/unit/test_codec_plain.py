"""The quick look at a plain run says what the slow one says, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import codec
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Run

ID = anonymous_id(1_790_000_000_000, 7)
PLAIN = Run(
    job_id=ID,
    occurrence_id=ID,
    due_at=1_790_000_000_000,
    run=1,
    queue="default",
    handler="email.send",
    created_at=1_789_999_999_000,
    nominal_at=1_790_000_000_000,
    idempotency_key=ID,
    payload=b"{}",
)
names = st.from_regex(r"[a-z0-9._-]{1,80}", fullmatch=True)
instants = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(946_684_800_000, 7_258_118_400_000)


@given(due=instants, created=instants, queue=names, handler=names)
def test_it_reads_what_the_slow_look_reads(due: int, created: int, queue: str, handler: str) -> None:
    value = codec.RUN.encode(replace(PLAIN, due_at=due, created_at=created, queue=queue, handler=handler))
    head, plain = codec.peek_run(value), codec.peek_plain(ID.encode(), value)
    if plain is None:
        assert max(len(queue), len(handler)) >= 64, "only a name of 64 bytes or more is left to the slow look"
    else:
        assert plain == (head.due_at, head.created_at, head.queue, head.handler)


def test_a_run_of_the_older_version_is_as_plain() -> None:
    new = codec.RUN.encode(PLAIN)
    old = bytes.fromhex("c3015d9bdd4106dfd3ff") + new[10:-2]
    assert codec.RUN.decode(old) == PLAIN
    assert codec.peek_plain(ID.encode(), old) == codec.peek_plain(ID.encode(), new) is not None
    assert codec.peek_plain(ID.encode(), bytes(10) + new[10:]) is None, "another type"


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 2},
        {"serial": "customer-7"},
        {"occurrence_id": "other"},
        {"job_id": "other"},
        {"queue": "No Name"},
        {"handler": "rm -rf"},
        {"handler": ""},
    ],
)
def test_what_is_not_plain_is_left_to_the_slow_look(changes: dict[str, Any]) -> None:
    assert codec.peek_plain(ID.encode(), codec.RUN.encode(replace(PLAIN, **changes))) is None


def test_another_id_than_the_records_is_not_plain() -> None:
    assert codec.peek_plain(anonymous_id(1, 1).encode(), codec.RUN.encode(PLAIN)) is None
    assert codec.peek_plain(b"short", codec.RUN.encode(PLAIN)) is None


@given(st.data())
def test_damaged_bytes_are_read_as_the_slow_look_reads_them_or_not_at_all(data: st.DataObject) -> None:
    value = bytearray(codec.RUN.encode(PLAIN))
    for _ in range(data.draw(st.integers(0, 3))):
        value[data.draw(st.integers(66, len(value) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    plain = codec.peek_plain(ID.encode(), cut)
    if plain is not None:
        head = codec.peek_run(cut)
        assert plain == (head.due_at, head.created_at, head.queue, head.handler)
        assert (head.run, head.serial) == (1, None)
