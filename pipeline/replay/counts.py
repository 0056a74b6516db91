"""What became of the occurrences of a replay: each that had matched is counted once (pure).

A replay that was never interrupted counts them one by one. One that was resumed reads its window anew, and what its
earlier process had asked for is told by the owners' answers alone, so two sources have to be brought together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pipeline.core.job import Event

SUPERSEDED, CHANGED, MISSING, REFUSED = "superseded", "changed", "missing", "refused"
LEFT_OUT = (CHANGED, MISSING, REFUSED)
"""What is known without an owner's answer: acked or run again by the time its turn came; its record is no longer kept;
it has no home, or no owner could take the command."""
ABOUT = frozenset({"verb", "replay", "requested_by"})
"""What an answer's detail holds beside counts."""


def counts_in(event: Event) -> Counter[str]:
    """What an owner's answer says became of the runs of its command."""
    return Counter(
        {
            name: int(text)
            for name, text in event.detail.items()
            if name not in ABOUT and text.isascii() and text.isdecimal() and len(text) <= 9
        }
    )


def within(matched: int, counts: Mapping[str, int]) -> Counter[str]:
    """What was asked for before a process was killed, and once more by the next one, was superseded the second time by
    the replay itself: it is counted as what it was the first time."""
    found = Counter(counts)
    twice = min(max(0, found.total() - matched), found[SUPERSEDED])
    found[SUPERSEDED] -= twice
    return +found


def settled(matched: int, counts: Mapping[str, int], *, gone: bool) -> Counter[str]:
    """Of a resumed replay that has come to its end. What it has not met again has changed since it began: or, if some
    of its window is `gone` from the store, may be missing there."""
    found = within(matched, counts)
    found[MISSING if gone else CHANGED] += max(0, matched - found.total())
    return +found
