"""Settling what is due: the records that an entry of the index turns into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pipeline import codec, recurring
from pipeline.commands import ANSWER, execute
from pipeline.commands.replay import replay
from pipeline.commands.stop import close
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import AckState, Event, Run
from pipeline.core.keys import ANONYMOUS, COMMAND, KEYED, RETRY, SCHEDULE
from pipeline.emission import LONGEST_KEY, Emission
from pipeline.filing import DETAIL_LIMIT, FINISHED, STARTED, TO_FIRE, hold_of
from pipeline.fold import DUPLICATE, SUPERSEDED
from pipeline.found import STOPPED
from pipeline.ports import Action, Entry
from pipeline.runs import FIRED, emit_run, holder_of, keep_state, told_of
from pipeline.view import OCCURRENCE


def settle_all(entries: Iterable[Entry], emission: Emission) -> None:
    """Append what `entries` turn into, in their order."""
    for entry in entries:
        if entry.action in TO_FIRE and entry.record_key[:2] in ANONYMOUS:
            emission.fire(entry)
        else:
            settle(entry, emission)
    recurring.write_all(emission)


def settle(entry: Entry, emission: Emission) -> None:
    """Append what `entry` turns into, unless something before it in the batch has changed or ended it."""
    if not emission.view.current(entry):
        return
    match entry.action:
        case Action.FIRE | Action.GRANTED:
            _fire(entry, emission)
        case Action.COMMAND:
            execute(entry, emission)
        case Action.REPLAY:
            replay(entry, emission)
        case Action.DONE:
            _done(entry, emission)
        case Action.MOVE:
            emission.put_at(int(entry.detail), entry.record_key, entry.value)
            emission.end(entry, "moved")
        case Action.DEAD:
            _bury(entry, emission)
        case Action.DROP:
            drop(entry, entry.detail, emission)
        case Action.EXPIRE:
            emission.end(entry, "expired", _holder(entry))
        case _:
            raise AssertionError(f"action {entry.action} is never due")


def _fire(entry: Entry, emission: Emission) -> None:
    if entry.record_key.startswith(KEYED):
        _fire_keyed(entry, emission)
    elif entry.record_key.startswith(SCHEDULE):
        recurring.settle(entry, emission)
    else:
        _fire_retry(entry, emission)


def _fire_keyed(entry: Entry, emission: Emission) -> None:
    state = codec.KEY_STATE.decode(entry.value)
    run = state.run
    assert run is not None, "filed to fire because it has a run"
    emission.run(entry.detail, run.occurrence_id.encode(), codec.RUN.encode(run))
    fired = [("run", b"1"), ("work", entry.detail.encode())]
    unique = _unique_once_fired(state.unique, run, emission.now)
    if unique == STARTED:
        emission.end(entry, FIRED, [*fired, (OCCURRENCE, run.occurrence_id.encode())])
        return
    after = replace(state, phase=FIRED, highest_run=1, unique=unique, changed_at=emission.now, run=None)
    keep_state(entry.record_key, after, emission, fired)


def _unique_once_fired(unique: str, run: Run, now: int) -> str:
    """A duration counts from the create command; from now on it is told from `changed_at`."""
    held = hold_of(unique)
    if held is None:
        return unique
    left = run.created_at + held - now
    return f"{left}ms" if left > 0 else STARTED


def _fire_retry(entry: Entry, emission: Emission) -> None:
    parsed = keys.parse_jobs_key(entry.record_key)
    if parsed.run < emission.view.highest_run(parsed.id):
        drop(entry, SUPERSEDED, emission)
        return
    emit_run(parsed.id, parsed.run + 1, entry.detail, entry.value, emission)
    emission.end(entry, FIRED, [("run", b"%d" % (parsed.run + 1)), ("work", entry.detail.encode())])


def _done(entry: Entry, emission: Emission) -> None:
    """The key is free once the highest run of its incarnation has ended the job; a fact of another incarnation, or
    of an earlier run, changes nothing (DESIGN §4)."""
    if entry.record_key.startswith(b"d/s:"):
        recurring.done(entry, emission)
        return
    parsed = keys.parse_jobs_key(entry.record_key)
    holder = holder_of(parsed.id, emission)
    if holder is not None:
        held, state = holder
        if state.run is None and state.highest_run <= parsed.run and state.unique == FINISHED:
            emission.end(held, "done", told_of(held, state))
    emission.end(entry, "consumed")


def drop(entry: Entry, detail: str, emission: Emission) -> None:
    """Tombstone a record that must not fire, and say why on `events`."""
    reason, *first = detail.split(" ")
    id_ = entry.record_key.decode("utf-8", "replace")
    emission.tell(id_.encode(), Event(id=id_, kind="dropped", at=emission.now, reason=reason))
    if reason == DUPLICATE and first and first[0]:
        emission.end(entry, first[0], [("work", place.encode()) for place in first[1:] if place])
    else:
        emission.end(entry, reason)
    if reason == STOPPED:
        close(entry, emission)


def condemn(entry: Entry, reason: str) -> Entry:
    """The same entry, to be buried: the broker will never take the record it would have been (DESIGN §5.8)."""
    return entry._replace(action=Action.DEAD, detail=reason)


def _bury(entry: Entry, emission: Emission) -> None:
    """A record key so long that no tombstone of it may fit the log is only forgotten here: an index made anew buries
    it again, under the same place."""
    emission.bury(entry)
    if entry.record_key.startswith(COMMAND):
        _refuse(entry, emission)
    elif entry.record_key.startswith(RETRY):
        _free(entry, emission)
    if len(entry.record_key) > LONGEST_KEY:
        emission.view.delta.remove(entry)
    else:
        emission.end(entry, "dead", _holder(entry))


def _free(entry: Entry, emission: Emission) -> None:
    """A job whose next run is buried has ended: no worker will say so, and its key is free (DESIGN §4)."""
    try:
        parsed = keys.parse_jobs_key(entry.record_key)
    except Undecodable:
        return
    recurring.end_here(parsed.id, AckState.DEAD, emission)
    holder = holder_of(parsed.id, emission)
    if holder is not None and holder[1].run is None and holder[1].highest_run <= parsed.run:
        emission.end(holder[0], "dead", told_of(*holder))


def _refuse(entry: Entry, emission: Emission) -> None:
    """Whoever sent a command that nobody can read, under a key that is one, waits for its answer all the same."""
    try:
        id_ = keys.parse_jobs_key(entry.record_key).id
    except Undecodable:
        return
    reason = entry.detail[:DETAIL_LIMIT]
    event = Event(
        id=id_,
        kind=ANSWER,
        at=emission.now,
        command_id=id_,
        outcome="refused",
        reason=reason,
        detail={"verb": ""},
    )
    emission.tell(id_.encode(), event)
    emission.answered.append((event, -1))


def _holder(entry: Entry) -> list[tuple[str, bytes]]:
    """What the tombstone of a `k/` record says beside its end: whose key it was."""
    if not entry.record_key.startswith(KEYED):
        return []
    try:
        return told_of(entry, codec.KEY_STATE.decode(entry.value))
    except (Undecodable, UnicodeDecodeError):
        return []
