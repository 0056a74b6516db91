"""The straight lines of the Run: generated from the schema as they stand, and the same as fastavro's."""

from __future__ import annotations

import importlib.util
from dataclasses import FrozenInstanceError, asdict, fields, replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.codec import run_wire, wire
from pipeline.codec.registry import FRAME, Codec
from pipeline.codec.shape import read_strictly
from pipeline.codec.straight import RunCodec
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Ack, AttemptRecord, Failure, Run

ROOT = Path(__file__).parents[2]
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["x" * 63, "é" * 700])
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1) | st.integers(1_700_000_000_000, 2_300_000_000_000)
PAIRS = st.dictionaries(TEXT, TEXT, max_size=3)
FAILURES = st.builds(Failure, type=TEXT, message=TEXT, trace=st.none() | TEXT)
ATTEMPTS = st.builds(
    AttemptRecord,
    run=INT,
    attempt=INT,
    worker=TEXT,
    token=LONG,
    at=LONG,
    outcome=TEXT,
    error=st.none() | FAILURES,
)
HISTORY = st.just(()) | st.lists(ATTEMPTS, max_size=3).map(tuple)
RUNS = st.builds(
    Run,
    job_id=TEXT,
    occurrence_id=TEXT,
    due_at=LONG,
    run=INT,
    queue=TEXT,
    handler=TEXT,
    created_at=LONG,
    nominal_at=LONG,
    idempotency_key=TEXT,
    payload=st.binary(max_size=300) | st.just(b"x" * 9_000),
    serial=st.none() | TEXT,
    schedule_id=st.none() | TEXT,
    key=st.none() | TEXT,
    failures=INT,
    attempt_limit=st.none() | INT,
    timeout_ms=st.none() | LONG,
    labels=PAIRS,
    headers=PAIRS,
    history=HISTORY,
)
# Most runs repeat their job id twice and their due time once, which is read another way.
ALIKE = RUNS.map(
    lambda run: replace(run, occurrence_id=run.job_id, idempotency_key=run.job_id, nominal_at=run.due_at)
)
# Most have neither a key nor a limit nor labels, which is taken at a glance.
PLAIN = ALIKE.map(
    lambda run: replace(
        run,
        schedule_id=None,
        key=None,
        failures=0,
        attempt_limit=None,
        timeout_ms=None,
        labels={},
        headers={},
        history=(),
    )
)
BY_FASTAVRO: Codec[Run] = Codec(codec._RELEASED, "dueline.Run", codec._TYPES)


def plain(run: Run) -> dict[str, Any]:
    return {**{f.name: getattr(run, f.name) for f in fields(run)}, "history": [*map(asdict, run.history)]}


def written_by_fastavro(run: Run) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, codec.RUN.schema, plain(run))
    return body.getvalue()


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("generate_codec", ROOT / "tools" / "generate_codec.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_files_are_what_the_schemas_give(generator: ModuleType) -> None:
    for plan in generator.PLANS:
        there = (generator.CODEC / plan.target).read_text("utf-8")
        assert generator.generate(plan) == there, "run tools/generate_codec.py"


@pytest.mark.parametrize(
    "type_", ["double", ["string", "null"], ["null", "int", "string"], {"type": "array", "items": "int"}]
)
def test_a_type_that_is_not_foreseen_is_not_generated(generator: ModuleType, type_: object) -> None:
    with pytest.raises(TypeError, match="is not foreseen"):
        assert generator.Field("x", type_).inner


def test_a_changed_schema_without_its_straight_lines_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_wire, "FINGERPRINT", "0" * 16)
    with pytest.raises(AssertionError, match="generate_codec"):
        RunCodec(codec._RELEASED, "dueline.Run", codec._TYPES)


@pytest.mark.parametrize("type_", [Run, Ack, AttemptRecord, Failure])
def test_nothing_is_done_when_a_value_is_made_that_reading_one_would_leave_out(type_: type) -> None:
    assert not hasattr(type_, "__post_init__")


def test_a_run_that_was_read_is_as_frozen_as_one_that_was_made() -> None:
    made = Run(
        job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
        idempotency_key="i", payload=b"{}",
    )  # fmt: skip
    read = codec.RUN.decode(codec.RUN.encode(made))
    assert type(read) is Run
    assert not hasattr(read, "__dict__")
    with pytest.raises(FrozenInstanceError):
        read.run = 2  # type: ignore[misc]


def test_the_maps_of_runs_that_were_read_are_not_shared() -> None:
    data = codec.RUN.encode(
        Run(
            job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
            idempotency_key="i", payload=b"{}",
        )
    )  # fmt: skip
    first = codec.RUN.decode(data)
    assert isinstance(first.labels, dict)
    first.labels["mine"] = "only"
    assert codec.RUN.decode(data).labels == first.headers == {}


