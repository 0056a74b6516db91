"""Dead letters, kept by the rules of `follower.dead`: the letter of the latest run of an occurrence counts, unless a
later run of it was asked for since."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.history import fit
from pipeline.core.job import DeadLetter
from pipeline.follower import WantedLetters
from pipeline.follower.dead import letter_view, place_of_letter, read_letter, run_of_mark, unreadable_letter
from pipeline.follower.job import View
from pipeline.follower.letter_groups import Grouping
from pipeline.follower.values import headers_of
from pipeline.ports import Record
from pipeline.readmodel.lists import BUDGET, BUDGET_S, LEAST, queues_asked
from pipeline.readmodel.rows import LATEST, LETTER, REQUEUED, after, due_bytes
from pipeline.readmodel.sheet import Sheet

MOST = 100_000
"""Letters that are kept, the latest."""
HISTORY_LIMIT = 16 * 1024
"""Bytes that are kept of the attempts of one."""
KEPT_MS = 90 * 86_400_000


def fold_letter(record: Record, key: bytes, sheet: Sheet) -> None:
    """Take in a record of `dead`."""
    if record.value() is None:
        _requeued(key, run_of_mark(headers_of(record)), sheet)
        return
    letter = read_letter(record)
    if letter is None or letter.run is None:
        told = letter or unreadable_letter(key, record)
        _keep(b"/" + place_of_letter(told), 0, told, sheet)
        return
    run = letter.run
    occurrence = run.occurrence_id.encode("utf-8", "surrogatepass")
    known = latest(occurrence, sheet)
    if known is None or (known[0], known[1]) <= (run.run, letter.at):
        _keep(occurrence, run.run, letter, sheet)


def latest(occurrence: bytes, sheet: Sheet) -> tuple[int, int, bytes] | None:
    """Of the latest letter: its run, when that died, and the key of its row."""
    value = sheet.get(LATEST + occurrence)
    if value is None:
        return None
    run, at, key = json.loads(value)
    return run, at, bytes.fromhex(key)


def _keep(occurrence: bytes, run: int, letter: DeadLetter, sheet: Sheet) -> None:
    known = latest(occurrence, sheet)
    if known is not None and sheet.get(known[2]) is not None:
        sheet.put(known[2], None)
        sheet.totals.letters -= 1
    row = LETTER + min(max(letter.at, 0), (1 << 64) - 1).to_bytes(8, "big") + occurrence
    sheet.put(LATEST + occurrence, json.dumps([run, letter.at, row.hex()]).encode())
    mark = sheet.get(REQUEUED + occurrence)
    if mark is not None and run < int(mark):
        return
    told = replace(letter, attempts=fit(letter.attempts, HISTORY_LIMIT))
    view = letter_view(told, payload=False)
    sheet.put(row, json.dumps(view, separators=(",", ":")).encode())
    sheet.totals.letters += 1


def _requeued(occurrence: bytes, run: int, sheet: Sheet) -> None:
    mark = sheet.get(REQUEUED + occurrence)
    if mark is not None and int(mark) >= run:
        return
    sheet.put(REQUEUED + occurrence, b"%d" % run)
    known = latest(occurrence, sheet)
    if known is not None and known[0] < run and sheet.get(known[2]) is not None:
        sheet.put(known[2], None)
        sheet.totals.letters -= 1


def forget_letters(sheet: Sheet, now: int, limit: int = 1_000) -> int:
    """Drop what the topic does not hold any more, and what is too much; the oldest first. How many."""
    done = 0
    for row, _ in sheet.rows.scan(LETTER, after(LETTER)):
        old = int.from_bytes(row[1:9], "big") < now - KEPT_MS
        if done >= limit or not (old or sheet.totals.letters > MOST):
            break
        done += 1
        sheet.put(row, None)
        sheet.put(LATEST + row[9:], None)
        sheet.put(REQUEUED + row[9:], None)
        sheet.totals.letters -= 1
    return done


# -- what is told of them -----------------------------------------------------------------------------------


def asked(wanted: WantedLetters) -> list[Any]:
    """What a list of letters is, for its cursor."""
    of = queues_asked(wanted.ids), wanted.handler, wanted.queue, queues_asked(wanted.queues)
    return [*of, wanted.reason, wanted.error, wanted.group, wanted.since]


def stored(
    rows: RocksRows, wanted: WantedLetters, start: bytes | None
) -> Iterator[tuple[bytes, View | None]]:
    """The letters before the row `start`, the latest first; None in place of one that is not wanted."""
    low = LETTER if wanted.since is None else LETTER + due_bytes(wanted.since)
    high = after(LETTER) if start is None else start
    for key, value in rows.scan_back(low, max(low, high)):
        view: View = json.loads(value)
        yield key, view if wanted.matches(view, int.from_bytes(key[1:9], "big")) else None


def grouped(letters: Iterator[tuple[bytes, View | None]], limit: int) -> tuple[list[View], bytes | None, int]:
    """The first groups, `limit` at most, of as many letters as can be looked at in the time there is; the row to go on
    before, and how many letters were looked at."""
    found, last, scanned, deadline = Grouping(limit), None, 0, time.monotonic() + BUDGET_S
    for key, view in letters:
        if view is not None and not found.add(view):
            return found.rows(), last, scanned
        last, scanned = key, scanned + 1
        if scanned >= BUDGET or (scanned >= LEAST and time.monotonic() > deadline):
            return found.rows(), last, scanned
    return found.rows(), None, scanned
