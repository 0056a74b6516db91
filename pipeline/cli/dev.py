"""`dueline dev`: everything on this machine, with nothing installed but Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple

import click

from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.cli import interrupt
from pipeline.cli.events import readable
from pipeline.cli.output import emit, note
from pipeline.cli.server import NEEDED
from pipeline.config import KAFKA_PREFIX, Settings, dev_server, load_settings, running_dev_store, variable
from pipeline.core.errors import InvalidInput, Refused
from pipeline.dev import jars
from pipeline.dev.broker import HOST, PREFERRED_PORT, EmbeddedBroker, free_port
from pipeline.dev.process import spawn
from pipeline.dev.running import StoreTaken
from pipeline.dev.supervisor import Role, Supervisor, command

DEMO_APP = "pipeline.dev.handlers:app"
FIND_TIMEOUT_S = 90.0
"""The other `dueline dev` may be fetching its broker."""
FIND_INTERVAL_S = 0.1
DRAIN_MARGIN_S = 5.0
SERVER_STOP_S = 15.0
SERVER, ANSWERS = "server", '"action": "started"'
"""The role, and what its process says once it answers."""
ELSEWHERE = frozenset({variable("url"), variable("token")})
"""A server that the shell means: what handlers here schedule is for the store here."""


class Store(NamedTuple):
    """Where the jobs are: `kind` is `embedded` (started here), `running` (found) or `external` (told)."""

    kind: str
    bootstrap: str
    broker: EmbeddedBroker | None = None


@dataclass(slots=True)
class Serving:
    """Where the server of this `dueline dev` is: on this machine alone. `tell` is called with its URL once it answers,
    and with None when it does no more: whoever asks a server that is named here shall get no other's answer."""

    port: int
    tell: Callable[[str | None], None]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@click.command()
@click.option("--app", metavar="MODULE:APP", help="Your handlers. Default: the demo handlers.")
@click.option("--reload", is_flag=True, help="Start the worker again when its code changes.")
@click.option("--store", metavar="HOST:PORT", help="Use this Kafka instead of the embedded one.")
@click.option("--fresh", is_flag=True, help="Forget what the embedded Kafka stored before.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"Port of the embedded Kafka. Default: {PREFERRED_PORT}, or another if that is taken.",
)
def dev(app: str | None, reload: bool, store: str | None, fresh: bool, port: int | None) -> int:
    """Run a real Kafka, a dispatcher, a worker and a server here, until Ctrl-C.

    Prints the store's address when it is up, and the console's once that answers. If another `dueline dev` runs
    already, prints that one's. A Kafka that KAFKA_BOOTSTRAP_SERVERS names is not used: it may be your company's.

    The console's port is DUELINE_SERVER_PORT (9664), or another if that is taken.

    The demo handlers are demo.echo (its payload is its result), demo.sleep (takes `seconds`) and demo.fail
    (fails and is retried).

    \b
    dueline job create demo.echo --payload '{"hello": "world"}' --in 2s
    """
    told = store or os.environ.get("DUELINE_BOOTSTRAP_SERVERS")
    if told and (fresh or port):
        raise InvalidInput("--fresh" if fresh else "--port", f"is for the embedded Kafka, not for {told}")
    # A polite stop while the broker still starts takes the same way out as Ctrl-C.
    interrupt.stoppable()
    with _opened(told, fresh, port) as opened:
        if opened.kind == "running":
            _refuse_unused(opened, app, reload, port)
            _announce(opened, dev_server(load_settings().state_dir))
            return 0
        return _run(opened, _settings(opened), app, reload)


@contextmanager
def _opened(told: str | None, fresh: bool, port: int | None) -> Iterator[Store]:
    """The store to use; an embedded broker that was started here is stopped again."""
    if told:
        yield Store("external", told)
        return
    settings = load_settings()
    if not jars.complete(jars.cache_dir()):
        note(f"fetching Kafka {jars.KAFKA_VERSION} (44 MB, once)")
    broker = EmbeddedBroker(settings.state_dir, port or PREFERRED_PORT, fresh)
    found = _start_or_find(broker, settings, fresh)
    if found is not None:
        yield Store("running", found)
        return
    try:
        yield Store("embedded", broker.bootstrap, broker)
    finally:
        broker.stop()


def _start_or_find(broker: EmbeddedBroker, settings: Settings, fresh: bool) -> str | None:
    """None once `broker` is started; the address of another `dueline dev`'s if that has one."""
    deadline = time.monotonic() + FIND_TIMEOUT_S
    while True:
        try:
            broker.start()
        except StoreTaken as taken:
            if fresh:
                raise Refused(f"{taken}: stop it before --fresh") from None
            found = running_dev_store(settings.state_dir)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise
            time.sleep(FIND_INTERVAL_S)  # it is starting, or stopping and then it is our turn
        else:
            return None


def _refuse_unused(running: Store, app: str | None, reload: bool, port: int | None) -> None:
    """Refused if something was asked for that a `dueline dev` that only finds another one does not do."""
    if app is not None or reload:
        option = "--reload" if app is None else "--app"
        advice = (
            f"start `dueline worker{'' if app is None else f' --app {app}'}{' --reload' if reload else ''}`"
        )
        raise Refused(f"{option} is not run here, a `dueline dev` runs already: {advice}")
    if port is not None:
        raise Refused(
            f"--port is not used, a `dueline dev` runs already at {running.bootstrap}: stop it before --port"
        )


