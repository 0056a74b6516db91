"""What an app declares is stored when a worker of it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import Dueline, codec
from pipeline.client import parts
from pipeline.config import Settings, load_settings
from pipeline.core import keys
from pipeline.core.job import Command
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Put
from pipeline.service.declared import Declared, declared_by, storing

T0 = 1_800_000_000_000


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.events.append((action, fields))


@pytest.fixture
def settings(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(parts, "connector", store.connect)
    return load_settings(state_dir=str(tmp_path))


def shop(**settings: Any) -> Dueline:
    app = Dueline(**settings)
    app.cron("30 2 * * *", id="nightly", handler="report")(lambda ctx: None)
    app.every("90s", id="poll", handler="inbox")(lambda ctx: None)
    return app


def put(store: Any, schedule_id: str, source: str) -> None:
    spec = ScheduleSpec(id=schedule_id, handler="h", every_ms=1_000, source=source)
    state = Schedule(
        incarnation=1,
        revision=1,
        spec=spec,
        created_at=T0,
        changed_at=T0,
        last_nominal=T0,
        next_nominal=T0 + 1,
    )
    home = store.layout.home_of_name(schedule_id)
    record = Put(store.names.jobs, home, keys.schedule_key(schedule_id), codec.SCHEDULE.encode(state))
    store.cluster.append(record)


def test_the_source_is_the_module_unless_the_app_has_a_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = declared_by(shop(), "billing.jobs:app", settings)
    assert (found.source, found.version) == ("app:billing.jobs", "")
    assert {(spec.id, spec.source, spec.version, spec.queue) for spec in found.specs} == {
        ("nightly", "app:billing.jobs", "", "default"),
        ("poll", "app:billing.jobs", "", "default"),
    }
    found = declared_by(shop(app_name="till", app_version="1.2"), "billing.jobs", settings)
    assert (found.source, found.version, found.specs[0].version) == ("app:till", "1.2", "1.2")
    monkeypatch.setenv("DUELINE_APP_NAME", "shop")
    monkeypatch.setenv("DUELINE_APP_VERSION", "9")
    found = declared_by(shop(), "billing.jobs", load_settings())
    assert (found.source, found.version) == ("app:shop", "9")


def run(settings: Settings, declared: Declared | None, eventually: Any) -> list[tuple[str, dict[str, Any]]]:
    told = Told()
    with storing(settings, declared, told):
        if declared is not None:
            eventually(lambda: any(action in ("schedules", "schedules.failed") for action, _ in told.events))
    return told.events


def test_what_is_declared_is_put_and_what_is_not_any_more_is_deleted(
    store: Any, settings: Settings, eventually: Any
) -> None:
    put(store, "nightly", "app:billing.jobs")
    put(store, "given-up", "app:billing.jobs")
    put(store, "by-hand", "cli")
    put(store, "theirs", "app:other")

    def answer(command: Command) -> dict[str, Any]:
        if command.verb == "schedule.delete":
            return {"outcome": "deleted"}
        return {"outcome": "created" if command.schedule_id == "poll" else "unchanged"}

    store.owner = answer
    events = run(settings, declared_by(shop(app_version="7"), "billing.jobs", settings), eventually)
    assert [(command.verb, command.schedule_id) for command in store.commands] == [
        ("schedule.put", "nightly"),
        ("schedule.put", "poll"),
        ("schedule.delete", "given-up"),
    ]
    assert store.commands[2].detail == {"source": "app:billing.jobs", "version": "7"}
    counts = {"unchanged": 1, "created": 1, "deleted": 1}
    assert events == [("schedules", {"source": "app:billing.jobs", "version": "7", **counts})]


def test_the_last_one_that_was_declared_is_removed_too(
    store: Any, settings: Settings, eventually: Any
) -> None:
    put(store, "given-up", "app:billing.jobs")
    store.owner = lambda _command: {"outcome": "deleted"}
    run(settings, declared_by(Dueline(), "billing.jobs", settings), eventually)
    assert [command.schedule_id for command in store.commands] == ["given-up"]


def test_what_was_left_alone_is_told_with_its_reason(store: Any, settings: Settings, eventually: Any) -> None:
    store.owner = lambda _command: {"outcome": "older", "reason": "version 8 is there"}
    events = run(settings, declared_by(shop(app_version="7"), "billing.jobs", settings), eventually)
    assert events[0] == (
        "schedules.older",
        {
            "schedule": "nightly",
            "source": "app:billing.jobs",
            "version": "7",
            "reason": "version 8 is there",
        },
    )
    assert events[-1][1]["older"] == 2


def test_a_worker_goes_on_without_a_store_for_its_schedules(
    store: Any, settings: Settings, eventually: Any
) -> None:
    store.cluster.reachable = False
    ((action, fields),) = run(settings, declared_by(shop(), "billing.jobs", settings), eventually)
    assert action == "schedules.failed"
    assert "can be reached" in fields["problem"]


def test_a_worker_of_no_app_declares_nothing(store: Any, settings: Settings, eventually: Any) -> None:
    assert run(settings, None, eventually) == []
    assert store.commands == []
