"""Headers for a user's own HTTP call: the other side can tell the effect, and which attempt is newer."""

from __future__ import annotations

from unit.sinks.given import TOKENS, attempt

from pipeline.sinks import headers_of


def test_headers_carry_key_token_and_attempt() -> None:
    ctx = attempt(TOKENS[3])
    assert headers_of(ctx) == {
        "Idempotency-Key": ctx.idempotency_key,
        "X-Fence-Token": str(TOKENS[3]),
        "X-Job-Attempt": str(ctx.attempt),
    }


def test_every_attempt_has_the_same_key_and_another_token() -> None:
    first, second = headers_of(attempt(TOKENS[0])), headers_of(attempt(TOKENS[1]))
    assert first["Idempotency-Key"] == second["Idempotency-Key"]
    assert int(first["X-Fence-Token"]) < int(second["X-Fence-Token"])


def test_a_key_that_is_no_ascii_makes_a_legal_header() -> None:
    assert headers_of(attempt(key="Ü 1\r\nX: y"))["Idempotency-Key"] == "%C3%9C%201%0D%0AX:%20y"
