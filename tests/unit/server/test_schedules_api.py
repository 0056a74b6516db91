"""Schedules over HTTP: each verb, tags of versions, previews."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from unit.server.test_jobs_api import field_of, problem

from pipeline import codec
from pipeline.commands.schedules import NOTE_LIMIT
from pipeline.core.keys import schedule_key
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Put
from pipeline.readmodel.questions import Position
from pipeline.server import recent, schedule_changes

DAILY = {"id": "daily", "handler": "report", "cron": "0 10 * * *", "tz": "Europe/Berlin"}


def stored(store: Any, **fields: Any) -> None:
    """The record of a schedule, as its owner would write it."""
    now = store.clock.now()
    spec = ScheduleSpec(id="daily", handler="report", cron="0 10 * * *", tz="Europe/Berlin", source="api")
    state = Schedule(
        **{
            "incarnation": 7,
            "revision": 3,
            "created_at": now,
            "changed_at": now,
            "last_nominal": now,
            **fields,
        },
        spec=spec,
    )
    home = store.layout.home_of_name("daily")
    store.cluster.append(Put(store.names.jobs, home, schedule_key("daily"), codec.SCHEDULE.encode(state)))


def known(served: Any, eventually: Any) -> Any:
    eventually(lambda: served.get("/schedules/daily").status_code == 200)
    return served.get("/schedules/daily")


def test_a_schedule_is_created_by_its_owner(served: Any, store: Any) -> None:
    store.owner = lambda _: {"outcome": "created", "detail": {"next_due": "1800010800000", "revision": "1"}}
    answer = served.post("/schedules", DAILY)
    assert answer.status_code == 201
    assert answer.json() == {
        "id": "daily",
        "outcome": "created",
        "next_due": "2027-01-15T11:00:00.000Z",
        "revision": 1,
    }
    (command,) = store.commands
    assert (command.verb, command.requested_by, command.spec.source) == ("schedule.create", "local", "api")
    (audit,) = served.audits()
    assert (audit.detail["verb"], audit.detail["schedule"]) == ("schedule.create", "daily")


def test_one_that_is_there_is_the_same_or_a_conflict(served: Any, store: Any) -> None:
    stored(store)
    store.owner = lambda _: {"outcome": "existing", "detail": {"revision": "3"}}
    answer = served.post("/schedules", DAILY)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "existing")
    problem(served.post("/schedules", {**DAILY, "cron": "0 11 * * *"}), 409, "refused")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**DAILY, "cron": "0 25 * * *"}, "cron"),
        ({**DAILY, "tz": "Nowhere"}, "tz"),
        ({**DAILY, "bogus": 1}, "bogus"),
        ({**DAILY, "id": "No"}, "id"),
        ({**DAILY, "source": "cli"}, "source"),
        ({**DAILY, "handler": 1}, "handler"),
        ({**DAILY, "queue": "nowhere"}, "queue"),
        ({**DAILY, "payload": [1]}, "payload"),
        ({**DAILY, "start": "x"}, "start"),
        ({**DAILY, "overlap": "both"}, "overlap"),
        ({"id": "daily", "handler": "h"}, "cron"),
        ({"handler": "h", "cron": "@daily"}, "id"),
    ],
)
def test_what_is_wrong_is_named(served: Any, store: Any, body: Any, field: str) -> None:
    assert field_of(served.post("/schedules", body)) == field
    assert store.commands == []


def test_a_change_is_made_to_what_was_read(served: Any, store: Any, eventually: Any) -> None:
    stored(store)
    read = known(served, eventually)
    tag = read.headers["etag"]
    assert tag == f'"{read.json()["etag"]}"'
    same = served.get("/schedules/daily", headers={"if-none-match": tag})
    assert same.json()["id"] == "daily", "its runs and next instants may be others by now"
    store.owner = lambda _: {"outcome": "updated", "detail": {"revision": "4"}}
    patch = {"cron": "0 12 * * *", "tz": None}
    answer = served.ask("PATCH", "/schedules/daily", json=patch, headers={"if-match": tag})
    assert answer.json()["outcome"] == "updated"
    (command,) = store.commands
    assert (command.spec.cron, command.spec.tz, command.detail["revision"]) == ("0 12 * * *", "UTC", "3")
    stored(store, revision=4)
    eventually(lambda: served.get("/schedules/daily").headers["etag"] != tag)
    problem(served.ask("PATCH", "/schedules/daily", json=patch, headers={"if-match": tag}), 412, "stale")
    assert len(store.commands) == 1


TOLD = {"revision": "4", "incarnation": "7"}


@pytest.mark.parametrize(
    ("method", "path", "body", "outcome", "state"),
    [
        ("POST", "", DAILY, "created", "active"),
        ("POST", "", DAILY, "existing", "active"),
        ("PATCH", "/daily", {"cron": "@daily"}, "updated", "active"),
        ("POST", "/daily/pause", None, "paused", "paused"),
        ("POST", "/daily/resume", None, "resumed", "active"),
    ],
)
def test_a_change_answers_the_tag_of_what_it_made(
    served: Any, store: Any, eventually: Any, method: str, path: str, body: Any, outcome: str, state: str
) -> None:
    """So that whoever made it can change it again without reading it, and nobody else's change is taken for his."""
    stored(store)
    known(served, eventually)
    detail = {**TOLD, "state": state}
    store.owner = lambda _: {"outcome": outcome, "detail": detail}
    given = {} if body is None else {"json": body}
    tag = served.ask(method, f"/schedules{path}", **given).headers["etag"]
    stored(store, revision=4, paused="why" if state == "paused" else None)
    eventually(lambda: served.get("/schedules/daily").headers["etag"] == tag)
    store.owner = lambda _: {"outcome": outcome, "detail": {"revision": "4"}}  # of an older version
    assert "etag" not in served.ask(method, f"/schedules{path}", **given).headers


