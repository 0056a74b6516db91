"""Commands of somebody who is limited to some queues (docs/access.md).

Who looks first and asks afterwards can be overtaken: by the time the command is executed the key may be another job's,
and the schedule on another queue. So the command carries the queues, and the owner refuses it. Its verb is written
`limited.<verb>`: an owner of an older version refuses that as unknown, where a field it ignores would open the door.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pipeline.core.errors import NotAllowed
from pipeline.core.job import Command

LIMITED, QUEUES = "limited.", "queues"
"""What the verb of such a command begins with, and the name in its `detail` under which the queues stand, with blanks
between: no name of a queue holds one."""
NOT_ALLOWED = "not_allowed"
"""The owner's answer to one that is about another queue."""


def limited(command: Command, queues: Collection[str]) -> Command:
    """The command, to be executed only as far as it is about these queues."""
    detail = {**command.detail, QUEUES: " ".join(sorted(queues))}
    return replace(command, verb=LIMITED + command.verb, detail=detail)


def bare(command: Command) -> Command:
    """The command as it is executed, with its queues in `detail` if it is limited: to none if it does not say which."""
    if not command.verb.startswith(LIMITED):
        return command
    return replace(command, verb=command.verb.removeprefix(LIMITED), detail={QUEUES: "", **command.detail})


def is_limited(command: Command) -> bool:
    """Of a bare command."""
    return QUEUES in command.detail


def require_queue(command: Command, queue: str | None) -> None:
    """NotAllowed if the bare command is limited to other queues than this; None: nobody knows on which one it is."""
    if is_limited(command) and queue not in command.detail[QUEUES].split():
        raise NotAllowed("it is on another queue than those that who asks is limited to")
