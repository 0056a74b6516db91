"""A map of buckets (heat.js)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nicegui.element import Element


class HeatMap(Element, component="heat.js"):
    def __init__(self, *, caption: str) -> None:
        super().__init__()
        self._props["caption"] = caption
        self._props["data"] = json.dumps({"heads": [], "rows": []})

    def show(self, heads: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        """`heads`: the unit of the columns, then one for each. `rows`: [{"at", "how", "cells": [{"href", "text",
        "title", "kind", "now"}]}]; a cell without href is empty."""
        data = json.dumps({"heads": list(heads), "rows": list(rows)}, separators=(",", ":"))
        if data != self._props["data"]:
            self._props["data"] = data
