"""What a handler may return or raise to say what becomes of its run, and what others raise in its place (DESIGN §7)."""

from __future__ import annotations

from pipeline.core.job import Failure
from pipeline.core.times import Duration, parse_duration


class Retry(Exception):
    """The attempt failed: try again after this time, or by the back-off if None. Spends an attempt.

    `raise Retry(after="1m") from error` records the error. InvalidInput if the duration is malformed.
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else parse_duration("after", after)


class Snooze(Exception):
    """Not now: run again after this time. Spends no attempt. InvalidInput if the duration is malformed."""

    def __init__(self, *, for_: Duration) -> None:
        super().__init__()
        self.for_ms = parse_duration("for_", for_)


class Cancel(Exception):
    """There is nothing left to do: end the job as cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Dead(Exception):
    """No further attempt can succeed: end the job as dead, now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidPayload(Dead):
    """The payload can never fit the handler: no further attempt can succeed."""


class Fenced(Cancel):
    """Another attempt with a larger token has taken over: this one must not act. Raised by sinks; let it pass.

    The occurrence is that attempt's, to finish, to retry or to bury. A retry of this one would get a larger token yet
    and overtake it: the effect might happen twice where only the token stands between. So it is a `Cancel`: this run
    ends, quietly. If its lease has moved, its ack is refused anyway.
    """


class TimedOut(Exception):
    """The handler did not come back within its time. Raised by executors."""


class Stopped(Exception):
    """The run was stopped from outside, and its handler ended for it. Raised by executors."""


class RemoteError(Exception):
    """What a handler raised in another process, as data. Raised by executors."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
