"""Changes of tokens that a page or an endpoint can make: who may open the API and the console."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.errors import InvalidInput, NotFound, Refused
from pipeline.core.times import parse_duration
from pipeline.server.access import Principal, Role, TokenRecord, new_secret
from pipeline.server.acting import Acting, Done, View
from pipeline.server.tokens import Tokens, checked_name, checked_queues, token_view


class TokenActions(Acting):
    """For admins who are limited to no queue. Views are those of `dueline token …` (schemas/cli/)."""

    tokens: Tokens | None = None
    """What is known of them; None: this server keeps none."""

    def listed_tokens(self, who: Principal) -> list[View]:
        """The oldest first, without their secrets. From memory; any thread."""
        return [token_view(record) for record in self._book(who).all()]

    async def create_token(
        self,
        who: Principal,
        *,
        name: str,
        role: str,
        queues: Sequence[str] = (),
        expires_in: str | None = None,
    ) -> Done:
        """View: as listed, with `token`, which is told here and never again. No queues: all of them; no `expires_in`:
        for ever."""
        book = self._book(who)
        connection = await self.store.connection()
        now = connection.clock.now()
        id_, secret, digest = new_secret("dl")
        record = TokenRecord(
            id=id_,
            name=checked_name(name),
            role=Role.of(role),
            queues=checked_queues(tuple(queues)),
            digest=digest,
            created_at=now,
            created_by=who.name,
            expires_at=None if expires_in is None else now + _positive("expires_in", expires_in),
        )
        async with self.asked(who, "token.create", token_id=id_, name=record.name):
            await self.store.call(book.put, record)
        await self.audit(who, "token.create", "created", token_id=id_, name=record.name)
        return Done({**token_view(record), "token": str(secret)})

    async def revoke_token(self, who: Principal, token_id: str) -> Done:
        """Outcome: revoked. With it end the sessions that were made with it."""
        book = self._book(who)
        record = book.find(token_id)
        if record is None or record.parent is not None:
            raise NotFound(f"no token {token_id[:40]} is known")
        async with self.asked(who, "token.revoke", token_id=token_id, name=record.name):
            await self.store.call(book.remove, token_id)
        await self.audit(who, "token.revoke", "revoked", token_id=token_id, name=record.name)
        return Done({"id": token_id, "outcome": "revoked"})

    def _book(self, who: Principal) -> Tokens:
        """Forbidden; Refused."""
        who.require(Role.ADMIN)
        who.require_all_queues()
        if self.tokens is None:
            raise Refused("this server keeps no tokens")
        return self.tokens


def _positive(field: str, duration: str) -> int:
    """Ms. InvalidInput naming the field."""
    length = parse_duration(field, duration)
    if length == 0:
        raise InvalidInput(field, "must be longer than zero")
    return length
