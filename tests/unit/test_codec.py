"""Codec: what is written anybody can read; hostile bytes are refused by name, or read as what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from io import BytesIO
from typing import Any, get_type_hints

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.codec.registry import FRAME
from pipeline.codec.shape import HOSTILE, read_strictly
from pipeline.core.backup import HoldState
from pipeline.core.errors import InvalidInput, Refused, Undecodable, UnknownFingerprint
from pipeline.core.job import Ack, AckState, Event, Failure, Heartbeat, Highest, Run, Takeover
from pipeline.core.layout import Layout

CODECS = {c.name: c for c in vars(codec).values() if isinstance(c, codec.Codec)}
VECTORS = json.loads(codec.schema_dir().joinpath("vectors", "codec.json").read_text("utf-8"))
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is slow, not wrong."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("x" * 200)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
PLAIN = {"string": TEXT, "int": INT, "long": LONG, "bytes": st.binary(max_size=300), "boolean": st.booleans()}
LAYOUT = st.builds(
    Layout,
    partitions=st.just(24),
    shards=st.just(4),
    ring=st.just(6),
    skew=st.just((0, 0, 5, 5)),
    bucket_width_ms=st.integers(1, 2**62),
    queues=st.dictionaries(st.sampled_from(["default", "mail", "a.b"]), st.integers(1, 1000)),
    fingerprints=st.tuples(TEXT, TEXT),
    product_version=TEXT,
)


def records(schema: Any) -> Iterator[tuple[str, Any]]:
    match schema:
        case list():
            for branch in schema:
                yield from records(branch)
        case {"type": "array", "items": items}:
            yield from records(items)
        case {"name": name, "fields": of}:
            yield name, schema
            for each in of:
                yield from records(each["type"])


NAMED = {name: record for each in CODECS.values() for name, record in records(each.schema)}


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Any value of a schema, as the type the codec builds for it."""
    match schema:
        case str():
            return PLAIN[schema] if schema in PLAIN else values(NAMED[schema])
        case ["null", inner]:
            return st.none() | values(inner)
        case {"type": "array", "items": items}:
            return st.lists(values(items), max_size=3).map(tuple)
        case {"type": "map", "values": inner}:
            return st.dictionaries(TEXT, values(inner), max_size=3)
        case {"name": "dueline.Layout"}:
            return LAYOUT
        case {"name": name, "fields": of}:
            strategies = {f["name"]: values(f["type"]) for f in of}
            if name == "dueline.Ack":
                strategies["state"] = st.sampled_from(AckState)
            if name == "dueline.Hold":
                strategies["state"] = st.sampled_from(HoldState)
            return st.builds(codec._TYPES[name], **strategies)
    raise AssertionError(schema)


def plain(value: Any, *, text: bool = False) -> Any:
    """As fastavro gives it; with `text` as the vectors do, bytes in hex and tokens as decimal strings."""
    if is_dataclass(value):
        record = {f.name: plain(getattr(value, f.name), text=text) for f in fields(value)}
        return {k: str(v) if text and k == "token" else v for k, v in record.items()}
    match value:
        case Enum():
            return value.value
        case bytes():
            return value.hex() if text else value
        case tuple():
            return [plain(item, text=text) for item in value]
        case dict():
            return {key: plain(item, text=text) for key, item in value.items()}
    return value


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 12)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "end"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0, 1, 2, 3, 127, 128, 255]))
            case "cut":
                del data[at:end]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=10))
            case "repeat":
                data[at:at] = data[at:end]
            case "end":
                del data[at:]
    return bytes(data)


def fastavro_reads(data: bytes, schema: Any) -> Any:
    stream = BytesIO(data[FRAME:])
    value = fastavro.schemaless_reader(stream, schema, None)
    assert stream.read() == b""
    return value


every_type = pytest.mark.parametrize("name", CODECS)


