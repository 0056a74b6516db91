"""A server process beside the store: jobs one by one and as a stream, questions with many jobs pending, its memory, and
how soon its pages are painted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pipeline
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.core.schedule import ScheduleSpec
from pipeline.core.times import format_instant, parse_instant
from pipeline.dev.bench import schedules, server_load
from pipeline.dev.bench.figures import Figure, Target, at_least, at_most, per_second, spread
from pipeline.dev.bench.handlers import NOTHING
from pipeline.dev.bench.load import HANDLER, far
from pipeline.dev.bench.process import ServerProcess
from pipeline.dev.bench.server_bare import bare_server, streamed, topic
from pipeline.dev.bench.server_paint import Paint, chromium, paints
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, Context
from pipeline.dev.process import describe_exit, spawn, stop

POSTS, AT_ONCE = 8_000, 50
GETS, GETS_AT_ONCE = 3_000, 10
LISTS, RARE_LISTS, LISTS_AT_ONCE = 400, 50, 4
PAGE = 50
POLL_S = 0.1
STOP_TIMEOUT_S = 5.0
RARE = "no.such.text"
"""Part of no id, key or handler: a page that looks at as much as it may and finds nothing."""


def answers(context: Context, pending: int, recurring: int, lines: int) -> list[Figure]:
    """With so many jobs pending and so many schedules; `lines` of one stream."""
    with site(context.store, context.directory) as here:
        places = here.settings, topic(here.settings, here.layout.partitions), here.layout.partitions
        with bare_server(*places) as port:
            load(here, "post", port, AT_ONCE, posts(pending))  # what is first is slow: imports, connections
            bare_posts = load(here, "post", port, AT_ONCE, posts(pending))
        streamed(*places, server_load.lines(lines))
        bare_lines = streamed(*places, server_load.lines(lines))
        context.tell(f"bare: {bare_posts.rate:,.0f} requests/s, {bare_lines:,.0f} lines/s")
        _scheduled(here, recurring)
        here.create_blindly(far(pending, here.now()))
        server = here.server()
        port = server.port(PATIENCE_S)
        caught_up(server, port)
        context.tell(f"server: {pending:,} pending, {recurring:,} schedules folded")
        asked = _Asked(context, here, server, port)
        figures = asked.posts(posts(pending), bare_posts)
        caught_up(server, port)
        figures += asked.questions()
        figures += asked.pages()
        figures += asked.stream(lines, bare_lines)
        server.stop()
    size = {"pending": float(pending), "schedules": float(recurring)}
    return [replace(figure, detail={**figure.detail, **size}) for figure in figures]


def posts(pending: int) -> int:
    """Requests of a measurement with so many jobs pending: few in a small one."""
    return max(min(POSTS, pending // 10), AT_ONCE)


def _scheduled(here: Site, count: int) -> None:
    """Have them made; their owner ends then: what it does beside the server is no part of these figures."""
    dispatcher = here.dispatcher()
    dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
    specs = [
        ScheduleSpec(
            id=f"report-{n:06}", handler=NOTHING, cron=f"{n % 60} {n % 24} * * *", tz="Europe/Berlin"
        )
        for n in range(count)
    ]
    schedules.create(here, specs, dispatcher.check)
    dispatcher.stop()


class _Asked:
    """The figures of one server."""

    def __init__(self, context: Context, here: Site, server: ServerProcess, port: int) -> None:
        self._context, self._here, self._server, self._port = context, here, server, port

    def posts(self, count: int, beside: Loaded) -> list[Figure]:
        """The first ones, by a server that has just started, and as many more."""
        first, warm = (load(self._here, "post", self._port, AT_ONCE, count) for _ in range(2))
        self._context.tell(
            f"POST {warm.rate:,.0f}/s, p99 {spread(warm.times).p99:.0f} ms; the first {count:,}:"
            f" {first.rate:,.0f}/s, p99 {spread(first.times).p99:.0f} ms"
        )
        detail = {"jobs": float(count), "at_once": float(AT_ONCE)}
        name = f"POST of one job, {AT_ONCE} at once"
        return [
            _figure(name, warm.rate, "jobs/s", at_least(1_500), detail, beside.rate),
            _latency(f"{name}, p99", warm.times, at_most(50), beside.times),
            _latency(f"{name}, p99 of the first {count:,} after its start", first.times, None, beside.times),
        ]

    def questions(self) -> list[Figure]:
        """Single jobs and pages of 50 from anywhere."""
        chance, paths = Random(1), list[str]()
        begin, end = (
            parse_instant("due_at", self._page(order=order, limit=1)["items"][0]["due_at"])
            for order in ("due", "-due")
        )
        ids = [
            row["id"]
            for _ in range(20)
            for row in self._page(due_from=anywhere(chance, begin, end), limit=PAGE)["items"]
        ]
        paths = [f"/api/v1/jobs/{chance.choice(ids)}" for _ in range(GETS)]
        found = [_latency("GET of one job, p99", self._get(paths, GETS_AT_ONCE), at_most(30))]
        full, rare = at_most(100), None  # which has a time of its own, however much there is to look at
        kinds: Mapping[str, tuple[int, Target | None, Mapping[str, object]]] = {
            "": (LISTS, full, {}),
            ", by status and handler": (LISTS, full, {"status": "pending", "handler": HANDLER}),
            ", of a text that nothing has": (RARE_LISTS, rare, {"text": RARE}),
        }
        for name, (count, target, wanted) in kinds.items():
            paths = [_path(due_from=anywhere(chance, begin, end), limit=PAGE, **wanted) for _ in range(count)]
            times = self._get(paths, LISTS_AT_ONCE)
            found.append(_latency(f"page of {PAGE}{name}, p99", times, target))
        for figure in found:
            self._context.tell(f"{figure.name} {figure.value:.1f} ms")
        return found

    def _page(self, **wanted: object) -> Any:
        return json.loads(ask(self._port, _path(status="pending", **wanted))[1])

    def _get(self, paths: Sequence[str], at_once: int) -> list[float]:
        file = self._here.directory / "paths"
        file.write_text("\n".join(paths))
        return load(self._here, "get", self._port, at_once, file).times

    def pages(self) -> list[Figure]:
        """None where there is no Chromium, or nothing to drive it with."""
        program = chromium()
        if program is None:
            self._context.tell("pages: not measured, there is no Chromium with Playwright")
            return []
        found = paints(program, f"http://{server_load.HOST}:{self._port}")
        self._context.tell("first paint: " + ", ".join(_painted(*each) for each in found.items()))
        slowest = max(paint.first for paint in found.values())
        detail = {name: paint.first for name, paint in found.items()}
        live = {f"{name}, live": paint.live for name, paint in found.items()}
        return [_figure("first paint of any page", slowest, "ms", at_most(1_500), {**detail, **live})]

    def stream(self, lines: int, beside: float) -> list[Figure]:
        """Twice: what memory the first one takes, caches and buffers included, the second one has."""
        rates, peaks = list[float](), list[float]()
        for _ in range(2):
            with watched(self._server) as most:
                took = load(self._here, "stream", self._port, lines)
                rates.append(per_second(lines, took.times[0]))
                caught_up(self._server, self._port)
            peaks.append(most[0])
            self._context.tell(f"stream {rates[-1]:,.0f} jobs/s, {peaks[-1]:,.0f} MB")
        figures = [
            _figure("stream of jobs", rates[-1], "jobs/s", at_least(40_000), {"jobs": float(lines)}, beside)
        ]
        if all(peaks):  # where /proc tells
            growth = peaks[1] / peaks[0]
            figures += [
                _figure("memory (RSS) of the server, at most", peaks[1], "MB", at_most(500), {}),
                _figure("growth of its memory, second stream to first", growth, "times", at_most(1.2), {}),
            ]
        return figures


def anywhere(chance: Random, begin: int, end: int) -> str:
    """An instant between two, as a query tells it."""
    return format_instant(chance.randrange(begin, end + 1))


def _path(**wanted: object) -> str:
    return f"/api/v1/jobs?{urlencode({name: str(value) for name, value in wanted.items()})}"


def _painted(name: str, paint: Paint) -> str:
    return f"{name} {paint.first:.0f} ms ({paint.live:.0f} until live)"


# -- asking ----------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """What a process that asked has seen: requests a second, and how long each took, ms."""

    rate: float
    times: list[float]


def load(here: Site, kind: str, port: int, *arguments: object) -> Loaded:
    """Have a process of its own ask (`server_load`). DuelineError with its last words."""
    errors = here.directory / "load.log"
    with errors.open("wb") as log:
        process = spawn(
            [sys.executable, "-m", "pipeline.dev.bench.server_load", kind, str(port), *map(str, arguments)],
            cwd=Path(pipeline.__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert process.stdout is not None
        try:
            with process.stdout as out:
                told = out.read()
            code = process.wait(STOP_TIMEOUT_S)
        finally:
            stop(process, STOP_TIMEOUT_S)
    if code:
        last = errors.read_text("utf-8", "replace").splitlines()[-1:]
        raise DuelineError(f"what asks the server ended ({describe_exit(code)}): {''.join(last)}")
    found = json.loads(told)
    return Loaded(per_second(len(found["times"]), found["elapsed_ms"]), found["times"])


def ask(port: int, path: str) -> tuple[int, str]:
    """One question. StoreUnreachable if nothing answers."""
    try:
        with closing(HTTPConnection(server_load.HOST, port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
    except OSError as error:
        raise StoreUnreachable(f"the server does not answer: {error}") from error


def caught_up(server: ServerProcess, port: int) -> None:
    """Until it has folded all that is there. StoreUnreachable if it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        server.check()
        status, told = ask(port, "/api/v1/status")
        fresh = json.loads(told)["freshness"] if status == 200 else {}
        if fresh.get("ready") and not fresh["behind"]:
            return
        time.sleep(POLL_S)
    raise StoreUnreachable(f"the server has not caught up after {PATIENCE_S:.0f} s")


@contextmanager
def watched(server: ServerProcess) -> Iterator[list[float]]:
    """The most resident MB of it meanwhile, in a list of one; 0 where /proc does not tell."""
    most, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            most[0] = max(most[0], server.memory_mb().get("rss_mb", 0.0))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


# -- figures ---------------------------------------------------------------------------------------------------


def _figure(
    name: str,
    value: float,
    unit: str,
    target: Target | None,
    detail: Mapping[str, float],
    beside: float | None = None,
) -> Figure:
    return Figure(
        shape="server",
        name=f"server, {name}",
        value=value,
        unit=unit,
        bare=beside,
        target=target,
        detail=detail,
    )


def _latency(
    name: str, times: Sequence[float], target: Target | None, beside: Sequence[float] | None = None
) -> Figure:
    found = spread(times)
    bare = None if beside is None else spread(beside).p99
    return _figure(name, found.p99, "ms", target, found.described(), bare)
