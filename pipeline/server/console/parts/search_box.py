"""A search that completes filters and their values (search_box.js), as part of a form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

from nicegui.element import Element

from pipeline.server.console.words import clean, sendable

Values = Mapping[str, Sequence[str]]
MOST = 500
"""Values of a filter that are offered."""


class SearchBox(Element, component="search_box.js"):
    """`filters`: how each begins (`handler:`), and what it means. `known`: values by the filter's name; `more` is asked
    for further ones when somebody comes to search, not before."""

    def __init__(
        self,
        value: str,
        *,
        label: str,
        placeholder: str,
        filters: Sequence[tuple[str, str]],
        known: Values,
        more: Callable[[], Awaitable[Values]],
    ) -> None:
        super().__init__()
        self._known, self._more = known, more
        self._props.update(value=sendable(value), label=label, placeholder=placeholder)
        self._props.update(filters=json.dumps(filters), known=_written(known))
        self.on("wanted", self._wanted, args=[])

    async def _wanted(self) -> None:
        self._props["known"] = _written({**self._known, **await self._more()})


def _written(values: Values) -> str:
    """Those that can be looked at: what is shown is what will be searched for."""
    return json.dumps(
        {name: [each for each in own if clean(each) == each][:MOST] for name, own in values.items()}
    )
