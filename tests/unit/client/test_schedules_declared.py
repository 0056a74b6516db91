"""`@app.cron` and `@app.every`: schedules beside the code."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import Dueline, InvalidInput, InvalidSchedule
from pipeline.core.schedule import ScheduleSpec

AT_TEN = "0 10 * * *"


def declared(app: Dueline) -> tuple[ScheduleSpec, ...]:
    return app.declared(source="app:shop", version="7", queue="default")


def test_above_a_job_it_schedules_that(app: Dueline) -> None:
    @app.cron(AT_TEN, tz="Europe/Berlin", id="daily-report", payload={"to": "board"}, jitter="5m")
    @app.job("report.daily", max_attempts=2)
    def daily(ctx: Any, to: str) -> str:
        return to

    (spec,) = declared(app)
    assert spec == ScheduleSpec(
        id="daily-report",
        handler="report.daily",
        cron=AT_TEN,
        tz="Europe/Berlin",
        payload=b'{"to":"board"}',
        jitter_ms=300_000,
        source="app:shop",
        version="7",
    )
    assert app.registry.names() == ("report.daily",)
    assert daily(None, to="x") == "x"  # still the function


def test_alone_it_makes_the_function_a_handler(app: Dueline) -> None:
    @app.every("90s", id="poll")
    def poll_inbox(ctx: Any) -> None: ...

    @app.cron("@daily", handler="clean.up")
    async def sweep(ctx: Any) -> None: ...

    polled, swept = declared(app)
    assert (polled.id, polled.handler, polled.every_ms) == ("poll", "poll_inbox", 90_000)
    assert (swept.id, swept.handler) == ("clean.up", "clean.up")
    assert app.registry.names() == ("clean.up", "poll_inbox")


def test_one_handler_may_have_several(app: Dueline) -> None:
    @app.cron("0 8 * * *", id="morning")
    @app.every("1h", id="hourly", after="finish")
    def look(ctx: Any) -> None: ...

    assert [(spec.id, spec.handler, spec.after_ms) for spec in declared(app)] == [
        ("hourly", "look", 3_600_000),
        ("morning", "look", None),
    ]
    assert app.registry.names() == ("look",)


def test_it_looks_through_a_decorator_between(app: Dueline) -> None:
    import functools

    def traced(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            return function(*args, **more)

        return call

    @app.cron(AT_TEN, id="a")
    @traced
    @app.job("report")
    def report(ctx: Any) -> None: ...

    assert [spec.handler for spec in declared(app)] == ["report"]
    assert app.registry.names() == ("report",)


def test_below_a_job_it_would_be_another_handler_and_is_refused(app: Dueline) -> None:
    with pytest.raises(InvalidInput, match=r"put @app\.job below it"):

        @app.job("report")
        @app.cron(AT_TEN)
        def report(ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"expression": "61 * * * *"}, "cron"),
        ({"expression": AT_TEN, "tz": "Mars/Base"}, "tz"),
        ({"expression": AT_TEN, "id": "No Id"}, "id"),
        ({"expression": AT_TEN, "overlap": "never"}, "overlap"),
        ({"expression": AT_TEN, "nonsense": 1}, "nonsense"),
        ({"expression": AT_TEN, "every": "1m"}, "cron"),
    ],
)
def test_a_mistake_is_told_where_it_stands(app: Dueline, options: dict[str, Any], field: str) -> None:
    def handler(ctx: Any) -> None: ...

    with pytest.raises(InvalidInput) as raised:
        app.cron(**options)(handler)
    assert raised.value.field == field
    assert declared(app) == ()


def test_a_time_that_never_comes_is_an_invalid_schedule(app: Dueline) -> None:
    with pytest.raises(InvalidSchedule):
        app.cron("0 0 31 2 *", handler="x")(lambda ctx: None)


def test_an_id_stands_once(app: Dueline) -> None:
    app.cron(AT_TEN, id="a", handler="x")(lambda ctx: None)
    with pytest.raises(InvalidInput, match="'a' already") as raised:
        app.cron("0 11 * * *", id="a", handler="y")(lambda ctx: None)
    assert raised.value.field == "id"


def test_an_included_app_brings_its_schedules(store: Any) -> None:
    part = Dueline()
    part.cron(AT_TEN, id="a", handler="x")(lambda ctx: None)
    whole = Dueline(include=[part])
    whole.include(part)  # once more changes nothing
    assert [spec.id for spec in declared(whole)] == ["a"]
    other = Dueline()
    other.cron("0 11 * * *", id="a", handler="z")(lambda ctx: None)
    with pytest.raises(InvalidInput, match="'a' already"):
        whole.include(other)


def test_a_queue_is_that_of_the_setting_unless_it_is_named(app: Dueline) -> None:
    app.cron(AT_TEN, id="a", handler="x")(lambda ctx: None)
    app.cron(AT_TEN, id="b", handler="y", queue="mail")(lambda ctx: None)
    specs = app.declared(source="app:shop", version="", queue="bulk")
    assert [spec.queue for spec in specs] == ["bulk", "mail"]
