"""What an endpoint is: one row of the table that routing, roles, the OpenAPI document and their tests are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pipeline.core.names import Names
from pipeline.readmodel.questions import Position, Questions
from pipeline.server.access import SESSION_COOKIE, Access, Principal, Role, bearer_of
from pipeline.server.actions import Actions
from pipeline.server.body import object_of
from pipeline.server.guard import NOSNIFF
from pipeline.server.limits import Slots
from pipeline.server.once import Heard, checked
from pipeline.server.params import Param
from pipeline.server.recent import Recent
from pipeline.server.store import STREAMS as STREAM_THREADS
from pipeline.server.store import Store
from pipeline.server.tokens import Tokens

View = Mapping[str, Any]

STREAMS, STREAMS_EACH = 200, 20
"""Event streams that are open at the same time at most, of all and of one token."""
HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    NOSNIFF,
)
"""What each answer of an endpoint has, unless the endpoint says something else."""
INTAKES, INTAKES_EACH = 8 * STREAM_THREADS, STREAM_THREADS
"""Streams of jobs at the same time. Those that send take turns, so each has a thread within some seconds."""
LOOKS, LOOKS_EACH = 64, 8
"""Questions that cost much, those that wait for a thread too."""


class Answer(NamedTuple):
    """`view` None: no body. `positions`: where in the log what was written stands."""

    view: Any
    status: int = 200
    positions: tuple[Position, ...] = ()
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the endpoints of a server stand on."""

    actions: Actions
    questions: Questions
    access: Access
    tokens: Tokens | None
    store: Store
    recent: Recent
    names: Names
    streams: Slots = field(
        default_factory=lambda: Slots("event streams open", each=STREAMS_EACH, together=STREAMS, retry_s=10)
    )
    looks: Slots = field(
        default_factory=lambda: Slots(
            "counts, buckets, previews and `why` under way", each=LOOKS_EACH, together=LOOKS, retry_s=1
        )
    )
    intakes: Slots = field(
        default_factory=lambda: Slots(
            "streams of jobs under way", each=INTAKES_EACH, together=INTAKES, retry_s=1
        )
    )
    heard: Heard = field(default_factory=Heard)
    stopping: Callable[[], bool] = lambda: False
    """Whether the server is told to end: streams end then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to an endpoint, by whom, with its query read and checked."""

    services: Services
    request: Request
    who: Principal
    query: Mapping[str, Any]
    body: Any = None
    """What the JSON of the body says; None if there was none."""

    @property
    def path(self) -> Mapping[str, str]:
        return self.request.path_params

    @property
    def actions(self) -> Actions:
        return self.services.actions

    @property
    def wait(self) -> str:
        """How long an owner's answer is waited for."""
        wait: str = self.query.get("wait", "5s")
        return wait

    @contextmanager
    def once(self, asked: object = None) -> Iterator[str | None]:
        """The Idempotency-Key; inside is what it is for. `asked`: what has to be the same as under this key before, as
        JSON. InvalidInput; Conflict."""
        key = self.request.headers.get("idempotency-key")
        if key is None:
            yield None
            return
        scope = (self.who.identity, self.request.scope["path"], checked(key))
        with self.services.heard.asking(scope, asked):
            yield key

    @property
    def still_let_in(self) -> bool:
        """Whether the token, or the session, is still good."""
        request = self.request
        bearer, session = bearer_of(request.headers), request.cookies.get(SESSION_COOKIE)
        return self.services.access.still_opens(bearer=bearer, session=session)

    def object(self, *known: str) -> dict[str, Any]:
        """The body, an object of these names; none given is an empty one. InvalidInput."""
        return object_of({} if self.body is None else self.body, known)

    async def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A question to the read model."""
        return await self.services.store.read(function, *args, **kwargs)

    async def look(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A question that costs much. TooMany if who asks has many under way."""
        with self.services.looks.held(self.who.identity):
            return await self.services.store.look(function, *args, **kwargs)


Handle = Callable[[Call], Awaitable[Answer | Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`role` None: anybody may ask, who is not known too. `body`: name of the schema of the JSON it takes. `answers`:
    by status the name of the schema of what it answers, and what that means; `errors` beside those that all have.
    `stream`: it reads the body itself. `patience_s`: after so long it is given up."""

    method: str
    path: str
    name: str
    role: Role | None
    handle: Handle
    tag: str
    summary: str
    description: str = ""
    query: Sequence[Param] = ()
    body: str | None = None
    answers: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)
    errors: Sequence[int] = ()
    stream: bool = False
    etag: bool = False
    lists: bool = False
    """It asks the read model for many: so it waits for what the same caller has written, whatever that is about."""
    whole: bool = False
    """It answers of all that there is, which a server that has never caught up does not know."""
    idempotent: bool = False
    """It honours Idempotency-Key."""
    patience_s: float = 40.0
    headers: Sequence[tuple[bytes, bytes]] = HEADERS

    @property
    def changes(self) -> bool:
        return self.method != "GET"
