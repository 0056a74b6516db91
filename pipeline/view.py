"""The index of one partition as it will be once a delta is applied.

What a batch has decided so far is seen by what follows in it: records folded one after the other, and entries
settled one after the other in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import methodcaller
from typing import Any

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.core.keys import ANONYMOUS, COMMAND, KEYED, RETRY, STOPPED
from pipeline.ports import Action, Delta, Entry, Index, Record

END, OUTCOME, OCCURRENCE, RUN, WORK = "end", "outcome", "occurrence", "run", "work"
"""Headers of a tombstone: how the record ended; the answer of a command; the occurrence that held a key; the highest
run and where it stands, `<queue>/<partition>`."""
UNTIL = "until"
"""Header of a highest run: when it may be forgotten, epoch ms."""
APP = "app:"
"""How the source of what an app declares begins."""
CHANGED = b"changed"
"""How the record of a job's creator ends once the owner's own stands for it."""
REQUEUED = b"requeued"
"""How a stop ends whose job is to run again."""


class View:
    """The index of partition `number` under `delta`."""

    __slots__ = ("_absent", "_index", "delta", "number")

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self.number = number
        self.delta = Delta()
        self._absent: set[bytes] = set()
        """Record keys that the index was asked for and has not."""

    def entry(self, key: bytes) -> Entry | None:
        changed = self.delta.entries.get(key)
        if changed is not None:
            return changed[1]
        found = self._index.entry(self.number, key)
        if found is None:
            self._absent.add(key)
        return found

    def changed(self, key: bytes) -> Entry | None:
        """What this batch has put there, if anything."""
        changed = self.delta.entries.get(key)
        return None if changed is None else changed[1]

    def some(self, prefix: bytes) -> bool:
        """Whether the index has any entry whose record key begins so."""
        page = self.page(prefix, 1)
        return bool(page) and page[0].record_key.startswith(prefix)

    def page(self, after: bytes, limit: int) -> list[Entry]:
        """Entries of the index with record keys after this one, in their order; what this batch has changed of them
        is for `entry` to say."""
        return self._index.entries(self.number, after, limit)

    def kept_by(self, source: str) -> list[str]:
        """Ids of all schedules that this app keeps here, and perhaps of some that it kept once."""
        return (self.fact(keys.source_key(source)) or b"").decode().split()

    def note(self, source: str, id_: str) -> None:
        """Remember that this app, if it is one, keeps that schedule."""
        if not source.startswith(APP):
            return
        known = self.fact(keys.source_key(source)) or b" "
        if b" %b " % id_.encode() not in known:
            self.delta.facts[keys.source_key(source)] = known + id_.encode() + b" "

    def forget(self, source: str, gone: Collection[str]) -> None:
        """These are not the app's any more."""
        left = [id_ for id_ in self.kept_by(source) if id_ not in gone]
        self.delta.facts[keys.source_key(source)] = f" {' '.join(left)} ".encode() if left else None

    def current(self, entry: Entry) -> bool:
        """Whether nothing before it in this batch has changed or ended the entry."""
        changed = self.delta.entries.get(entry.record_key)
        return changed is None or changed[1] == entry

    def fact(self, key: bytes) -> bytes | None:
        return self.delta.facts[key] if key in self.delta.facts else self._index.fact(self.number, key)

    def ended(self, id_: bytes, log_time: int) -> bytes | None:
        """How `id_` ended within the fired memory (DESIGN §4): `fired`, `cancelled` …, of a command its answer;
        None if it is not remembered."""
        own = self.delta.ended.get(id_)
        return own[1] if own is not None else self._index.ended(self.number, id_, log_time)

    def highest_run(self, occurrence: str) -> int:
        """The highest run of a fired occurrence that is remembered."""
        entry = self.entry(keys.highest_key(occurrence))
        return codec.HIGHEST.decode(entry.value).run if entry is not None else 1

    def put(self, entry: Entry) -> None:
        """Add an entry, or replace the one with its record key."""
        key = entry.record_key
        new = key in self.delta.entries or key in self._absent
        replaced = None if new else self._index.entry(self.number, key)
        self.delta.put(entry, replaced)
        if key.startswith(KEYED) and entry.action in (Action.FIRE, Action.GRANTED, Action.EXPIRE):
            self.delta.facts[keys.holder_key(_id_of(key))] = key[2:]

    def end(
        self, key: bytes, entry: Entry | None, headers: Iterable[tuple[str, bytes | None]], at: int
    ) -> None:
        """The record `key` was tombstoned at log time `at`: forget its entry, remember how it ended."""
        if entry is not None:
            self.delta.remove(entry)
        kind = key[:2]
        if kind in ANONYMOUS:
            end = header(headers, END)
            # A late copy was told that the job is changed; the job itself may have ended since.
            if end != CHANGED or self.ended(key[2:], at) in (None, CHANGED):
                self.delta.ended[key[2:]] = at, end
        elif kind == COMMAND:
            self.delta.ended[key[2:]] = at, header(headers, OUTCOME)
        elif kind == KEYED:
            self._release(key, headers, at)
        elif kind == STOPPED and header(headers, END) == REQUEUED:
            occurrence = key[2:]  # it runs again, and so does the job that is named without it
            self.delta.ended[occurrence] = self.delta.ended[occurrence.partition(b".")[0]] = at, b"fired"
        elif kind == RETRY and header(headers, END) == b"stopped":
            self.delta.ended[key[2:].rpartition(b"/")[0]] = at, b"stopped"

    def _release(self, key: bytes, headers: Iterable[tuple[str, bytes | None]], at: int) -> None:
        id_, end = _id_of(key), header(headers, END)
        self.delta.facts[keys.holder_key(id_)] = None
        self.delta.ended[id_] = at, end
        if occurrence := header(headers, OCCURRENCE):
            self.delta.ended[occurrence] = at, end


def _id_of(record_key: bytes) -> bytes:
    return keyed_id(record_key[2:].decode("utf-8", "replace")).encode()


def header(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes:
    for header, value in headers:
        if header == name:
            return value or b""
    return b""


_headers: Callable[[Record], Any] = methodcaller("headers")
"""The client's method reports a header name that is no UTF-8 in a way that a call written out misses once the
interpreter has specialised it (CPython 3.11): it gives a list of broken tuples, and touching one is a segmentation
fault. Called like this the answer is always checked. Only the first call for a record tells, so ask it once."""


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    try:
        return list(_headers(record) or ())
    except (SystemError, UnicodeDecodeError):  # the client's answer to a header name that is no UTF-8
        return []
