"""Lengths, numbers and sizes as people read them. Pure."""

from __future__ import annotations

import re

NOTHING = "\N{EN DASH}"
"""What stands where there is nothing."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def length(ms: float) -> str:
    """`340 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`: two units at most."""
    ms = max(0, round(ms))
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    at = next(place for place, (size, _) in enumerate(_UNITS) if ms >= size)
    size, unit = _UNITS[at]
    whole, rest = divmod(ms, size)
    if at + 1 < len(_UNITS) and (more := rest // _UNITS[at + 1][0]):
        return f"{whole} {unit} {more} {_UNITS[at + 1][1]}"
    return f"{whole} {unit}"


def number(value: float | None) -> str:
    """`12,345`, `0.4`; a dash for nothing."""
    if value is None:
        return NOTHING
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size(octets: int) -> str:
    """`412 bytes`, `3.4 KiB`."""
    if octets < 1024:
        return plural(octets, "byte")
    return f"{octets / 1024:,.1f} KiB" if octets < 1 << 20 else f"{octets / (1 << 20):,.1f} MiB"


def instants_in(sentence: str) -> list[tuple[str, str]]:
    """A sentence in pieces: (text, the instant that follows it, of which the last piece has none)."""
    pieces = [*_INSTANT.split(sentence), ""]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def sendable(text: str) -> str:
    """The same text but for half surrogates, which JSON may hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def clean(text: str, most: int | None = None) -> str:
    """Text to be looked at, of `most` characters at most: what cannot be seen, or turns the direction of writing, is
    shown as an escape."""
    whole = text if most is None or len(text) <= most else f"{text[: most - 1]}…"
    return _UNSEEN.sub(lambda mark: f"\\u{ord(mark[0]):04x}", sendable(whole))


_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
