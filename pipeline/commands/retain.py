"""`schedule.retain`: what an app declares no more is removed by those who own it (DESIGN §8), so that a worker that
starts need not read what there is.

The command stands on the partition that it is about, and goes through a range of ids there. Its answer names what it
removed, and in `next` after which id to ask again: one piece of work is bounded, and doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from pipeline import recurring
from pipeline.commands.answer import Answer
from pipeline.commands.schedules import older
from pipeline.core import keys, series
from pipeline.core.errors import InvalidInput
from pipeline.core.job import Command
from pipeline.emission import Emission

PAGE = 50
"""Schedules read from the index at once: each may take half a megabyte."""
LOOKED_AT, LOOKED_AT_BYTES = 5_000, 2 * 1024 * 1024
NAMED = 100
"""Schedules that one answer names at most."""


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
    candidates, following = _piece(wanted, emission)
    named: dict[str, list[str]] = {"removed": [], "older": []}
    for id_ in candidates:
        state = recurring.load(id_, emission)
        if state is None or state.spec.source != wanted.source or state.ended == series.REMOVED:
            continue
        if older(wanted.version, state.spec.version):
            named["older"].append(id_)
        else:
            recurring.remove(state, wanted.version or state.spec.version, at, emission)
            named["removed"].append(id_)
    detail = {"source": wanted.source, "next": following} | {k: " ".join(ids) for k, ids in named.items()}
    return Answer(outcome="retained", detail={name: text for name, text in detail.items() if text})


def _wanted(command: Command, emission: Emission) -> _Wanted:
    detail = command.detail
    source = detail.get("source", "")
    if not source.startswith("app:"):
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


def _piece(wanted: _Wanted, emission: Emission) -> tuple[list[str], str]:
    """Ids that may have to go, and after which one to go on; "" = nothing follows."""
    mark, last, room = wanted.source.encode(), wanted.after, LOOKED_AT_BYTES
    found: list[str] = []
    for number, (id_, value) in enumerate(_standing(wanted, emission)):
        if number >= LOOKED_AT or len(found) >= NAMED or room <= 0:
            return found, last
        last, room = id_, room - len(value)
        # One that does not hold the text cannot be of the source, so it need not be decoded.
        if mark in value and id_ not in wanted.ids:
            found.append(id_)
    return found, ""


def _standing(wanted: _Wanted, emission: Emission) -> Iterator[tuple[str, bytes]]:
    """Id and record of each schedule in the range, in their order; of those that this batch has made, too."""
    made = [(key, wanted.source.encode()) for key in sorted(emission.schedules)]
    for key, value in merge(_stored(wanted.after, emission), made):
        id_ = key.removeprefix(keys.SCHEDULE).decode("utf-8", "replace")
        if wanted.until and id_ > wanted.until:
            return
        if id_ > wanted.after:
            yield id_, value


def _stored(after: str, emission: Emission) -> Iterator[tuple[bytes, bytes]]:
    last = keys.schedule_key(after)
    while page := emission.view.page(last, PAGE):
        for entry in page:
            if not entry.record_key.startswith(keys.SCHEDULE):
                return
            yield entry.record_key, entry.value
        last = page[-1].record_key