@every_type
@settings(CALM, max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read_back_here_and_by_fastavro(name: str, data: st.DataObject) -> None:
    value = data.draw(values(CODECS[name].schema))
    encoded = CODECS[name].encode(value)
    again = CODECS[name].decode(encoded)
    assert again == value
    assert type(again) is type(value)
    assert fastavro_reads(encoded, CODECS[name].schema) == plain(value)
    written = BytesIO()
    fastavro.schemaless_writer(written, CODECS[name].schema, plain(value))
    assert encoded[FRAME:] == written.getvalue()


@every_type
@settings(CALM, max_examples=25)
@given(data=st.data())
def test_hostile_bytes_are_refused_or_mean_what_they_say(name: str, data: st.DataObject) -> None:
    encoded = CODECS[name].encode(data.draw(values(CODECS[name].schema)))
    for hostile in data.draw(st.lists(mutated(encoded), min_size=4, max_size=8)):
        try:
            read = CODECS[name].decode(hostile)
        except (Undecodable, Refused):  # Refused: a layout of another kind
            continue
        assert plain(read) == fastavro_reads(hostile, CODECS[name].schema)
        assert CODECS[name].encode(read) == hostile


@every_type
@settings(CALM, max_examples=50)
@given(noise=st.binary(max_size=80))
def test_noise_behind_a_frame_is_refused_or_means_what_it_says(name: str, noise: bytes) -> None:
    framed = CODECS[name]._frame + noise
    try:
        read = CODECS[name].decode(framed)
    except (Undecodable, Refused):
        return
    assert plain(read) == fastavro_reads(framed, CODECS[name].schema)


def head_of(run: Run) -> tuple[Any, ...]:
    return tuple(getattr(run, name) for name in codec.RunHead._fields)


@settings(CALM, max_examples=50)
@given(data=st.data())
def test_peek_sees_what_decode_sees_and_refuses_only_what_decode_refuses(data: st.DataObject) -> None:
    run = data.draw(values(codec.RUN.schema))
    encoded = codec.RUN.encode(run)
    assert codec.peek_run(encoded) == head_of(run)
    for hostile in data.draw(st.lists(mutated(encoded), min_size=4, max_size=8)):
        try:
            read = codec.RUN.decode(hostile)
        except Undecodable:
            with suppress(Undecodable):
                codec.peek_run(hostile)
            continue
        assert codec.peek_run(hostile) == head_of(read)


def test_peek_stops_before_the_payload_and_not_before_its_last_field() -> None:
    run = Run(
        job_id="j", occurrence_id="j", due_at=1, run=1, queue="q", handler="h", created_at=1, nominal_at=1,
        idempotency_key="i", payload=b"{}", serial="customer",
    )  # fmt: skip
    encoded = codec.RUN.encode(run)
    end = encoded.index(b"customer") + len("customer")
    assert codec.peek_run(encoded[:end]).serial == "customer"
    for cut in range(end):
        with pytest.raises(Undecodable):
            codec.peek_run(encoded[:cut])


@pytest.mark.parametrize(
    "vector", VECTORS["vectors"], ids=[f"{n}-{v['type']}" for n, v in enumerate(VECTORS["vectors"])]
)
def test_vectors(vector: dict[str, Any]) -> None:
    which = CODECS[vector["type"]]
    value = which.decode(bytes.fromhex(vector["encoded"]))
    if bytes.fromhex(vector["encoded"]).startswith(which._frame):
        assert plain(value, text=True) == vector["value"]
        assert which.encode(value).hex() == vector["encoded"]
    else:
        assert known_to(vector["value"], plain(value, text=True)) == vector["value"]
        assert which.decode(which.encode(value)) == value


def known_to(old: Any, read: Any) -> Any:
    """Of what was read, the fields that the older version had."""
    match old, read:
        case dict(), dict():
            return {name: known_to(old[name], read[name]) for name in old}
        case list(), list():
            return [known_to(each, there) for each, there in zip(old, read, strict=True)]
    return read


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda v: v["why"])
def test_invalid_vectors(vector: dict[str, str]) -> None:
    with pytest.raises(Undecodable) as refused:
        CODECS[vector["type"]].decode(bytes.fromhex(vector["encoded"]))
    assert isinstance(refused.value, UnknownFingerprint) == (vector["why"] == "unknown fingerprint")


