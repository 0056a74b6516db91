"""What is played: the jobs of the night on file, compressed to seconds, and whose worker dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.times import aware
from pipeline.dev.demo.handlers import DUNNING
from pipeline.dev.demo.inputs import (
    Night,
    Planned,
    examples,
    night_of,
    read_crontab,
    read_invoices,
)

LEAD_MS = 3_000
"""From the beginning of scheduling to the beginning of the night: every job is stored before it is due."""
NIGHT_MS = 12_000
KILL_AT = 0.4
"""Share of the night at which the victim's mail is due: enough before it, and after it for the survivor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is to be played."""

    night: Night
    jobs: Sequence[Planned]
    victim: str

    @property
    def mails(self) -> int:
        """How many of the jobs send a mail; the others are night jobs."""
        return sum(job.handler == DUNNING for job in self.jobs)


def script(invoices: int | None) -> Script:
    """The first `invoices` lines of the invoice file (all: None), and the whole crontab."""
    directory = examples()
    mails = read_invoices(directory / "invoices.csv")
    night = night_of(mails)
    jobs = [*mails[:invoices], *read_crontab(directory / "night.crontab", night)]
    mails = [job for job in jobs if job.handler == DUNNING]
    return Script(night=night, jobs=jobs, victim=night.nearest(mails, KILL_AT).idempotency_key)


def requests(script: Script, opening: int) -> Iterator[dict[str, Any]]:
    """The jobs as `schedule_many` takes them; the night starts at `opening`, epoch ms by the store's
    clock."""
    for job in script.jobs:
        yield {
            "handler": job.handler,
            "payload": job.payload,
            "at": aware(script.night.compressed(job.due, opening, NIGHT_MS)),
            "idempotency_key": job.idempotency_key,
        }
