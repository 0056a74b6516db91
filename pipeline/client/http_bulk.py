"""Many jobs over HTTP: pieces of NDJSON, each answered with its references, so memory is bounded on both sides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.client.http_calls import Calls, View, taken_apart
from pipeline.client.http_json import instant, job_json
from pipeline.client.request import check
from pipeline.config import Settings
from pipeline.core.errors import InvalidInput
from pipeline.core.jobref import JobRef

PIECE_JOBS = 2_000
PIECE_BYTES = 2 * 1024 * 1024
PIECE_AGE_S = 0.1
"""A piece is sent at any of these: a slow source still sees its references soon."""


class Piece:
    """Lines that are sent together; `first` is the number of its first job, from 1."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.opened = time.monotonic()
        self.lines: list[bytes] = []
        self.bytes = 0
        self.problem: Exception | None = None
        """What ended the stream behind them."""

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.bytes += len(line)

    @property
    def full(self) -> bool:
        old = time.monotonic() - self.opened >= PIECE_AGE_S
        return bool(self.lines) and (len(self.lines) >= PIECE_JOBS or self.bytes >= PIECE_BYTES or old)

    def sent(self, calls: Calls) -> Iterator[JobRef]:
        """References of its jobs, once they are stored; then the problem, if there is one. A piece that may have been
        stored is not sent again: StoreUnreachable."""
        if self.lines:
            view = calls.ask("POST", "/jobs", query={"refs": "true"}, lines=b"\n".join(self.lines))
            with taken_apart():
                refused = view["errors"][0] if view["errors"] else None
                taken = len(self.lines) if refused is None else refused["line"] - 1
                refs = [View(ref) for ref in view["refs"][:taken]]
            for ref in refs:
                yield JobRef(ref.word("id"), ref.word("status"), instant(ref["due_at"]))
            if refused is not None:
                problem = f"{refused['message']}; of those behind it some may be stored"
                raise InvalidInput(f"item {self.first + taken}: {refused['field']}", problem)
        if self.problem is not None:
            raise self.problem


def schedule_all(calls: Calls, jobs: Iterable[Mapping[str, Any]], settings: Settings) -> Iterator[JobRef]:
    """References of `jobs`, in their order, as `Dueline.schedule_many` tells."""
    for piece in _pieces(jobs, settings, _Queues(calls)):
        yield from piece.sent(calls)


def _pieces(jobs: Iterable[Mapping[str, Any]], settings: Settings, queues: _Queues) -> Iterator[Piece]:
    piece = Piece(1)
    try:
        for number, job in enumerate(jobs, 1):
            if not isinstance(job, Mapping):
                raise InvalidInput(f"item {number}", f"{job!r:.80} is no mapping")
            try:
                piece.add(_line(job, settings, queues))
            except InvalidInput as error:
                raise InvalidInput(f"item {number}: {error.field}", error.problem) from error
            if piece.full:
                yield piece
                piece = Piece(number + 1)
    except Exception as problem:  # noqa: BLE001 -- `sent` raises it, once what stands before it is told
        piece.problem = problem
    yield piece


def _line(job: Mapping[str, Any], settings: Settings, queues: _Queues) -> bytes:
    """InvalidInput naming the option."""
    check(job, settings)
    body = job_json(job, settings.queue)
    queues.require(body["queue"])
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


class _Queues:
    """Those there are, as the server tells: a line with another would be left out, and those behind it stored."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: frozenset[str] = frozenset()

    def require(self, queue: str) -> None:
        """InvalidInput if it is unknown. It may have been created since they were asked for."""
        if queue in self._known:
            return
        view = self._calls.ask("GET", "/queues", repeatable=True)
        with taken_apart():
            self._known = frozenset(each["queue"] for each in view["items"])
        if queue not in self._known:
            problem = f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it"
            raise InvalidInput("queue", problem)
