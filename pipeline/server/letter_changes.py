"""Requeuing dead letters; no role is checked here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.client.connection import Connection
from pipeline.client.dead import requeue_runs
from pipeline.follower import Follower, Letter, WantedLetters
from pipeline.server.access import Principal
from pipeline.server.job_changes import Tally

OUTCOMES = (
    *("requeued", "brought_forward", "superseded", "pending", "cancelled", "stopped"),
    *("refused", "not_found", "unknown", "unreadable"),
)
"""As schemas/cli/dead_requeue.json has them."""
View = dict[str, Any]


def requeue_letters(
    connection: Connection,
    who: Principal,
    wanted: WantedLetters,
    *,
    payload: dict[str, Any] | None,
    wait: str,
    dry_run: bool,
) -> View:
    """Counts by outcome, `matched`, and the first that went wrong. InvalidInput('payload'), StoreUnreachable."""
    outside, tally = connection.parts, Tally()
    with (
        connection.reading()
    ):  # the reader is one thread's at a time, and this one's until the letters are read
        follower = Follower(reader=outside.reader, names=outside.names, layout=connection.layout)
        found = [each for each in follower.letters(wanted) if who.sees(each.view["queue"])]
        letters = found if wanted.ids is None else latest_of_each(found, wanted.ids)
        tally.counts["unreadable"] = sum(letter.job is None for letter in letters)
        tally.counts["not_found"] = len(without_letter(wanted.ids or (), letters))
        if not dry_run:
            runs = (run for _, run in follower.dead_runs(letters))
            for change, why in requeue_runs(connection, runs, payload=payload, wait=wait):
                tally.add(change.outcome if change.outcome in OUTCOMES else "refused", change.id, why)
    counts = {name: tally.counts[name] for name in OUTCOMES}
    return {"dry_run": dry_run, "matched": len(letters), **counts, "errors": tally.errors}


def latest_of_each(letters: Sequence[Letter], ids: Iterable[str]) -> list[Letter]:
    """Of a job that is named, the latest letter: its key may have had several incarnations."""
    named, latest = frozenset(ids), dict[str | None, Letter]()
    for letter in letters:
        name = letter.view["occurrence_id"] if letter.view["occurrence_id"] in named else letter.job
        latest.setdefault(name, letter)
    return list(latest.values())


def without_letter(ids: Iterable[str], letters: Iterable[Letter]) -> set[str]:
    return set(ids) - {name for letter in letters for name in (letter.job, letter.view["occurrence_id"])}
