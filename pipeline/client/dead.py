"""Requeuing dead letters: each as a command to the owner of its job, many of them under way at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.client.commands import JobChange, Sent, answer_of, meaning_of, requeue_of, send
from pipeline.client.connection import Connection
from pipeline.client.request import wait_ms
from pipeline.core.errors import InvalidInput, NotAllowed, Refused
from pipeline.core.handler import Duration
from pipeline.core.job import Run

R = TypeVar("R")
T = TypeVar("T")

UNDER_WAY = 200
"""Commands sent before the answer to the first is waited for."""
READ_AT_ONCE = 50
"""Letters, whose payloads are held until their commands are sent."""
REFUSED = "refused"
OUTCOMES = (
    *("requeued", "brought_forward", "superseded", "pending", "cancelled", "stopped"),
    *(REFUSED, "not_found", "unknown", "unreadable"),
)
"""As schemas/cli/dead_requeue.json has them."""


def in_turns(
    connection: Connection, letters: Sequence[T], read: Callable[[Sequence[T]], Iterable[R]]
) -> Iterator[R]:
    """What `read` gives of all letters, some at a time: the reader is free for others in between, however long whoever
    takes it waits for answers."""
    for first in range(0, len(letters), READ_AT_ONCE):
        with connection.reading():
            found = list(read(letters[first : first + READ_AT_ONCE]))
        yield from found


def requeue_runs(
    connection: Connection,
    runs: Iterable[Run],
    *,
    payload: dict[str, Any] | None = None,
    wait: Duration | None = None,
    rate: float | None = None,
) -> Iterator[tuple[JobChange, str]]:
    """Run each of these once more, with another payload if one is given, unless a later run was emitted since: then
    the outcome is `superseded`. `wait`: how long the answer to each is waited for; `rate`: at most so many a second.

    Lazy; the changes come in order, each with why it was `refused`. Raises InvalidInput('payload'), StoreUnreachable.
    """
    patience = wait_ms(wait)
    edited = None if payload is None else connection.requests.payload(payload)
    under_way: deque[tuple[Run, Sent | InvalidInput]] = deque()
    for run in _paced(runs, rate):
        wanted = run if edited is None else replace(run, payload=edited)
        under_way.append((run, _send(connection, wanted, patience)))
        if len(under_way) >= UNDER_WAY:
            yield _outcome(connection, *under_way.popleft())
    while under_way:
        yield _outcome(connection, *under_way.popleft())


def _paced(runs: Iterable[Run], rate: float | None) -> Iterator[Run]:
    begin = time.monotonic()
    for number, run in enumerate(runs):
        if rate is not None:
            time.sleep(max(begin + number / rate - time.monotonic(), 0.0))
        yield run


def _send(connection: Connection, run: Run, patience: int) -> Sent | InvalidInput:
    """A letter may hold anything: one that no owner could take is told like one that its owner refuses."""
    command = replace(requeue_of(connection, run, run.run), on_conflict="reject")
    try:
        return send(connection, command, patience)
    except InvalidInput as error:
        return error


def _outcome(connection: Connection, run: Run, sent: Sent | InvalidInput) -> tuple[JobChange, str]:
    try:
        if isinstance(sent, InvalidInput):
            raise sent
        return meaning_of(run.job_id, answer_of(connection, sent)), ""
    except (InvalidInput, NotAllowed, Refused) as error:
        return JobChange(id=run.job_id, outcome=REFUSED), str(error)
