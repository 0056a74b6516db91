"""What tells the other side of an HTTP call which effect it is asked for, and by which attempt (docs/effects.md)."""

from __future__ import annotations

from urllib.parse import quote

from pipeline.core.context import Context

_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


def headers_of(ctx: Context) -> dict[str, str]:
    """`Idempotency-Key`, `X-Fence-Token` and `X-Job-Attempt` of this attempt, for any HTTP client. The key is the same
    for every attempt, the token a decimal string that grows from one to the next."""
    return {
        "Idempotency-Key": visible(ctx.idempotency_key),
        "X-Fence-Token": str(ctx.token),
        "X-Job-Attempt": str(ctx.attempt),
    }


def visible(text: str) -> str:
    """Percent-encoded where it is not visible ASCII, and `%` itself, so that two texts never look the same."""
    return quote(text, safe=_VISIBLE, errors="surrogatepass")
