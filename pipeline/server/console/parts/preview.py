"""When a definition runs, as it is being written: the next instants, and the nights on which the clock changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pipeline.core.errors import DuelineError
from pipeline.core.times import format_instant
from pipeline.server.console.nights import nights
from pipeline.server.console.parts.basic import Tag, instant
from pipeline.server.console.visit import Visit

COUNT = 10
AROUND_MS = 12 * 3_600_000
"""A night reaches so far to both sides of the change."""
OF_A_NIGHT = 4
LOOKED_AT = 400
"""Instants of a night that are looked at for unusual ones."""

View = dict[str, Any]


class Preview:
    """Drawn anew with each change; the last one that was asked for wins."""

    def __init__(self, visit: Visit, *, now: int) -> None:
        self._visit, self._now = visit, now
        self._asked = 0
        self._words = Tag("p", "", role="status")
        self._body = Tag("div", classes="preview")

    async def show(self, options: Mapping[str, Any]) -> DuelineError | None:
        """What is wrong with the options, if they have no instants."""
        self._asked += 1
        mine = self._asked
        try:
            view = await self._visit.actions.preview_schedule(self._visit.who, options, count=COUNT)
            around = await self._nights(options, str(view["tz"]))
        except DuelineError as error:
            if mine == self._asked:
                self.clear()
            return error
        if mine == self._asked and not self._visit.client.is_deleted:
            self._draw(view, around)
        return None

    def clear(self, words: str = "") -> None:
        """Nothing but these words."""
        self._asked += 1
        self._body.clear()
        self._words.say(words)

    async def _nights(self, options: Mapping[str, Any], tz: str) -> list[tuple[str, list[View]]]:
        shown = []
        for night in nights(tz, self._now):
            instants = await self._after(options, night.at - AROUND_MS, LOOKED_AT)
            if instants and instants[-1]["at"] < format_instant(night.at):  # so many that they end before
                instants = await self._after(options, night.at - 1, OF_A_NIGHT)
            near = [each for each in instants if each["at"] < format_instant(night.at + AROUND_MS)]
            marked = [each for each in near if each["note"]]
            shown.append((night.told, (marked or near)[:OF_A_NIGHT]))
        return shown

    async def _after(self, options: Mapping[str, Any], at: int, count: int) -> list[View]:
        preview = self._visit.actions.preview_schedule
        view = await preview(self._visit.who, options, after=format_instant(at), count=count)
        return list(view["instants"])

    def _draw(self, view: View, around: list[tuple[str, list[View]]]) -> None:
        self._words.say(str(view["words"]))
        self._body.clear()
        with self._body:
            instants = view["instants"]
            Tag("h3", f"The next {len(instants)}" if instants else "No more to come")
            with Tag("div", classes="heads muted"):
                Tag("span", f"In {view['tz']}")
                Tag("span", classes="zone-name")
            with Tag("ol"):
                for each in instants:
                    _line(each)
            for told, some in around:
                Tag("h3", told)
                with Tag("ol"):
                    for each in some:
                        _line(each)
                    if not some:
                        with Tag("li"):
                            Tag("span", "nothing fires around that time", "muted")


def weekday(local: str) -> str:
    """`Sun 2027-03-28 03:00:00 +02:00` of an instant with offset."""
    at = datetime.fromisoformat(local)
    return f"{at:%a %Y-%m-%d %H:%M:%S} {at.isoformat()[-6:]}"


def _line(each: View) -> None:
    with Tag("li"):
        Tag("span", weekday(each["local"]))
        instant(each["at"])
        if each["note"]:
            Tag("span", each["note"], "night")
