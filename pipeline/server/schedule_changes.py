"""Changes of schedules, asked of their owners, and what changes nothing: previews. No role is checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.client.commands import UNKNOWN
from pipeline.client.request import wait_ms
from pipeline.client.schedule_options import spec_of
from pipeline.client.schedules import ScheduleChange, Schedules, ask, changed_async
from pipeline.client.syncing import sync_of
from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.core.names import check_name
from pipeline.core.nights import unusual
from pipeline.core.schedule import Schedule, spec_to_json, timing_spec
from pipeline.core.times import aware, format_instant, parse_instant, written_instant
from pipeline.core.zones import zone_of
from pipeline.crontab import Finding, Parsed, parse_crontab, parse_toml
from pipeline.readmodel.questions import Position, etag_of
from pipeline.server.store import Store

View = dict[str, Any]

PREVIEWED = 1_000
"""Instants of one preview at most."""
SHOWN = 100
"""Problems of a file that are told."""
SYNC_LIMIT = 1024 * 1024
"""Characters of a file that is looked at."""


class Stale(DuelineError):
    """It was changed meanwhile: read it again, and change that."""


async def change(
    store: Store, verb: str, schedule_id: str, wait: str, **fields: Any
) -> tuple[ScheduleChange, tuple[Position, ...]]:
    """Raises InvalidInput naming the option, Refused, StoreUnreachable."""
    check_name("id", schedule_id)
    patience = wait_ms(wait)
    connection = await store.connection()
    try:
        sent = await store.call(ask, connection, verb, schedule_id, patience, **fields)
        made = await changed_async(connection, sent)
    except StoreUnreachable as error:
        store.suspect(error)
        raise
    if made.outcome == UNKNOWN:
        return made, ()
    home = connection.layout.home_of_name(schedule_id)
    end = await store.end_of(connection.parts.names.jobs, home)
    return made, () if end is None else (end,)


async def schedules_of(store: Store, queue: str) -> Schedules:
    """What reads them from the log."""
    connection = await store.connection()
    return Schedules(lambda: connection, queue=queue)


def etag_after(made: ScheduleChange) -> str | None:
    """That of the schedule as this change left it; None: its owner does not tell, or there is none any more."""
    told = [made.detail.get(name) for name in ("incarnation", "revision", "state")]
    known = [each for each in told if each]
    return etag_of(*known) if len(known) == len(told) else None


def view_of(made: ScheduleChange, *more: str, **extra: Any) -> View:
    """As `dueline cron pause` and its like answer."""
    view: View = {"id": made.id, "outcome": made.outcome}
    for name in more:
        view[name] = getattr(made, name)
    if view.get("next_due") is not None:
        view["next_due"] = written_instant(view["next_due"])
    return view | extra


def same_definition(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two specs in JSON say the same, whoever keeps them."""
    names = {*there, *wanted} - {"source", "version"}
    return all(there.get(name) == wanted.get(name) for name in names)


# -- previews ------------------------------------------------------------------------------------------------


def preview(options: Mapping[str, Any], after: str | None, count: int, now: datetime) -> View:
    """When a schedule of these options would run. InvalidInput, InvalidSchedule naming the option."""
    from pipeline.core.timing import timing_of
    from pipeline.core.words import words_of

    if isinstance(count, bool) or not 1 <= count <= PREVIEWED:
        raise InvalidInput("count", f"must be a number from 1 to {PREVIEWED}")
    given = {name: value for name, value in options.items() if value is not None}
    spec = spec_of({"id": "preview", "handler": "preview", **given})
    if spec.after_ms is not None:
        raise InvalidInput("after", "counts from the end of each occurrence: nobody knows that yet")
    timing, zone = timing_of(timing_spec(spec)), zone_of(spec.tz).info
    begin = now if after is None else aware(parse_instant("from", after))
    instants = []
    for nominal in timing.upcoming(_ms(begin), count):
        at = aware(nominal)
        local = at.astimezone(zone)
        instants.append(
            {
                "at": format_instant(nominal),
                "due_at": format_instant(timing.due_of(nominal)),
                "local": local.isoformat(timespec="seconds"),
                "note": unusual(at, local) or None,
            }
        )
    return {"words": words_of(timing_spec(spec)), "tz": spec.tz, "instants": instants}


def _ms(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


async def sync_preview(store: Store, *, name: str, text: str, form: str, tz: str | None) -> View:
    """What `dueline cron sync --dry-run` says of this file. InvalidInput; what is wrong in the file is told as
    `problems`."""
    parsed = await store.look(_parsed, name, text, form, tz)  # a long file computes for seconds
    if parsed.problems:
        return {"problems": [_finding(each) for each in parsed.problems[:SHOWN]], "notes": []}
    connection = await store.connection()
    current = await store.slowly(_current, connection)
    return await store.look(_planned, current, parsed, name)


def _planned(current: Sequence[Schedule], parsed: Parsed, name: str) -> View:
    found = sync_of(current, parsed.specs, source=f"file:{name}").plan
    return {
        "source": f"file:{name}",
        "create": [spec_to_json(spec) for spec in found.create],
        "update": [
            {
                "id": update.spec.id,
                "changed": [{"field": c.field, "old": c.old, "new": c.new} for c in update.changed],
            }
            for update in found.update
        ],
        "delete": list(found.delete),
        "unchanged": list(found.unchanged),
        "foreign": [{"id": each.spec.id, "source": each.source} for each in found.foreign],
        "problems": [],
        "notes": [_finding(each) for each in parsed.notes[:SHOWN]],
    }


def _current(connection: Any) -> Any:
    with connection.reading() as finder:
        return finder.schedules()


def _parsed(name: str, text: str, form: str, tz: str | None) -> Parsed:
    if not name or len(name) > 200 or not name.isprintable() or " " in name:
        raise InvalidInput("name", "must be 1 to 200 printable characters without a space")
    if len(text) > SYNC_LIMIT:
        raise InvalidInput("text", f"is longer than {SYNC_LIMIT} characters")
    content, source = text.encode("utf-8", "surrogatepass"), f"file:{name}"
    match form:
        case "crontab":
            return parse_crontab(content, source=source, name=name, tz=tz or "UTC")
        case "toml":
            return parse_toml(content, source=source, name=name)
        case _:
            raise InvalidInput("format", f"{form!r:.40} is neither crontab nor toml")


def _finding(finding: Finding) -> View:
    return {"line": finding.line or None, "field": finding.field or None, "text": finding.text}