@settings(CALM, max_examples=200)
@given(run=RUNS | ALIKE | PLAIN)
def test_writing_gives_the_bytes_of_fastavro_and_reading_gives_the_run(run: Run) -> None:
    data = codec.RUN.encode(run)
    assert data == BY_FASTAVRO.encode(run)
    assert data[FRAME:] == written_by_fastavro(run)
    assert codec.RUN.decode(data) == BY_FASTAVRO.decode(data) == run
    assert codec.peek_run(data) == tuple(getattr(run, name) for name in codec.RunHead._fields)


@settings(CALM, max_examples=100)
@given(run=RUNS, other=RUNS)
def test_assembling_gives_the_bytes_of_writing(run: Run, other: Run) -> None:
    """What is fixed comes from one run, what varies from another."""
    varying = ("job_id", "occurrence_id", "due_at", "created_at", "serial", "nominal_at", "idempotency_key")
    varying += ("labels", "headers", "payload")
    mixed = replace(run, **{name: getattr(other, name) for name in varying})
    assembled = run_wire.assemble(
        run_wire.fixed(run),
        wire.write_string(other.job_id),
        wire.write_string(other.occurrence_id),
        wire.write_long(other.due_at, "due_at"),
        wire.write_long(other.created_at, "created_at"),
        wire.NULL if other.serial is None else wire.SOME + wire.write_string(other.serial),
        wire.write_long(other.nominal_at, "nominal_at"),
        wire.write_string(other.idempotency_key),
        wire.write_map(other.labels),
        wire.write_map(other.headers),
        wire.write_bytes(other.payload),
    )
    assert assembled == codec.RUN.encode(mixed)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(codec.RUN.encode(draw(RUNS | ALIKE | PLAIN)))
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
@example(data=run_wire.FRAME)
def test_hostile_bytes_are_refused_exactly_where_fastavro_and_a_second_writing_refuse(data: bytes) -> None:
    try:
        expected: Run | None = BY_FASTAVRO.decode(data)
    except Undecodable:
        expected = None
    try:
        read: Run | None = codec.RUN.decode(data)
    except Undecodable:
        read = None
    assert read == expected


OLD = bytes.fromhex("c3015d9bdd4106dfd3ff")
UNSCHEDULED = bytes.fromhex("c301de3dbac7672702d3")
OLDER = {OLD: 2, UNSCHEDULED: 1}
"""How the runs begin that were written before there was a history, and before there were schedules; and how many
fields came since."""


@settings(CALM, max_examples=100)
@given(run=RUNS | ALIKE | PLAIN)
def test_a_run_of_before_there_was_a_history_is_read_as_straight_as_the_library_reads_it(run: Run) -> None:
    run = replace(run, history=(), last_success_at=None)
    new = codec.RUN.encode(run)
    assert new[-2:] == b"\0\0", "none takes one byte each, the last"
    for frame, more in OLDER.items():
        old = frame + new[FRAME:-more]
        assert codec.RUN.decode(old) == BY_FASTAVRO.decode(old) == run
        assert codec.peek_run(old) == codec.peek_run(new)
    assert {frame: len(behind) for frame, behind in run_wire.OLDER.items()} == OLDER


@settings(CALM, max_examples=50)
@given(run=RUNS)
def test_a_run_of_before_schedules_is_read_as_straight_as_the_library_reads_it(run: Run) -> None:
    run = replace(run, last_success_at=None)
    old = UNSCHEDULED + codec.RUN.encode(run)[FRAME:-1]
    assert codec.RUN.decode(old) == BY_FASTAVRO.decode(old) == run


@settings(CALM, max_examples=200)
@given(data=damaged())
def test_hostile_bytes_of_the_older_version_are_refused_where_the_library_refuses_them(data: bytes) -> None:
    bodies = (data[FRAME:], data[FRAME:-1], data[FRAME:-2], data[FRAME:-1] + b"\2")
    for hostile in (frame + body for frame in OLDER for body in bodies):
        try:
            expected: Run | None = BY_FASTAVRO.decode(hostile)
        except Undecodable:
            expected = None
        try:
            read: Run | None = codec.RUN.decode(hostile)
        except Undecodable:
            read = None
        assert read == expected


def test_a_run_of_the_older_version_cannot_bring_a_history_without_its_end() -> None:
    attempt = AttemptRecord(run=1, attempt=1, worker="w", token=1, at=1, outcome="retrying")
    run = Run(
        job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
        idempotency_key="i", payload=b"{}", history=(attempt,),
    )  # fmt: skip
    with pytest.raises(Undecodable, match="trailing"):
        codec.RUN.decode(OLD + codec.RUN.encode(run)[FRAME:-1])


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\x0a\x02\x0c\0",  # two blocks
        b"\x01\x02\x0a\0",  # a block that says its size
        b"\x80\0",  # none, in a byte too many
        b"\x02\x0a",  # no end
        b"\xfe\xff\xff\xff\x0f\x0a\0",  # more than there are
    ],
)
def test_an_array_is_taken_in_the_one_form_that_writers_write(data: bytes) -> None:
    assert wire.read_array(b"\x04\x0a\x0c\0", 0, wire.read_int) == ((5, 6), 4)
    assert wire.read_array(b"\0", 0, wire.read_int) == ((), 1)
    with pytest.raises((wire.Malformed, IndexError)):
        wire.read_array(data, 0, wire.read_int)


