"""`dueline server`: the HTTP API and the console."""

from __future__ import annotations

from importlib.util import find_spec

import click

from pipeline.core.errors import InvalidInput, Refused

NEEDED = ("fastapi", "uvicorn", "nicegui", "httptools", "uvloop")
"""Packages of the extra `server`."""


@click.command("server", short_help="Serve the HTTP API and the console.")
@click.option("--host", metavar="H", help="Address. Default: DUELINE_SERVER_HOST, or this machine alone.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", help="Default: DUELINE_SERVER_PORT, 9664."
)
def server(host: str | None, port: int | None) -> None:
    """Serve the HTTP API under /api/v1 and the console, until SIGTERM or Ctrl-C.

    Start as many as you like: each follows the topics and keeps what it shows on its own disk. Events go to stderr,
    one JSON object a line; the first one has the address.

    Without a token it serves this machine alone, and whoever is on it may do everything; another address is refused
    then (exit code 4): `dueline token create NAME --role admin` makes a token.
    """
    for name in NEEDED:
        if find_spec(name) is None:
            raise Refused(f'{name} is missing: pip install "dueline[server]"')
    from pipeline import tell_dev_store
    from pipeline.config import load_settings
    from pipeline.server.console import mount_console
    from pipeline.server.run import run_server

    try:
        settings = load_settings(server_host=host, server_port=port)
    except InvalidInput as error:
        raise InvalidInput({"server_host": "--host"}.get(error.field, error.field), error.problem) from error
    tell_dev_store(settings)
    run_server(settings, mount_console)
