"""One job by its id."""

from __future__ import annotations

import json

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import InvalidInput, NotFound, Undecodable
from pipeline.core.ids import KeyedId, ScheduleOccurrence, occurrence_of_keyed, parse_id
from pipeline.core.layout import Layout
from pipeline.readmodel.body import unpack
from pipeline.readmodel.rows import BASE, JOB
from pipeline.readmodel.series import unfired
from pipeline.readmodel.tale import Tale
from pipeline.readmodel.words import Words


def find(rows: RocksRows, words: Words, layout: Layout | None, job_id: str) -> Tale:
    """What is known of a job; of one with a key its last incarnation, unless the id names another. `layout` None: it is
    not known at the moment, and so nothing of instants that did not fire. Raises InvalidInput('id'), NotFound."""
    try:
        parsed = parse_id(job_id)
    except Undecodable as error:
        raise InvalidInput("id", str(error)) from error
    occurrence = job_id
    if isinstance(parsed, KeyedId) and parsed.incarnation is None:
        value = rows.get(BASE + job_id.encode())
        occurrence = job_id if value is None else occurrence_of_keyed(job_id, json.loads(value)[1])
    row = rows.get(JOB + occurrence.encode())
    tale = None if row is None else unpack(occurrence, row, words)
    if isinstance(parsed, ScheduleOccurrence) and layout is not None:
        tale = _unfired(tale, occurrence, rows, layout)
    if tale is None or not tale.known:
        raise NotFound(f"{job_id}: nothing is known under this id, or no longer")
    return tale


def _unfired(tale: Tale | None, occurrence: str, rows: RocksRows, layout: Layout) -> Tale | None:
    """An instant that did not fire: only its schedule may say what became of it."""
    if tale is not None and (tale.story().runs or tale.trail.live or tale.trail.end):
        return tale
    trail = unfired(occurrence, layout, rows)
    return tale if trail is None or not trail.known else Tale(occurrence, trail)
