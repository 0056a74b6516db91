"""The tokens of an installation, as their records on `meta` tell: `token/<id>` and `session/<id>`.

Every server follows them, so that one that is revoked opens no door anywhere a second later. They are events whose
`detail` tells the rest, as those of replays are, so they have no schema of their own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.core.errors import DuelineError, InvalidInput, NotFound, StoreUnreachable, Undecodable
from pipeline.core.job import Event
from pipeline.core.names import check_name
from pipeline.core.times import format_instant
from pipeline.ports import Put, Reader, Record
from pipeline.server.access import Role, TokenRecord

TOKEN, SESSION = "token", "session"
FOLLOW_S = 0.5
"""How often what is new is looked for: so long a revoked token is good for at most, and the time of one request."""
CHECK_S = 5.0
"""How often it is looked whether the topic is still the same."""
AGAIN_S = 0.25
"""An unknown token has the topic read at once, but no more often than this, whoever makes tokens up."""
SWEPT = 100
"""Ended sessions that one login removes at most."""
SESSIONS = 100
"""Of one token at the same time at most: one more ends the oldest, so no loop of logins fills the topic."""
NAME_LIMIT = 80


class Mark(NamedTuple):
    """By which a record is known again: its offset, when it was appended, its key."""

    offset: int
    at: int
    key: bytes


def _mark(record: Record) -> Mark:
    return Mark(record.offset() or 0, record.timestamp()[1], record.key() or b"")


class Tokens:
    """`TokenBook` over `meta`. Any thread; `reader` is used by one at a time."""

    def __init__(
        self,
        *,
        topic: str,
        reader: Reader,
        write: Callable[[Sequence[Put]], object],
        now: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        anew: Callable[[], None] = lambda: None,
    ) -> None:
        """`topic` is `meta`; `write` returns when these records are durable, or raises StoreUnreachable; `now` is the
        store's clock, epoch ms; `anew` hears that the topic was made anew."""
        self._topic = topic
        self._reader = reader
        self._write = write
        self._now = now
        self._monotonic = monotonic
        self._reading = threading.Lock()
        self._anew = anew
        self._next = 0
        """Where on the topic the next look goes on."""
        self._last: Mark | None = None
        """The last record that was read: as long as it stands there the topic is the same."""
        self._missed = False
        self._checked = float("-inf")
        self._looked = float("-inf")
        self._failed = float("-inf")
        """When a look last succeeded, and when one last did not."""
        self._records: dict[str, TokenRecord] = {}
        """By key. Replaced as a whole, so that readers need no lock."""

    # -- looking ----------------------------------------------------------------------------------------------

    def find(self, token_id: str) -> TokenRecord | None:
        records = self._records
        return records.get(f"{TOKEN}/{token_id}") or records.get(f"{SESSION}/{token_id}")

    @property
    def loaded(self) -> bool:
        return self._looked > float("-inf")

    def any(self) -> bool:
        return any(key.startswith(TOKEN) for key in self._records)

    def all(self) -> list[TokenRecord]:
        """Tokens, no sessions, the oldest first."""
        found = (record for key, record in self._records.items() if key.startswith(TOKEN))
        return sorted(found, key=lambda record: (record.created_at, record.id))

    def refresh(self) -> None:
        """Read what is new, unless that was done, or tried in vain, a moment ago. StoreUnreachable."""
        with self._reading:
            now = self._monotonic()
            if now - self._looked < AGAIN_S:
                return
            if now - self._failed < AGAIN_S:  # else made-up tokens wait one time-out after the other
                raise StoreUnreachable("the tokens could not be read a moment ago")
            self._read()

    def read(self) -> None:
        """Read what is new. StoreUnreachable."""
        with self._reading:
            self._read()

    def _read(self) -> None:
        """All of what is new or nothing: a reading that breaks off is done again, so no revocation in it is lost."""
        try:
            made_anew = self._made_anew()
            records, start = ({}, 0) if made_anew else (dict(self._records), self._next)
            self._records, self._last = self._folded(records, start, None if made_anew else self._last)
        except DuelineError:
            self._failed = self._monotonic()
            raise
        self._next = 0 if self._last is None else self._last.offset + 1
        self._looked = self._monotonic()
        if made_anew:
            self._anew()

    def _made_anew(self) -> bool:
        """Whether the topic is another one than before, or has lost its end: what it said is not so any more. A record
        that is not there is looked for twice, since the end that a broker tells may be an old one."""
        now = self._monotonic()
        if self._last is None:
            self._checked = now
        if self._last is None or now - self._checked < CHECK_S:
            return False
        first = next(map(_mark, list(self._reader.read(self._topic, 0, self._last.offset))), None)
        missing, missed = first != self._last, self._missed
        sure = missing and (missed or (first is not None and first.offset == self._last.offset))
        self._missed = missing and not sure
        if not self._missed:
            self._checked = now
        return sure

    def _folded(
        self, records: dict[str, TokenRecord], start: int, last: Mark | None
    ) -> tuple[dict[str, TokenRecord], Mark | None]:
        """What is known with what is new, and the last record that was read."""
        for record in self._reader.read(self._topic, 0, start):
            last = _mark(record)
            key, value = record.key() or b"", record.value()
            if not key.startswith((b"token/", b"session/")):
                continue
            name = key.decode("utf-8", "replace")
            read = None if value is None else _record(value)
            if read is None:
                records.pop(name, None)
            else:
                records[name] = read
        return records, last

    # -- changing ---------------------------------------------------------------------------------------------

    def put(self, record: TokenRecord) -> None:
        """Durable when it returns. StoreUnreachable."""
        key = _key(record)
        ended = [] if record.parent is None else [*self._ended(), *self._surplus(record.parent)]
        removals = [self._put(each, None) for each in ended]
        self._write([*removals, self._put(key, codec.EVENT.encode(to_event(record)))])
        self._known({**dict.fromkeys(ended), key: record})

    def remove(self, token_id: str) -> None:
        """NotFound if there is none of this id; StoreUnreachable."""
        record = self.find(token_id)
        if record is None:
            raise NotFound(f"no token {token_id:.40} is known: `dueline token list` shows them")
        mine = (each for each in self._records.values() if each.parent == record.id)
        gone = [_key(each) for each in (record, *mine)]
        self._write([self._put(key, None) for key in gone])
        self._known(dict.fromkeys(gone))

    def _ended(self) -> list[str]:
        """Sessions that have ended: nobody else removes them."""
        now = self._now()
        ended = [key for key, each in self._records.items() if each.parent and not each.alive(now)]
        return ended[:SWEPT]

    def _surplus(self, parent: str) -> list[str]:
        """The oldest sessions of a token that has too many, so that there is room for one more."""
        now = self._now()
        mine = [
            (each.created_at, key)
            for key, each in self._records.items()
            if each.parent == parent and each.alive(now)
        ]
        return [key for _, key in sorted(mine)[: max(len(mine) + 1 - SESSIONS, 0)]]

    def _put(self, key: str, value: bytes | None) -> Put:
        return Put(self._topic, 0, key.encode(), value)

    def _known(self, changes: Mapping[str, TokenRecord | None]) -> None:
        """What was written here counts here at once."""
        with self._reading:
            merged = {**self._records, **changes}
            self._records = {key: record for key, record in merged.items() if record is not None}


