"""The night on file: unpaid invoices with their reminders, and the crontab of the night jobs (examples/)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

import pipeline
from pipeline.core.errors import InvalidInput
from pipeline.dev.demo.handlers import DUNNING, NIGHT_JOB

FIELDS = ("customer", "email", "amount", "currency", "due_local", "zone")
MOST_OCCURRENCES = 1_000
"""Of one crontab line in one night: more is a typing error, not a night job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One job of the night: what the scheduler is asked for, at the instant it has on file."""

    handler: str
    idempotency_key: str
    due: datetime
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The span on file that is mapped, in order, onto the seconds that the demo has."""

    starts: datetime
    ends: datetime

    def compressed(self, due: datetime, opening: int, length_ms: int) -> int:
        """Epoch ms at which `due` comes when the night starts at `opening` and takes `length_ms`."""
        span = max((self.ends - self.starts).total_seconds(), 1.0)
        return opening + round((due - self.starts).total_seconds() / span * length_ms)

    def nearest(self, jobs: Sequence[Planned], share: float) -> Planned:
        """The job due nearest to this share of the night, the first one of several."""
        return min(jobs, key=lambda job: abs(self.compressed(job.due, 0, 1_000_000) - share * 1_000_000))


def examples() -> Path:
    """The directory of the example files: inside the package when installed, beside it in a checkout."""
    package = Path(pipeline.__file__).parent
    for directory in (package / "examples", package.parent / "examples"):
        if (directory / "invoices.csv").exists():
            return directory
    raise InvalidInput("examples", f"not found in {package} nor beside it: reinstall dueline")


def read_invoices(path: Path) -> list[Planned]:
    """One dunning mail for each line. InvalidInput naming file and line if one cannot be read."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_dunning(f"{path.name} line {n}", row) for n, row in enumerate(csv.DictReader(file), 2)]


def _dunning(place: str, row: dict[str, str]) -> Planned:
    try:
        due = datetime.fromisoformat(row["due_local"]).replace(tzinfo=ZoneInfo(row["zone"])).astimezone(UTC)
        payload: dict[str, Any] = {name: row[name] for name in FIELDS}
        payload["invoice"] = int(row["invoice"])
    except (KeyError, ValueError, TypeError) as error:  # no such column or zone, no date or number, no value
        raise InvalidInput(place, f"{error!r}") from error
    key = f"dunning_invoice_{payload['invoice']}"
    return Planned(handler=DUNNING, idempotency_key=key, due=due, payload=payload)


def night_of(jobs: Sequence[Planned]) -> Night:
    """From the first to the last job."""
    return Night(starts=min(job.due for job in jobs), ends=max(job.due for job in jobs))


def read_crontab(path: Path, night: Night) -> list[Planned]:
    """What the crontab runs in this night. InvalidInput naming file and line if one cannot be read."""
    jobs: list[Planned] = []
    zone = "UTC"
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("CRON_TZ="):
            zone = text.removeprefix("CRON_TZ=")
        elif text and not text.startswith("#"):
            jobs += _line(f"{path.name} line {number}", text, zone, night)
    return jobs


def _line(place: str, text: str, zone: str, night: Night) -> list[Planned]:
    fields = 1 if text.startswith("@") else 5
    parts = text.split(maxsplit=fields)
    if len(parts) != fields + 1:
        raise InvalidInput(place, f"{text!r} is not a time and a command")
    expression, command = " ".join(parts[:fields]), parts[fields]
    try:
        instants = list(_instants(expression, ZoneInfo(zone), night))
    except (CroniterError, ValueError, KeyError) as error:  # KeyError: a zone that is not there
        raise InvalidInput(place, str(error)) from error
    if len(instants) >= MOST_OCCURRENCES:
        raise InvalidInput(place, f"{expression!r} runs {MOST_OCCURRENCES} times or more in one night")
    slug = "_".join("".join(c if c.isalnum() else " " for c in command).split())
    return [
        Planned(
            handler=NIGHT_JOB,
            idempotency_key=f"night_{slug}_{due:%Y%m%dT%H%MZ}",
            due=due,
            payload={"command": command, "expression": expression, "zone": zone},
        )
        for due in instants
    ]


def _instants(expression: str, zone: ZoneInfo, night: Night) -> Iterator[datetime]:
    """Occurrences within the night, both ends included.

    Recurring schedules of the product have rules of their own for clock changes; this is for one example
    file.
    """
    if croniter.match(expression, night.starts.astimezone(zone)):
        yield night.starts
    iterator = croniter(expression, night.starts.astimezone(zone))
    for _ in range(MOST_OCCURRENCES):
        due: datetime = iterator.get_next(datetime).astimezone(UTC)
        if due > night.ends:
            return
        yield due
