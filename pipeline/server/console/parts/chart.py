"""Charts over time, each with the table of what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from pipeline.server.console.parts.basic import Tag
from pipeline.server.console.parts.table import Column, Row, Table, at
from pipeline.server.console.words import number

COLOURS = {"teal": "#1c8ea0", "green": "#3a9d62", "orange": "#d07f16", "red": "#d4483f", "violet": "#7d6fd0"}
"""Each reads on white and on black. The svg renderer lets the style sheet colour texts and lines by theme."""
LINE = "#c3cad1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of `name`; `bars`: a stack of bars."""

    name: str
    colour: str
    bars: bool = False


class Chart:
    """Names are ours, never data: NiceGUI evaluates keys of options that begin with `:`, and data come as values."""

    def __init__(self, lines: Sequence[Line], *, label: str, logarithmic: bool = False) -> None:
        """`logarithmic`: of values from 1 on, so that one that is far out leaves the others readable."""
        self._lines = lines
        with Tag("div", role="img", aria_label=f"{label}; the numbers are in the table below"):
            self._chart = ui.echart(_options(lines, logarithmic), renderer="svg").classes("chart")
        with Tag("details"):
            Tag("summary", "As a table")
            columns = [Column(label="Minute", head=True)] + [
                Column(label=line.name, kind="num") for line in lines
            ]
            self._table = Table(columns, caption=label, wide=True)

    def show(self, times: Sequence[str], values: Sequence[Sequence[float | None]]) -> None:
        """Instants, and a row of values for each line."""
        rows = [
            Row(id=when, cells=[at(when, "time"), *(number(row[place]) for row in values)])
            for place, when in enumerate(times)
        ]
        self._table.show(rows[::-1])
        options = self._chart.options
        data = [[[when, value] for when, value in zip(times, row, strict=True)] for row in values]
        if [series["data"] for series in options["series"]] != data:
            for series, points in zip(options["series"], data, strict=True):
                series["data"] = points
            self._chart.update()


def _options(lines: Sequence[Line], logarithmic: bool) -> dict[str, Any]:
    axis = {"axisLine": {"lineStyle": {"color": LINE}}, "splitLine": {"lineStyle": {"color": LINE}}}
    return {
        "animation": False,
        "grid": {"left": 44, "right": 10, "top": 30, "bottom": 24},
        "legend": {"top": 0, "left": 0, "itemWidth": 12, "itemHeight": 8, "textStyle": {"fontSize": 11}},
        "tooltip": {"trigger": "axis", "confine": True, "textStyle": {"fontSize": 12}},
        "xAxis": {
            "type": "time",
            "axisLabel": {"fontSize": 11, "hideOverlap": True},
            **axis,
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "log" if logarithmic else "value",
            "axisLabel": {"fontSize": 11},
            **axis,
        },
        "series": [_series(line) for line in lines],
    }


def _series(line: Line) -> dict[str, Any]:
    common = {"name": line.name, "data": [], "itemStyle": {"color": COLOURS[line.colour]}}
    if line.bars:
        return {**common, "type": "bar", "stack": "all", "barCategoryGap": "20%"}
    return {
        **common,
        "type": "line",
        "showSymbol": False,
        "connectNulls": True,
        "lineStyle": {"width": 1.5, "color": COLOURS[line.colour]},
    }
