"""Changing a job that has not fired, or the run that it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline import codec
from pipeline.commands.answer import Answer, answer_of, too_late
from pipeline.core import keys
from pipeline.core.errors import InvalidInput
from pipeline.core.job import EARLIEST, LATEST, PAYLOAD_CEILING, Command, Run
from pipeline.emission import Emission
from pipeline.filing import firing
from pipeline.found import Found
from pipeline.runs import keep_state


def reschedule(command: Command, found: Found, emission: Emission) -> Answer:
    due_at = command.due_at
    if due_at is None:
        raise InvalidInput("due_at", "missing, and so is delay_ms")
    if not EARLIEST <= due_at <= LATEST:
        raise InvalidInput("due_at", f"{due_at} is absurd")
    if found.retry is not None:
        run = replace(codec.RUN.decode(found.retry.value), due_at=due_at)
        _rewrite(found.retry.record_key, run, emission)
    elif found.pending is not None:
        _change(found, emission, due_at=due_at, nominal_at=due_at)
    else:
        return too_late(found)
    return answer_of(found, "rescheduled", due_at=due_at)


def update(command: Command, found: Found, emission: Emission) -> Answer:
    if command.payload is None:
        raise InvalidInput("payload", "missing")
    if len(command.payload) > PAYLOAD_CEILING:
        raise InvalidInput("payload", f"is longer than {PAYLOAD_CEILING} bytes")
    if found.pending is None:
        return too_late(found)
    _change(found, emission, payload=command.payload)
    return answer_of(found, "updated")


def _change(found: Found, emission: Emission, **changes: Any) -> None:
    """Write the pending run anew: a keyed job's under its key, an anonymous one's as `a/`, with the tombstone of
    what its creator put."""
    entry = found.pending
    assert entry is not None
    if found.state is not None and found.state.run is not None:
        run = replace(found.state.run, **changes)
        keep_state(entry.record_key, replace(found.state, run=run, changed_at=emission.now), emission)
        return
    run = replace(codec.RUN.decode(entry.value), **changes)
    key = keys.changed_key(found.job_id)
    if entry.record_key != key:
        emission.end(entry, "changed")
    _rewrite(key, run, emission)


def _rewrite(key: bytes, run: Run, emission: Emission) -> None:
    emission.keep(firing(emission.site, key, run, codec.RUN.encode(run), -1, emission.now))
