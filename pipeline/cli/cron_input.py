"""What a user hands to `dueline cron`: the options of a schedule, and their names in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from pipeline.cli.job_input import pair
from pipeline.cli.job_input import payload as payload_of
from pipeline.core.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

id_argument = click.argument("id_", metavar="ID")
wait_option = click.option(
    "--wait", metavar="DURATION", default="5s", show_default=True, help="How long an answer is waited for."
)

_TIMES = (
    click.option(
        "--cron", metavar="EXPR", help="Five fields, six with seconds first, or @daily, @every 90s …"
    ),
    click.option("--every", metavar="DURATION", help="On a grid from the epoch and --phase on, e.g. 90s."),
    click.option(
        "--after", type=click.Choice(["finish"]), help="Count --every from the end of each occurrence."
    ),
)
_POLICY = (
    click.option("--tz", metavar="ZONE", help="IANA zone of the expression. Default: UTC."),
    click.option(
        "--dst-gap",
        metavar="P",
        help="Of what the clock skips: run_after (default: once, right after) or skip.",
    ),
    click.option(
        "--dst-overlap", metavar="P", help="Of an hour that comes twice: first (default) pass, or both."
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="NAME=RULE",
        help="Leave out by calendar NAME: a date, FROM..TO, or `cron:EXPR`; may be repeated.",
    ),
    click.option("--start", metavar="RFC3339", help="No occurrence before then."),
    click.option("--end", metavar="RFC3339", help="None at or after then."),
    click.option("--jitter", metavar="DURATION", help="Put each off by up to so long, always alike."),
    click.option("--phase", metavar="DURATION", help="Shift of an interval's grid against the epoch."),
)
_RUNS = (
    click.option("--payload", metavar="JSON|@FILE|-", help="A JSON object; from a file, or from stdin."),
    click.option("--queue", metavar="Q", help="Whose workers run it. Default: the setting, `default`."),
    click.option("--max-occurrences", type=int, metavar="N", help="End after so many."),
    click.option(
        "--misfire", metavar="P", help="Of those missed, fire the latest (default), none, or all(N) newest."
    ),
    click.option("--catch-up", metavar="DURATION", help="None missed for longer. Default: no limit."),
    click.option("--misfire-threshold", metavar="DURATION", help="Less late always fires. Default: 60s."),
    click.option(
        "--overlap",
        metavar="P",
        help="While one runs: skip (default), buffer_one, buffer_all(N), cancel_other, allow.",
    ),
    click.option("--overlap-timeout", metavar="DURATION", help="Then one counts as ended. Default: 24h."),
    click.option("--pause-after", type=int, metavar="N", help="Pause after N dead in a row."),
    click.option("--max-attempts", type=int, metavar="N", help="Default: the handler's own."),
    click.option("--timeout", metavar="DURATION", help="Of one attempt. Default: the handler's own."),
    click.option("--serial", metavar="GROUP", help="Runs of one group start one after the other."),
    click.option("--label", "labels", multiple=True, metavar="K=V", help="Of its runs; may be repeated."),
    click.option("--header", "headers", multiple=True, metavar="K=V", help="Handed on; may be repeated."),
    click.option("--note", metavar="TEXT", help="For whoever looks at it."),
)


def schedule_options(command: F) -> F:
    """The options of a schedule, for create and update."""
    return _with(command, (*_TIMES, *_POLICY, *_RUNS))


def policy_options(command: F) -> F:
    """Those that say when, beside the expression."""
    return _with(command, _POLICY)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def read(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of these options, by the names of a schedule in JSON. InvalidInput naming the one."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in ("labels", "headers"):
        if name in given:
            given[name] = dict(pair(name, text) for text in given[name])
    if "exclude" in given:
        given["exclude"] = _calendars(given["exclude"])
    if "payload" in given:
        given["payload"] = payload_of(given["payload"])
    return given


def _calendars(pairs: tuple[str, ...]) -> dict[str, list[str]]:
    calendars: dict[str, list[str]] = {}
    for text in pairs:
        name, rule = pair("exclude", text)
        calendars.setdefault(name, []).append(rule)
    return calendars


def option(field: str, expression: str = "--cron") -> str:
    """What the user calls a field here; what is none of these keeps its name."""
    first = field.partition(".")[0]
    if first not in _FIELDS:
        return field
    named = {"id": "ID", "cron": expression, "labels": "--label", "headers": "--header"}
    return named.get(first) or f"--{first.replace('_', '-')}"


_FIELDS = frozenset(
    {
        "id",
        "handler",
        "cron",
        "every",
        "after",
        "tz",
        "dst_gap",
        "dst_overlap",
        "exclude",
        "start",
        "end",
        "jitter",
    }
    | {
        "phase",
        "payload",
        "queue",
        "max_occurrences",
        "misfire",
        "catch_up",
        "misfire_threshold",
        "overlap",
        "note",
    }
    | {
        "overlap_timeout",
        "pause_after",
        "max_attempts",
        "timeout",
        "serial",
        "labels",
        "headers",
        "wait",
        "from",
        "to",
    }
    | {"rate", "count", "clear"}
)


@contextmanager
def named_as_options(expression: str = "--cron") -> Iterator[None]:
    """Errors name the option instead of the field; `expression` is where a cron expression was given."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(option(error.field, expression), error.problem) from error
