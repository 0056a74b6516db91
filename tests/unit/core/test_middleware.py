"""What hangs around a handler: in which order, and what it may change."""

import asyncio
import itertools
from datetime import UTC, datetime

import pytest
from sides import Quiet

from pipeline.core.context import Context
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import Cancel, InvalidPayload, Registry
from pipeline.core.middleware import HandlerOutcome, headers_of, with_headers

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Noted:
    def __init__(self, name, notes, *, before=None, after=None):
        self.name, self.notes = name, notes
        self.failing = {"before": before, "after": after}

    def before(self, ctx):
        self._note("before")

    def after(self, ctx, outcome):
        self.outcome = outcome
        self._note("after")

    def _note(self, hook):
        self.notes.append(f"{self.name}.{hook}")
        if self.failing[hook] is not None:
            raise self.failing[hook]


class NotedAsync(Noted):
    async def before(self, ctx):
        await asyncio.sleep(0)
        self._note("before")

    async def after(self, ctx, outcome):
        await asyncio.sleep(0)
        self.outcome = outcome
        self._note("after")


class OnlyBefore:
    def __init__(self, notes):
        self.notes = notes

    def before(self, ctx):
        self.notes.append("only before")


class Headers:
    def __init__(self, **headers):
        self._headers = headers

    def headers(self):
        return self._headers


def context(side=None):
    return Context(
        job_id="j", occurrence_id="j", handler="h", payload={}, due_at=NOW, nominal_at=NOW, fired_at=NOW,
        run=1, attempt=1, idempotency_key="j", token=1, side=side or Quiet(),
    )  # fmt: skip


class Stage:
    """One handler, plain or not, in some middleware."""

    def __init__(self, asynchronous):
        self.notes = []
        self.asynchronous = asynchronous
        self.kind = NotedAsync if asynchronous else Noted
        self.registry = Registry(seconds=itertools.count(10.0).__next__)

    def use(self, name, **failing):
        middleware = self.kind(name, self.notes, **failing)
        self.registry.use(middleware)
        return middleware

    def call(self, answer=None, payload=None):
        def handler(ctx):
            self.notes.append("handler")
            if isinstance(answer, BaseException):
                raise answer
            return answer

        async def handler_async(ctx):
            return handler(ctx)

        spec = self.registry.add("h", handler_async if self.asynchronous else handler)
        made = self.registry.get(spec.name).invoke(context(), payload)
        return asyncio.run(made) if self.asynchronous else made


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def stage(request):
    return Stage(request.param)


def test_before_goes_in_and_after_comes_out(stage):
    outer, inner = stage.use("outer"), stage.use("inner")
    stage.registry.use(OnlyBefore(stage.notes))
    assert stage.call("done") == "done"
    assert stage.notes == [
        "outer.before",
        "inner.before",
        "only before",
        "handler",
        "inner.after",
        "outer.after",
    ]
    assert inner.outcome == outer.outcome == HandlerOutcome(value="done", seconds=1.0)


def test_plain_middleware_may_be_around_a_coroutine():
    stage = Stage(True)
    stage.kind = Noted
    stage.use("m")
    assert stage.call("done") == "done"
    assert stage.notes == ["m.before", "handler", "m.after"]


def test_after_sees_the_error_of_the_handler(stage):
    middleware, error = stage.use("m"), ValueError("no")
    with pytest.raises(ValueError, match="no"):
        stage.call(error)
    assert (middleware.outcome.error, middleware.outcome.value) == (error, None)
    assert middleware.outcome.seconds == 1.0


def test_what_before_raises_is_as_if_the_handler_had(stage):
    outer = stage.use("outer")
    verdict = Cancel("closed today")
    stage.use("inner", before=verdict)
    with pytest.raises(Cancel):
        stage.call()
    assert stage.notes == ["outer.before", "inner.before", "outer.after"]
    assert outer.outcome.error is verdict


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_after_raises_is_logged_and_changes_nothing(stage, caplog, error):
    outer = stage.use("outer")
    stage.use("inner", after=error)
    assert stage.call("done") == "done"
    assert outer.outcome.value == "done"
    (record,) = caplog.records
    assert (record.name, record.action) == ("dueline", "middleware.failed")
    assert "after failed" in record.getMessage()


def test_what_after_raises_does_not_replace_the_handlers_error(stage, caplog):
    stage.use("m", after=RuntimeError("later"))
    with pytest.raises(ValueError, match="first"):
        stage.call(ValueError("first"))
    assert len(caplog.records) == 1


def test_an_invalid_payload_is_seen_by_middleware(stage):
    middleware = stage.use("m")
    with pytest.raises(InvalidPayload):
        stage.call(payload={"unknown": 1})
    assert isinstance(middleware.outcome.error, InvalidPayload)


def test_a_cancelled_coroutine_is_seen_by_middleware_and_stays_cancelled():
    stage = Stage(True)
    middleware = stage.use("m")

    async def handler(ctx):
        await asyncio.Event().wait()

    async def main():
        stage.registry.add("h", handler)
        task = asyncio.ensure_future(stage.registry.get("h").invoke(context(), None))
        while not stage.notes:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert isinstance(middleware.outcome.error, asyncio.CancelledError)


def test_the_class_is_not_the_middleware():
    with pytest.raises(InvalidInput, match=r"^middleware: Noted is a class"):
        Registry().use(Noted)


# -- headers


def test_headers_are_put_on_what_is_scheduled_and_own_ones_win():
    middleware = (Headers(a="1", b="1"), Headers(b="2"), OnlyBefore([]))
    assert headers_of(middleware) == {"a": "1", "b": "2"}
    assert with_headers(middleware, {"handler": "h"})["headers"] == {"a": "1", "b": "2"}
    request = {"handler": "h", "headers": {"b": "own"}}
    assert with_headers(middleware, request)["headers"] == {"a": "1", "b": "own"}
    assert request["headers"] == {"b": "own"}


@pytest.mark.parametrize("headers", [None, 7], ids=str)
def test_a_request_is_left_alone_without_headers_and_with_wrong_ones(headers):
    request = {"handler": "h", "headers": headers}
    assert with_headers((Headers(),), request) is request
    if headers is not None:
        assert with_headers((Headers(a="1"),), request) is request


class Kept(Quiet):
    def schedule(self, request):
        self.request = request


def test_what_a_handler_schedules_carries_the_headers_of_its_middleware():
    registry, side = Registry(), Kept()
    registry.use(Headers(a="1"))
    registry.add("h", lambda ctx: ctx.schedule("other", in_="1s", headers={"b": "2"}) or ctx.cancelled)
    side.end = True
    assert registry.get("h").invoke(context(side), None) is True
    assert side.request == {"handler": "other", "payload": None, "in_": "1s", "headers": {"a": "1", "b": "2"}}


def test_a_context_that_is_none_of_ours_is_passed_on():
    registry = Registry()
    registry.use(Headers(a="1"))
    registry.add("h", lambda ctx: ctx)
    assert registry.get("h").invoke("ctx", None) == "ctx"
