"""The demo's application: what its workers run. Started by `dueline demo`, which says in a file where the
mail is.

The check at the beginning spares a repeated attempt the way to the mail server; it decides nothing. What
makes the effect happen once is the server's store, which refuses a key it knows (pipeline.dev.demo.mailbox).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import Context, Dueline
from pipeline.core.errors import InvalidInput
from pipeline.dev.demo.mail import reminder, send
from pipeline.dev.demo.mailbox import Mailbox

DUNNING = "dunning.mail"
NIGHT_JOB = "night.job"
STAGE_VARIABLE = "DUELINE_DEMO_STAGE"
WAIT_FOR_DEATH_S = 20.0

app = Dueline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the workers find the mail server and the store, and whose mail is the last that its worker
    sends."""

    smtp_port: int
    mailbox: str
    victim: str
    signal_file: str

    def publish(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")


@cache
def stage() -> Stage:
    """This process's stage. InvalidInput if the demo did not start it."""
    path = os.environ.get(STAGE_VARIABLE)
    if not path:
        raise InvalidInput(STAGE_VARIABLE, "not set: these handlers run inside `dueline demo` only")
    return Stage(**json.loads(Path(path).read_text("utf-8")))


@cache
def mailbox() -> Mailbox:
    """This process's connection to the notification store, as long as it lives."""
    return Mailbox(Path(stage().mailbox))


@app.job(DUNNING, max_attempts=5, timeout="60s")
def dunning_mail(ctx: Context, payload: dict[str, Any]) -> dict[str, str]:
    """Send the reminder of one invoice, unless its key was used. The result says which of the two it was."""
    here, key = stage(), ctx.idempotency_key
    if mailbox().known(key):
        mailbox().note_stopped(key, ctx.token)
        return {"mail": "stopped", "by": "lookup"}
    if not send(here.smtp_port, reminder(payload, idempotency_key=key, token=ctx.token)):
        return {"mail": "stopped", "by": "server"}
    if key == here.victim and ctx.attempt == 1:
        await_death(Path(here.signal_file))
    return {"mail": "sent"}


@app.job(NIGHT_JOB)
def night_job(ctx: Context, payload: dict[str, Any]) -> dict[str, str]:
    """Stands for the command of a crontab line; runs nothing."""
    return {"command": payload["command"]}


def await_death(signal_file: Path) -> None:
    """Tell the demo that this attempt has sent its mail, then hold its ack back until the demo kills the
    worker.

    RuntimeError if it did not: the attempt then counts as failed.
    """
    unfinished = signal_file.with_suffix(".new")
    unfinished.write_text(str(os.getpid()), "ascii")
    unfinished.rename(signal_file)
    time.sleep(WAIT_FOR_DEATH_S)
    raise RuntimeError(f"not killed within {WAIT_FOR_DEATH_S:.0f} s")
