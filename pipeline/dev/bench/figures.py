"""Pure: percentiles, figures with their bare loop and target, and the report that is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Sense(StrEnum):
    """Which side of its target a figure should be on."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a figure must reach. `of_ratio`: the bound is of its ratio to the bare loop, else of its value."""

    bound: float
    sense: Sense
    of_ratio: bool = False

    def met(self, value: float, ratio: float | None) -> bool | None:
        """None: there is no ratio to compare."""
        found = ratio if self.of_ratio else value
        if found is None:
            return None
        return found >= self.bound if self.sense is Sense.AT_LEAST else found <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}{' of bare' if self.of_ratio else ''}"


def ratio_at_least(bound: float) -> Target:
    return Target(bound=bound, sense=Sense.AT_LEAST, of_ratio=True)


def at_most(bound: float) -> Target:
    return Target(bound=bound, sense=Sense.AT_MOST)


def at_least(bound: float) -> Target:
    return Target(bound=bound, sense=Sense.AT_LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. `bare` is what the bare loop of the same run gave, in the same unit."""

    shape: str
    name: str
    value: float
    unit: str
    bare: float | None = None
    target: Target | None = None
    detail: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours to bare; None without a bare loop, or one that took no time."""
        return round(self.value / self.bare, 3) if self.bare else None

    @property
    def met(self) -> bool | None:
        """None: there is no target, or nothing to compare with."""
        return self.target.met(self.value, self.ratio) if self.target is not None else None

    def described(self) -> dict[str, Any]:
        """As in schemas/cli/bench.json."""
        return {
            "shape": self.shape,
            "name": self.name,
            "value": rounded(self.value),
            "unit": self.unit,
            "bare": None if self.bare is None else rounded(self.bare),
            "ratio": self.ratio,
            "target": None if self.target is None else str(self.target),
            "met": self.met,
            "detail": {name: rounded(number) for name, number in self.detail.items()},
        }


def rounded(number: float) -> float:
    """Three decimals below 100, whole above: more would claim a precision that no run repeats."""
    return round(number, 3) if abs(number) < 100 else round(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of many values: how they are distributed, in their own unit."""

    count: int
    least: float
    p50: float
    p99: float
    most: float

    def described(self) -> dict[str, float]:
        return {
            "count": self.count,
            "min": rounded(self.least),
            "p50": rounded(self.p50),
            "p99": rounded(self.p99),
            "max": rounded(self.most),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest of `ordered` (ascending, not empty) that at least `share` of all do not exceed."""
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is no share")
    rank = -(-len(ordered) * share // 1)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def spread(values: Iterable[float]) -> Spread:
    """ValueError if there are none: a distribution of nothing would look like a perfect one."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return Spread(
        count=len(ordered),
        least=ordered[0],
        p50=percentile(ordered, 0.5),
        p99=percentile(ordered, 0.99),
        most=ordered[-1],
    )


def per_second(count: int, elapsed_ms: float) -> float:
    """A rate; what took no measurable time counts as a millisecond."""
    return count * 1000 / max(elapsed_ms, 1.0)


def missed(figures: Iterable[Figure]) -> list[Figure]:
    """Those that did not reach their target."""
    return [figure for figure in figures if figure.met is False]


def rows(figures: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Lines of the table for people, from figures as described."""
    return [
        [
            figure["name"],
            f"{_number(figure['value'])} {figure['unit']}",
            "" if figure["bare"] is None else _number(figure["bare"]),
            "" if figure["ratio"] is None else f"{figure['ratio']:.2f}",
            figure["target"] or "",
            {True: "reached", False: "MISSED", None: ""}[figure["met"]],
        ]
        for figure in figures
    ]


COLUMNS = ("figure", "ours", "bare", "ratio", "target", "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:,.2f}"