ONE, OTHER = b"\x02a\x021", b"\x02b\x022"


@pytest.mark.parametrize(
    "data",
    [
        b"\x02" + ONE + b"\x02" + OTHER + b"\0",  # two blocks
        b"\x04" + ONE + ONE + b"\0",  # a key twice
        b"\x01\x08" + ONE + b"\0",  # a block that says its size
        b"\x80\0",  # none, in a byte too many
        b"\x02" + ONE,  # no end
        b"\xfe\xff\xff\xff\x0f" + ONE + b"\0",  # more than there are
    ],
)
def test_a_map_is_taken_in_the_one_form_that_writers_write(data: bytes) -> None:
    assert wire.read_map(b"\x04" + ONE + OTHER + b"\0", 0) == ({"a": "1", "b": "2"}, 10)
    with pytest.raises((wire.Malformed, IndexError)):
        wire.read_map(data, 0)


@pytest.mark.parametrize(
    "data", [b"\x82\x80\x80\x80\x80\0", b"\x80\0", b"\xff" * 9 + b"\x03", b"\xff" * 10 + b"\x01"]
)
def test_an_instant_in_too_many_bytes_or_bits_is_refused(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.read_instant(data + b"\x02" * 8, 0)


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_run_that_ends_too_soon_is_refused(cut: int) -> None:
    run = Run(
        job_id="j", occurrence_id="j", due_at=1_800_000_000_000, run=1, queue="q", handler="h", created_at=5,
        nominal_at=1, idempotency_key="j", payload=b"{}", labels={"a": "1"}, serial="s",
    )  # fmt: skip
    data = codec.RUN.encode(run)
    with pytest.raises(Undecodable):
        codec.RUN.decode(data[:-cut])


@given(value=LONG)
@example(value=(1 << 34) - 1)
@example(value=1 << 34)
@example(value=(1 << 41) - 1)
@example(value=1 << 41)
def test_instants_are_longs(value: int) -> None:
    data = wire.write_long(value, "x")
    assert wire.read_instant(data, 0) == wire.read_long(data, 0) == (value, len(data))
    assert wire.read_instant(data + b"\0" * 8, 0) == (value, len(data))
    if value >= 1 << 13:
        assert wire.write_instant(value) == data


def test_what_stands_above_eight_seconds_is_forgotten_when_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "_ABOVE_LIMIT", 2)
    monkeypatch.setattr(wire, "_ABOVE", {})
    for n in range(10):
        instant = 1_800_000_000_000 + n * 8192
        assert wire.write_instant(instant) == wire.write_long(instant, "x")
        assert len(wire._ABOVE) <= 2


@settings(CALM)
@given(data=st.binary(min_size=6, max_size=12))
def test_an_instant_is_read_as_strictly_as_a_long(data: bytes) -> None:
    def result(read: Any) -> object:
        try:
            return read(data, 0)
        except (wire.Malformed, IndexError) as error:
            return type(error)

    assert result(wire.read_instant) == result(wire.read_long)


@pytest.mark.parametrize(
    ("field", "value"),
    [("run", 2**31), ("failures", -(2**31) - 1), ("attempt_limit", 2**40), ("due_at", 2**63), ("timeout_ms", -(2**64))],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_not_written(field: str, value: int) -> None:
    run = Run(
        job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
        idempotency_key="i", payload=b"{}",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="does not fit") as refused:
        codec.RUN.encode(replace(run, **{field: value}))
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["job_id", "idempotency_key", "handler", "serial", "labels"])
def test_half_a_surrogate_pair_is_not_written_and_the_field_is_named(field: str) -> None:
    run = Run(
        job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
        idempotency_key="i", payload=b"{}",
    )  # fmt: skip
    value = {"\ud800": "x"} if field == "labels" else "\ud800"
    with pytest.raises(InvalidInput, match="not valid Unicode") as refused:
        codec.RUN.encode(replace(run, **{field: value}))
    assert refused.value.field == field


def test_the_oracle_is_strict() -> None:
    """Else the comparison above would prove nothing."""
    data = codec.RUN.encode(
        Run(
            job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
            idempotency_key="i", payload=b"{}",
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match="trailing"):
        read_strictly(codec.RUN.schema, data + b"\0", FRAME)
