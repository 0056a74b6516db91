"""What a read model does not keep for ever."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.core.errors import Undecodable
from pipeline.readmodel.body import unpack
from pipeline.readmodel.letters import forget_letters
from pipeline.readmodel.replayed import forget_replayed
from pipeline.readmodel.rows import BASE, ENDED, EVENT, PAYLOAD, after, head_of, keyed_key
from pipeline.readmodel.sheet import Sheet

DAY_MS = 86_400_000
AT_ONCE = 5_000
MOST_EVENTS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long jobs are kept that have ended, ms of the store's time, and how many of them at most."""

    ended_ms: int = 30 * DAY_MS
    ended_most: int = 5_000_000


def forget(sheet: Sheet, now: int, retention: Retention) -> bool:
    """Drop what is too old or too much by `now`, the latest time that the log told: what ended first goes first, some
    thousands at a time; whether there was any. `now` 0: nobody has heard of any time."""
    dropped = 0
    for key, _ in sheet.rows.scan(ENDED, after(ENDED)):
        old = int.from_bytes(key[1:9], "big") < now - retention.ended_ms
        if dropped >= AT_ONCE or not (old or sheet.totals.ended - dropped > retention.ended_most):
            break
        _forget_job(sheet, key[9:])
        dropped += 1
    dropped += forget_letters(sheet, now)
    first, following = sheet.totals.events
    last = min(following - MOST_EVENTS, first + AT_ONCE)
    for number in range(first, last):
        sheet.put(EVENT + number.to_bytes(8, "big"), None)
    sheet.totals.events = max(first, last), following
    return dropped > 0 or last > first


def _forget_job(sheet: Sheet, id_: bytes) -> None:
    row = sheet.job(id_)
    if row is None or not head_of(row).ended_at:
        return
    sheet.put_job(id_, None)
    sheet.put(PAYLOAD + id_, None)
    forget_replayed(id_, sheet)
    if not id_.startswith(b"k"):
        return
    try:
        first = unpack(id_.decode(), row, sheet.words).story().first
    except (Undecodable, ValueError):
        return
    if first is not None and first.key is not None:
        sheet.put(keyed_key(first.key, id_), None)
    base, _, incarnation = id_.partition(b".")
    known = sheet.get(BASE + base)
    if known is not None and known.endswith(b" %b]" % incarnation):
        sheet.put(BASE + base, None)
