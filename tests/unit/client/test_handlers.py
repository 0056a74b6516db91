"""How an application declares handlers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import Dueline, InvalidInput


def test_a_handler_keeps_its_function_and_every_option_arrives() -> None:
    app = Dueline()

    @app.job("email.send", timeout="5s", pool="process", concurrency=3, max_age="1h", aliases=("mail",))
    def send(ctx: Any) -> int:
        return 7

    assert send(None) == 7
    spec = app.registry.get("mail")
    assert spec is not None
    assert (spec.timeout_ms, spec.pool, spec.concurrency, spec.max_age_ms) == (5_000, "process", 3, 3_600_000)
    with pytest.raises(TypeError, match="max_attempt"):
        app.job("x", max_attempt=3)(send)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match=r"^concurrency: "):
        app.job("x", concurrency=0)(send)


def test_a_hook_stays_a_function() -> None:
    app = Dueline()

    @app.on_dead
    def told(job: object) -> None: ...

    assert callable(told)
    assert app.registry.dead_hooks == (told,)
    with pytest.raises(InvalidInput, match=r"^on_dead: "):
        app.on_dead(7)  # type: ignore[type-var]


def test_middleware_is_told_of_durations() -> None:
    seen: list[float] = []

    class Timed:
        def after(self, ctx: Any, outcome: Any) -> None:
            seen.append(outcome.seconds)

    app = Dueline(middleware=[Timed()])
    app.job("h")(lambda ctx: sum(range(10_000)))
    spec = app.registry.get("h")
    assert spec is not None
    spec.invoke(None, None)
    assert 0 < seen[0] < 5
