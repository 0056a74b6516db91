"""What application code schedules, without a store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline import Dueline, InvalidInput, NotFound
from pipeline.testing import FakeClock, Recording, recording

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def dueline_app() -> Dueline:
    app = Dueline()

    @app.job("email.send")
    def send(ctx: Any, to: str) -> dict[str, str]:
        app.schedule("log.sent", {"to": to}, in_="1m")
        return {"sent": to}

    return app


def test_the_fixture_shows_what_was_scheduled(dueline_app: Dueline, dueline: Recording) -> None:
    ref = dueline_app.schedule("email.send", {"to": "a@b"}, in_="10m", queue="any", headers={"a": "b"})
    (job,) = dueline.scheduled
    assert (job.id, job.handler, job.payload) == (ref.id, "email.send", {"to": "a@b"})
    assert job.due_at == ref.due_at == NOW + timedelta(minutes=10)
    assert (job.queue, job.headers) == ("any", {"a": "b"})
    assert dueline_app.get(ref.id)["status"] == "pending"


def test_the_fixture_runs_jobs_at_its_time(dueline: Recording) -> None:
    dueline.clock.advance("1h")
    outcome = dueline.run("email.send", {"to": "a@b"})
    assert outcome.result == {"sent": "a@b"}
    (job,) = dueline.scheduled
    assert job.due_at == NOW + timedelta(hours=1, minutes=1)


def test_every_way_to_schedule_is_recorded(dueline_app: Dueline, dueline: Recording) -> None:
    asyncio.run(dueline_app.aschedule("a", in_=1))
    refs = list(
        dueline_app.schedule_many(
            {"handler": "b", "in_": n, "key": "k" if n == 2 else None} for n in range(3)
        )
    )
    assert [job.handler for job in dueline.scheduled] == ["a", "b", "b", "b"]
    assert [job.id for job in dueline.scheduled[1:]] == [ref.id for ref in refs]
    assert dueline.scheduled[3].key == "k"


def test_requests_are_checked_as_always(dueline_app: Dueline, dueline: Recording) -> None:
    with pytest.raises(InvalidInput, match=r"^at: missing"):
        dueline_app.schedule("email.send")
    assert dueline.scheduled == []


@pytest.mark.parametrize(
    ("conflict", "status", "due", "payload"),
    [
        (None, "existing", 1, 1),
        ("replace", "replaced", 2, 2),
        ("debounce", "debounced", 2, 1),
        ("reject", "rejected", 1, 1),
    ],
)
def test_a_key_is_held_by_one_job(
    dueline_app: Dueline, dueline: Recording, conflict: str | None, status: str, due: int, payload: int
) -> None:
    assert dueline_app.schedule("h", {"n": 1}, in_="1h", key="k").status == "created"
    ref = dueline_app.schedule("h", {"n": 2}, in_="2h", key="k", on_conflict=conflict)
    assert ref.status == status
    (job,) = dueline.scheduled
    assert (job.due_at, job.payload) == (NOW + timedelta(hours=due), {"n": payload})
    assert ref.due_at == job.due_at


def test_changes_are_made_and_noted(dueline_app: Dueline, dueline: Recording) -> None:
    one = dueline_app.schedule("h", in_="1h").id
    two = asyncio.run(dueline_app.aschedule("h", in_="1h", key="k")).id
    assert dueline_app.reschedule(one, in_="3h").outcome == "rescheduled"
    assert dueline_app.update(one, {"n": 1}).outcome == "updated"
    assert asyncio.run(dueline_app.acancel(two)).outcome == "cancelled"
    assert dueline_app.cancel(two).outcome == "not_found"
    assert dueline_app.requeue(two).outcome == "not_found"
    (job,) = dueline.scheduled
    assert (job.id, job.payload, job.due_at) == (one, {"n": 1}, NOW + timedelta(hours=3))
    assert dueline.changes == [("reschedule", one), ("update", one), ("cancel", two), ("cancel", two)]


def test_what_is_asked_of_schedules_is_noted(dueline_app: Dueline, dueline: Recording) -> None:
    schedules = dueline_app.schedules
    assert schedules.create("nightly", "report", cron="0 2 * * *").outcome == "created"
    assert schedules.pause("nightly").outcome == "paused"
    assert schedules.update("nightly", tz="UTC").outcome == "not_found"
    assert schedules.list() == []
    assert dueline.changes == [("schedule.create", "nightly"), ("schedule.pause", "nightly")]
    assert dueline.scheduled == []


def test_nothing_has_run(dueline_app: Dueline, dueline: Recording) -> None:
    ref = dueline_app.schedule("h", in_="1h")
    with pytest.raises(NotFound):
        dueline_app.result(ref.id, wait=0)
    with pytest.raises(NotFound):
        dueline_app.get("j" + "0" * 26)
    assert dueline_app.live_handlers() == frozenset()


def test_after_the_block_the_app_is_as_it_was(store: Any, app: Any) -> None:
    app.schedule("before", in_=1)
    with recording(app, FakeClock(NOW + timedelta(days=1))) as recorded:
        assert app.schedule("in", in_=0).due_at == NOW + timedelta(days=1)
        with recording(app) as inner:
            app.schedule("deeper", in_=0)
    app.schedule("after", in_=1)
    assert [job.handler for job in recorded.scheduled] == ["in"]
    assert [job.handler for job in inner.scheduled] == ["deeper"]
    assert [run.handler for run in sorted(store.runs(), key=lambda run: run.handler)] == ["after", "before"]
    assert len(store.appenders) == 1


def test_without_a_fixture_for_the_app_its_absence_is_told(request: pytest.FixtureRequest) -> None:
    from pipeline.testing import plugin

    with pytest.raises(pytest.UsageError, match="define a fixture `dueline_app`"):
        plugin.dueline_app.__wrapped__()


def test_a_stop_cancels_what_is_only_recorded(dueline_app: Dueline, dueline: Recording) -> None:
    one = dueline_app.schedule("h", {"n": 1}, in_="1h").id
    assert dueline_app.cancel(one, stop=True).outcome == "cancelled"
    assert dueline.scheduled == []
