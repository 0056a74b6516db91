"""Settings: keyword arguments, else the environment, else defaults; where each value came from is kept.

The one table of settings is the class `Settings`: the field is the name, `DUELINE_<NAME>` its variable, and
default, converter and meaning stand beside it. `dueline config show` and `docs/settings.md` are made of it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.config import values
from pipeline.config.client_keys import check_client_key, secret
from pipeline.config.dev_store import DEV_STORE_FILE, dev_server, running_dev_store
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.job import PAYLOAD_CEILING, PAYLOAD_LIMIT
from pipeline.core.names import Names
from pipeline.core.rates import Rates, parse_rate

__all__ = [
    "DEV_STORE",
    "DEV_STORE_FILE",
    "KAFKA_PREFIX",
    "LOWEST_SESSION_MS",
    "PREFIX",
    "SECRET_PREFIX",
    "Settings",
    "Shown",
    "describe",
    "dev_server",
    "load_settings",
    "running_dev_store",
    "secret",
    "unknown_rates",
    "unknown_variables",
    "variable",
]

T = TypeVar("T")

PREFIX = "DUELINE_"
KAFKA_PREFIX = "DUELINE_KAFKA__"
SECRET_PREFIX = "DUELINE_SECRET_"  # noqa: S105 - a name
"""Followed by a secret's name; its value is read when a job needs it, and is no setting."""
RATE = re.compile(r"DUELINE_QUEUES__(.+)__RATE")
DEV_STORE = "dev store"
"""Source of a bootstrap address that was found in the state directory (DESIGN §10)."""
LOWEST_SESSION_MS = 3000
"""A shorter session lets a pause of the machine look like a crash (DESIGN §10)."""
MAPPINGS = ("kafka", "queue_rates")
HIDDEN = "********"


# -- the table -----------------------------------------------------------------------------------------------


