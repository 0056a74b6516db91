"""How a worker comes to its end, said in sentences to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from pipeline.ports import Events
from pipeline.service.log import say


class Spoken:
    """`Events` that says what has a sentence, and hands on the rest."""

    def __init__(self, forward: Events) -> None:
        self._forward = forward

    def on(self, action: str, **fields: Any) -> None:
        sentence = SENTENCES.get(action)
        if sentence is None:
            self._forward.on(action, **fields)
        else:
            say(f"dueline: {sentence(fields)}")


def spoken(events: Events) -> Events:
    """`events`, for a person if one sits at stderr; programs get lines of JSON and nothing else."""
    stream: TextIO | None = sys.stderr  # None if it was closed before we were started
    return Spoken(events) if stream is not None and stream.isatty() else events


def _draining(fields: Mapping[str, Any]) -> str:
    return f"draining: {_runs(fields['in_flight'])} in flight; press Ctrl-C again to leave at once"


def _handed_over(fields: Mapping[str, Any]) -> str:
    return f"another worker goes on with queue {fields['queue']}; what runs here is finished here"


def _drained(fields: Mapping[str, Any]) -> str:
    if not fields["unfinished"]:
        return "drained: nothing is left running"
    waited = fields["drain_timeout_ms"] / 1000
    return f"drained: {_runs(fields['unfinished'])} did not finish within {waited:g} s and may start elsewhere, unspent"


def _not_given_back(fields: Mapping[str, Any]) -> str:
    start = "it starts" if fields["attempts"] == 1 else "they start"
    return (
        f"{_runs(fields['attempts'])} could not be given back: {start} again once this worker counts as gone"
    )


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "draining": _draining,
    "handed_over": _handed_over,
    "drained": _drained,
    "not_given_back": _not_given_back,
}
