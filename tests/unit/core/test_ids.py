"""Ids: forms, order, and refusal of everything else."""

import json
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import ids
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.hashing import text_hash

VECTORS = json.loads((Path(__file__).parents[3] / "schemas/vectors/ids.json").read_text())

dues = st.integers(0, (1 << 48) - 1)
randoms = st.integers(0, (1 << 80) - 1)
offsets = st.integers(0, (1 << 63) - 1)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
names = st.from_regex(ids.NAME, fullmatch=True)


@pytest.mark.parametrize("vector", VECTORS["anonymous"], ids=lambda vector: vector["id"])
def test_anonymous_vectors(vector):
    assert ids.anonymous_id(vector["due_at"], int(vector["random"], 16)) == vector["id"]
    assert ids.parse_id(vector["id"]) == ids.AnonymousId(id=vector["id"], due_at=vector["due_at"])
    assert text_hash(vector["id"]) == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["keyed"], ids=lambda vector: vector["id"])
def test_keyed_vectors(vector):
    assert ids.keyed_id(vector["key"]) == vector["id"]
    assert ids.parse_id(vector["id"]) == ids.KeyedId(id=vector["id"], home_hash=vector["hash"])


@pytest.mark.parametrize("vector", VECTORS["keyed_occurrences"], ids=lambda vector: vector["occurrence_id"])
def test_keyed_occurrence_vectors(vector):
    assert ids.occurrence_of_keyed(vector["id"], vector["incarnation"]) == vector["occurrence_id"]
    parsed = ids.parse_id(vector["occurrence_id"])
    assert isinstance(parsed, ids.KeyedId)
    assert (parsed.id, parsed.incarnation) == (vector["id"], vector["incarnation"])


@pytest.mark.parametrize("vector", VECTORS["schedule_occurrences"], ids=lambda v: v["occurrence_id"][:40])
def test_schedule_occurrence_vectors(vector):
    fields = {key: vector[key] for key in ("schedule_id", "incarnation", "kind", "manual_id", "nominal_at")}
    assert ids.schedule_occurrence(**fields) == vector["occurrence_id"]
    assert ids.parse_id(vector["occurrence_id"]) == ids.ScheduleOccurrence(**fields)


@pytest.mark.parametrize("vector", VECTORS["commands"], ids=lambda vector: vector["command"])
def test_command_vectors(vector):
    assert ids.command_job_id(vector["due_at"], vector["command"]) == vector["id"]
    assert ids.command_job_id(vector["due_at"], uuid.UUID(vector["command"])) == vector["id"]
    assert ids.command_job_id(vector["due_at"], vector["command"].upper()) == vector["id"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: repr(vector["id"]))
def test_what_is_no_id_is_refused_in_one_line(vector):
    with pytest.raises(Undecodable, match="is no job or occurrence id") as refusal:
        ids.parse_id(vector["id"])
    assert "\n" not in str(refusal.value)


@given(dues, randoms, dues, randoms)
def test_order_of_ids_is_order_of_due_times(due_a, random_a, due_b, random_b):
    a, b = ids.anonymous_id(due_a, random_a), ids.anonymous_id(due_b, random_b)
    assert (a < b) == ((due_a, random_a) < (due_b, random_b))
    assert (a.encode() < b.encode()) == (a < b)


@given(dues, randoms)
def test_an_anonymous_id_gives_its_due_time_back(due, random80):
    text = ids.anonymous_id(due, random80)
    assert len(text) == 27
    assert ids.due_of(text) == due


@given(keys, offsets)
def test_a_keyed_id_and_its_occurrence_give_the_home_hash_back(key, incarnation):
    text = ids.keyed_id(key)
    assert ids.keyed_home_hash(text) == text_hash(key)
    assert ids.keyed_home_hash(ids.occurrence_of_keyed(text, incarnation)) == text_hash(key)


@given(names, offsets, st.sampled_from("tb"), names, dues)
def test_a_schedule_occurrence_reads_back(schedule_id, incarnation, kind, manual_id, nominal_at):
    parsed = ids.parse_id(ids.schedule_occurrence(schedule_id, incarnation, kind, manual_id, nominal_at))
    assert parsed == ids.ScheduleOccurrence(
        schedule_id=schedule_id,
        incarnation=incarnation,
        kind=kind,
        manual_id=manual_id,
        nominal_at=nominal_at,
    )


@given(st.text())
def test_any_text_is_an_id_or_refused(text):
    with suppress(Undecodable):
        ids.parse_id(text)


@given(randoms, st.integers(0, 26), st.characters(exclude_characters=ids._CROCKFORD))
def test_one_foreign_character_is_enough(random80, place, character):
    text = ids.anonymous_id(1_893_456_000_000, random80)
    with pytest.raises(Undecodable):
        ids.due_of(text[:place] + (character if place or character != "j" else "x") + text[place + 1 :])


@pytest.mark.parametrize("due", [-1, 1 << 48])
def test_a_due_time_without_a_form_is_refused(due):
    with pytest.raises(InvalidInput, match=f"due_at: {due} ms is not within 48 bits"):
        ids.anonymous_id(due, 0)


@pytest.mark.parametrize("random80", [-1, 1 << 80])
def test_too_many_random_bits_are_a_programming_error(random80):
    with pytest.raises(ValueError, match="is not 80 random bits"):
        ids.anonymous_id(0, random80)


def test_a_command_without_a_uuid_makes_no_id():
    with pytest.raises(Undecodable, match="'7' is no command uuid"):
        ids.command_job_id(0, "7")


def test_a_schedule_occurrence_that_cannot_be_read_back_is_not_made():
    with pytest.raises(ValueError, match="is no job or occurrence id"):
        ids.schedule_occurrence("daily", 1, "g", "manual", 0)


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1))
def test_the_instant_is_read_from_the_bytes_of_an_id_as_from_its_text(due, random):
    id_ = ids.anonymous_id(due, random)
    assert ids.due_in(id_.encode()) == ids.due_of(id_) == due


@given(st.binary(max_size=30) | st.text("j018zilou-", min_size=27, max_size=27).map(str.encode))
def test_bytes_are_an_id_exactly_where_their_text_is_one(data):
    try:
        expected = ids.due_of(data.decode())
    except (Undecodable, UnicodeDecodeError):
        with pytest.raises(Undecodable):
            ids.due_in(data)
    else:
        assert ids.due_in(data) == expected


@given(st.text(max_size=30) | st.from_regex(r"j[0-9a-z]{26}", fullmatch=True))
def test_whatever_parses_as_an_id_passes_its_check_and_nothing_else(text):
    def passes(check) -> bool:
        try:
            check(text)
        except Undecodable:
            return False
        return True

    assert passes(ids.check_id) is passes(ids.parse_id)


@pytest.mark.parametrize(
    ("id_", "of_grid"),
    [
        ("s:daily:7:g::5", True),
        ("s:daily:7:t:x:5", False),
        ("s:daily:7:b:x:5", False),
        ("j" + "0" * 26, False),
    ],
)
def test_only_what_the_expression_of_a_schedule_asks_for_is_of_its_grid(id_: str, of_grid: bool) -> None:
    assert ids.is_of_grid(id_) is of_grid