def test_who_loses_a_race_is_told_so(served: Any, store: Any, eventually: Any) -> None:
    stored(store)
    known(served, eventually)
    store.owner = lambda _: {"outcome": "refused", "reason": "revision: it is 4 by now, not 3"}
    problem(served.ask("PATCH", "/schedules/daily", json={"cron": "@daily"}), 412, "stale")


@pytest.mark.parametrize(
    ("body", "headers", "field"),
    [
        ({}, {}, "body"),
        ({"id": "x"}, {}, "id"),
        ({"handler": None}, {}, "handler"),
        ({"cron": "no"}, {}, "cron"),
        ({"cron": "@daily"}, {"if-match": "7"}, "If-Match"),
        ({"cron": "@daily"}, {"if-match": '"'}, "If-Match"),
    ],
)
def test_changes_that_make_no_sense(
    served: Any, store: Any, eventually: Any, body: Any, headers: Any, field: str
) -> None:
    stored(store)
    known(served, eventually)
    assert field_of(served.ask("PATCH", "/schedules/daily", json=body, headers=headers)) == field
    assert store.commands == []


@pytest.mark.parametrize(
    ("method", "path", "body", "verb", "outcome"),
    [
        ("POST", "/pause", {"note": "why"}, "schedule.pause", "paused"),
        ("POST", "/pause", None, "schedule.pause", "paused"),
        ("POST", "/resume", None, "schedule.resume", "resumed"),
        ("POST", "/trigger", {"overlap": "skip"}, "schedule.trigger", "fired"),
        ("DELETE", "", None, "schedule.delete", "deleted"),
        ("DELETE", "/backfills/b1", None, "schedule.cancel_backfill", "cancelled"),
    ],
)
def test_each_verb_asks_the_owner(
    served: Any, store: Any, method: str, path: str, body: Any, verb: str, outcome: str
) -> None:
    store.owner = lambda _: {"outcome": outcome, "detail": {"revision": "4"}}
    given = {} if body is None else {"json": body}
    answer = served.ask(method, f"/schedules/daily{path}", **given)
    assert (answer.status_code, answer.json()["outcome"]) == (200, outcome)
    (command,) = store.commands
    assert (command.verb, command.schedule_id, command.requested_by) == (verb, "daily", "local")
    store.owner = lambda _: {"outcome": "not_found"}
    problem(served.ask(method, f"/schedules/daily{path}", **given), 404, "not-found")
    store.owner = lambda _: None
    assert served.ask(method, f"/schedules/daily{path}?wait=20ms", **given).status_code == 202


