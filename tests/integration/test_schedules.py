"""Schedules on the real broker: what fires after an outage, and through dispatchers that are killed (DESIGN §8)."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline import codec, preview
from pipeline.adapters.kafka_admin import load_layout
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.core import keys, series
from pipeline.core.job import Command
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Put

pytestmark = pytest.mark.slow

MINUTE, DAY = 60_000, 86_400_000
APP = """
from pipeline import Dueline
app = Dueline()

@app.job("tick")
def tick(ctx):
    last = ctx.last_success_at
    return {"nominal": ctx.nominal_at.isoformat(), "last": last and last.isoformat()}
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def spec_of(id_: str, **changes: Any) -> ScheduleSpec:
    return ScheduleSpec(**{"id": id_, "handler": "tick", "every_ms": MINUTE, "overlap": "allow", **changes})


def put_all(shop: Fleet, puts: list[Put]) -> int:
    """Append these; the broker's time of the last."""
    at: list[int] = [0]
    appender = KafkaAppender(shop.settings.require_bootstrap())
    for put in puts:
        appender.append(put, lambda _error, _offset, time: at.append(time))
    appender.flush(10_000)
    appender.close()
    return max(at)


def command(shop: Fleet, spec: ScheduleSpec) -> Put:
    id_ = str(uuid.uuid4())
    asked = Command(command_id=id_, verb="schedule.create", schedule_id=spec.id, spec=spec)
    home = load_layout(shop.settings).home_of_name(spec.id)
    return Put(shop.settings.names.jobs, home, keys.command_key(id_), codec.COMMAND.encode(asked))


def states(shop: Fleet) -> dict[str, Schedule]:
    latest = {r.key() or b"": r.value() for r in shop.records(shop.settings.names.jobs)}
    found = (codec.SCHEDULE.decode(value) for key, value in latest.items() if key[:2] == b"s/" and value)
    return {state.spec.id: state for state in found}


def fired(shop: Fleet) -> dict[str, list[int]]:
    """Nominal instants of the grid by schedule, in order; each but once."""
    by_id: dict[str, list[int]] = {}
    for run, at in shop.work():
        assert run.run == 1
        assert at >= run.due_at, "early"
        by_id.setdefault(run.schedule_id or "", []).append(run.nominal_at)
    for id_, instants in by_id.items():
        assert len(set(instants)) == len(instants), f"{id_} fired an instant twice"
    return {id_: sorted(instants) for id_, instants in by_id.items()}


@pytest.mark.timeout(200)
def test_after_30_days_of_outage_the_policy_says_what_fires_and_the_rest_is_told(
    shop: Fleet, eventually: Eventually
) -> None:
    """Records as an owner left them a month ago; the series has an end now, so that nothing else fires."""
    names = shop.settings.names
    layout = load_layout(shop.settings)
    now = put_all(shop, [Put(names.events, 0, b"x", codec.EVENT.encode(_nothing()))])
    policies = {"latest": 1, "none": 0, "all(100)": 100, "all(250)": 250}
    puts, meant = [], {}
    for n, policy in enumerate(policies):
        spec = spec_of(f"s{n}", misfire=policy, misfire_threshold_ms=1, end_at=now - 5_000)
        left = series.created(spec, incarnation=n, at=now - 30 * DAY)
        meant[spec.id] = series.range_of(left, now - 30 * DAY + 1, now)
        puts.append(
            Put(
                names.jobs,
                layout.home_of_name(spec.id),
                keys.schedule_key(spec.id),
                codec.SCHEDULE.encode(left),
            )
        )
    put_all(shop, puts)
    shop.dispatcher()
    eventually(lambda: at_end(shop), timeout=60)
    shop.decided(names.work("default"), names.events)
    by_id = fired(shop)
    for (id_, state), count in zip(sorted(states(shop).items()), policies.values(), strict=True):
        assert len(by_id.get(id_, [])) == count
        assert state.counts.get("skipped.misfire", 0) == meant[id_] - count
    told: Counter[str] = Counter()
    for record in shop.records(names.events):
        event = codec.EVENT.decode(record.value() or b"")
        if event.kind == "skipped":
            told[event.detail["schedule"]] += int(event.detail["count"])
    assert told == {
        id_: meant[id_] - count for id_, count in zip(sorted(meant), policies.values(), strict=True)
    }


def _nothing() -> Any:
    from pipeline.core.job import Event

    return Event(id="x", kind="nothing", at=0)


@pytest.mark.timeout(200)
def test_dispatchers_killed_and_stopped_fire_exactly_what_the_preview_tells(
    shop: Fleet, eventually: Eventually
) -> None:
    """Every second, 100 schedules, two dispatchers: one is killed, the other told to end. No gap and no double."""
    first, second = shop.dispatcher(), shop.dispatcher()
    eventually(lambda: '"running"' in shop.log(), timeout=60)
    now = put_all(shop, [Put(shop.settings.names.events, 0, b"x", codec.EVENT.encode(_nothing()))])
    end_at = now + 40_000
    specs = [
        spec_of(f"n{n}", every_ms=1_000, phase_ms=n * 10, misfire="all(1000)", end_at=end_at)
        for n in range(100)
    ]
    put_all(shop, [command(shop, spec) for spec in specs])
    eventually(lambda: len(fired(shop)) == 100, timeout=60)
    for victim, how in ((first, signal.SIGKILL), (second, signal.SIGTERM)):
        os.kill(victim.pid, how)
        victim.wait()
        before = len(shop.work())
        shop.dispatcher()
        eventually(lambda: len(shop.work()) > before + 300 or at_end(shop), timeout=60)  # noqa: B023
    eventually(lambda: at_end(shop), timeout=60)
    shop.decided(shop.settings.names.work("default"))
    by_id, ended = fired(shop), states(shop)
    for spec in specs:
        state = ended[spec.id]
        told = preview(
            "@every 1s",
            after=instant(state.created_at),
            count=1_000,
            phase=f"{spec.phase_ms}ms",
            end=instant(end_at),
        )
        expected = [round(at.timestamp() * 1000) for at in told]
        assert by_id[spec.id] == expected, spec.id
        assert state.counts == {"fired": len(expected)}


def at_end(shop: Fleet) -> bool:
    return all(state.ended == "end" for state in states(shop).values())


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


@pytest.mark.timeout(150)
def test_handlers_get_the_instant_of_the_last_success_and_overlap_waits_for_them(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    shop.worker()
    put_all(shop, [command(shop, spec_of("ticking", every_ms=1_000, overlap="skip"))])
    eventually(lambda: shop.outcomes()["succeeded"] >= 5, timeout=60)
    results = [json.loads(ack.result or b"{}") for ack in shop.acks(b"t/")]
    results.sort(key=lambda result: result["nominal"])
    assert results[0]["last"] is None
    for before, after in pairwise(results):
        assert after["last"] == before["nominal"]