class Following:
    """A thread that keeps the tokens fresh. What goes wrong is told once, and tried again."""

    def __init__(self, tokens: Tokens, tell: Callable[[Exception], None]) -> None:
        self._tokens = tokens
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tokens", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        failing = False
        while not self._stop.wait(FOLLOW_S):
            try:
                self._tokens.read()
                failing = False
            except Exception as error:  # noqa: BLE001 -- a thread that ended would hear of no revocation any more
                if not failing:
                    self._tell(error)
                failing = True

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _key(record: TokenRecord) -> str:
    return f"{TOKEN if record.parent is None else SESSION}/{record.id}"


def to_event(record: TokenRecord) -> Event:
    detail = {
        "name": record.name,
        "digest": record.digest,
        "created_by": record.created_by,
        "queues": "" if record.queues is None else json.dumps(sorted(record.queues)),
        "expires_at": "" if record.expires_at is None else str(record.expires_at),
        "parent": record.parent or "",
    }
    return Event(id=record.id, kind=TOKEN, at=record.created_at, outcome=record.role.word, detail=detail)


def _record(value: bytes) -> TokenRecord | None:
    """None for what is no record of a token: it opens nothing, and must not hide the others."""
    try:
        return of_event(codec.EVENT.decode(value))
    except Undecodable:
        return None


def of_event(event: Event) -> TokenRecord:
    """Undecodable if it is no record of a token."""
    detail = event.detail
    try:
        if event.kind != TOKEN:
            raise ValueError(f"a {event.kind}")
        queues: Any = json.loads(detail["queues"]) if detail["queues"] else None
        return TokenRecord(
            id=event.id,
            name=detail["name"],
            role=Role.of(event.outcome),
            digest=detail["digest"],
            created_at=event.at,
            created_by=detail["created_by"],
            queues=None if queues is None else frozenset(map(str, queues)),
            expires_at=int(detail["expires_at"]) if detail["expires_at"] else None,
            parent=detail["parent"] or None,
        )
    except (KeyError, ValueError, TypeError, InvalidInput) as error:
        raise Undecodable(f"the record of token {event.id:.40}: {error}") from None


def token_view(record: TokenRecord) -> dict[str, Any]:
    """As schemas/cli/token_list.json has it: nothing by which it could be used."""
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role.word,
        "queues": None if record.queues is None else sorted(record.queues),
        "created_at": format_instant(record.created_at),
        "created_by": record.created_by,
        "expires_at": None if record.expires_at is None else format_instant(record.expires_at),
    }


def checked_name(name: str) -> str:
    """A name for people and for the audit. InvalidInput('name')."""
    if not name or len(name) > NAME_LIMIT or not name.isprintable() or name != name.strip():
        raise InvalidInput("name", f"{name!r:.100} is not 1 to {NAME_LIMIT} printable characters")
    return name


def checked_queues(queues: tuple[str, ...]) -> frozenset[str] | None:
    """None for none given: of all queues. InvalidInput('queue')."""
    return frozenset(check_name("queue", queue) for queue in queues) or None