def test_a_trigger_that_is_skipped_is_a_conflict(served: Any, store: Any) -> None:
    store.owner = lambda _: {"outcome": "skipped"}
    body = problem(served.post("/schedules/daily/trigger", {"overlap": "skip"}), 409, "refused")
    assert body["outcome"] == "skipped"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/schedules/daily/trigger", None),
        ("/schedules", DAILY),
        ("/jobs", {"handler": "h", "in": "1h", "key": "k"}),
    ],
)
def test_a_dispatcher_that_is_older_is_named_and_no_field(
    served: Any, store: Any, path: str, body: Any
) -> None:
    store.owner = lambda _: {"outcome": "refused", "reason": "verb: 'limited.schedule.trigger' is unknown"}
    detail = problem(served.post(path, body), 409, "refused")["detail"]
    assert "the dispatcher that owns this is older" in detail


def test_a_backfill_is_counted_before_it_is_asked_for(served: Any, store: Any) -> None:
    stored(store)
    span = {"from": "2027-01-01T00:00:00Z", "to": "2027-01-11T00:00:00Z"}
    counted = served.post("/schedules/daily/backfill", {**span, "dry_run": True}).json()
    assert counted == {"id": "daily", "outcome": "counted", "backfill": None, "total": 10}
    problem(served.post("/schedules/daily/backfill", {**span, "limit": 9}), 409, "refused")
    assert store.commands == []
    store.owner = lambda _: {"outcome": "started", "detail": {"backfill": "b1"}}
    started = served.post("/schedules/daily/backfill", {**span, "rate": 5, "reverse": True}).json()
    assert (started["outcome"], started["backfill"], started["total"]) == ("started", "b1", 10)
    (command,) = store.commands
    assert command.detail["rate"] == "5"
    problem(served.post("/schedules/nothing/backfill", span), 404, "not-found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "from"),
        ({"from": "2027-01-01T00:00:00Z"}, "to"),
        ({"from": "2027-01-02T00:00:00Z", "to": "2027-01-01T00:00:00Z"}, "to"),
        ({"from": "2027-01-01T00:00:00Z", "to": "2030-01-01T00:00:00Z"}, "to"),
        ({"from": "x", "to": "2027-01-01T00:00:00Z"}, "from"),
        ({"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z", "rate": 0}, "rate"),
        ({"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z", "overlap": "x"}, "overlap"),
    ],
)
def test_backfills_that_make_no_sense(served: Any, store: Any, body: Any, field: str) -> None:
    stored(store)
    assert field_of(served.post("/schedules/daily/backfill", body)) == field
    assert store.commands == []


# -- previews ------------------------------------------------------------------------------------------------


def test_a_preview_tells_of_the_nights_on_which_the_clock_changes(served: Any) -> None:
    body = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-27T00:00:00Z", "count": 2}
    view = served.post("/schedules/preview", body).json()
    assert view["words"] == "every day at 02:30 Berlin"
    usual, moved = view["instants"]
    assert (usual["at"], usual["note"]) == ("2027-03-27T01:30:00.000Z", None)
    assert (moved["local"], moved["note"]) == (
        "2027-03-28T03:00:00+02:00",
        "the clock goes forward by 1 hour right before it",
    )
    assert len(served.post("/schedules/preview", {"every": "90s"}).json()["instants"]) == 10


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "cron"),
        ({"cron": "x"}, "cron"),
        ({"every": "1h", "after": "finish"}, "after"),
        ({"cron": "@daily", "count": 0}, "count"),
        ({"cron": "@daily", "count": 1_001}, "count"),
        ({"cron": "@daily", "from": "x"}, "from"),
        ({"cron": "@daily", "handler": "h"}, "handler"),
    ],
)
def test_previews_that_make_no_sense(served: Any, body: Any, field: str) -> None:
    assert field_of(served.post("/schedules/preview", body)) == field


