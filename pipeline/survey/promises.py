"""Whether the topics keep what DESIGN §2 promises: what is wrong with the occurrences of a window. Pure.

It knows nothing of dispatchers and workers, only what stands on the topics; the tests have a judge of their own
(tests/history.py), so that neither can share a mistake with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from pipeline.core.errors import Undecodable
from pipeline.core.token import split_token
from pipeline.survey.seen import State
from pipeline.survey.spill import Row
from pipeline.survey.window import Window


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    """Its home says that it fired, or a later run is there, but no run 1 is."""
    DOUBLED = "doubled"
    """More than one run 1."""
    EARLY = "early"
    """A run was appended before it was due."""
    UNACKED = "unacked"
    """The group is past the last run, and there is neither a terminal ack nor a dead letter of it."""
    TOKEN = "token"  # noqa: S105 -- a word for what is wrong
    """The token of an ack is not greater than that of an earlier run, or not one of its run."""
    INDEX = "index"
    """A dispatcher's index holds something else than its log says."""


class Finding(NamedTuple):
    kind: Kind
    id: str
    detail: str


class Fact:
    """What a row behind its occurrence begins with; they sort in this order."""

    FIRED = 0
    """(occurrence, FIRED, LogAppendTime of the tombstone, `<queue>/<partition>`)"""
    RUN = 1
    """(occurrence, RUN, run, LogAppendTime, due, nominal, state, `<queue>/<partition>`, offset)"""
    ACK = 2
    """(occurrence, ACK, run, token, `<queue>/<partition>`), terminal, in the order of the log"""
    LETTER = 3
    """(occurrence, LETTER, LogAppendTime of a dead letter)"""


class Judged(NamedTuple):
    """What was looked at."""

    occurrences: int
    runs: int


def judge(rows: Iterable[Row], window: Window) -> Iterator[tuple[Judged, list[Finding]]]:
    """For each occurrence among the rows what was looked at of it, and what is wrong."""
    ordered = sorted(rows, key=itemgetter(0, 1))  # stable: acks stay in the order of the log
    for occurrence, own in groupby(ordered, itemgetter(0)):
        facts: tuple[list[Row], list[Row], list[Row], list[Row]] = [], [], [], []
        for row in own:
            facts[row[1]].append(row)
        yield _judged(occurrence.decode("utf-8", "replace"), *facts, window)


def _judged(
    id_: str, fired: list[Row], runs: list[Row], acks: list[Row], letters: list[Row], window: Window
) -> tuple[Judged, list[Finding]]:
    firsts = [run for run in runs if run[2] == 1]
    if firsts and not any(run[4] in window for run in firsts):
        return Judged(0, 0), []
    missed = not firsts and (
        any(window.from_ms <= row[2] < window.to_ms for row in fired) or any(run[5] in window for run in runs)
    )
    if not (firsts or missed):
        return Judged(0, 0), []
    found = [*_of_firsts(id_, firsts, fired, runs), *_of_runs(id_, runs, letters), *_of_tokens(id_, acks)]
    return Judged(1, len(runs)), found


def _of_firsts(id_: str, firsts: list[Row], fired: list[Row], runs: list[Row]) -> Iterator[Finding]:
    if not firsts:
        where = fired[0][3] if fired else _place(runs[0])
        yield Finding(Kind.LOST, id_, f"no run 1 at {where}")
    if len(firsts) > 1:
        yield Finding(Kind.DOUBLED, id_, " and ".join(map(_place, firsts[:4])))


def _of_runs(id_: str, runs: list[Row], letters: list[Row]) -> Iterator[Finding]:
    buried_at = max((letter[2] for letter in letters), default=0)
    highest = max((run[2] for run in runs), default=0)
    for row in runs:
        _, _, run, at, due_at, _, state, _, _ = row
        if at < due_at:
            yield Finding(Kind.EARLY, id_, f"run {run} at {_place(row)}, {due_at - at} ms")
        # One without an ack that was run again, by a replay or by hand, is made good.
        if state == State.UNACKED and run == highest and buried_at < at:
            yield Finding(Kind.UNACKED, id_, f"run {run} at {_place(row)}")


def _of_tokens(id_: str, acks: list[Row]) -> Iterator[Finding]:
    highest, before = 0, 0
    for _, _, run, token, place in acks:
        if _run_in(token) != run:
            yield Finding(Kind.TOKEN, id_, f"run {run} at {place} was acked with {token}, of another run")
        elif token <= highest:
            yield Finding(
                Kind.TOKEN, id_, f"run {run} at {place} was acked with {token} after run {before}'s {highest}"
            )
        highest, before = max(highest, token), run


def _place(run: Row) -> str:
    return f"{run[7]}/{run[8]}"


def _run_in(token: int) -> int:
    """0: it is no token."""
    try:
        return split_token(token).run
    except Undecodable:
        return 0
