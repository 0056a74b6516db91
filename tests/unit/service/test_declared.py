"""What an app declares is stored when a worker of it starts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline import Dueline
from pipeline.client import parts, syncing
from pipeline.config import Settings, load_settings
from pipeline.core.job import Command
from pipeline.service.declared import Declared, declared_by, storing


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


def test_what_is_declared_is_put_and_the_owners_remove_what_is_not_any_more(
    store: Any, settings: Settings, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = store.layout.home_of_name

    def answer(command: Command) -> dict[str, Any]:
        if command.verb == "schedule.retain":
            here = command.detail["partition"] == str(home("given-up"))
            return {"outcome": "retained", "detail": {"removed": "given-up"} if here else {}}
        return {"outcome": "created" if command.schedule_id == "poll" else "unchanged"}

    store.owner = answer
    declared = declared_by(shop(app_version="7"), "billing.jobs", settings)
    monkeypatch.setattr(type(store.follower), "schedules", None)  # nobody reads what there is
    events = run(settings, declared, eventually)
    puts, retained = store.commands[:2], store.commands[2:]
    assert [(command.verb, command.schedule_id) for command in puts] == [
        ("schedule.put", "nightly"),
        ("schedule.put", "poll"),
    ]
    assert [command.detail for command in retained] == [
        {
            "source": "app:billing.jobs",
            "version": "7",
            "partition": str(number),
            "after": "",
            "until": "",
            "ids": " ".join(id_ for id_ in ("nightly", "poll") if home(id_) == number),
        }
        for number in range(store.layout.partitions)
    ]
    counts = {"unchanged": 1, "created": 1, "deleted": 1}
    assert events == [("schedules", {"source": "app:billing.jobs", "version": "7", **counts})]


def test_the_last_one_that_was_declared_is_removed_too(
    store: Any, settings: Settings, eventually: Any
) -> None:
    home = str(store.layout.home_of_name("given-up"))
    store.owner = lambda command: {
        "outcome": "retained",
        "detail": {"removed": "given-up"} if command.detail["partition"] == home else {},
    }
    events = run(settings, declared_by(Dueline(), "billing.jobs", settings), eventually)
    assert [command.detail["ids"] for command in store.commands] == [""] * store.layout.partitions
    assert events == [("schedules", {"source": "app:billing.jobs", "version": "", "deleted": 1})]


def test_an_owner_that_has_more_is_asked_again_and_one_that_refuses_is_told(
    store: Any, settings: Settings, eventually: Any
) -> None:
    def answer(command: Command) -> dict[str, Any]:
        if command.detail["partition"] == "1":
            return {"outcome": "refused", "reason": "verb: unknown"}
        if command.detail["partition"] != "0" or command.detail["after"] == "c":
            return {"outcome": "retained"}
        following = {"": "b", "b": "c"}[command.detail["after"]]
        return {"outcome": "retained", "detail": {"removed": f"{following}1 {following}2", "next": following}}

    store.owner = answer
    events = run(settings, declared_by(Dueline(), "billing.jobs", settings), eventually)
    here = [command.detail for command in store.commands if command.detail["partition"] == "0"]
    assert [(detail["after"], detail["until"]) for detail in here] == [("", ""), ("b", ""), ("c", "")]
    assert [action for action, _ in events] == ["schedules.refused", "schedules"]
    assert "Upgrade the dispatchers" in events[0][1]["reason"]
    assert (events[1][1]["deleted"], events[1][1]["refused"]) == (4, 1)


def test_many_ids_are_named_in_ranges_that_leave_nothing_out(
    store: Any, settings: Settings, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "IDS_OF_A_PIECE", 2)
    store.owner = lambda command: {"outcome": "retained" if command.schedule_id is None else "unchanged"}
    app = Dueline()
    for n in range(90):
        app.every("90s", id=f"n{n:02}", handler=f"inbox{n}")(lambda ctx: None)
    run(settings, declared_by(app, "billing.jobs", settings), eventually)
    pieces = [command.detail for command in store.commands if command.verb == "schedule.retain"]
    named = [id_ for detail in pieces for id_ in detail["ids"].split()]
    assert sorted(named) == [f"n{n:02}" for n in range(90)]
    for number in range(store.layout.partitions):
        here = [detail for detail in pieces if detail["partition"] == str(number)]
        assert [here[0]["after"], here[-1]["until"]] == ["", ""]
        for before, after in pairwise(here):
            assert before["until"] == after["after"] == before["ids"].split()[-1]


def test_what_was_left_alone_is_told_with_its_reason(store: Any, settings: Settings, eventually: Any) -> None:
    store.owner = lambda command: (
        {"outcome": "older", "reason": "version 8 is there"}
        if command.schedule_id
        else {"outcome": "retained", "detail": {"older": "new"} if command.detail["partition"] == "0" else {}}
    )
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
    assert [fields["schedule"] for _, fields in events[:-1]] == ["nightly", "poll", "new"]
    assert events[-1][1]["older"] == 3


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
