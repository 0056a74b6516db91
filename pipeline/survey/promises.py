"""Whether the topics keep what DESIGN §2 promises: what is wrong with the occurrences of a window. Pure.

It knows nothing of dispatchers and workers, only what stands on the topics; the tests have a judge of their own
(tests/history.py), so that neither can share a mistake with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from pipeline.core.errors import Undecodable
from pipeline.core.token import split_token
from pipeline.survey.seen import State
from pipeline.survey.spill import Row
from pipeline.survey.window import Window

NEVER_STARTED = 0
"""In place of a token: of a run that ended without being started (purged, stopped, too old, of no known handler)."""


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
    """What a row behind its occurrence begins with."""

    FIRED = 0
    """(occurrence, FIRED, LogAppendTime of the tombstone, `<queue>/<partition>`)"""
    RUN = 1
    """(occurrence, RUN, run, LogAppendTime, due, nominal, state, `<queue>/<partition>`, offset)"""
    ACK = 2
    """(occurrence, ACK, run, token, `<queue>/<partition>`), terminal, in the order of the log"""
    LETTER = 3
    """(occurrence, LETTER, LogAppendTime of a dead letter)"""


_USUAL = (Fact.FIRED, Fact.ACK, Fact.RUN)
"""In the order in which they are read."""


class Judged(NamedTuple):
    """What was looked at: occurrences that fired, and their runs; of these occurrences those that wait for a worker,
    and those that were restored, of which the first run is on no topic."""

    occurrences: int
    runs: int
    waiting: int = 0
    restored: int = 0


NONE = Judged(0, 0)


def judge(
    rows: Iterable[Row], window: Window, restored_at: int | None = None
) -> tuple[Judged, list[Finding]]:
    """What was looked at among these rows, which hold all there is of their occurrences, and what is wrong with it.
    `restored_at` = when the store was last restored from a backup, epoch ms: what had fired before went on as a further
    run."""
    facts: dict[bytes, list[Row]] = {}
    for row in rows:
        known = facts.get(row[0])
        if known is None:
            facts[row[0]] = [row]
        else:
            known.append(row)
    fine = 0
    others: list[Judged] = []
    found: list[Finding] = []
    for occurrence, own in facts.items():
        if _is_fine(own, window):
            fine += 1
        else:
            judged, findings = _judged(occurrence.decode("utf-8", "replace"), own, window, restored_at)
            others.append(judged)
            found += findings
    return Judged(*map(sum, zip((fine, fine, 0, 0), *others, strict=True))), found


def _is_fine(own: list[Row], window: Window) -> bool:
    """Whether it is what nearly all are: an occurrence of the window with one run, one ack, and one word that it
    fired."""
    if len(own) != len(_USUAL) or tuple(row[1] for row in own) != _USUAL:
        return False
    _, ack, (_, _, run, at, due_at, _, state, _, _) = own
    ended = state != State.UNACKED and run == ack[2] == _run_in(ack[3])
    return bool(ended and run == 1 and window.from_ms <= due_at < window.to_ms and at >= due_at)


def _judged(
    id_: str, own: list[Row], window: Window, restored_at: int | None
) -> tuple[Judged, list[Finding]]:
    facts: tuple[list[Row], list[Row], list[Row], list[Row]] = [], [], [], []
    for row in own:
        facts[row[1]].append(row)
    fired, runs, acks, letters = facts
    firsts = [run for run in runs if run[2] == 1]
    if firsts and not any(run[4] in window for run in firsts):
        return NONE, []
    missed = not firsts and (
        any(window.from_ms <= row[2] < window.to_ms for row in fired) or any(run[5] in window for run in runs)
    )
    if not (firsts or missed):
        return NONE, []
    restored = not firsts and not fired and restored_at is not None and runs[0][5] < restored_at
    newer = any(run[6] == State.UNREADABLE for run in runs)
    lacking = [] if restored or newer else list(_of_firsts(id_, firsts, fired, runs))
    last = max(runs, key=itemgetter(2), default=None)
    waiting = last is not None and last[6] == State.WAITING
    found = [*lacking, *_of_runs(id_, runs, letters), *_of_tokens(id_, acks)]
    return Judged(1, len(runs), int(waiting), int(restored)), found


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
        if token == NEVER_STARTED:
            continue
        if _run_in(token) != run:
            yield Finding(Kind.TOKEN, id_, f"run {run} at {place} was acked with {token}, of another run")
        elif token <= highest:
            yield Finding(
                Kind.TOKEN, id_, f"run {run} at {place} was acked with {token} after run {before}'s {highest}"
            )
        highest, before = max(highest, token), run


def _place(run: Row) -> str:
    return f"{run[7]}/{run[8]}"


@lru_cache(maxsize=1024)
def _run_in(token: int) -> int:
    """0: it is no token."""
    try:
        return split_token(token).run
    except Undecodable:
        return 0
