"""`--processes N`: a parent that keeps N processes of one role running, and leaves none behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.dev.process import spawn
from pipeline.dev.supervisor import REFUSED, Role, Supervisor
from pipeline.service.log import LogEvents

STOP_TIMEOUT_S = 30.0


def run_several(arguments: Sequence[str], count: int, stop_timeout_s: float = STOP_TIMEOUT_S) -> int:
    """Run `dueline ROLE …` `count` times until SIGTERM or SIGINT, which all get at once. The exit code: 0, or that
    of a process that refused.

    Each claims a slot of its own by file lock. They write to our stdout and stderr themselves. On Linux they die
    with this process even if it is killed.
    """
    start = partial(spawn, child_argv(arguments), env=os.environ, stdout=1, stderr=2)
    roles = [
        Role(
            name=f"{arguments[0]}/{n}",
            start=start,
            ready=None,
            stop_timeout_s=stop_timeout_s,
            last_codes=frozenset({REFUSED}),
        )
        for n in range(count)
    ]
    return Supervisor(roles, EventPrinter(LogEvents("parent")), together=True).run()


def child_argv(arguments: Sequence[str]) -> list[str]:
    """`dueline ARGUMENTS` with this interpreter."""
    # -P: a directory `pipeline` where the user stands must not hide this package.
    return [sys.executable, "-P", "-m", "pipeline", *arguments]


@dataclass(frozen=True, slots=True)
class EventPrinter:
    """What becomes of the processes, as events like their own."""

    events: LogEvents

    def event(self, role: str, text: str) -> None:
        self.events.on("process", name=role, text=text)

    def line(self, role: str, text: str) -> None:
        """Never: they write for themselves."""

    def all_ready(self) -> None:
        """Never: they say so themselves."""
