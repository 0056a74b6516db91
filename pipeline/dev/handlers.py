"""Handlers for trying things out, run by `dueline dev` when no --app is given."""

from __future__ import annotations

import time
from typing import Any

from pipeline import Dueline

app = Dueline()


@app.job("demo.echo")
def echo(ctx: Any, payload: Any) -> Any:
    """Returns its payload as the result."""
    return payload


@app.job("demo.sleep")
def sleep(ctx: Any, seconds: float = 1.0) -> None:
    """Takes `seconds`."""
    time.sleep(seconds)


@app.job("demo.fail")
def fail(ctx: Any, message: str = "failed as asked") -> None:
    """Fails, and is retried."""
    raise RuntimeError(message)