def test_every_released_version_has_a_vector() -> None:
    released = json.loads(codec.schema_dir().joinpath("released.json").read_text("utf-8"))
    shown = {bytes.fromhex(vector["encoded"])[2:FRAME][::-1].hex() for vector in VECTORS["vectors"]}
    assert shown == set(released)


def test_a_heartbeat_of_before_progress_and_held_runs_is_read_as_one_without() -> None:
    beats = [v["encoded"] for v in VECTORS["vectors"] if v["type"] == "dueline.Heartbeat"]
    old, new = (codec.HEARTBEAT.decode(bytes.fromhex(encoded)) for encoded in beats)
    assert old.held == ()
    assert [(flight.progress_permille, flight.note) for flight in old.in_flight] == [(None, None)]
    assert [flight.progress_permille for flight in new.in_flight] == [425, None]
    assert [held.worker for held in new.held] == ["worker.cd34.0"]


def test_an_unknown_fingerprint_is_told_as_its_number() -> None:
    with pytest.raises(UnknownFingerprint, match="0807060504030201") as refused:
        codec.RUN.decode(b"\xc3\x01" + bytes(range(1, 9)))
    assert refused.value.fingerprint == 0x0807060504030201
    assert not codec.known(f"{refused.value.fingerprint:016x}")


def test_a_run_is_no_ack() -> None:
    run = next(v["encoded"] for v in VECTORS["vectors"] if v["type"] == "dueline.Run")
    with pytest.raises(Undecodable, match=r"a dueline\.Run where a dueline\.Ack is expected") as refused:
        codec.ACK.decode(bytes.fromhex(run))
    assert not isinstance(refused.value, UnknownFingerprint)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("long", b"\x80" * 9 + b"\x02"),
        ("long", b"\x80" * 9 + b"\x00"),
        ("bytes", b"\x01ab"),
        ("string", b"\x01ab"),
        ("string", b"\x81\x01" + b"x" * 99),
        ({"type": "map", "values": "int"}, b"\x02\x01aa\x00\x00"),
        (["null", "string"], b"\x01\x02a"),
        (["null", "string"], b"\x03"),
        (["null", "string"], b"\x04\x02a"),
        (["null", "string"], b"\x82\x00\x02a"),
        ("boolean", b"\x02"),
    ],
)
def test_what_no_writer_writes_is_refused(schema: Any, data: bytes) -> None:
    record = {"type": "record", "name": "X", "fields": [{"name": "x", "type": schema}]}
    with pytest.raises(HOSTILE):
        read_strictly(fastavro.parse_schema(record), data, 0)


