"""What differs between a form and a schedule that somebody else has changed meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.server.console.schedule_fields import COUNTED, ENTRIES, NUMBER, Texts, shown

DEFAULT = "(default)"
"""What is shown of a field that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One option that is not what is stored now. `yours` and `stored`: texts of its fields, by name; `touched`: you
    have changed it, `moved`: somebody else has."""

    label: str
    yours: Mapping[str, str]
    stored: Mapping[str, str]
    shown_yours: str
    shown_stored: str
    touched: bool
    moved: bool

    @property
    def told(self) -> str:
        if self.touched and self.moved:
            return "changed by you and by somebody else"
        return "changed by you" if self.touched else "changed by somebody else"


def differences(before: Texts, yours: Texts, stored: Texts) -> list[Difference]:
    """By option, in the order of the form. `before`: what was stored when the form was opened. A policy and its number
    are one option, and a number that does not count differs from nothing."""
    found = []
    for name, entry in ENTRIES.items():
        if name not in yours or name.endswith(NUMBER):
            continue
        first, own, theirs = (shown(name, texts) or DEFAULT for texts in (before, yours, stored))
        if own == theirs:
            continue
        names = (name, name + NUMBER) if name in COUNTED else (name,)
        found.append(
            Difference(
                label=entry.label,
                yours={each: yours[each] for each in names},
                stored={each: stored[each] for each in names},
                shown_yours=own,
                shown_stored=theirs,
                touched=own != first,
                moved=theirs != first,
            )
        )
    return found