def _setting(
    default: T | Callable[[], T],
    convert: Callable[[object], T],
    meaning: str,
    *variables: str,
    secret: bool = False,
) -> T:
    """A row of the table; `variables` are read after DUELINE_<NAME>. A secret is shown by nothing."""
    metadata = {"convert": convert, "meaning": meaning, "variables": variables, "secret": secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


def _default_state_dir() -> Path:
    """The XDG base directory specification: a relative XDG_STATE_HOME is ignored."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(home):
        return Path(home) / "dueline"
    try:
        return Path("~/.local/state").expanduser() / "dueline"
    except RuntimeError as error:
        raise InvalidInput("DUELINE_STATE_DIR", "there is no home directory: set it") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one process was told. Make it with `load_settings`; times are milliseconds."""

    bootstrap_servers: str | None = _setting(
        None,
        values.servers,
        "Kafka brokers, host:port, comma-separated. Unset: the store of a running `dueline dev`.",
        "KAFKA_BOOTSTRAP_SERVERS",
    )
    url: str | None = _setting(
        None,
        values.url,
        "Server that clients talk to instead of Kafka, http(s)://host:port (docs/http-client.md).",
    )
    token: str | None = _setting(
        None, values.token, "Who they are there: made by `dueline token create`. Shown nowhere.", secret=True
    )
    prefix: str = _setting(
        "dueline",
        values.name,
        "Namespace of an installation: its topics, groups and transactional ids start with it.",
    )
    state_dir: Path = _setting(  # noqa: RUF009 -- a field, not a value
        _default_state_dir, values.path, "Local state: the due index, instance ids, the development store."
    )
    queue: str = _setting(
        "default", values.name, "Queue of jobs that name none, and of workers that name none."
    )
    app_name: str | None = _setting(
        None, values.word, "Whose schedules `@app.cron` declares. Unset: the module of `--app`."
    )
    app_version: str | None = _setting(
        None, values.word, "Deploy version of the app, compared with that of the schedules there are."
    )
    concurrency: int = _setting(32, values.integer(1, 10_000), "Runs a worker executes at the same time.")
    payload_limit: int = _setting(
        PAYLOAD_LIMIT,
        values.integer(1, PAYLOAD_CEILING),
        "Largest payload a client accepts, in bytes of JSON.",
    )
    drain_timeout_ms: int = _setting(
        30_000, values.integer(0, 86_400_000), "How long a stopping process may finish what it has begun."
    )
    session_timeout_ms: int | None = _setting(
        None,
        values.integer(LOWEST_SESSION_MS, 1_800_000),
        "Silence after which a process counts as gone. Unset: the lowest the brokers allow, not under 3 s.",
    )
    store_timeout_ms: int = _setting(
        5_000,
        values.integer(100, 600_000),
        "How long a request may take before the store counts as unreachable.",
    )
    group_protocol: str = _setting(
        "classic", values.one_of("classic", "consumer"), "Group protocol: classic, or consumer (KIP-848)."
    )
    producers: int = _setting(
        2, values.integer(1, 8), "Transactional producers that take turns in a process, per group it is in."
    )
    metrics_host: str = _setting(
        "127.0.0.1",
        values.address,
        "Address of /metrics, /healthz and /readyz. They ask for no password: beyond loopback, guard the port.",
    )
    metrics_port: int | None = _setting(
        None,
        values.integer(0, 65_000),
        "Their port; the slot is added, then the first free one. Unset: 9464 (dispatchers), 9564 (workers). 0: off.",
    )
    server_host: str = _setting(
        "127.0.0.1",
        values.address,
        "Address of `dueline server`. Beyond loopback only with a token: `dueline token create`.",
    )
    server_port: int = _setting(9664, values.integer(0, 65_535), "Port of `dueline server`. 0: any free one.")
    server_rate: float = _setting(
        5_000.0, parse_rate, "Requests a second that `dueline server` takes from one token."
    )
    lateness_probe: int = _setting(
        50,
        values.integer(0, 10_000),
        "Records a second that a dispatcher reads back to measure lateness. 0: off.",
    )
    history_days: int = _setting(
        30, values.integer(1, 3_650), "How long a server shows jobs that have ended."
    )
    history_jobs: int = _setting(
        5_000_000,
        values.integer(1_000, 1_000_000_000),
        "How many of them it shows at most; the first that ended are forgotten first.",
    )
    http_allow: tuple[str, ...] = _setting(
        (),
        values.hosts,
        "What `http` may call though it is not public: host, host:port, *.suffix or network; comma-separated.",
    )
    http_secrets: tuple[str, ...] = _setting(
        (),
        values.bindings,
        "Secrets that `http` may send, with the host each may go to: NAME@host, comma-separated.",
    )
    http_timeout_ms: int = _setting(
        60_000,
        values.integer(100, 86_400_000),
        "How long one call of `http` may take; a payload may ask for less.",
    )
    secrets_dir: Path | None = _setting(  # noqa: RUF009 -- a field, not a value
        None,
        values.path,
        "Directory of the secrets that no variable DUELINE_SECRET_… holds: a file each, by its name.",
    )
    script_allow: tuple[str, ...] = _setting(
        (),
        values.programs,
        "What `script` may run: absolute paths of files, or of directories (ending in /). Unset: nothing.",
    )
    script_env: tuple[str, ...] = _setting(
        (), values.variables, "Environment variables that a script is given beside ours; comma-separated."
    )
    script_cpu_ms: int = _setting(
        3_600_000,
        values.integer(1_000, 86_400_000),
        "CPU time a process of a script may use, in whole seconds.",
    )
    script_memory_mb: int = _setting(
        4096, values.integer(16, 1 << 20), "Address space a process of a script may use, in MiB."
    )
    script_files: int = _setting(
        256, values.integer(8, 1 << 20), "Files a process of a script may have open."
    )
    topic_allow: tuple[str, ...] = _setting(
        (),
        values.topics,
        "Topics that `kafka` may append to: names and prefix*; comma-separated. Unset: none.",
    )
    catchup_rate: float | None = _setting(
        None,
        parse_rate,
        "Overdue jobs emitted a second while a backlog drains, such as 500 or 30/m. Unset: no limit.",
    )
    queue_rates: Mapping[str, float] = field(
        default_factory=dict,
        metadata={
            "meaning": "Jobs a second emitted to a queue, such as 100 or 30/m; the name in upper case."
        },
    )
    kafka: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata={
            "meaning": "Allowed librdkafka keys, upper case, _ for . (security.protocol, sasl.*, ssl.* …)."
        },
    )
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def names(self) -> Names:
        return Names(self.prefix)

    @property
    def rates(self) -> Rates:
        return Rates(catchup=self.catchup_rate, queues=self.queue_rates)

    @property
    def over_http(self) -> bool:
        """Whether a client talks to the server at `url`: brokers that are an argument win over a variable's url."""
        given, brokers = self.sources.get("url"), self.sources.get("bootstrap_servers")
        return given is not None and (given == "argument" or brokers != "argument")

    def source(self, name: str) -> str:
        """Where a value came from: `argument`, the variable's name, `dev store` or `default`.
        For librdkafka keys `name` is `kafka.<key>`."""
        if name == "bootstrap_servers" and self.bootstrap_servers is None:
            return DEV_STORE if running_dev_store(self.state_dir) else "default"
        return self.sources.get(name, "default")

    def require_bootstrap(self) -> str:
        """The brokers to talk to; a running development store's when none are set (DESIGN §10).

        Looked up at each call, so settings made before `dueline dev` find it. Raises StoreUnreachable.
        """
        found = self.bootstrap_servers or running_dev_store(self.state_dir)
        if found is None:
            raise StoreUnreachable("no store: start `dueline dev` or set DUELINE_BOOTSTRAP_SERVERS")
        return found

    def client_config(self) -> dict[str, str]:
        """What every Kafka client of this process starts from. Raises StoreUnreachable."""
        return {"client.id": "dueline", **self.kafka, "bootstrap.servers": self.require_bootstrap()}


