"""Record keys: one spelling each, read back exactly."""

import uuid
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.ids import NAME, anonymous_id, keyed_id, occurrence_of_keyed, schedule_occurrence
from pipeline.core.keys import AcksKey, AcksKind, JobsKey, JobsKind, parse_acks_key, parse_jobs_key

JOB = anonymous_id(1_893_456_000_000, 7)
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"

offsets = st.integers(0, (1 << 63) - 1)
positives = st.integers(1, (1 << 63) - 1)
job_keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
occurrences = st.one_of(
    st.builds(anonymous_id, st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1)),
    st.builds(lambda key, n: occurrence_of_keyed(keyed_id(key), n), job_keys, offsets),
    st.builds(
        schedule_occurrence,
        st.from_regex(NAME, fullmatch=True),
        offsets,
        st.just("t"),
        st.just(UUID),
        st.integers(0, (1 << 48) - 1),
    ),
)


@given(occurrences, positives)
def test_what_names_an_occurrence_on_jobs_reads_back(occurrence, run):
    assert parse_jobs_key(keys.retry_key(occurrence, run)) == JobsKey(JobsKind.RETRY, occurrence, run)
    assert parse_jobs_key(keys.done_key(occurrence, run)) == JobsKey(JobsKind.DONE, occurrence, run)
    assert parse_jobs_key(keys.highest_key(occurrence)) == JobsKey(JobsKind.HIGHEST, occurrence)
    assert parse_jobs_key(keys.stopped_key(occurrence)) == JobsKey(JobsKind.STOPPED, occurrence)


@given(job_keys)
def test_a_jobs_key_may_hold_anything(key):
    assert parse_jobs_key(keys.keyed_key(key)) == JobsKey(JobsKind.KEYED, key)


@given(offsets)
def test_a_takeover_key_reads_back_on_both_topics(partition):
    assert parse_jobs_key(keys.takeover_key(partition)) == JobsKey(JobsKind.TAKEOVER, partition=partition)
    assert parse_acks_key(keys.takeover_key(partition)) == AcksKey(AcksKind.TAKEOVER, partition=partition)


def test_jobs_changes_schedules_and_commands_read_back():
    assert parse_jobs_key(keys.job_key(JOB)) == JobsKey(JobsKind.JOB, JOB)
    assert parse_jobs_key(keys.changed_key(JOB)) == JobsKey(JobsKind.CHANGED, JOB)
    assert parse_jobs_key(keys.schedule_key("daily-report")) == JobsKey(JobsKind.SCHEDULE, "daily-report")
    assert parse_jobs_key(keys.command_key(UUID)) == JobsKey(JobsKind.COMMAND, UUID)
    assert keys.command_key(uuid.UUID(UUID)) == keys.command_key(UUID)


@given(occurrences, positives, positives, offsets)
def test_acks_keys_read_back(occurrence, run, number, chunk):
    started = AcksKey(AcksKind.STARTED, occurrence, run, token=number)
    offered = AcksKey(AcksKind.OFFERED, occurrence, run, token=number, chunk=chunk)
    terminal = AcksKey(AcksKind.TERMINAL, occurrence, run, attempt=number)
    assert parse_acks_key(keys.started_key(occurrence, run, number)) == started
    assert parse_acks_key(keys.offered_key(occurrence, run, number, chunk)) == offered
    assert parse_acks_key(keys.terminal_key(occurrence, run, number)) == terminal
    assert parse_acks_key(keys.stopped_key(occurrence)) == AcksKey(AcksKind.STOPPED, occurrence)


def test_spelling():
    assert keys.job_key(JOB) == f"j/{JOB}".encode()
    assert keys.retry_key(JOB, 2) == f"r/{JOB}/2".encode()
    assert keys.keyed_key("tenant/7/Grüße") == "k/tenant/7/Grüße".encode()
    assert keys.offered_key(JOB, 1, 99, 0) == f"f/{JOB}/1/99/0".encode()
    assert keys.guard_key("dueline.worker.default", 3) == b"g/dueline.worker.default/3"
    assert keys.place_key("dueline.jobs", 3, 4711) == b"dueline.jobs/3/4711"
    assert keys.restored_key(7) == b"restored/7"
    assert (keys.LAYOUT_KEY, keys.ERA_KEY) == (b"layout", b"era")


BAD_JOBS = [
    b"",
    b"j",
    b"j/",
    f"j/{JOB[:-1]}".encode(),
    f"j/{JOB}x".encode(),
    b"j/" + "é".encode() + b"0" * 25,
    b"a/short",
    b"z/unknown",
    b"jx" + JOB.encode(),
    b"k/",
    b"k/nul\0",
    b"k/\xff",
    b"\xff/x",
    b"kx",
    b"s/Upper",
    b"s/a b",
    b"c/7",
    f"c/{UUID.upper()}".encode(),
    f"c/{UUID}\n".encode(),
    f"r/{JOB}".encode(),
    f"r/{JOB}/".encode(),
    f"r/{JOB}/0".encode(),
    f"r/{JOB}/01".encode(),
    f"r/{JOB}/+1".encode(),
    f"r/{JOB}/ 1".encode(),
    f"r/{JOB}/1\n".encode(),
    f"r/{JOB}/-1".encode(),
    f"r/{JOB}/٣".encode(),
    f"r/{JOB}/{1 << 63}".encode(),
    f"r/{JOB}/1/1".encode(),
    b"d/no-id/1",
    b"h/no-id",
    b"x/no-id",
    f"h/{JOB}/1".encode(),
    b"o/",
    b"o/x",
    b"o/01",
]
BAD_ACKS = [
    b"",
    b"s/",
    f"j/{JOB}".encode(),
    f"s/{JOB}/1".encode(),
    f"s/{JOB}/1/0".encode(),
    f"s/{JOB}/0/1".encode(),
    f"s/{JOB}/1/01".encode(),
    f"s/{JOB}/1/1/1".encode(),
    f"t/{JOB}/1/0".encode(),
    f"f/{JOB}/1/1".encode(),
    f"f/{JOB}/1/1/-1".encode(),
    f"f/{JOB}/0/1/1".encode(),
    b"s/no-id/1/1",
    b"o/x",
    b"x/no-id",
]


@pytest.mark.parametrize("key", BAD_JOBS, ids=repr)
def test_what_is_no_jobs_key_is_refused(key):
    with pytest.raises(Undecodable) as refusal:
        parse_jobs_key(key)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", BAD_ACKS, ids=repr)
def test_what_is_no_acks_key_is_refused(key):
    with pytest.raises(Undecodable) as refusal:
        parse_acks_key(key)
    assert "\n" not in str(refusal.value)


@given(st.binary())
def test_any_bytes_are_a_key_or_refused(data):
    for parse in (parse_jobs_key, parse_acks_key):
        with suppress(Undecodable):
            parse(data)
