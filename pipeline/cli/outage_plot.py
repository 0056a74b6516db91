"""The picture of `dueline outage`, by matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipeline.core.errors import InvalidInput
from pipeline.core.times import aware, parse_instant

FIRED = {"on_time": "#4c9f70", "late": "#e8a33d", "pending": "#9aa5b1", "skipped": "#c9b6e4"}
"""What became of what was due, one above the other."""
TROUBLE = {"failed": "#c0392b", "unacked": "#7d3c98", "waiting": "#2471a3"}
SIZE_INCHES = (11, 7)


def draw(path: Path, report: Mapping[str, Any]) -> None:
    """Write the picture; its kind is that of the name. InvalidInput('--plot') if it cannot be written."""
    buckets, width = report["buckets"], timedelta(milliseconds=report["by_ms"])
    at = [aware(parse_instant("from", bucket["from"])) for bucket in buckets]
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    fired, late, trouble = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 1.5))
    fired.set_title(f"{report['prefix']}: due from {report['from']} to {report['to']}, as of {report['at']}")
    below = [0] * len(buckets)
    for name, colour in FIRED.items():
        values = [bucket[name] for bucket in buckets]
        fired.bar(at, values, width, bottom=below, align="edge", label=name.replace("_", " "), color=colour)
        below = [a + b for a, b in zip(below, values, strict=True)]
    fired.set_ylabel("occurrences")
    for name in ("p50", "p99", "max"):
        values = [(bucket["emit_delay_ms"] or {name: 0})[name] / 1000 for bucket in buckets]
        late.step(at, values, where="post", label=name)
    late.set_ylabel("late by, s")
    for name, colour in TROUBLE.items():
        trouble.step(at, [bucket[name] for bucket in buckets], where="post", label=name, color=colour)
    trouble.set_ylabel("occurrences")
    for axes in (fired, late, trouble):
        axes.legend(loc="upper left", frameon=False, ncols=4)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd")
    trouble.xaxis_date(tz="UTC")
    trouble.set_xlabel("due, UTC")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidInput("--plot", f"cannot write {path}: {error.strerror}") from error
