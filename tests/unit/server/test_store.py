"""Appends that an event loop awaits, while reports come from any thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.core.errors import NotFound, StoreUnreachable
from pipeline.server.store import AWAY, SLOW, Confirmation


@pytest.fixture
def often() -> Iterator[None]:
    """Threads give way to each other as often as can be."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("often")
def test_reports_of_several_threads_at_once_are_all_heard() -> None:
    async def confirm() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            told: list[Any] = []
            confirmation = Confirmation(400, told.append, loop.create_future())

            def report(first: int, confirmation: Confirmation = confirmation) -> None:
                for number in range(first, 400, 4):
                    confirmation.report(number, None, number, 0)

            threads = [threading.Thread(target=report, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert told
            assert confirmation.settle()
            assert confirmation.settle(), "told twice, it is the same"
            assert await confirmation.future == list(range(400))

    asyncio.run(confirm())


def test_one_that_is_not_stored_is_the_answer() -> None:
    async def confirm(error: Exception) -> None:
        told: list[Any] = []
        confirmation = Confirmation(2, told.append, asyncio.get_running_loop().create_future())
        confirmation.report(1, error, -1, -1)
        assert told == []
        confirmation.report(0, None, 7, 0)
        assert told == [confirmation]
        assert not confirmation.settle()
        await confirmation.future

    with pytest.raises(RuntimeError, match="full"):
        asyncio.run(confirm(RuntimeError("full")))
    with pytest.raises(StoreUnreachable, match="coming back"):
        asyncio.run(confirm(NotFound("topic t does not exist")))


def test_the_store_is_found_behind_nothing_that_takes_long(served: Any) -> None:
    end = threading.Event()
    long = [
        asyncio.run_coroutine_threadsafe(served.services.store.slowly(end.wait), served.loop)
        for _ in range(SLOW)
    ]
    try:
        assert served.run(served.services.store.connection(), timeout=10) is served.services.store.connected
    finally:
        end.set()
    assert all(each.result(10) for each in long)


def test_a_connection_that_nobody_waits_for_any_more_is_there_for_the_next(served: Any, store: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    connect = served.services.store._connect

    def slow() -> Any:
        begun.set()
        go_on.wait(20)
        return connect()

    served.services.store._connect = slow

    async def given_up() -> None:
        asking = asyncio.ensure_future(served.services.store.connection())
        while not begun.is_set():
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.wait([asking])
        go_on.set()
        assert await served.services.store.connection() is served.services.store.connected

    served.run(given_up())
    assert len(store.appenders) == 1, "one was made, and none was lost"


def test_while_the_store_is_away_nobody_is_told_that_theirs_may_be_done(served: Any, store: Any) -> None:
    """Those words are for who waited in vain."""
    assert served.post("/jobs", {"handler": "h", "in": "1h"}).status_code == 201
    store.cluster.reachable = False

    async def waited_in_vain() -> None:
        served.services.store.suspect(StoreUnreachable("not confirmed, and may or may not be done"))

    served.run(waited_in_vain())
    answer = served.post("/jobs", {"handler": "h", "in": "1h"})
    assert (answer.status_code, answer.json()["detail"]) == (503, AWAY)
    store.cluster.reachable = True
