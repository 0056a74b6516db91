"""The fencing token: one positive 63-bit integer that strictly grows over the attempts of an occurrence.

`era(8) run(16) generation(31) attempt(8)`, most significant first (DESIGN §7; the idea is Kleppmann's, "How
to do distributed locking", 2016). The run stands before the generation because groups may repeat or lower a
generation, and the runs of one occurrence only grow. Vectors: schemas/vectors/token.json.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.core.errors import TokenExhausted, Undecodable


class TokenParts(NamedTuple):
    """What a token is made of, most significant first."""

    era: int
    run: int
    generation: int
    attempt: int


_BITS = TokenParts(era=8, run=16, generation=31, attempt=8)
LAST_ERA = (1 << _BITS.era) - 1
LAST_RUN = (1 << _BITS.run) - 1
_LEAST = TokenParts(era=0, run=1, generation=1, attempt=1)


def make_token(era: int, run: int, generation: int, attempt: int) -> int:
    """The token of this attempt; TokenExhausted if a part is full, ValueError if one is below its least.

    Both instead of a wrap: a token that fell back would let a zombie's write pass.
    """
    token = 0
    parts = TokenParts(era, run, generation, attempt)
    for name, value, bits, least in zip(TokenParts._fields, parts, _BITS, _LEAST, strict=True):
        if value < least:
            raise ValueError(f"{name} of a token is at least {least}, not {value}")
        if value >> bits:
            raise TokenExhausted(f"{name} {value} does not fit the {bits} bits it has in a token")
        token = token << bits | value
    return token


def split_token(token: int) -> TokenParts:
    """The parts of a token; Undecodable if no call of `make_token` makes this number."""
    if not 0 < token < 1 << 63:
        raise Undecodable(f"{token} is no token: it is not within 1 … 2**63 - 1")
    parts = TokenParts(token >> 55, token >> 39 & 0xFFFF, token >> 8 & 0x7FFFFFFF, token & 0xFF)
    if any(value < least for value, least in zip(parts, _LEAST, strict=True)):
        raise Undecodable(f"{token} is no token: {parts} has a part below its least value")
    return parts


def token_text(token: int) -> str:
    """The token as JSON carries it: a decimal string, since many readers keep only 53 bits of a number."""
    return str(token)
