"""What can be done with a job: cancel, stop, reschedule, requeue, give it another payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.times import parse_duration, parse_instant
from pipeline.server.console.letter_verbs import requeue_edited
from pipeline.server.console.parts.basic import Tag, button
from pipeline.server.console.parts.confirm import Sheet, confirm
from pipeline.server.console.parts.field import Field
from pipeline.server.console.parts.payload_sheet import ask_payload
from pipeline.server.console.visit import Visit

View = dict[str, Any]


def verbs_of(view: View) -> list[tuple[str, str]]:
    """(name, label) of what makes sense now; the owner decides all the same."""
    match view["status"]:
        case "pending" if view.get("schedule") is not None:  # only that can be changed
            return [("cancel", "Cancel")] if view.get("waits_behind") else []
        case "pending":
            return [
                *(("now", "Run now"), ("reschedule", "Reschedule")),
                *(("payload", "Edit payload"), ("cancel", "Cancel")),
            ]
        case "retrying":
            return [("retry", "Retry now"), ("cancel", "Cancel")]
        case "queued" | "running":
            return [("stop", "Stop")]
        case "cancelled" | "skipped":
            return []
        case "dead":
            return [("requeue", "Requeue"), ("mend", "Edit and requeue")]
        case _:
            return [("requeue", "Requeue")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked before one of the plain verbs."""

    title: str
    told: str
    verb: str
    danger: bool = False


_ASKED = {
    "cancel": _Asked(
        title="Cancel this job?",
        told="It will not fire. If it has already fired, you will be told so.",
        verb="Cancel the job",
        danger=True,
    ),
    "stop": _Asked(
        title="Stop this job?",
        told="No further runs start. A running handler is asked to stop; process pools and scripts are killed.",
        verb="Stop the job",
        danger=True,
    ),
    "requeue": _Asked(
        title="Requeue this job?",
        told="It gets one more run, under its own idempotency key.",
        verb="Requeue",
    ),
    "now": _Asked(
        title="Run this job now?",
        told="It comes due at once, and not at its own time.",
        verb="Run now",
    ),
    "retry": _Asked(
        title="Retry this job now?",
        told="Its waiting retry runs now, ahead of its time.",
        verb="Retry now",
    ),
}


async def act(visit: Visit, view: View, name: str) -> None:
    """Carry out what a button says, after asking."""
    actions, job_id = visit.actions, view["id"]
    if name == "reschedule":
        when = await _when(visit)
        if when is not None:
            await visit.change(lambda who: actions.reschedule(who, job_id, **when))
        return
    if name == "payload":
        payload = await ask_payload(visit, view, title="Edit the payload", verb="Save the payload")
        if payload is not None:
            await visit.change(lambda who: actions.update_payload(who, job_id, payload))
        return
    if name == "mend":
        await requeue_edited(visit, view)
        return
    asked = _ASKED[name]
    if await confirm(visit.client, asked.title, asked.told, verb=asked.verb, danger=asked.danger) is None:
        return
    if name == "now":
        await visit.change(
            lambda who: actions.reschedule(who, job_id, in_="0s"), {"rescheduled": "It is due now"}
        )
    elif name in ("requeue", "retry"):
        await visit.change(lambda who: actions.requeue(who, job_id))
    else:
        stop = name == "stop"
        ended = {"too_late": "Its run has ended, by itself or because it was asked to"} if stop else None
        await visit.change(lambda who: actions.cancel(who, job_id, stop=stop), ended)


async def _when(visit: Visit) -> dict[str, str] | None:
    """`at` or `in_`."""
    sheet = Sheet(visit.client, "Reschedule this job")
    with sheet:
        hint = "An instant such as 2027-03-01T09:00:00Z, or a time from now such as 10m"
        field = Field("When", kind="instant", hint=hint, autofocus=True)

        def done() -> None:
            try:
                _read_when(field.text)
            except InvalidInput as error:
                field.blame(error.problem)
            else:
                sheet.submit("done")

        with Tag("div", classes="ends"):
            button("Go back", lambda: sheet.submit(None))
            button("Reschedule", done, kind="main")
    return None if await sheet.answer() is None else _read_when(field.text)


def _read_when(text: str) -> dict[str, str]:
    """InvalidInput('when')."""
    if text[:4].isdigit() and "-" in text:
        parse_instant("when", text)
        return {"at": text}
    parse_duration("when", text)
    return {"in_": text}
