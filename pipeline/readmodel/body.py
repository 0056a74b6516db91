"""Rows of jobs as bytes, and what they tell."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from pipeline.core.job import Ack, Run
from pipeline.core.keys import job_key
from pipeline.follower.trail import Trail
from pipeline.readmodel import plain
from pipeline.readmodel import tale as tales
from pipeline.readmodel.plain import JSON, NOWHERE, PLAIN, WAITING, Body
from pipeline.readmodel.rows import (
    CODES,
    HEAD_SIZE,
    LATE,
    LATE_MS,
    QUEUED,
    RUNNING,
    Head,
    Standing,
    head_of,
    lateness_of,
    possible_from,
)
from pipeline.readmodel.tale import Sent, Tale
from pipeline.readmodel.words import HANDLER, OTHER, QUEUE, WORKER, Words

_STANDING = Struct(">iqq")
_JSON_AT = HEAD_SIZE + _STANDING.size
_NOWHERE = Standing(NOWHERE, NOWHERE, NOWHERE)
_OPEN = frozenset({QUEUED, RUNNING})
_INT64 = (1 << 63) - 1
_MOST = (1 << 16) - 1


def pack(tale: Tale, words: Words) -> bytes:
    """The row of a job. What is plain has one form only, whichever way it came about."""
    head = _head(tale, words)
    body = _plain(tale, head, words)
    if body is None:
        return head.packed() + _STANDING.pack(*(_standing(tale) or _NOWHERE)) + tales.to_json(tale)
    if body == Body(body.created_at, body.home_offset):
        run = plain.Plain(head.due_at, body.created_at, head.handler, head.queue, b"")
        return plain.made(run, body.home_offset)
    return plain.written(head, body, tale.ended_at)


def unpack(id_: str, row: bytes, words: Words) -> Tale:
    """What `pack` made a row of."""
    if row[0] in (WAITING, PLAIN):
        return _tale(id_, row, words)
    tale = tales.from_json(id_, row[_JSON_AT:])
    tale.ended_at = head_of(row).ended_at
    return tale


def open_run(row: bytes, head: Head) -> Standing | None:
    """Where the run stands that this job waits for, or that is under way; None: there is none, or it was not read."""
    if head.status not in _OPEN or head.ended_at:
        return None
    if head.form == PLAIN:
        return plain.standing(row)
    found = Standing(*_STANDING.unpack_from(row, HEAD_SIZE))
    return None if found == _NOWHERE else found


def given_up(row: bytes, at: int) -> bytes:
    """The row of a job whose run nobody will end any more: it is forgotten with those that ended then."""
    return head_of(row)._replace(ended_at=max(at, 1)).packed() + row[HEAD_SIZE:]


def _standing(tale: Tale) -> Standing | None:
    story = tale.story()
    last, shown = story.highest_run, story.shown
    if last not in story.runs or shown is None or shown.queue != tale.queue:
        return None
    return Standing(tale.partition, story.runs[last].offset, story.runs[last].at)


def _head(tale: Tale, words: Words) -> Head:
    status, story = tale.status(), tale.story()
    shown, first = story.shown, story.first
    return Head(
        form=JSON,
        status=0 if status is None else CODES[status],
        handler=words.number(HANDLER, shown.handler if shown else ""),
        queue=words.number(QUEUE, shown.queue if shown else tale.queue),
        due_at=0 if shown is None else max(-_INT64, min(shown.due_at, _INT64)),
        ended_at=tale.ended_at,
        flags=LATE if first is not None and _was_late(tale, first) else 0,
    )


def _was_late(tale: Tale, first: Run) -> bool:
    sent = tale.sent.get(1)
    if sent is None or first.run != 1:
        return False
    return lateness_of(sent.at, first.due_at, possible_from(first)) > LATE_MS


# -- what is plain ------------------------------------------------------------------------------------------


def _plain(tale: Tale, head: Head, words: Words) -> Body | None:
    """As the body of a plain row; None if it is more than that."""
    trail, first = tale.trail, tale.trail.first
    if first is None or not _is_plain(tale, first) or OTHER in (head.handler, head.queue):
        return None
    body = Body(first.created_at, tale.home_offset)
    if trail.end is not None and trail.work is not None:
        body = body._replace(since=trail.work.since, work=trail.work.partition, fired=1)
    if tale.partition >= 0:
        body = body._replace(here=tale.partition)
    if 1 in tale.sent:
        body = body._replace(sent_at=tale.sent[1].at, sent_offset=tale.sent[1].offset)
    return _with_ack(body, tale.acks[0], first, words) if tale.acks else body


def _is_plain(tale: Tale, first: Run) -> bool:
    trail, id_ = tale.trail, tale.id
    bare = tales.bare(first)
    usual = Run(
        job_id=id_, occurrence_id=id_, run=1, due_at=first.due_at, nominal_at=first.due_at, handler=first.handler,
        queue=first.queue, created_at=first.created_at, idempotency_key=id_, payload=b"",
        attempt_limit=first.attempt_limit, timeout_ms=first.timeout_ms, last_success_at=first.last_success_at,
    )  # fmt: skip
    fits = (
        id_.startswith("j")
        and bare == usual
        and (tale.first is None or _alike(tale.first, usual))
        and (tale.first is None) == (not tale.sent)
        and tale.sent.keys() <= {1}
        and len(tale.acks) <= 1
        and (tale.partition < 0 or tale.queue == first.queue)
        and max(tale.partition, -1) <= plain.LAST_PARTITION
    )
    rest = (trail.unreadable, trail.stop, trail.skipped, trail.behind, trail.certain, trail.known)
    return fits and rest == (False, None, None, None, False, True) and _has_plain_end(trail, first)


def _alike(run: Run, usual: Run) -> bool:
    """Limits apart, which no row keeps."""
    run = replace(run, attempt_limit=None, timeout_ms=None, last_success_at=None)
    return run == replace(usual, attempt_limit=None, timeout_ms=None, last_success_at=None)


def _has_plain_end(trail: Trail, first: Run) -> bool:
    """It waits, or has fired."""
    if trail.end is None:
        waits = [*trail.live] == [job_key(trail.id)] and tales.bare(
            trail.live[job_key(trail.id)]
        ) == tales.bare(first)
        return waits and trail.work is None and trail.highest == 0
    work = trail.work
    return (
        trail.end == "fired"
        and not trail.live
        and trail.highest == 1
        and work is not None
        and work.queue == first.queue
        and work.partition <= plain.LAST_PARTITION
    )


def _with_ack(body: Body, ack: Ack, first: Run, words: Words) -> Body | None:
    worker = words.number(WORKER, ack.worker)
    if not plain.is_plain_ack(ack) or worker == OTHER or ack.handler != first.handler:
        return None
    started = NOWHERE if ack.started_at is None else ack.started_at
    return body._replace(
        state=plain.STATE_CODES[ack.state], attempt=ack.attempt, worker=worker, token=ack.token, at=ack.at,
        started_at=started, work_offset=ack.work_offset, result=ack.result,
    )  # fmt: skip


def _tale(id_: str, row: bytes, words: Words) -> Tale:
    parts = plain.read(row)
    assert parts is not None, "the form says so"
    head, body = parts
    run = plain.run_of(id_, head, body, words)
    trail = Trail(id_, first=run, known=True)
    if body.fired:
        trail.end, trail.highest = "fired", 1
        trail.work = plain.place_told(head, body, words)
    else:
        trail.live[job_key(id_)] = run
    tale = Tale(id_, trail, ended_at=head.ended_at, home_offset=body.home_offset)
    if body.here != NOWHERE:
        tale.queue, tale.partition = run.queue, body.here
    if body.sent_at != NOWHERE:
        tale.sent, tale.first = {1: Sent(body.sent_at, body.sent_offset)}, run
    ack = plain.ack_of(id_, head, body, words)
    if ack is not None:
        tale.acks = [ack]
    return tale
