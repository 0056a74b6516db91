"""Every change that a page or an endpoint can make: who may, how it is asked for, and what is told of it.

Each checks the role, asks the owners through the client off the event loop, and leaves an audit event on `events`
(who, what, when, what became of it). What it answers is the JSON of the command that does the same (`schemas/cli/`).
Raises InvalidInput naming the field, Forbidden, NotFound, Refused, Conflict, Stale, StoreUnreachable.
"""

from __future__ import annotations

from pipeline.server.acting import Done, View
from pipeline.server.failure_actions import FailureActions
from pipeline.server.job_actions import JobActions
from pipeline.server.schedule_actions import ScheduleActions
from pipeline.server.token_actions import TokenActions

__all__ = ["Actions", "Done", "View"]


class Actions(JobActions, ScheduleActions, FailureActions, TokenActions):
    """All of them, by noun in one file each."""
