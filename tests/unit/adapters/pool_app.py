"""Handlers that the tests of the process pool run, in the pool's own processes."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import Cancel, Dead, Dueline, Retry, Snooze

app = Dueline(prefix="pool")


@app.job("echo")
def echo(ctx: Any, payload: Any) -> Any:
    return {"payload": payload, "token": str(ctx.token), "pid": os.getpid()}


@app.job("size")
def size(ctx: Any, payload: Any) -> int:
    return len(payload["text"])


@app.job("later")
async def later(ctx: Any, payload: Any) -> str:
    return "awaited"


@app.job("exit")
def leave(ctx: Any, payload: Any) -> None:
    os._exit(payload["code"])


@app.job("sys-exit")
def sys_exit(ctx: Any, payload: Any) -> None:
    sys.exit(3)


@app.job("segfault")
def segfault(ctx: Any, payload: Any) -> None:
    ctypes.string_at(0)


@app.job("raise")
def fail(ctx: Any, payload: Any) -> None:
    raise ZeroDivisionError("nothing to share")


@app.job("verb")
def verb(ctx: Any, payload: Any) -> Any:
    error = ValueError("the cause")
    match payload["verb"]:
        case "retry":
            raise Retry("not yet", after="90s") from error
        case "returned":
            return Retry(after="1m")
        case "snooze":
            raise Snooze(for_="1h")
        case "cancel":
            raise Cancel("nothing left")
        case "dead":
            raise Dead("never") from error


@app.job("never")
def never(ctx: Any, payload: Any) -> None:
    ctx.progress(0.5, str(os.getpid()))
    while True:
        time.sleep(1)


@app.job("family")
def family(ctx: Any, payload: Any) -> None:
    """Has a child of its own, and neither comes back."""
    child = os.fork()
    if child:
        ctx.progress(0.5, str(child))
    time.sleep(600)


@app.job("fork")
def fork(ctx: Any, payload: Any) -> str:
    """Comes back twice."""
    return "child" if os.fork() == 0 else "parent"


@app.job("threads")
def threads(ctx: Any, payload: Any) -> int:
    for _ in range(payload["count"]):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


@app.job("binary")
def binary(ctx: Any, payload: Any) -> None:
    for stream in (1, 2):
        os.write(stream, b"\xff\xfe\x00\x00\x00\x10" * 100)


@app.job("close-all")
def close_all(ctx: Any, payload: Any) -> str:
    os.closerange(3, 256)
    return "done"


@app.job("unserialisable")
def unserialisable(ctx: Any, payload: Any) -> Any:
    return object()


@app.job("huge")
def huge(ctx: Any, payload: Any) -> str:
    return "x" * 2_000_000


@app.job("outputs")
def outputs(ctx: Any, payload: Any) -> list[str]:
    ctx.logger.warning("line %d", 1)
    ctx.progress(0.25, "quarter")
    ref = ctx.schedule("next", {"n": 1}, at=datetime(2030, 1, 1, tzinfo=UTC), timeout=timedelta(seconds=5))
    ctx.produce("out", b"\xff" * 1_500_000, key="k", headers={"h": b"\x00"})
    return [ref.id, ref.status, ref.due_at.isoformat(), str(ctx.cancelled)]


@app.job("refused")
def refused(ctx: Any, payload: Any) -> list[str]:
    seen = []
    for call in (
        lambda: ctx.schedule("next", {"n": object()}, in_="1s"),
        lambda: ctx.schedule("next", at=datetime(2030, 1, 1)),  # noqa: DTZ001 - it is to be refused
        lambda: ctx.produce("missing", b""),
        lambda: ctx.produce("late", b""),
    ):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - told below
            seen.append(f"{type(error).__name__} {error}")
    return seen


@app.job("at-exit")
def at_exit(ctx: Any, payload: Any) -> None:
    atexit.register(Path(payload["path"]).write_text, "left")
