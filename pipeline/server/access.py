"""Who asks, and what they may: roles, principals, tokens and sessions (docs/access.md).

A token is 256 random bits, shown once. What is stored of it (`tokens.py`) is a hash, so whoever reads the topic can
use none of them. A session of the console is a token of its own kind: made from another one, for a browser, for
some hours, ended with it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, ParamSpec, Protocol, TypeVar

from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.server.threads import Busy, Threads

P = ParamSpec("P")
T = TypeVar("T")

SESSION_COOKIE = "dueline_session"
CSRF_HEADER = "x-csrf-token"
SESSION_MS = 12 * 3_600_000
"""How long a login lasts."""
DOOR, DOOR_S = 4, 2.0
"""Threads that look for tokens that are not known here, and how long one of them is waited for."""
_TOKEN = re.compile(r"(dl|ds)_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
"""`dl`: a token, `ds`: a session; its id, its secret."""


class Role(IntEnum):
    """What one may do; each may also do what those before it may."""

    VIEWER = 1
    """Read."""
    OPERATOR = 2
    """Create and change jobs, schedules, replays and queues."""
    ADMIN = 3
    """Purge, and see tokens."""

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: object) -> Role:
        """InvalidInput('role')."""
        if isinstance(word, str) and word.upper() in cls.__members__ and word == word.lower():
            return cls[word.upper()]
        raise InvalidInput("role", f"{word!r:.40} is none of {', '.join(role.word for role in cls)}")


class Unauthenticated(DuelineError):
    """Say who you are: no token, or one that is unknown, expired or revoked."""

    exit_code: ClassVar[int] = 4


class UnknownToken(Unauthenticated):
    """A token like ours, of an id that is not known here."""


class Forbidden(DuelineError):
    """Ask somebody with a higher role, or with this queue."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody who asks. `queues` None: of all queues. `token`: id of the token; None: nobody needs one here."""

    name: str
    role: Role
    queues: frozenset[str] | None = None
    token: str | None = None

    @property
    def identity(self) -> str:
        """By which what they do is remembered and counted: a token of the same name that is made later is another."""
        return self.token or self.name

    def require(self, role: Role) -> None:
        """Forbidden unless the role is enough."""
        if self.role < role:
            raise Forbidden(f"needs the role {role.word}, and {self.name} is {self.role.word}")

    def sees(self, queue: str | None) -> bool:
        """Whether what is on this queue concerns them; what is known of no queue, only who is limited to none."""
        return self.queues is None or queue in self.queues

    def require_queue(self, queue: str | None) -> None:
        """Forbidden if it is another's queue."""
        if not self.sees(queue):
            raise Forbidden(f"{self.name} is limited to other queues than {queue!r}")

    def require_all_queues(self) -> None:
        """Of what belongs to no queue alone. Forbidden for who is limited to some."""
        if self.queues is not None:
            raise Forbidden(f"{self.name} is limited to {', '.join(sorted(self.queues))}")


LOCAL = Principal(name="local", role=Role.ADMIN)
"""Everybody who reaches a server that is bound to loopback and has no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What is stored of a token or session, epoch ms by the store's clock; `expires_at` None: never.

    `parent`: of a session, the id of the token that it was made with.
    """

    id: str
    name: str
    role: Role
    digest: str
    created_at: int
    created_by: str
    queues: frozenset[str] | None = None
    expires_at: int | None = None
    parent: str | None = None

    def alive(self, now: int) -> bool:
        return self.expires_at is None or now < self.expires_at


class TokenBook(Protocol):
    """The tokens there are, as known here (`tokens.py`)."""

    def find(self, token_id: str) -> TokenRecord | None:
        """From memory, at most a second old."""
        ...

    @property
    def loaded(self) -> bool:
        """Whether the tokens were read at least once."""
        ...

    def any(self) -> bool:
        """Whether there is one, expired ones too: whoever made one wanted a door."""
        ...

    def refresh(self) -> None:
        """Read what is new: a token that is not known may have been made a moment ago. StoreUnreachable."""
        ...

    def put(self, record: TokenRecord) -> None:
        """Durable when it returns. StoreUnreachable."""
        ...

    def remove(self, token_id: str) -> None: ...


