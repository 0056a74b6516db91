"""The picture of `dueline outage`, by matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipeline.core.errors import InvalidInput
from pipeline.core.times import aware, parse_instant

FIRED = {"on_time": "#4c9f70", "late": "#e8a33d", "pending": "#9aa5b1", "skipped": "#c9b6e4"}
"""What became of what was due, one above the other."""
TROUBLE = {"failed": "#c0392b", "unacked": "#7d3c98", "waiting": "#2471a3"}
DELAYS = {"p50": "#b9770e", "p99": "#873600", "max": "#1c2833"}
SIZE_INCHES = (11, 7)


def draw(path: Path, report: Mapping[str, Any]) -> None:
    """Write the picture; its kind is that of the name. InvalidInput('--plot') if it cannot be written."""
    buckets = report["buckets"]
    texts = [*(bucket["from"] for bucket in buckets), report["to"]]
    edges: Any = [aware(parse_instant("from", text)) for text in texts]
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{report['prefix']}: due from {report['from']} to {report['to']}, as of {report['at']}")
    fired, late, trouble = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 1.5))
    below = [0] * len(buckets)
    for name, colour in FIRED.items():
        above = [n + bucket[name] for n, bucket in zip(below, buckets, strict=True)]
        label = name.replace("_", " ")
        fired.stairs(above, edges, baseline=below, fill=True, color=colour, label=label)
        below = above
    for name, colour in DELAYS.items():
        seconds = [(bucket["emit_delay_ms"] or {name: 0})[name] / 1000 for bucket in buckets]
        late.stairs(seconds, edges, color=colour, label=name)
    for name, colour in TROUBLE.items():
        trouble.stairs([bucket[name] for bucket in buckets], edges, color=colour, label=name)
    for axes, unit in (
        (fired, "occurrences"),
        (late, "emit delay of late ones, s"),
        (trouble, "occurrences"),
    ):
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, ncols=len(FIRED))
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
    trouble.xaxis_date(tz="UTC")
    trouble.set_xlabel("due, UTC")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidInput("--plot", f"cannot write {path}: {error.strerror}") from error
