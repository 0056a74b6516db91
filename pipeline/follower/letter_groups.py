"""Which dead letters are alike, and how many of each kind there are: the same handler, reason, type of error and first
line of its message.

What differs from one letter to the next and not from one error to another is masked in that line: ids, instants,
fractions, addresses in memory and numbers of four digits and more. What tells errors apart stays: words, names, HTTP
statuses, exit codes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

View = dict[str, Any]

LINE = 300
"""Characters of a message that are looked at."""
TYPE = 200
_VARIES = re.compile(
    r"""
      \d{4}-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?  # a date, an instant
    | [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}         # a UUID
    | 0x[0-9a-f]+
    | \b[jk][0-9a-z]{26}\b                                # a job of ours
    | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b            # a hash
    | (?<![\d.])\d+\.\d+(?!\.?\d)                         # a fraction; not a part of an IP address
    | \d{4,}
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
MASK = "#"


class Kind(NamedTuple):
    """What letters of a group have in common. `handler` None: of no run; `error` None: no attempt failed with one."""

    handler: str | None
    reason: str
    error: str | None
    message: str

    @property
    def group(self) -> str:
        """Its name: the same everywhere, as long as there are such letters."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:12]


def kind_of(view: Mapping[str, Any]) -> Kind:
    """Of a letter as it is listed. The error is that of the last attempt of the run that died: an owner may have
    buried it before it started."""
    last = view["attempts"][-1] if view["attempts"] else None
    error = last["error"] if last is not None and last["run"] == view["run"] else None
    return Kind(
        handler=view["handler"],
        reason=view["reason"],
        error=None if error is None else error["type"][:TYPE],
        message=masked(view["detail"]),
    )


def masked(message: str) -> str:
    """Its first line that is not empty, without what varies."""
    first = next((line for line in message.splitlines() if line.strip()), "")
    return _VARIES.sub(MASK, " ".join(first.split())[:LINE])


class Grouping:
    """Letters, counted by their kind. At most `limit` kinds."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._rows: dict[Kind, View] = {}

    def add(self, view: Mapping[str, Any]) -> bool:
        """Count a letter, which is older than those before; False: it was not, for there are so many kinds already."""
        kind = kind_of(view)
        row = self._rows.get(kind)
        if row is None:
            if self._limit is not None and len(self._rows) >= self._limit:
                return False
            row = {"group": kind.group, **kind._asdict(), "count": 0, "oldest": None, "newest": view["at"]}
            self._rows[kind] = row | {"example": view["id"]}
            row = self._rows[kind]
        row["count"] += 1
        row["oldest"] = view["at"]
        return True

    def rows(self) -> list[View]:
        return largest(self._rows.values())


def counted(views: Iterable[Mapping[str, Any]]) -> list[View]:
    """The groups of letters, the latest of which comes first."""
    found = Grouping()
    for view in views:
        found.add(view)
    return found.rows()


def largest(rows: Iterable[View]) -> list[View]:
    """The most frequent first; of the same number the one that was last seen."""
    return sorted(
        sorted(rows, key=lambda row: str(row["newest"]), reverse=True), key=lambda row: -int(row["count"])
    )


def joined(rows: Iterable[Mapping[str, Any]]) -> list[View]:
    """Groups of several stretches of letters, the latest stretch first, as one."""
    found: dict[str, View] = {}
    for row in rows:
        known = found.get(row["group"])
        if known is None:
            found[row["group"]] = dict(row)
        else:
            known["count"] += row["count"]
            known["oldest"] = row["oldest"]
    return largest(found.values())
