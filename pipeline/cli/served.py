"""Reads that ask a running server first: the one that is configured, else the one of a running `dueline dev`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.cli.output import note
from pipeline.config import Settings, dev_server, load_settings, running_dev_store
from pipeline.core.errors import NotAllowed, NotFound, StoreUnreachable
from pipeline.core.times import format_instant

if TYPE_CHECKING:
    from pipeline.client.http import Http
    from pipeline.follower import WantedLetters

T = TypeVar("T")

PATIENCE_S = 1.0
"""A server that does not answer within this is not waited for."""
LAG_MS = 10_000
"""Nor one that is further behind than this."""


@contextmanager
def running_server() -> Iterator[Http | None]:
    """A server that answers within a second and has caught up; None where there is none, and the topics have to be
    read. Which of them is said in one line, but where no server was ever meant."""
    settings = _settings()
    if settings is None:
        yield None
        return
    from pipeline.client.http import Http

    try:
        probe = Http(settings, patience_s=PATIENCE_S)
        freshness = probe.calls.ask("GET", "/status", repeatable=True)["freshness"]
        probe.close(0)
        if not freshness["ready"] or freshness["problem"] or freshness["age_ms"] > LAG_MS:
            raise StoreUnreachable(f"the server at {settings.url} has not caught up")
    except (StoreUnreachable, NotAllowed) as error:
        asks = isinstance(error, NotAllowed) and settings.token is None
        how = "; DUELINE_TOKEN is sent to the server that DUELINE_URL names" if asks else ""
        note(f"{error}{how}; the topics are read instead")
        yield None
        return
    note(f"asked the server at {settings.url}")
    http = Http(settings)
    try:
        yield http
    finally:
        http.close(0)


def served_or_stored(ask: Callable[[Http], T], read: Callable[[], T]) -> T:
    """What a running server answers. Where there is none, what the topics say; they are asked too for what it does not
    know, which may have been made a moment ago, and where they cannot be read its word counts."""
    with running_server() as server:
        if server is None:
            return read()
        try:
            return ask(server)
        except NotFound as error:
            try:
                return read()
            except StoreUnreachable:
                raise error from None


def _settings() -> Settings | None:
    """Those by which a server is asked; None: no server is known. One that was found, and not named, is sent no
    token."""
    settings = load_settings()
    if settings.url is not None:
        return settings
    url = None
    if settings.bootstrap_servers is None:  # else it is of another store
        url = dev_server(settings.state_dir, settings.prefix)
    if url is None or running_dev_store(settings.state_dir) is None:
        return None
    return replace(settings, url=url, token=None)


# -- dead letters -----------------------------------------------------------------------------

_LETTER = (
    *("id", "occurrence_id", "handler", "queue", "reason", "detail", "at", "run", "attempts", "source"),
    "payload_bytes",
)

_GROUP = ("group", "handler", "reason", "error", "message", "count", "oldest", "newest", "example")


def letters_of(http: Http, wanted: WantedLetters, limit: int | None) -> Iterator[dict[str, Any]]:
    """As `dueline dead list` shows them without payloads, the latest first."""
    rows = http.pages("/dead", _letters_query(wanted))
    return ({name: row[name] for name in _LETTER} for row in islice(rows, limit))


def groups_of(http: Http, wanted: WantedLetters) -> list[dict[str, Any]]:
    """As `dueline dead groups` shows them."""
    from pipeline.follower.letter_groups import joined

    rows = http.pages("/dead/groups", _letters_query(wanted))
    return joined({name: row[name] for name in _GROUP} for row in rows)


def _letters_query(wanted: WantedLetters) -> dict[str, str]:
    query = {name: getattr(wanted, name) for name in ("handler", "queue", "reason", "error", "group")}
    query["since"] = None if wanted.since is None else format_instant(wanted.since)
    return {name: value for name, value in query.items() if value is not None}


# -- `dueline status` ---------------------------------------------------------------------------------------

_PARTITION = ("topic", "partition", "owner", "state", "generation")
_QUEUE = (
    "queue",
    "lag",
    "oldest_unacked",
    "workers",
    "in_flight",
    "held",
    "parked",
    "paused",
    "handlers",
)
"""What the command shows; a server tells more."""


def status_of(http: Http) -> dict[str, Any]:
    """The JSON of `dueline status` as a server knows it. Raises StoreUnreachable, NotAllowed."""
    from pipeline.core.zones import zone_data_version

    overview, fleet, queues = (
        http.calls.ask("GET", path, repeatable=True) for path in ("/status", "/fleet", "/queues")
    )
    processes = fleet["processes"]
    return {
        "prefix": _prefix(fleet["partitions"]),
        "at": overview["at"],
        "held": overview["held"],
        "pending": overview["pending"],
        "oldest_overdue": overview["oldest_overdue"],
        "schedules": {name: overview["schedules"][name] for name in ("count", "overdue")},
        "tzdata": zone_data_version(),
        "partitions": [_partition(each) for each in fleet["partitions"]],
        "queues": [_queue(each) for each in queues["items"]],
        "processes": processes,
        "runs": fleet["runs"],
        "handlers": sorted({name for each in processes for name in each["handlers"]}),
    }


def _partition(view: Mapping[str, Any]) -> dict[str, Any]:
    """A server does not count by partition."""
    return {name: view[name] for name in _PARTITION} | {"pending": None}


def _queue(view: Mapping[str, Any]) -> dict[str, Any]:
    paused = view["paused"]
    told = paused and {**paused, "reason": paused["reason"] or ""}
    return {name: view[name] for name in _QUEUE} | {"paused": told}


def _prefix(partitions: Sequence[Mapping[str, Any]]) -> str:
    """Of the installation that the server follows, by the names of its topics."""
    return next(
        (str(p["topic"]).removesuffix(".jobs") for p in partitions if p["topic"].endswith(".jobs")), ""
    )
