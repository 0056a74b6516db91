"""Requeuing dead letters; no role is checked here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.client.connection import Connection
from pipeline.client.dead import OUTCOMES, in_turns, requeue_runs
from pipeline.core.job import Run
from pipeline.follower import Follower, Letter, WantedLetters, latest_of_each, without_letter
from pipeline.server.allowed import Allowed
from pipeline.server.job_changes import Tally

View = dict[str, Any]


class Found(NamedTuple):
    """The letters that are meant, and how many of the ids that were named have none."""

    letters: Sequence[Letter]
    missing: int


def find_letters(connection: Connection, wanted: WantedLetters) -> Found:
    """StoreUnreachable."""
    with connection.reading():
        found = _follower(connection).letters(wanted)
    letters = found if wanted.ids is None else latest_of_each(found, wanted.ids)
    return Found(letters, len(without_letter(wanted.ids or (), letters)))


def requeue_letters(
    connection: Connection,
    letters: Sequence[Letter],
    *,
    payload: dict[str, Any] | None,
    wait: str,
    allowed: Allowed,
    tally: Tally,
) -> None:
    """As long as it is allowed; `tally` is filled meanwhile. InvalidInput('payload'), StoreUnreachable."""
    readable = sorted((each for each in letters if each.job is not None), key=lambda each: each[:2])
    read = _follower(connection).dead_runs
    asked: set[tuple[int, int]] = set()

    def runs() -> Iterator[Run]:
        for letter, run in in_turns(connection, readable, read):
            if allowed.over:
                return
            asked.add(letter[:2])
            yield run

    whole = False
    try:
        for change, why in requeue_runs(connection, runs(), payload=payload, wait=wait):
            tally.add(change.outcome if change.outcome in OUTCOMES else "refused", change.id, why)
        whole = not allowed.over  # else what is not asked for is no longer stored
    finally:
        tally.left = [] if whole else [str(each.job) for each in readable if each[:2] not in asked]


def view_of(found: Found, tally: Tally, *, dry_run: bool) -> View:
    """As schemas/cli/dead_requeue.json has it, with `left`, and the first that went wrong."""
    counts = {name: tally.counts[name] for name in OUTCOMES}
    counts["unreadable"] = sum(letter.job is None for letter in found.letters)
    counts["not_found"] += found.missing
    left = len(tally.left)
    return {
        "dry_run": dry_run,
        "matched": len(found.letters),
        **counts,
        "left": left,
        "errors": tally.errors,
    }


def _follower(connection: Connection) -> Follower:
    """Its reader is one thread's at a time: use it within `connection.reading()`."""
    outside = connection.parts
    return Follower(reader=outside.reader, names=outside.names, layout=connection.layout)
