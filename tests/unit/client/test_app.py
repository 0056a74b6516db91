"""The client over a store in memory."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from typing import Any

import pytest

import pipeline
from pipeline import Dueline
from pipeline.client import connection as client_connection
from pipeline.client import parts
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable


def test_nothing_connects_before_the_store_is_needed(store: Any, app: Any) -> None:
    @app.job("email.send", max_attempts=2, timeout="30s")
    def send(ctx: object, to: str) -> None: ...

    spec = app.registry.get("email.send")
    assert spec is not None
    assert (spec.function, spec.max_attempts, spec.timeout_ms) == (send, 2, 30_000)
    app.flush()
    assert store.appenders == []


def test_an_app_takes_over_what_others_declare(store: Any, app: Any) -> None:
    class Noted:
        def before(self, ctx: object) -> None: ...

        def headers(self) -> dict[str, str]:
            return {"noted": "1"}

    told: list[Any] = []
    noted, billing = Noted(), Dueline()

    @billing.job("bill", retry=None, aliases=["invoice"])
    def bill(ctx: object) -> None: ...

    billing.on_dead(told.append)
    whole = Dueline(connect=store.connect, include=[billing, app], middleware=[noted])
    assert whole.registry.names() == ("bill", "invoice")
    assert whole.registry.get("invoice").middleware == (noted,)  # type: ignore[union-attr]
    assert whole.registry.dead_hooks == (told.append,)
    with pytest.raises(InvalidInput, match=r"^include: .* is no Dueline"):
        whole.include(billing.registry)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^middleware: "):
        whole.use(object())


def test_middleware_puts_headers_on_every_job(store: Any, app: Any) -> None:
    class Tenant:
        def headers(self) -> dict[str, str]:
            return {"tenant": "7"}

    app.use(Tenant())
    app.schedule("a", in_="1s")
    asyncio.run(app.aschedule("b", in_="1s", headers={"tenant": "own"}))
    list(app.schedule_many([{"handler": "c", "in_": 1}, {"handler": "d", "in_": 1, "headers": {"x": "y"}}]))
    assert {run.handler: run.headers for run in store.runs()} == {
        "a": {"tenant": "7"},
        "b": {"tenant": "own"},
        "c": {"tenant": "7"},
        "d": {"tenant": "7", "x": "y"},
    }


def test_a_created_job_stands_at_its_home(store: Any, app: Any) -> None:
    ref = app.schedule("email.send", {"to": "a@b"}, in_="10m")
    (record,) = store.jobs()
    assert record.key() == b"j/" + ref.id.encode()
    assert record.partition() == store.layout.home(ref.id)
    (run,) = store.runs()
    assert (run.job_id, run.handler, run.payload) == (ref.id, "email.send", b'{"to":"a@b"}')
    assert run.due_at == store.clock.now() + 600_000
    assert ref.status == "created"


def test_a_mistake_is_told_without_a_store(store: Any, app: Any) -> None:
    store.cluster.reachable = False
    with pytest.raises(InvalidInput, match="handler"):
        app.schedule("NO", in_="1s")
    with pytest.raises(InvalidInput, match="priority: not supported yet"):
        app.schedule("h", in_="1s", priority=1)
    with pytest.raises(InvalidInput, match="on_conflict: 'x' is none of"):
        app.schedule("h", in_="1s", key="k", on_conflict="x")
    for change in (app.cancel, app.requeue):
        with pytest.raises(InvalidInput, match="id: 'nonsense' is no job"):
            change("nonsense")
    with pytest.raises(StoreUnreachable):
        app.schedule("h", in_="1s")


def chained() -> None:
    try:
        raise OSError("of the client library")
    except OSError as error:
        raise StoreUnreachable("nobody there") from error


def test_an_error_leaves_the_client_as_one_traceback(
    store: Any, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_load_layout", chained)
    calls = (
        lambda: app.schedule("h", in_="1s"),
        lambda: asyncio.run(app.aschedule("h", in_="1s")),
        lambda: list(app.schedule_many([{"handler": "h", "in_": "1s"}])),
        lambda: app.get("j" + "0" * 26),
        lambda: app.live_handlers(),
    )
    for call in calls:
        with pytest.raises(StoreUnreachable) as raised:
            call()
        shown = traceback.format_exception(raised.value)
        assert "".join(shown).count("Traceback") == 1
        assert shown[-1] == "pipeline.core.errors.StoreUnreachable: nobody there\n"
        assert isinstance(raised.value.__context__, OSError)


def test_a_malformed_setting_is_one_traceback_too(store: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        Dueline(connect=store.connect, concurrency="many")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1


def test_an_unknown_queue_is_looked_for_again(store: Any, app: Any) -> None:
    with pytest.raises(InvalidInput, match="dueline topics create --queue mail"):
        app.schedule("h", in_="1s", queue="mail")
    store.add_queues({"mail": 2})
    app.schedule("h", in_="1s", queue="mail")
    assert [run.queue for run in store.runs()] == ["mail"]


def test_threads_share_one_producer(store: Any, app: Any) -> None:
    ids: list[str] = []
    start = threading.Barrier(8)

    def create() -> None:
        start.wait()
        ids.extend(app.schedule("h", in_="1s").id for _ in range(25))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.appenders) == 1
    assert sorted(ids) == sorted(run.job_id for run in store.runs())
    assert len(set(ids)) == 200


def test_coroutines_wait_without_blocking_each_other(store: Any, app: Any) -> None:
    async def create() -> list[Any]:
        return await asyncio.gather(*(app.aschedule("h", {"n": n}, in_="1s") for n in range(50)))

    refs = asyncio.run(create())
    assert {ref.id for ref in refs} == {run.job_id for run in store.runs()}


def test_silence_is_an_error_that_says_the_job_may_be_stored(
    store: Any, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule("h", in_="1s")
    monkeypatch.setattr(client_connection, "DELIVERY_S", 0.01)
    store.appenders[0].silent = True
    with pytest.raises(StoreUnreachable, match="may or may not"):
        app.schedule("h", in_="1s")
    with pytest.raises(StoreUnreachable, match="may or may not"):
        asyncio.run(app.aschedule("h", in_="1s"))
    store.appenders[0].silent = False


def test_a_store_that_does_not_know_its_topics_yet_is_unreachable(store: Any, app: Any) -> None:
    """It is coming back; "not found" would be said of a job."""
    app._connected()
    store.appenders[0].refused = NotFound("unit.jobs: Unknown partition")
    with pytest.raises(StoreUnreachable, match="may be coming back"):
        app.schedule("h", in_="1h")


def test_a_refused_record_is_the_callers_error(store: Any, app: Any) -> None:
    app.schedule("h", in_="1s")
    store.appenders[0].refused = InvalidInput("record", "too large")
    with pytest.raises(InvalidInput, match="too large"):
        app.schedule("h", in_="1s")
    with pytest.raises(InvalidInput, match="too large"):
        asyncio.run(app.aschedule("h", in_="1s"))


def test_a_cancelled_waiter_leaves_the_poller_alive(store: Any, app: Any) -> None:
    app.schedule("h", in_="1s")
    store.appenders[0].silent = True

    async def give_up() -> None:
        task = asyncio.create_task(app.aschedule("h", in_="1s"))
        while len(store.jobs()) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    store.appenders[0].silent = False
    app.schedule("h", in_="1s")


def test_get_reads_the_job_back(app: Any) -> None:
    ref = app.schedule("email.send", {"to": "a@b"}, in_="10m")
    assert app.get(ref.id)["status"] == "pending"
    with pytest.raises(NotFound):
        app.get("j" + "0" * 26)
    with pytest.raises(InvalidInput, match="id"):
        app.get("nonsense")


def test_live_handlers_are_those_of_fresh_heartbeats(store: Any, app: Any) -> None:
    store.beat("w1", handlers=("old",))
    store.clock.advance(6_000)
    store.beat("w2", handlers=("email.send",))
    assert app.live_handlers() == {"email.send"}


def test_close_flushes_and_a_later_call_connects_anew(store: Any, app: Any) -> None:
    with app:
        app.schedule("h", in_="1s")
    assert store.appenders[0].closed
    app.schedule("h", in_="1s")
    assert len(store.appenders) == 2


def test_a_dropped_client_is_closed(store: Any) -> None:
    app = Dueline(connect=store.connect)
    app.schedule("h", in_="1s")
    del app
    assert store.appenders[0].closed


def test_a_client_lives_as_long_as_its_iterator(store: Any) -> None:
    jobs = ({"handler": "h", "in_": 1} for _ in range(3_000))
    refs = Dueline(connect=store.connect).schedule_many(jobs)
    assert len(list(refs)) == 3_000
    del refs
    assert store.appenders[0].closed


def test_the_child_of_a_fork_makes_its_own_client(store: Any, app: Any) -> None:
    app.schedule("h", in_="1s")
    if (child := os.fork()) == 0:
        try:
            app.schedule("h", in_="1s")
            made = len(store.appenders), store.appenders[0].closed, len({r.job_id for r in store.runs()})
            os._exit(0 if made == (2, False, 2) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    app.schedule("h", in_="1s")
    assert len(store.appenders) == 1


def test_settings_are_keywords(store: Any) -> None:
    assert Dueline(connect=store.connect, prefix="billing").settings.prefix == "billing"
    with pytest.raises(InvalidInput, match="did you mean prefix"):
        Dueline(connect=store.connect, prefx="billing")


def test_the_package_root_knows_the_adapters() -> None:
    assert parts.connector is pipeline.connect
    for name in pipeline.__all__:
        assert getattr(pipeline, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = pipeline.nonsense  # type: ignore[attr-defined]
