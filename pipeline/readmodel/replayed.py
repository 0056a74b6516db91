"""What replays have emitted, and how that stands now.

The run that a replay emits names it in a header, and the later runs of its occurrence hand the header on. How an
occurrence stands is what its row says: if somebody has requeued it since, that counts.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from typing import Any

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.job import Run
from pipeline.portion import REPLAY_HEADER
from pipeline.readmodel.lists import COUNTED, COUNTED_S
from pipeline.readmodel.rows import JOB, REPLAYED, REPLAYS, STATUSES, after, head_of
from pipeline.readmodel.sheet import Sheet

ID_LENGTH = 36
"""Of a replay's id, a UUID: all are of the same length, so nothing stands between one and the occurrence."""
AT_ONCE = 1_024


def note_replayed(id_: bytes, run: Run, sheet: Sheet) -> None:
    """Take in a run of the occurrence `id_`."""
    replay = run.headers.get(REPLAY_HEADER, "").encode()
    if run.run == 1 or len(replay) != ID_LENGTH:  # anybody may give a job such a header
        return
    sheet.put(REPLAYED + replay + id_, b"")
    known = sheet.get(REPLAYS + id_) or b""
    if replay not in _each(known):
        sheet.put(REPLAYS + id_, known + replay)


def forget_replayed(id_: bytes, sheet: Sheet) -> None:
    """With the occurrence."""
    known = sheet.get(REPLAYS + id_)
    if known is not None:
        sheet.put(REPLAYS + id_, None)
        for replay in _each(known):
            sheet.put(REPLAYED + replay + id_, None)


def outcomes_of(rows: RocksRows, replay_id: str) -> dict[str, Any]:
    """How the occurrences stand now that a replay has emitted: how many by status. `capped`: there are more of them
    than could be looked at in the time there is."""
    replay = replay_id.encode("utf-8", "replace")
    prefix = REPLAYED + replay
    found, scanned, deadline = Counter[int](), 0, time.monotonic() + COUNTED_S
    keys = rows.scan(prefix, after(prefix)) if len(replay) == ID_LENGTH else ()
    ids = (key[len(prefix) :] for key, _ in keys)
    while chunk := [*islice(ids, AT_ONCE)]:
        heads = [head_of(row) for row in rows.get_all([JOB + id_ for id_ in chunk]) if row is not None]
        found.update(head.status for head in heads if head.status)
        scanned += len(chunk)
        if scanned >= COUNTED or time.monotonic() > deadline:
            break
    counts = {str(status): found[code] for code, status in enumerate(STATUSES, 1) if found[code]}
    return {"counts": counts, "capped": next(ids, None) is not None}


def _each(known: bytes) -> list[bytes]:
    return [known[at : at + ID_LENGTH] for at in range(0, len(known), ID_LENGTH)]
