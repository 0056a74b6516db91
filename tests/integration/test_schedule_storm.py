"""Schedules that people change while their owners and workers are killed: what fired and what was told as skipped is
what each grid enumerates, and nothing twice (DESIGN §8)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Event as Flag
from threading import Thread
from typing import Any

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline import codec
from pipeline.core import series
from pipeline.core.errors import Refused
from pipeline.core.ids import parse_occurrence
from pipeline.core.schedule import Schedule

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
APP = """
import time
from pipeline import Dueline

app = Dueline()

@app.job("quick")
def quick(ctx): ...

@app.job("slow", max_attempts=1)
def slow(ctx):
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        if ctx.cancelled:
            raise RuntimeError("stopped")
        time.sleep(0.05)
"""
OVERLAPS = ("skip", "buffer_one", "buffer_all(3)", "cancel_other", "allow")
VERBS = {"update", "pause", "resume", "trigger", "backfill", "delete", "create"}
IDS = tuple(f"n{n}" for n in range(20))


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def grid(draw: Random) -> dict[str, Any]:
    return {"every": "1s", "misfire": "all(1000)", "overlap": draw.choice(OVERLAPS), "wait": "40s"}


class People(Thread):
    """Who change schedules until they are told to stop, and what they were answered."""

    def __init__(self, shop: Fleet, draw: Random) -> None:
        super().__init__()
        self.schedules, self.draw, self.stop = shop.client.schedules, draw, Flag()
        self.told: list[tuple[str, str, str, str | None]] = []

    def run(self) -> None:
        verbs = (
            "update",
            "pause",
            "resume",
            "resume",
            "trigger",
            "trigger",
            "backfill",
            "delete",
            "create",
            "create",
        )
        while not self.stop.wait(0.2):
            verb, id_ = self.draw.choice(verbs), self.draw.choice(IDS)
            try:
                change = getattr(self, verb)(id_)
            except Refused:  # somebody else changed it, or its range has nothing
                continue
            self.told.append((verb, id_, change.outcome, change.occurrence_id))

    def create(self, id_: str) -> Any:
        return self.schedules.create(id_, self.draw.choice(("quick", "slow")), **grid(self.draw))

    def update(self, id_: str) -> Any:
        return self.schedules.update(id_, handler="slow", overlap=self.draw.choice(OVERLAPS), wait="40s")

    def backfill(self, id_: str) -> Any:
        now = datetime.now(UTC)
        begin, end = now - timedelta(seconds=20), now - timedelta(seconds=5)
        overlap, reverse = self.draw.choice(("allow", "skip", "buffer_all")), self.draw.random() < 0.5
        return self.schedules.backfill(id_, begin, end, overlap=overlap, reverse=reverse, wait="40s")

    def __getattr__(self, verb: str) -> Any:
        return lambda id_: getattr(self.schedules, verb)(id_, wait="40s")


def states(shop: Fleet) -> list[Schedule]:
    latest = {r.key() or b"": r.value() for r in shop.records(shop.settings.names.jobs)}
    return [codec.SCHEDULE.decode(value) for key, value in latest.items() if key[:2] == b"s/" and value]


def at_rest(shop: Fleet) -> bool:
    return not any(
        state.buffer or state.backfills or state.open or state.kept_until for state in states(shop)
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_what_fired_and_was_skipped_is_what_each_grid_enumerates(shop: Fleet, eventually: Eventually) -> None:
    draw = Random(7)
    owners, workers = [shop.dispatcher(), shop.dispatcher()], [shop.worker(), shop.worker()]
    for id_ in IDS:
        created = shop.client.schedules.create(
            id_, draw.choice(("quick", "slow")), **grid(draw) | {"wait": "40s"}
        )
        assert created.outcome == "created"
    people = People(shop, draw)
    people.start()
    for victim, another in (
        (owners[0], shop.dispatcher),
        (workers[0], shop.worker),
        (owners[1], shop.dispatcher),
    ):
        before = len(shop.work())
        eventually(lambda: len(shop.work()) > before + 60, timeout=60)  # noqa: B023
        kill(victim)
        another()
    before = len(shop.work())
    eventually(lambda: len(shop.work()) > before + 60, timeout=60)
    eventually(lambda: {verb for verb, *_ in people.told} >= VERBS, timeout=60)
    people.stop.set()
    people.join()
    for id_ in IDS:
        assert shop.client.schedules.pause(id_, wait="40s").outcome in ("paused", "not_found")
    eventually(lambda: at_rest(shop), timeout=60)
    shop.decided(shop.settings.names.work("default"), shop.settings.names.events)
    check(shop, people)


def check(shop: Fleet, people: People) -> None:
    runs: dict[str, list[int]] = defaultdict(list)
    for run, at in shop.work():
        assert at >= run.due_at, "early"
        runs[run.occurrence_id].append(run.run)
    assert all(numbers == sorted(set(numbers)) and numbers[0] == 1 for numbers in runs.values())
    skipped: Counter[tuple[str, str]] = Counter()
    for record in shop.records(shop.settings.names.events):
        event = codec.EVENT.decode(record.value() or b"")
        if event.kind == "skipped" and event.detail["kind"] == "g":
            skipped[event.detail["schedule"], event.detail["incarnation"]] += int(event.detail["count"])
    for (id_, incarnation), state in last_of_each(shop).items():
        of = {kind: [o for o in runs if o.startswith(f"s:{id_}:{incarnation}:{kind}:")] for kind in "gtb"}
        fired, timing = [parse_occurrence(each).nominal_at for each in of["g"]], series.timing(state)
        decided = timing.count(state.created_at, state.last_nominal)
        told = skipped[id_, str(incarnation)]
        assert len(fired) + told == decided, (
            f"{id_} fired {len(fired)}, skipped {told} of {decided}: {state.counts}"
        )
        assert all(timing.count(at - 1, at) == 1 for at in fired)
        counted = [state.counts.get(name, 0) for name in ("fired", "triggered", "backfilled")]
        assert counted == [len(of[kind]) for kind in "gtb"]
    assert all(
        id_ in runs for verb, _, outcome, id_ in people.told if (verb, outcome) == ("trigger", "fired")
    )


def last_of_each(shop: Fleet) -> dict[tuple[str, int], Schedule]:
    """The last record of each incarnation."""
    found = {}
    for record in shop.records(shop.settings.names.jobs):
        if (record.key() or b"")[:2] == b"s/" and (value := record.value()) is not None:
            state = codec.SCHEDULE.decode(value)
            found[state.spec.id, state.incarnation] = state
    return found
