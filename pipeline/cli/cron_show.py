"""`dueline cron list` and `describe`: asked of a running server, else read from the topics; and `preview`, computed
alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from pipeline.cli.cron_input import id_argument, named_as_options, policy_options, read
from pipeline.cli.output import emit, harmless, json_wanted, note, table

MOST = 100_000


@click.command("list", short_help="List all schedules.")
@click.option("--handler", metavar="H", help="Of this handler only.")
@click.option("--source", metavar="S", help="From there only: cli, api, app:NAME or file:NAME.")
@click.option(
    "--state", type=click.Choice(["active", "paused", "ended", "overdue", "failing"]), help="Of these only."
)
def list_(handler: str | None, source: str | None, state: str | None) -> None:
    """List schedules, all or some, as a crontab with their next instants. With --json, one object a line.

    Overdue is one whose owner should long have decided what is due; failing, one whose last run that ended is dead.

    A running server is asked (DUELINE_URL, or that of `dueline dev`), else the topics are read, all of `jobs`; which,
    is said on stderr.
    """
    from pipeline.cli.served import running_server

    wanted = {"handler": handler, "source": source, "state": state}
    with running_server() as server:
        views = _stored(wanted) if server is None else server.schedule_views(**wanted)
    if not views:
        note("no schedule matches")
    elif json_wanted():
        emit(iter(views), str)
    else:
        emit(views, _crontab)


def _stored(wanted: Mapping[str, str | None]) -> list[dict[str, Any]]:
    from pipeline.cli.store import following

    with following() as store:
        return store.follower.schedule_views(store.parts.clock.now(), **wanted)


def _crontab(views: list[dict[str, Any]]) -> str:
    rows = [
        (
            view["id"],
            view["expression"],
            view["words"],
            view["tz"],
            view["next_local"] or view["state"],
            view["last_outcome"],
            _flags(view),
        )
        for view in views
    ]
    return table(("id", "expression", "words", "zone", "next", "last", ""), rows)


def _flags(view: Mapping[str, Any]) -> str:
    paused = "" if view["paused"] is None else f"paused: {harmless(view['paused'], 80)}".rstrip(": ")
    return ", ".join(part for part in (paused, "overdue" if view["overdue"] else "") if part)


@click.command("describe", short_help="Show a schedule with its last and next instants.")
@id_argument
def describe(id_: str) -> None:
    """Show a schedule: its definition in words and in full, where it stands, its last and next ten instants in its zone
    and in UTC, and what became of them, counted. A running server is asked (DUELINE_URL, or that of `dueline dev`),
    else the topics are read; which, is said on stderr.
    """
    from pipeline.cli.served import served_or_stored
    from pipeline.core.names import check_name

    with named_as_options():
        check_name("id", id_)
        view = served_or_stored(lambda server: server.schedule_view(id_), lambda: _as_stored(id_))
        emit(view, _description)


def _as_stored(id_: str) -> dict[str, Any]:
    from pipeline.cli.store import following

    with following() as store:
        return store.follower.schedule_view(id_, store.parts.clock.now())


def _description(view: Mapping[str, Any]) -> str:
    spec, counters = view["spec"], view["counters"]
    state = view["state"] + (
        "" if view["paused"] is None else f" ({harmless(view['paused'], 80)})".replace(" ()", "")
    )
    state += f" ({view['ended']})" if view["ended"] else ""
    skipped = ", ".join(f"{n} {reason}" for reason, n in counters["skipped"].items()) or "none"
    facts = {
        "id": view["id"],
        "runs": f"{spec['handler']} on {spec['queue']}, {view['words']}",
        "zone": view["tz"],
        "state": state + (", overdue" if view["overdue"] else ""),
        "source": f"{spec['source']} {spec.get('version', '')}".rstrip(),
        "changed": f"{view['changed_at']} (revision {view['revision']}; created {view['created_at']})",
        "succeeded": view["last_success_at"] or "never",
        "counted": ", ".join(f"{counters[name]} {name}" for name in _COUNTED),
        "skipped": skipped,
    }
    lines = [f"{name:9} {value}" for name, value in facts.items()]
    lines += [f"{name:9} {_value(value)}" for name, value in spec.items() if name not in _SAID]
    lines += _section("last", view["last"], ("local", "nominal_at", "kind", "outcome", "at"))
    lines += _section("next", view["next"], ("local", "nominal_at", "due_at"))
    lines += _section("open", view["open"], ("id", "emitted_at"))
    lines += _section("backfills", view["backfills"], ("id", "from", "to", "fired", "total", "rate"))
    if view["waiting"]:
        lines += ["", f"waiting for an open one to end: {' '.join(view['waiting'])}"]
    return "\n".join(lines)


_COUNTED = (
    *("fired", "succeeded", "dead", "cancelled", "missed", "overlapped"),
    *("triggered", "backfilled"),
)
_SAID = ("id", "handler", "queue", "tz", "source", "version")


def _value(value: Any) -> str:
    return harmless(value if isinstance(value, str) else repr(value), 80)


def _section(name: str, views: list[dict[str, Any]], columns: tuple[str, ...]) -> list[str]:
    if not views:
        return []
    return ["", f"{name}:", table(columns, [[view[column] for column in columns] for view in views])]


# -- preview ------------------------------------------------------------------------------------------------


@click.command("preview", short_help="Show when an expression runs.")
@click.argument("expression", metavar="EXPR")
@click.option("--after", metavar="RFC3339", help="Those after this instant. Default: now.")
@click.option("--count", type=click.IntRange(1, MOST), default=10, show_default=True, help="How many.")
@click.option("--id", "schedule_id", metavar="ID", help="Of this schedule: H fields and jitter depend on it.")
@policy_options
def preview(expression: str, after: str | None, count: int, schedule_id: str | None, **options: Any) -> None:
    """Show the next instants of a cron expression, an alias or `@every 90s`; no store is needed. With --json, one array
    of instants in UTC. Nights on which the clock changes are marked. With --jitter, when each is due: give the --id.

    \b
    dueline cron preview "30 2 * * *" --tz Europe/Berlin --after 2027-03-26T00:00:00Z --count 4
    """
    from pipeline.core.times import aware, format_instant, instant_of, parse_instant
    from pipeline.core.timing import preview as upcoming

    zone = options["tz"] or "UTC"
    with named_as_options(expression="EXPR"):
        policy = read({**options, "tz": zone, "schedule_id": schedule_id})
        for name in ("start", "end"):
            if name in policy:
                policy[name] = aware(parse_instant(name, policy[name]))
        begin = datetime.now(UTC) if after is None else aware(parse_instant("after", after))
        instants = upcoming(expression, after=begin, count=count, **policy)
    if not instants:
        note("no instant follows")
    emit(
        [format_instant(instant_of("instant", instant)) for instant in instants],
        lambda shown: "\n".join(_lines(shown, instants, zone)),
    )


def _lines(shown: list[str], instants: list[datetime], zone_name: str) -> Iterator[str]:
    from pipeline.core.nights import unusual
    from pipeline.core.zones import zone_of

    zone = zone_of(zone_name).info
    for text, instant in zip(shown, instants, strict=True):
        local = instant.astimezone(zone)
        marks = unusual(instant, local)
        yield f"{text}  {local:%a} {local.isoformat(sep=' ', timespec='seconds')}{f'  {marks}' if marks else ''}"