def load_settings(**overrides: Any) -> Settings:
    """Settings from keyword arguments, else the environment, else defaults.

    A keyword that is None and a variable that is empty count as not given. `kafka={"security.protocol": …}`
    is merged key by key. Raises InvalidInput naming the variable or the keyword. Connects to nothing.
    """
    rows = {row.name: row for row in _rows()}
    for name in overrides:
        if name not in rows and name not in MAPPINGS:
            raise InvalidInput(name, f"unknown setting{_meant(name, [*rows, *MAPPINGS])}")
    if overrides.get("url") is not None and overrides.get("bootstrap_servers") is not None:
        raise InvalidInput("url", "excludes bootstrap_servers: give one of them")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for row in rows.values():
        given = _given(row, overrides)
        if given is not None:
            values[row.name], sources[row.name] = _converted(row, *given), given[1]
    kafka = _client_keys(overrides.get("kafka") or {}, sources)
    queue_rates = _queue_rates(overrides.get("queue_rates") or {}, sources)
    return Settings(**values, queue_rates=queue_rates, kafka=kafka, sources=sources)


def _rows() -> list[Field[Any]]:
    return [row for row in fields(Settings) if "convert" in row.metadata]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _given(row: Field[Any], overrides: Mapping[str, Any]) -> tuple[Any, str] | None:
    """The value that counts, with its source."""
    if overrides.get(row.name) is not None:
        return overrides[row.name], "argument"
    for name in (variable(row.name), *row.metadata["variables"]):
        if os.environ.get(name):
            return os.environ[name], name
    return None