def test_a_condition_that_is_not_heeded_is_refused(served: Any, store: Any) -> None:
    headers = {"if-match": '"nonsense"'}
    for method, path in (("DELETE", "/schedules/daily"), ("POST", "/schedules/daily/pause")):
        assert field_of(served.ask(method, path, headers=headers)) == "If-Match"
    assert store.commands == []


def test_a_note_that_would_be_cut_is_refused(served: Any, store: Any) -> None:
    assert field_of(served.post("/schedules/daily/pause", {"note": "x" * (NOTE_LIMIT + 1)})) == "note"
    assert store.commands == []


def test_a_schedule_may_be_called_like_a_path(served: Any, store: Any) -> None:
    for name in ("preview", "sync"):
        problem(served.get(f"/schedules/{name}"), 404, "not-found")
        assert served.ask("DELETE", f"/schedules/{name}?wait=0s").status_code == 202
    answer = served.ask("PUT", "/schedules/preview")
    assert answer.headers["allow"] == "DELETE, GET, PATCH, POST"


def test_a_long_file_keeps_nobody_waiting(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    parse = schedule_changes.parse_crontab

    def parsed(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*args, **options)

    monkeypatch.setattr(schedule_changes, "parse_crontab", parsed)
    served.post("/schedules/sync", {"name": "f", "text": "* * * * * x"})
    assert [name.partition("_")[0] for name in threads] == ["look"]


def test_what_a_file_would_change_is_told(served: Any, store: Any) -> None:
    stored(store)
    body = {"name": "jobs.tab", "text": "0 10 * * * /bin/report\n"}
    view = served.post("/schedules/sync", body).json()
    assert len(view["create"]) == 1
    assert view["problems"] == []
    broken = served.post("/schedules/sync", {**body, "text": "99 * * * * x\n"}).json()
    assert broken["problems"][0]["line"] == 1
    assert store.commands == []
    for change, field in (
        ({"name": "a b"}, "name"),
        ({"format": "beat"}, "format"),
        ({"text": None}, "text"),
    ):
        assert field_of(served.post("/schedules/sync", {**body, **change})) == field


def test_schedules_are_listed_by_state_source_and_handler(served: Any, store: Any, eventually: Any) -> None:
    stored(store)
    view = known(served, eventually).json()
    source, handler = view["spec"]["source"], view["spec"]["handler"]
    for query, number in (
        ({"state": "active"}, 1), ({"state": "paused"}, 0), ({"source": source, "handler": handler}, 1),
        ({"source": "app:other"}, 0), ({"handler": "other"}, 0), ({"text": "dail"}, 1),
        ({"text": "x", "state": "active"}, 0),
    ):  # fmt: skip
        assert len(served.get("/schedules", params=query).json()["items"]) == number, query
    assert field_of(served.get("/schedules?state=odd")) == "state"


def test_an_occurrence_is_asked_for_behind_what_its_schedule_was_told(
    served: Any, store: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that was deleted a moment ago has no instant to come, whoever asks for it by its id."""
    stored(store, next_nominal=store.clock.now() + 60_000)
    known(served, eventually)
    id_ = f"s:daily:7:g::{store.clock.now() + 60_000}"
    eventually(lambda: served.get(f"/jobs/{id_}").status_code == 200)
    assert "dueline-stale" not in served.get(f"/jobs/{id_}").headers
    monkeypatch.setattr(recent, "WAIT_MS", 50)
    home = store.layout.home_of_name("daily")
    unheard = Position(store.names.jobs, home, 1 << 40)

    async def note() -> None:
        served.services.recent.note("local", [unheard], "daily")

    served.run(note())
    assert served.get(f"/jobs/{id_}").headers["dueline-stale"] == "true"
    assert "dueline-stale" not in served.get("/jobs/s:other:7:g::1").headers