def _announce(store: Store, server: str | None) -> None:
    words = {
        "embedded": f"store: Kafka {jars.KAFKA_VERSION}, started here, at",
        "running": "store: another `dueline dev` runs Kafka, a dispatcher and a worker at",
        "external": "store: the Kafka you named, at",
    }
    note(f"{words[store.kind]} {store.bootstrap}")
    if store.kind == "running" and server is not None:
        note(f"console: {server}")
    view = {"bootstrap": store.bootstrap, "store": store.kind, "server": server}
    emit(view, lambda data: str(data["bootstrap"]))
    sys.stdout.flush()


def _run(store: Store, settings: Settings, app: str | None, reload: bool) -> int:
    report = ensure_topics(settings)  # before its address is given out: it may be nobody's
    serving = _serving(store, settings)
    _announce(store, None if serving is None else serving.url)
    if serving is None:
        note('the console needs more: pip install "dueline[server]"')
    if store.broker is None:  # that one broker keeps one copy is no news here
        for warning in report.warnings:
            note(warning)
    worker = ["--app", app or DEMO_APP, *(["--reload"] if reload else [])]
    roles = _roles(store, settings, worker, serving)
    return Supervisor(roles, TerminalPrinter(_trial(store, app), serving)).run()


def _serving(store: Store, settings: Settings) -> Serving | None:
    """None: what it needs is not installed."""

    def tell(url: str | None) -> None:
        if store.broker is not None:
            store.broker.tell_server(url, settings.prefix)

    missing = [name for name in NEEDED if find_spec(name) is None]
    return None if missing else Serving(free_port(settings.server_port), tell)


def _trial(store: Store, app: str | None) -> str:
    """A command to try in a second shell, which is told the store unless it would find this one by itself."""
    found = store.kind == "embedded" and not os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    told = "" if found else f"DUELINE_BOOTSTRAP_SERVERS={store.bootstrap} "
    job = """demo.echo --payload '{"hello": "world"}'""" if app is None else "HANDLER --payload '{…}'"
    return f"{told}dueline job create {job} --in 2s"


def _settings(store: Store) -> Settings:
    try:
        settings = load_settings(bootstrap_servers=store.bootstrap)
    except InvalidInput as error:
        raise InvalidInput("--store", error.problem) from error
    # Passwords and protocols in the shell are for another cluster than the embedded one.
    return settings if store.broker is None else replace(settings, kafka={})


def _roles(store: Store, settings: Settings, worker: Sequence[str], serving: Serving | None) -> list[Role]:
    """What is kept running; `worker` = options of the worker."""
    environment = _environment(store, settings)
    # -P: a directory `pipeline` where the user stands must not hide this package.
    dueline = [sys.executable, "-P", "-m", "pipeline"]
    patience = settings.drain_timeout_ms / 1000 + DRAIN_MARGIN_S
    roles = [
        command("dispatcher", [*dueline, "dispatcher"], env=environment),
        command("worker", [*dueline, "worker", *worker], env=environment, stop_timeout_s=patience),
    ]
    if serving is not None:
        roles.append(_server([*dueline, "server", "--host", HOST], environment, serving))
    if store.broker is not None:
        roles.insert(
            0, Role(name="broker", start=store.broker.respawn, running=store.broker.process, ready=None)
        )
    return roles


def _server(argv: Sequence[str], environment: Mapping[str, str], serving: Serving) -> Role:
    def start() -> subprocess.Popen[bytes]:
        serving.port = free_port(serving.port)  # somebody may have taken it since
        port = ["--port", str(serving.port)]
        return spawn([*argv, *port], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    # `ready` is about jobs: they need not wait for the console.
    return Role(name=SERVER, start=start, ready=None, stop_timeout_s=SERVER_STOP_S)


def _environment(store: Store, settings: Settings) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (store.broker is None or not name.startswith(KAFKA_PREFIX)) and name not in ELSEWHERE
    }
    return inherited | {
        "DUELINE_BOOTSTRAP_SERVERS": store.bootstrap,
        "DUELINE_STATE_DIR": str(settings.state_dir),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True, slots=True)
class TerminalPrinter:
    """All on stderr, also what a child wrote to its stdout: ours carries the store's address and nothing else.
    `trial` is a command to try once all are ready; `serving` is told when its server answers."""

    trial: str
    serving: Serving | None

    def event(self, role: str, text: str) -> None:
        note(f"{role} {text}")
        if (
            role == SERVER and self.serving is not None
        ):  # it was started, and does not answer yet, or has ended
            self.serving.tell(None)

    def line(self, role: str, text: str) -> None:
        click.echo(f"{role} | {readable(text)}", err=True)
        if role == SERVER and ANSWERS in text and self.serving is not None:
            self.serving.tell(self.serving.url)
            note(f"console: {self.serving.url}")

    def all_ready(self) -> None:
        note(f"ready; try: {self.trial}")
