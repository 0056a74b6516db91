"""What can be done with a queue: pause with a reason, resume, purge after a count."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.server.access import Principal, Role
from pipeline.server.actions import Done
from pipeline.server.console.parts.confirm import REASON, confirm
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import plural


def verbs_of(role: Role, paused: Any) -> list[tuple[str, str]]:
    """(name, label) of what this role may do now; the server refuses whatever the page shows."""
    if role < Role.OPERATOR:
        return []
    flip = ("resume", "Resume") if paused else ("pause", "Pause")
    return [flip, ("purge", "Purge")] if role >= Role.ADMIN else [flip]


async def act(visit: Visit, queue: str, name: str) -> None:
    """Carry out what a button says, after asking where something stops or ends."""
    match name:
        case "pause":
            told = "No runs start until it is resumed. Runs in progress finish; jobs that come due wait in the queue."
            note = await confirm(visit.client, f"Pause {queue}?", told, verb="Pause", note=REASON)
            if note is not None:
                await visit.change(partial(visit.actions.pause_queue, queue=queue, note=note))
        case "resume":
            await visit.change(partial(_resume, visit, queue))
        case "purge":
            await _purge(visit, queue)


async def _resume(visit: Visit, queue: str, who: Principal) -> Done:
    """Told in the word that is used of schedules: the outcome of the command is `running`."""
    done = await visit.actions.resume_queue(who, queue)
    return done._replace(view={**done.view, "outcome": "resumed"})


async def _purge(visit: Visit, queue: str) -> None:
    """Count what waits, and end it once that number was typed."""
    counted = await visit.change(partial(_purged, visit, queue, dry_run=True))
    if counted is None:
        return
    waiting = int(counted.view["waiting"])
    if not waiting:
        visit.tell(f"Nothing is waiting in {queue}.", good=False)
        return
    title = f"Purge {plural(waiting, 'run')} from {queue}?"
    told = (
        "They will end as cancelled; this cannot be undone. "
        "Runs that have started by then, and runs that arrived after the count, are left alone."
    )
    if await confirm(visit.client, title, told, verb="Purge", danger=True, typed=waiting) is None:
        return
    done = await visit.change(partial(_purged, visit, queue, counted=counted.view))
    if done is not None:
        visit.tell(f"{plural(int(done.view['waiting']), 'run')} in {queue} will end as cancelled.")


async def _purged(visit: Visit, queue: str, who: Principal, **how: Any) -> Done:
    """Without its outcome: the number is told instead."""
    done = await visit.actions.purge_queue(who, queue, **how)
    return done._replace(view={name: each for name, each in done.view.items() if name != "outcome"})
