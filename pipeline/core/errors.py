"""Errors, named by what the caller must do about them.

Two families. A *user's* error ends a command with its exit code and one line; an *owner's* error steers the
protocol (retry the step, take over anew, rebuild the clients, stop the partition).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pipeline.core.job import Failure


class DuelineError(Exception):
    """Base of every error the product raises on purpose. `exit_code` is the command line's (DESIGN §9)."""

    exit_code: ClassVar[int] = 1


# -- what a user must do ------------------------------------------------------------------------------------


class InvalidInput(DuelineError):
    """Correct the named field and call again; nothing was stored."""

    exit_code = 2

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class InvalidSchedule(InvalidInput):
    """Correct the schedule expression; nothing was stored."""


class NotFound(DuelineError):
    """Check the id: the store has nothing under it (any more)."""

    exit_code = 3


class Refused(DuelineError):
    """The store's state forbids it (too late, layout mismatch, slot taken); the text says what to do first."""

    exit_code = 4


class NotAllowed(DuelineError):
    """Give the server a token that may do this: DUELINE_TOKEN, made by `dueline token create`."""

    exit_code = 4


class StoreUnreachable(DuelineError):
    """Start the store, or point DUELINE_BOOTSTRAP_SERVERS at it, and call again."""

    exit_code = 5


class JobFailed(DuelineError):
    """Look at the job: it ended without a result. `status` is how (dead, cancelled, stopped, skipped), `error` why."""

    def __init__(self, job_id: str, status: str, error: Failure | None) -> None:
        self.job_id = job_id
        self.status = status
        self.error = error
        lines = f"{error.type}: {error.message}".splitlines() if error is not None else []
        super().__init__(f"job {job_id} is {status}" + (f": {lines[0]}" if lines else ""))


# -- what an owner of partitions must do --------------------------------------------------------------------


class OwnerError(DuelineError):
    """Base of what a log adapter raises to a partition's owner. `outcome` is that of the transaction, in one word."""

    outcome: ClassVar[str] = "failed"


class RetryStep(OwnerError):
    """Nothing was committed: poll, look at the assignment again, choose again. Not a failure of any job."""

    outcome = "aborted"


class OutcomeUnknown(OwnerError):
    """The transaction may or may not have committed: the adapter has replaced its producer, the partitions
    it touched must take over anew before they fire again (H16)."""

    outcome = "unknown"


class RebuildClients(OwnerError):
    """The clients are dead (fenced, fatal): close the log, open a new one in this process, with back-off (H17)."""

    outcome = "fenced"


class PoisonRecord(OwnerError):
    """A record of this batch can never be appended: bisect, and end the culprit as `dead` (DESIGN §5.8)."""

    outcome = "poison"


class RebuildPartition(OwnerError):
    """The log does not hold the position of this partition (truncated, expired or another topic, H13): wipe
    what was derived from it and `start` it anew; until then nothing of it is delivered."""

    def __init__(self, partition: int, problem: str) -> None:
        self.partition = partition
        super().__init__(f"partition {partition}: {problem}")


class StopPartition(OwnerError):
    """Going on would lose or double jobs (announced but unknown schema, offset metadata of a newer version):
    stop this partition with an alarm and upgrade this process."""


# -- what a reader of one record must do --------------------------------------------------------------------


class Undecodable(DuelineError):
    """These bytes are no record of ours: quarantine them, never crash."""


class UnknownFingerprint(Undecodable):
    """Well framed, but of a schema this version has not: quarantine, or stop if it was announced."""

    def __init__(self, fingerprint: int) -> None:
        self.fingerprint = fingerprint
        super().__init__(f"unknown schema fingerprint {fingerprint:016x}")


class TokenExhausted(DuelineError):
    """A field of the fencing token is full: the run ends as dead, the token never wraps."""
