"""The handler `script`: run a program that the operator listed (docs/handlers.md). No shell, ever."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.context import Context
from pipeline.core.handler import Dead, InvalidPayload, Retry, Stopped
from pipeline.core.times import written_instant
from pipeline.handlers.fields import Fields, checked_text, end_within
from pipeline.handlers.process import Ended, Limits, run_program

FIELDS = ("command", "args", "input", "stdin", "env")
TRY_LATER = 75
"""EX_TEMPFAIL of sysexits.h: no fault of the job, try again."""
OUTPUT_ROOM = 48 * 1024
"""Bytes of JSON for the output in the result, which binary could make many."""
_MESSAGE_KEPT = 1_500
_ARGS_BYTES = 100_000
"""Linux takes 128 KiB as one argument and a quarter of the stack for all."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ScriptFailed(Exception):
    """The program ended with another status than 0; a later attempt may end better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptHandler:
    """`allow` are absolute paths, of directories if they end in /; `variables` those that a script is given."""

    allow: tuple[str, ...]
    variables: tuple[str, ...]
    limits: Limits

    def run(self, ctx: Context, payload: Any) -> dict[str, Any]:
        """Run the program of the payload. `{"exit": 0, "output"}`; raises Retry, ScriptFailed, Stopped."""
        fields = Fields(payload, FIELDS)
        program = self._program(fields.text("command"))
        ended = run_program(
            [program, *_arguments(fields)],
            environment={**self._environment(fields.texts("env")), **_identity(ctx)},
            stdin=_stdin(fields),
            limits=self.limits,
            stop=lambda: ctx.cancelled,
        )
        text = ended.output.decode("utf-8", "backslashreplace")
        for line in text.splitlines():
            ctx.side.log(line)
        return verdict(Path(program).name, ended, text)

    def _program(self, command: str) -> str:
        """The file to run, symbolic links resolved. InvalidPayload or Dead saying why not."""
        if not self.allow:
            raise Dead("command: DUELINE_SCRIPT_ALLOW is not set on this worker, so no script is run")
        if "/" in command and not command.startswith("/"):
            raise InvalidPayload("command: it must be a name or an absolute path")
        given = command if command.startswith("/") else self._found(command)
        real = os.path.realpath(given) if given else None
        if real is None or not any(_covers(entry, real) for entry in self.allow):
            raise Dead(f"command: {command[:200]!r} is not allowed by DUELINE_SCRIPT_ALLOW")
        _check_file(real)
        return real

    def _found(self, name: str) -> str | None:
        """The first listed file of that name, or file in a listed directory."""
        candidates = (
            os.path.join(entry, name) if entry.endswith("/") else entry
            for entry in self.allow
            if entry.endswith("/") or entry.rpartition("/")[2] == name
        )
        return next((path for path in candidates if os.path.isfile(path)), None)

    def _environment(self, asked: Mapping[str, str]) -> dict[str, str]:
        """What the operator listed: the worker's value, else the payload's, so a job adds and never replaces."""
        for name in asked:
            if name not in self.variables:
                raise InvalidPayload(f"env.{name[:80]}: it is not listed in DUELINE_SCRIPT_ENV")
            if name in os.environ:
                raise InvalidPayload(
                    f"env.{name}: the worker has a value for it, which a job may not replace"
                )
        own = {name: os.environ[name] for name in self.variables if name in os.environ}
        return {"PATH": _PATH, "LANG": "C.UTF-8", **asked, **own}


def _covers(entry: str, real: str) -> bool:
    listed = os.path.realpath(entry)
    return real.startswith(listed.rstrip("/") + "/") if entry.endswith("/") else real == listed


def _check_file(path: str) -> None:
    """Dead if running it would be running what somebody else may have written."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise Dead(f"command: {path} cannot be run: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise Dead(f"command: {path} is no file")
    if mode & _OTHERS_MAY_WRITE:
        raise Dead(f"command: {path} may be written by group or others; chmod go-w it")


def _arguments(fields: Fields) -> list[str]:
    arguments = [checked_text(f"args[{n}]", item) for n, item in enumerate(fields.items("args"))]
    if sum(len(text.encode()) + 1 for text in arguments) > _ARGS_BYTES:
        raise InvalidPayload(f"args: more than {_ARGS_BYTES} bytes; hand it over as input")
    return arguments


def _stdin(fields: Fields) -> bytes:
    name = fields.one_of("input", "stdin")
    return b"" if name is None else fields.content(name)


def _identity(ctx: Context) -> dict[str, str]:
    """What lets the program do its effect once."""
    at = ctx.last_success_at
    last_success = {} if at is None else {"DUELINE_LAST_SUCCESS_AT": written_instant(at)}
    return {
        "DUELINE_JOB_ID": ctx.job_id,
        "DUELINE_OCCURRENCE_ID": ctx.occurrence_id,
        "DUELINE_RUN": str(ctx.run),
        "DUELINE_ATTEMPT": str(ctx.attempt),
        "DUELINE_TOKEN": str(ctx.token),
        "DUELINE_IDEMPOTENCY_KEY": ctx.idempotency_key.replace("\0", ""),
        "DUELINE_NOMINAL_AT": written_instant(ctx.nominal_at),
        **last_success,
    }


def verdict(name: str, ended: Ended, text: str) -> dict[str, Any]:
    """The run's result; raises Retry, ScriptFailed, Stopped as it ended."""
    if ended.stopped:
        raise Stopped(f"{name} was ended")
    if ended.code == 0:
        return {"exit": 0, "output": end_within(text, OUTPUT_ROOM)}
    said = f"{name} {_how(ended.code)}: {text.strip()[-_MESSAGE_KEPT:]}".removesuffix(": ")
    if ended.code == TRY_LATER:
        raise Retry(said)
    raise ScriptFailed(said)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