def _converted(row: Field[Any], value: Any, source: str) -> Any:
    try:
        return row.metadata["convert"](value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(row.name if source == "argument" else source, str(error)) from error


def _client_keys(arguments: Mapping[str, str], sources: dict[str, str]) -> dict[str, str]:
    """librdkafka keys from the environment and from arguments, which win; fills in their sources."""
    found: dict[str, str] = {}
    for name, value in os.environ.items():
        if name.startswith(KAFKA_PREFIX) and value:
            key = _client_key(name)
            check_client_key(key, name)
            found[key], sources[f"kafka.{key}"] = value, name
    for key, value in arguments.items():
        check_client_key(key, f"kafka[{key!r}]")
        found[key], sources[f"kafka.{key}"] = str(value), "argument"
    return found


def _queue_rates(arguments: Mapping[str, object], sources: dict[str, str]) -> dict[str, float]:
    """Rates of queues from the environment and from arguments, which win; fills in their sources."""
    if not isinstance(arguments, Mapping):
        raise InvalidInput("queue_rates", f"{arguments!r:.80} is no mapping of queues to rates")
    given = {m[1].lower(): (v, n) for n, v in os.environ.items() if (m := RATE.fullmatch(n)) and v}
    given |= {name: (str(value), "argument") for name, value in arguments.items()}
    found: dict[str, float] = {}
    for name, (value, source) in given.items():
        try:
            found[values.name(name)], sources[f"queues.{name}.rate"] = parse_rate(value), source
        except ValueError as error:
            field_name = f"queue_rates[{name!r}]" if source == "argument" else source
            raise InvalidInput(field_name, str(error)) from error
    return found


def _client_key(variable_name: str) -> str:
    key = variable_name.removeprefix(KAFKA_PREFIX).lower()
    return key if key == "log_level" else key.replace("_", ".")  # librdkafka's one key with an underscore


# -- showing -------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """One line of `dueline config show`; `value` is JSON-able, a secret's is hidden."""

    name: str
    variable: str
    value: Any
    source: str
    meaning: str


def describe(settings: Settings) -> Iterator[Shown]:
    """Every setting with its value, source and meaning, secrets hidden."""
    for row in _rows():
        value = getattr(settings, row.name)
        if row.name == "bootstrap_servers":
            value = value or running_dev_store(settings.state_dir)
        if row.metadata["secret"] and value is not None:
            value = HIDDEN
        shown = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        yield Shown(row.name, variable(row.name), shown, settings.source(row.name), row.metadata["meaning"])
    yield from _describe_rates(settings)
    meaning = Settings.__dataclass_fields__["kafka"].metadata["meaning"]
    for key, value in sorted(settings.kafka.items()):
        name = KAFKA_PREFIX + key.upper().replace(".", "_")
        source = settings.source(f"kafka.{key}")
        yield Shown(f"kafka.{key}", name, HIDDEN if secret(key) else value, source, meaning)
    if not settings.kafka:
        yield Shown("kafka.*", f"{KAFKA_PREFIX}*", None, "default", meaning)


def _describe_rates(settings: Settings) -> Iterator[Shown]:
    meaning = Settings.__dataclass_fields__["queue_rates"].metadata["meaning"]
    for queue, rate in sorted(settings.queue_rates.items()):
        name, shown = f"queues.{queue}.rate", f"DUELINE_QUEUES__{queue.upper()}__RATE"
        yield Shown(name, shown, rate, settings.source(name), meaning)
    if not settings.queue_rates:
        yield Shown("queues.*.rate", "DUELINE_QUEUES__*__RATE", None, "default", meaning)


def unknown_rates(settings: Settings, queues: Container[str]) -> list[str]:
    """One warning for each rate of a queue that the installation does not have."""
    return [
        f"queues.{queue}.rate: there is no queue {queue}"
        for queue in settings.queue_rates
        if queue not in queues
    ]


def unknown_variables() -> list[str]:
    """One warning for each DUELINE_ variable that no setting reads: a typo, most likely."""
    known = [variable(row.name) for row in _rows()]
    return [
        f"{name} is not a setting{_meant(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(PREFIX)
        and not name.startswith((KAFKA_PREFIX, SECRET_PREFIX))
        and not RATE.fullmatch(name)
        and name not in known
    ]


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
