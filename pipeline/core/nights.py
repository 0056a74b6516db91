"""Nights on which a zone's clock changes, in words: for whoever looks at what a schedule will do."""

from __future__ import annotations

from datetime import datetime, timedelta

_HOUR = timedelta(hours=1)


def unusual(instant: datetime, local: datetime) -> str:
    """What the zone's clock does at this instant that it does on few nights of a year; empty if nothing."""
    before = (instant - timedelta(milliseconds=1)).astimezone(local.tzinfo)
    gained = (local.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
    if gained > timedelta():
        return f"the clock goes forward by {_spoken(gained)} right before it"
    first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
    if first is not None and second is not None and first > second:
        return f"this time comes twice: the {'second' if local.fold else 'first'} pass"
    return ""


def _spoken(length: timedelta) -> str:
    return "1 hour" if length == _HOUR else f"{length // timedelta(minutes=1)} minutes"
