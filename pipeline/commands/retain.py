"""`schedule.retain`: what an app declares no more is removed by those who own it (DESIGN §8), so that a worker that
starts need not read what there is.

The command stands on the partition that it is about, and goes through a range of ids there. Its answer names what it
removed, and in `next` after which id to ask again: one piece of work is bounded, and doing it twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import recurring
from pipeline.commands.answer import Answer
from pipeline.commands.schedules import older
from pipeline.core import series
from pipeline.core.errors import InvalidInput
from pipeline.core.job import Command
from pipeline.emission import Emission
from pipeline.view import APP

NAMED, REMOVED_BYTES = 100, 2 * 1024 * 1024
"""Schedules that one answer names at most, and bytes of payloads in their records, which are written once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Of the schedules of `source` with ids in (after, until] only `ids` remain; `until` "" = all that follow."""

    source: str
    version: str
    after: str
    until: str
    ids: frozenset[str]


def retain(command: Command, at: int, emission: Emission) -> Answer:
    """Execute the command as of `at`, when the log took it. InvalidInput."""
    wanted = _wanted(command, emission)
    candidates = _candidates(wanted, emission)
    named: dict[str, list[str]] = {"removed": [], "older": []}
    strangers: set[str] = set()
    room, following = REMOVED_BYTES, ""
    for number, id_ in enumerate(candidates):
        if number >= NAMED or room <= 0:
            following = candidates[number - 1]
            break
        state = recurring.load(id_, emission)
        if state is None or state.spec.source != wanted.source or state.ended == series.REMOVED:
            strangers.add(id_)
        elif older(wanted.version, state.spec.version):
            named["older"].append(id_)
        else:
            recurring.remove(state, wanted.version or state.spec.version, at, emission)
            named["removed"].append(id_)
            room -= len(state.spec.payload)
    if gone := strangers.union(named["removed"]):
        emission.view.forget(wanted.source, gone)
    detail = {"source": wanted.source, "next": following} | {k: " ".join(ids) for k, ids in named.items()}
    return Answer(outcome="retained", detail={name: text for name, text in detail.items() if text})


def _wanted(command: Command, emission: Emission) -> _Wanted:
    detail = command.detail
    source = detail.get("source", "")
    if not source.startswith(APP):
        raise InvalidInput("source", "must be app:<name>: only an app declares all that it has")
    if detail.get("partition") != str(emission.number):
        raise InvalidInput("partition", f"must be {emission.number}, on which the command stands")
    if "ids" not in detail:
        raise InvalidInput("ids", "missing: those that remain, with blanks between")
    return _Wanted(
        source=source,
        version=detail.get("version", ""),
        after=detail.get("after", ""),
        until=detail.get("until", ""),
        ids=frozenset(detail["ids"].split()),
    )


def _candidates(wanted: _Wanted, emission: Emission) -> list[str]:
    """Ids that may have to go, in their order."""
    inside = (
        id_
        for id_ in emission.view.kept_by(wanted.source)
        if id_ > wanted.after and (not wanted.until or id_ <= wanted.until)
    )
    return sorted(id_ for id_ in inside if id_ not in wanted.ids)
