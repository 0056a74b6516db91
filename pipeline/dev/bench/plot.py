"""Plots as SVG, by a few lines of our own: lateness distributions, and drains over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 34, 44
COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#dd4477", "#66aa00")
MOST_POINTS = 400
"""Of one line: more cannot be told apart on the screen."""
TICKS = 5


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, share of all that are at most that), ascending, thinned to what can be drawn."""
    ordered = sorted(values)
    count = len(ordered)
    kept = thinned(range(count))
    return [(ordered[n], (n + 1) / count) for n in kept]


def thinned(points: Sequence[int]) -> list[int]:
    """At most MOST_POINTS of them, the last one among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = len(points) / MOST_POINTS
    return [points[min(len(points) - 1, math.ceil((n + 1) * step) - 1)] for n in range(MOST_POINTS)]


def document(lateness: Mapping[str, Sequence[float]], drains: Mapping[str, Points]) -> str:
    """One SVG with a panel for each of both that holds anything."""
    panels = []
    if lateness:
        lines = {name: distribution(values) for name, values in lateness.items()}
        panels.append(("Lateness: share of jobs in hand after … ms", lines, True))
    if drains:
        kept = {name: [points[n] for n in thinned(range(len(points)))] for name, points in drains.items()}
        panels.append(("Drain: records in hand, s after the due instant", kept, False))
    height = max(1, len(panels)) * HEIGHT
    body = "\n".join(
        f'<g transform="translate(0 {n * HEIGHT})">\n{_panel(title, lines, logarithmic)}\n</g>'
        for n, (title, lines, logarithmic) in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(title: str, lines: Mapping[str, Points], logarithmic: bool) -> str:
    most_x = max((x for points in lines.values() for x, _ in points), default=1.0)
    most_y = max((y for points in lines.values() for _, y in points), default=1.0)
    across, marks = _logarithmic(most_x) if logarithmic else _linear(most_x)
    up = _linear(most_y)
    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>']
    parts += [_vertical(across(mark), _short(mark)) for mark in marks]
    parts += [_horizontal(up[0](mark), _short(mark)) for mark in up[1]]
    for n, (name, points) in enumerate(lines.items()):
        colour = COLOURS[n % len(COLOURS)]
        path = " ".join(f"{_x(across(x)):.1f},{_y(up[0](y)):.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 14 + 16 * n}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join(parts)


Scale = tuple[Callable[[float], float], list[float]]
"""(value to a share of the axis, values to mark)."""


def _linear(most: float) -> Scale:
    top = most or 1.0
    return (lambda value: value / top), [top * n / TICKS for n in range(TICKS + 1)]


def _logarithmic(most: float) -> Scale:
    """From 1 on; what is below stands at the left edge."""
    decades = max(1, math.ceil(math.log10(max(most, 1.0))))
    return (lambda value: math.log10(max(value, 1.0)) / decades), [10.0**n for n in range(decades + 1)]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _vertical(share: float, text: str) -> str:
    x = f"{_x(share):.1f}"
    return (
        f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>'
    )


def _horizontal(share: float, text: str) -> str:
    y = f"{_y(share):.1f}"
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>'
        f'<text x="{LEFT - 6}" y="{y}" dy="4" text-anchor="end">{text}</text>'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
