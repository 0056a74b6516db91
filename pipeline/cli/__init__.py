"""The command `dueline`: a group of lazily imported commands, and the one place that turns errors into exits.

Exit codes (DESIGN §9): 0 done, 1 failed or unknown, 2 usage or invalid input, 3 not found, 4 refused or too
late, 5 cannot reach the store. Commands print with `pipeline.cli.output`; they never declare `--json`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import click

from pipeline.cli import interrupt
from pipeline.cli.output import note, remember_json
from pipeline.core.errors import DuelineError

_OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})
INTERRUPTED = 130
"""128 + SIGINT, what a shell reports."""


class Place(NamedTuple):
    """Where a command lives, and the line `dueline --help` shows without importing it."""

    module: str
    attribute: str
    help: str


COMMANDS: Mapping[str, Place] = {
    "dev": Place("dev", "dev", "Run everything here: a real Kafka, a dispatcher and a worker."),
    "demo": Place("demo", "demo", "Send 1,000 dunning mails through a crash, each exactly once."),
    "bench": Place("bench", "bench", "Measure it on this machine, each figure beside a bare loop."),
    "topics": Place("topics", "topics", "Create, check or upgrade the topics of an installation."),
    "config": Place("config", "config", "Show every setting, its source and its meaning."),
    "dispatcher": Place("run", "dispatcher", "Run a dispatcher: fires due jobs."),
    "worker": Place("run", "worker", "Run a worker: executes fired jobs."),
    "server": Place("server", "server", "Serve the HTTP API and the console."),
    "token": Place("token", "token", "Say who may use the HTTP API and the console."),
    "job": Place("job", "job", "Create, read and change jobs."),
    "cron": Place("cron", "cron", "Create, read and change recurring schedules."),
    "queue": Place("queue", "queue", "See what waits in the queues; pause, resume or purge one."),
    "dead": Place("dead", "dead", "List and requeue dead letters."),
    "replay": Place("replay", "replay", "Run again what failed or was lost in a window of time."),
    "backup": Place("backup", "backup", "Write all that is still owed to a directory, while it runs."),
    "restore": Place("backup", "restore", "Restore a backup into empty topics; nothing fires yet."),
    "release": Place("backup", "release", "Let what was restored fire."),
    "era": Place("era", "era", "Begin a new era, after a group lost its generations."),
    "doctor": Place("doctor", "doctor", "Look for what is wrong, what it endangers and what mends it."),
    "status": Place("status", "status", "Show who owns what, and which handlers have a worker."),
    "outage": Place("outage", "outage", "Count what came due in a window, and what became of it."),
    "verify": Place("verify", "verify", "Look whether the store keeps its promises."),
}


def accept_json(command: click.Command) -> click.Command:
    """Give `command` and everything under it the option `--json`, so that it is accepted anywhere on the line
    and click's own parser tells it from the value of another option."""
    if not any("--json" in parameter.opts for parameter in command.params):
        command.params.append(
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=remember_json,
                help="Answer in JSON.",
            )
        )
    if isinstance(command, click.Group):
        for child in command.commands.values():
            accept_json(child)
    return command


class LazyGroup(click.Group):
    """Imports a command when it is used: `--help` and a typo cost no Kafka client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{place.module}"), place.attribute)
        return accept_json(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in COMMANDS.items()])


@click.group("dueline", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dueline", prog_name="dueline")
def dueline() -> None:
    """A distributed job scheduler on Apache Kafka: run this handler at time T with payload P.

    Data goes to stdout, messages to stderr; --json works with every command, and an error stays one line on
    stderr with it. Exit codes: 0 done, 1 failed or unknown, 2 invalid input, 3 not found, 4 refused or too late,
    5 cannot reach the store.
    """


accept_json(dueline)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an expected error is one line on stderr, no traceback.
    `argv` defaults to the process's own. A command may return its exit code."""
    interrupt.remembered()
    try:
        return _run(argv)
    except Exception as error:
        if interrupt.came():
            return INTERRUPTED
        if not _of_the_disk(error):
            raise
        note(f"the state directory failed, and this process with it: {' '.join(str(error).split())}")
        return 1


def _run(argv: Sequence[str] | None) -> int:
    if sys.stdout is None:  # closed by the caller; said before anything is done whose answer would be lost
        note("stdout is closed: redirect it to a file or to /dev/null")
        return 1
    try:
        result = dueline.main(argv, prog_name="dueline", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe is handled, not at interpreter exit
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        note(" ".join(error.format_message().split()))
        return error.exit_code
    except DuelineError as error:
        note(" ".join(str(error).split()))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        return _output_lost()
    except OSError as error:
        if error.errno not in _OUTPUT_LOST or error.filename is not None:
            raise
        note(f"cannot write to stdout: {error.strerror}")
        return _output_lost()
    return result if isinstance(result, int) else 0


def _of_the_disk(error: Exception) -> bool:
    """Whether RocksDB could not read or write its files, for want of space most of all. It has no class for that."""
    return type(error) is Exception and str(error).startswith("IO error: ")


def _output_lost() -> int:
    # The interpreter flushes once more at exit, and would say so on stderr.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