class Secret(str):
    """A token in clear: never shown by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'********'"


def new_secret(kind: str) -> tuple[str, Secret, str]:
    """Id, the token itself, and the digest to be stored. `kind`: dl or ds."""
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return token_id, Secret(f"{kind}_{token_id}_{secret}"), digest_of(secret)


def digest_of(secret: str) -> str:
    """A plain hash: 256 random bits cannot be guessed, so nothing slower is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Access:
    """Decides who asks. `now` is the store's clock in ms. Any thread; what asks the store blocks."""

    def __init__(self, book: TokenBook, *, loopback: bool, now: Callable[[], int]) -> None:
        """`loopback`: nobody but this machine can reach the server."""
        self._book = book
        self._loopback = loopback
        self._now = now
        self._door = Threads("door", DOOR, patience_s=DOOR_S)

    @property
    def open(self) -> bool:
        """Whether everybody who reaches the server is `local`, an admin."""
        return self._loopback and self._book.loaded and not self._book.any()

    def principal(self, *, bearer: str | None, session: str | None) -> Principal:
        """Who asks, by a token or else by a session's cookie. Unauthenticated; StoreUnreachable while nobody can say.
        Looks in the store once more for a token that is not known: it may have been made a moment ago."""
        try:
            return self.recalled(bearer=bearer, session=session)
        except UnknownToken:
            self._book.refresh()
        return self.recalled(bearer=bearer, session=session)

    async def admitted(self, *, bearer: str | None, session: str | None) -> Principal:
        """`principal` for an event loop."""
        try:
            return self.recalled(bearer=bearer, session=session)
        except UnknownToken:
            return await self.at_the_door(self.principal, bearer=bearer, session=session)

    async def at_the_door(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread, what anybody can have asked who is not known yet, such as `log_in`: whoever makes tokens up
        keeps nobody else waiting. StoreUnreachable if too many do."""
        try:
            return await self._door.run(function, *args, **kwargs)
        except Busy as error:
            raise StoreUnreachable(str(error)) from error

    def recalled(self, *, bearer: str | None, session: str | None) -> Principal:
        """`principal` by what is known here, without asking the store: UnknownToken where that could help."""
        if not self._book.loaded:
            raise StoreUnreachable("the tokens could not be read yet")
        if bearer is not None:
            return self._of(bearer, "dl")
        if session is not None and not self.open:
            return self._of(session, "ds")
        if self.open:
            return LOCAL
        raise Unauthenticated("a token is needed: `dueline token create` makes one")

    def still_opens(self, *, bearer: str | None, session: str | None) -> bool:
        """Whether who was let in by these would be let in now: what goes on for long looks again."""
        try:
            self.recalled(bearer=bearer, session=session)
        except Unauthenticated:
            return False
        return True

    def _of(self, text: str, kind: str) -> Principal:
        record = self._checked(text, kind)
        if record.parent is not None:
            parent = self._book.find(record.parent)
            if parent is None or not parent.alive(self._now()):
                raise Unauthenticated("the token of this session was revoked or has expired: log in again")
        return Principal(
            name=record.name, role=record.role, queues=record.queues, token=record.parent or record.id
        )

    def _checked(self, text: str, kind: str) -> TokenRecord:
        match = _TOKEN.fullmatch(text)
        if match is None or match[1] != kind:
            raise Unauthenticated("this is no token of ours")
        record = self._book.find(match[2])
        if record is None:
            raise UnknownToken("this token is unknown or was revoked")
        if not hmac.compare_digest(record.digest, digest_of(match[3])):
            raise Unauthenticated("this token is unknown or was revoked")
        if (record.parent is not None) != (kind == "ds") or not record.alive(self._now()):
            raise Unauthenticated("this token has expired")
        return record

    # -- the console's sessions -------------------------------------------------------------------------------

    def log_in(self, token: str) -> tuple[Principal, Secret]:
        """Who that is, and what goes into the cookie SESSION_COOKIE (HttpOnly, SameSite=Strict, for SESSION_MS). The
        session is known to all servers. Unauthenticated; StoreUnreachable."""
        parent = self._token_of(token.strip())
        session_id, cookie, digest = new_secret("ds")
        now = self._now()
        until = now + SESSION_MS
        self._book.put(
            TokenRecord(
                id=session_id,
                name=parent.name,
                role=parent.role,
                queues=parent.queues,
                digest=digest,
                created_at=now,
                created_by=parent.name,
                expires_at=until if parent.expires_at is None else min(until, parent.expires_at),
                parent=parent.id,
            )
        )
        return self._of(cookie, "ds"), cookie

    def _token_of(self, text: str) -> TokenRecord:
        """Looked for once more if it is not known: it may have been made a moment ago."""
        try:
            return self._checked(text, "dl")
        except UnknownToken:
            self._book.refresh()
        return self._checked(text, "dl")

    def log_out(self, cookie: str) -> None:
        """Nothing if it was no session any more. StoreUnreachable."""
        try:
            record = self._checked(cookie, "ds")
        except Unauthenticated:
            return
        self._book.remove(record.id)


def csrf_of(cookie: str) -> str:
    """What a page of this session sends along with each change (CSRF_HEADER): another site can have the cookie sent,
    but cannot read it, nor this."""
    return hmac.new(cookie.encode(), b"csrf", hashlib.sha256).hexdigest()


def check_csrf(cookie: str, given: str | None) -> None:
    """Forbidden if it is not the one of this session."""
    if given is None or not hmac.compare_digest(csrf_of(cookie).encode(), given.encode("utf-8", "replace")):
        raise Forbidden(f"the header {CSRF_HEADER} is missing or of another session: load the page again")


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The token in `Authorization: Bearer …`; None if there is no such header. Unauthenticated for another scheme."""
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("Authorization must be `Bearer` and a token")
    return token.strip()