def test_an_int_over_its_range_is_refused() -> None:
    era = codec.ERA.encode(codec.Era(era=2**31 - 1))
    with pytest.raises(Undecodable, match="era: 2147483648 does not fit 32 bits"):
        codec.ERA.decode(era.replace(b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10"))


@pytest.mark.parametrize("value", [0, -1, 63, 64, -64, -65, 2**31, 1_800_000_000_000, 2**63 - 1, -(2**63)])
def test_longs_at_their_edges(value: int) -> None:
    event = Event(id="e", kind="k", at=value)
    assert codec.EVENT.decode(codec.EVENT.encode(event)) == event


def test_a_map_in_one_block_is_the_only_form_taken() -> None:
    event = codec.EVENT.encode(Event(id="e", kind="k", at=0))
    one = event[:-1] + b"\x04\x02a\x021\x02b\x022" + b"\0"
    assert codec.EVENT.decode(one).detail == {"a": "1", "b": "2"}
    for other in (b"\x01\x08\x02a\x021" + b"\x02\x02b\x022" + b"\0", b"\x04\x02a\x021\x02a\x022" + b"\0"):
        with pytest.raises(Undecodable):
            codec.EVENT.decode(event[:-1] + other)


@pytest.mark.parametrize("count", [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x0f"])
def test_a_huge_count_of_items_costs_no_more_than_its_bytes(count: bytes) -> None:
    empty = codec.TAKEOVER.encode(Takeover(process="", transactional_ids=(), generation=0, nonce="", at=0))
    data = empty[: FRAME + 1] + count + b"\0" * 1000
    with pytest.raises(Undecodable):
        codec.TAKEOVER.decode(data)


@pytest.mark.parametrize("run", [2**31, -(2**31) - 1, 2**64])
def test_an_int_that_does_not_fit_is_not_written(run: int) -> None:
    highest = Highest(run=run, queue="q", work_partition=0)
    with pytest.raises(InvalidInput, match=r"^run: .* does not fit 32 bits"):
        codec.HIGHEST.encode(highest)


@pytest.mark.parametrize("at", [2**63, -(2**63) - 1, 2**64])
def test_a_long_that_does_not_fit_is_not_written(at: int) -> None:
    taken = Takeover(process="", transactional_ids=(), generation=0, nonce="", at=at)
    with pytest.raises(InvalidInput, match=r"dueline\.Takeover"):
        codec.TAKEOVER.encode(taken)
    with pytest.raises(InvalidInput, match=r"^at: .* does not fit 64 bits"):
        codec.EVENT.encode(Event(id="e", kind="k", at=at))


def test_half_a_surrogate_pair_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        codec.EVENT.encode(Event(id="\ud800", kind="k", at=0))
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        codec.TAKEOVER.encode(Takeover(process="\ud800", transactional_ids=(), generation=0, nonce="", at=0))


def test_a_layout_that_makes_no_sense_is_undecodable() -> None:
    layout = next(v["encoded"] for v in VECTORS["vectors"] if v["type"] == "dueline.Layout")
    data = bytearray.fromhex(layout)
    data[FRAME] = 2 * 23  # partitions: no longer shards times ring
    with pytest.raises(Undecodable, match=r"dueline\.Layout: partitions"):
        codec.LAYOUT.decode(bytes(data))


def test_a_layout_of_a_newer_kind_is_refused_not_undecodable() -> None:
    layout = next(v["encoded"] for v in VECTORS["vectors"] if v["type"] == "dueline.Layout")
    with pytest.raises(Refused, match="upgrade"):
        codec.LAYOUT.decode(bytes.fromhex(layout).replace(b"\x0emurmur2\x02", b"\x0emurmur2\x04"))


def test_an_integer_without_end_is_refused() -> None:
    with pytest.raises(Undecodable):
        codec.ERA.decode(codec.ERA._frame + b"\xff" * 1_000_000)


def test_what_is_built_is_a_whole_frozen_value() -> None:
    ack = next(v for v in VECTORS["vectors"] if v["value"].get("error"))
    read: Ack = codec.ACK.decode(bytes.fromhex(ack["encoded"]))
    assert isinstance(read.state, AckState)
    assert isinstance(read.error, Failure)
    assert replace(read, attempt=9).attempt == 9
    assert hash(read) == hash(replace(read))
    with pytest.raises(AttributeError):
        read.attempt = 3  # type: ignore[misc]


def test_sequences_are_tuples() -> None:
    beat = next(v["encoded"] for v in VECTORS["vectors"] if v["type"] == "dueline.Heartbeat")
    read: Heartbeat = codec.HEARTBEAT.decode(bytes.fromhex(beat))
    assert all(
        isinstance(getattr(read, name), tuple)
        for name, hint in get_type_hints(Heartbeat).items()
        if str(hint).startswith("tuple")
    )
