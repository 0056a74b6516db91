"""`app.schedules`: what is asked of the owner of a schedule, and what its answer means."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline import Dueline, InvalidInput, InvalidSchedule, NotFound, Refused
from pipeline.core.job import Command
from pipeline.core.schedule import Schedule, ScheduleSpec, spec_to_json
from pipeline.ports import Put

DAY = "0 10 * * *"


def stored(store: Any, **fields: Any) -> Schedule:
    """The record of a schedule, as its owner would write it."""
    from pipeline import codec
    from pipeline.core.keys import schedule_key

    names = set(Schedule.__dataclass_fields__) - {"spec"}
    own = {name: fields.pop(name) for name in names & fields.keys()}
    spec = ScheduleSpec(
        **{
            "id": "daily",
            "handler": "report",
            **({} if fields.keys() & {"every_ms", "after_ms"} else {"cron": DAY}),
        }
        | fields
    )
    now = store.clock.now()
    state = Schedule(
        **{
            "incarnation": 7,
            "revision": 3,
            "created_at": now,
            "changed_at": now,
            "last_nominal": now,
            **own,
        },
        spec=spec,
    )
    home = store.layout.home_of_name(spec.id)
    store.cluster.append(Put(store.names.jobs, home, schedule_key(spec.id), codec.SCHEDULE.encode(state)))
    return state


def asked(store: Any) -> Command:
    (command,) = store.commands
    assert isinstance(command, Command)
    return command


def test_a_schedule_is_created_by_its_owner(app: Dueline, store: Any) -> None:
    store.owner = lambda _: {"outcome": "created", "detail": {"next_due": "1800010800000", "revision": "1"}}
    change = app.schedules.create(
        "daily",
        "report",
        cron=DAY,
        tz="Europe/Berlin",
        payload={"to": "a@b"},
        timeout=timedelta(minutes=5),
        start=datetime(2027, 1, 1, tzinfo=UTC),
        exclude={"holidays": {"2027-12-25"}},
        jitter=None,
    )
    assert (change.id, change.outcome, change.revision) == ("daily", "created", 1)
    assert change.next_due == datetime.fromtimestamp(1_800_010_800, UTC)
    command = asked(store)
    assert (command.verb, command.schedule_id, command.job_id) == ("schedule.create", "daily", None)
    assert command.spec is not None
    assert spec_to_json(command.spec) == spec_to_json(
        ScheduleSpec(
            id="daily",
            handler="report",
            cron=DAY,
            tz="Europe/Berlin",
            payload=b'{"to":"a@b"}',
            timeout_ms=300_000,
            start_at=1_798_761_600_000,
            exclude={"holidays": ("2027-12-25",)},
        )
    )
    homes = {record.partition() for record in store.jobs()}
    assert homes == {store.layout.home_of_name("daily")}


def test_without_an_answer_it_is_accepted_and_other_changes_are_unknown(app: Dueline) -> None:
    assert app.schedules.create("daily", "report", cron=DAY, wait="20ms").outcome == "accepted"
    assert app.schedules.pause("daily", wait="20ms").outcome == "unknown"


@pytest.mark.parametrize(
    ("ask", "verb", "detail"),
    [
        (lambda s: s.pause("daily", "tax season"), "schedule.pause", {"note": "tax season"}),
        (lambda s: s.resume("daily"), "schedule.resume", {}),
        (lambda s: s.trigger("daily"), "schedule.trigger", {}),
        (lambda s: s.trigger("daily", overlap="skip"), "schedule.trigger", {"overlap": "skip"}),
        (lambda s: s.delete("daily"), "schedule.delete", {}),
        (lambda s: s.cancel_backfill("daily", "b1"), "schedule.cancel_backfill", {"backfill": "b1"}),
        (
            lambda s: s.backfill("daily", "2027-01-01T00:00:00Z", datetime(2027, 1, 2, tzinfo=UTC)),
            "schedule.backfill",
            {"from": "1798761600000", "to": "1798848000000", "limit": "1000"},
        ),
        (
            lambda s: s.backfill(
                "daily",
                "2027-01-01T00:00:00Z",
                "2027-01-02T00:00:00Z",
                overlap="buffer_all",
                rate=6,
                reverse=True,
                limit=5,
            ),
            "schedule.backfill",
            {
                "from": "1798761600000",
                "to": "1798848000000",
                "limit": "5",
                "overlap": "buffer_all",
                "rate": "6",
                "reverse": "true",
            },
        ),
    ],
)
def test_each_change_is_one_command(
    app: Dueline, store: Any, ask: Callable[[Any], Any], verb: str, detail: dict[str, str]
) -> None:
    store.owner = lambda _: {"outcome": "done"}
    assert ask(app.schedules).outcome == "done"
    command = asked(store)
    assert (command.verb, command.schedule_id, command.detail, command.spec) == (verb, "daily", detail, None)


def test_an_update_keeps_what_it_does_not_name(app: Dueline, store: Any) -> None:
    stored(store, tz="Europe/Berlin", end_at=2_000_000_000_000, payload=b'{"a":1}', source="cli")
    store.owner = lambda _: {"outcome": "updated"}
    assert app.schedules.update("daily", tz="UTC", end=None, handler="other").outcome == "updated"
    command = asked(store)
    assert command.spec == ScheduleSpec(
        id="daily", handler="other", cron=DAY, tz="UTC", payload=b'{"a":1}', source="cli"
    )
    assert command.detail == {"revision": "3"}  # so that no change made meanwhile is undone


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        ({"cron": DAY}, {"every": "90s"}, {"every": "90s"}),
        ({"every_ms": 90_000, "phase_ms": 5_000}, {"cron": DAY}, {"cron": DAY}),
        (
            {"after_ms": 60_000},
            {"every": timedelta(minutes=2), "after": "finish"},
            {"every": "2m", "after": "finish"},
        ),
        ({"after_ms": 60_000}, {"every": "2m"}, {"every": "2m"}),
    ],
)
def test_a_new_rhythm_replaces_the_old(
    app: Dueline, store: Any, before: dict[str, Any], options: dict[str, Any], after: dict[str, Any]
) -> None:
    stored(store, **before)
    store.owner = lambda _: {"outcome": "updated"}
    app.schedules.update("daily", **options)
    spec = asked(store).spec
    assert spec is not None
    shown = spec_to_json(spec)
    assert {name: shown[name] for name in ("cron", "every", "after") if name in shown} == after
    assert spec.phase_ms == 0


def test_a_change_that_was_overtaken_is_refused(app: Dueline, store: Any) -> None:
    stored(store)
    store.owner = lambda _: {"outcome": "refused", "reason": "revision: it is 4 by now, not 3"}
    with pytest.raises(Refused, match="daily: it is 4 by now"):
        app.schedules.update("daily", tz="UTC")
    store.owner = lambda _: {"outcome": "refused", "reason": "limit: 5000 occurrences are more than 1000"}
    with pytest.raises(Refused, match="5000 occurrences"):
        app.schedules.backfill("daily", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z")


def test_what_the_owner_refuses_names_the_field(app: Dueline, store: Any) -> None:
    store.owner = lambda _: {"outcome": "refused", "reason": "to: is in the future"}
    with pytest.raises(InvalidInput, match="to: is in the future") as raised:
        app.schedules.backfill("daily", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z")
    assert raised.value.field == "to"


CREATE = ("daily", "report")
DAYS = ("daily", "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z")


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [
        ("create", ("Daily", "report"), {"cron": DAY}, "id"),
        ("create", ("daily", "Report"), {"cron": DAY}, "handler"),
        ("create", CREATE, {"cron": "61 * * * *"}, "cron"),
        ("create", CREATE, {"cron": DAY, "every": "1m"}, "cron"),
        ("create", CREATE, {}, "cron"),
        ("create", CREATE, {"cron": DAY, "tz": "Mars/Base"}, "tz"),
        ("create", CREATE, {"cron": DAY, "queue": "nowhere"}, "queue"),
        ("create", CREATE, {"cron": DAY, "start": datetime(2027, 1, 1)}, "start"),  # noqa: DTZ001
        ("create", CREATE, {"cron": DAY, "payload": [1]}, "payload"),
        ("create", CREATE, {"cron": DAY, "wait": "x"}, "wait"),
        ("create", CREATE, {"cron": DAY, "misfire": "all(1001)"}, "misfire"),
        ("create", CREATE, {"cron": DAY, "nonsense": 1}, "nonsense"),
        ("create", CREATE, {"cron": DAY, "exclude": {"a": "2027-01-01"}}, "exclude"),
        ("trigger", ("daily",), {"overlap": "buffer_one"}, "overlap"),
        ("backfill", (DAYS[0], DAYS[2], DAYS[1]), {}, "to"),
        ("backfill", ("daily", "yesterday", DAYS[2]), {}, "from"),
        ("backfill", DAYS, {"rate": 0}, "rate"),
        ("backfill", DAYS, {"overlap": "x"}, "overlap"),
        ("pause", ("no id",), {}, "id"),
        ("update", ("no id",), {}, "id"),
        ("get", ("no id",), {}, "id"),
    ],
)
def test_bad_input_names_the_option_and_asks_nothing(
    app: Dueline, store: Any, method: str, arguments: tuple[str, ...], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        getattr(app.schedules, method)(*arguments, **options)
    assert (raised.value.field, store.commands) == (field, [])


def test_what_is_wrong_with_its_times_is_an_invalid_schedule(app: Dueline) -> None:
    with pytest.raises(InvalidSchedule):
        app.schedules.create("daily", "report", cron="0 0 30 2 *")


def test_an_update_of_what_is_not_there_asks_nothing(app: Dueline, store: Any) -> None:
    assert app.schedules.update("daily", tz="UTC").outcome == "not_found"
    assert store.commands == []


def test_schedules_are_read(app: Dueline, store: Any) -> None:
    with pytest.raises(NotFound, match="daily"):
        app.schedules.get("daily")
    stored(store, note="for the board")
    stored(store, id="other", every_ms=90_000)
    view = app.schedules.get("daily")
    assert (view["spec"]["note"], view["revision"], view["state"]) == ("for the board", 3, "active")
    assert [each["id"] for each in app.schedules.list()] == ["daily", "other"]
    assert json.dumps(app.schedules.list())  # nothing but JSON
    stored(store, id="kept", source="file:crontab")
    assert [each["id"] for each in app.schedules.list(source="file:crontab", state="active")] == ["kept"]
    assert app.schedules.list(state="paused") == app.schedules.list(handler="nobody") == []
    with pytest.raises(InvalidInput, match=r"^state"):
        app.schedules.list(state="odd")
