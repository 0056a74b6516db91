"""What errors carry for whoever has to act."""

import pytest

from pipeline.core import errors
from pipeline.core.job import Failure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("at", "is naive"), 2),
        (errors.InvalidSchedule("cron", "has no fields"), 2),
        (errors.NotFound(), 3),
        (errors.Refused(), 4),
        (errors.StoreUnreachable(), 5),
        (errors.StopPartition(), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_exit_codes(error, code):
    assert error.exit_code == code


def test_invalid_input_names_the_field():
    error = errors.InvalidInput("at", "is naive")
    assert (error.field, error.problem, str(error)) == ("at", "is naive", "at: is naive")


def test_an_unknown_fingerprint_is_written_as_in_the_layout():
    error = errors.UnknownFingerprint(0xAB)
    assert (error.fingerprint, str(error)) == (0xAB, "unknown schema fingerprint 00000000000000ab")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "job j is dead"),
        (Failure(type="KeyError", message="'a'\nb"), "job j is dead: KeyError: 'a'"),
    ],
)
def test_a_failed_job_is_told_in_one_line(error, text):
    failed = errors.JobFailed("j", "dead", error)
    assert (failed.job_id, failed.status, failed.error, str(failed)) == ("j", "dead", error, text)


def test_a_partition_to_rebuild_is_named():
    error = errors.RebuildPartition(3, "offset 7 is gone")
    assert (error.partition, str(error)) == (3, "partition 3: offset 7 is gone")
