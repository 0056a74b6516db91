"""Bounds of what one client can make a server do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from pipeline.server import limits, run
from pipeline.server.limits import Rates, Unheard, pieces_of, whole_body
from pipeline.server.problems import TooLarge, TooMany, TooSlow


def request_of(*pieces: bytes, length: str | None = None, ends: bool = True) -> Request:
    """A request whose body comes in these pieces; without an end it goes silent."""
    messages: list[Any] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        if not ends:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [] if length is None else [(b"content-length", length.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def test_a_body_is_read_up_to_its_limit() -> None:
    assert asyncio.run(whole_body(request_of(b"ab", b"c"), 3)) == b"abc"
    assert asyncio.run(whole_body(request_of(), 3)) == b""
    with pytest.raises(TooLarge):
        asyncio.run(whole_body(request_of(b"ab", b"cd"), 3))


@pytest.mark.parametrize("length", ["4", "9" * 30])
def test_what_says_that_it_is_too_large_is_not_read(length: str) -> None:
    with pytest.raises(TooLarge):
        asyncio.run(whole_body(request_of(length=length, ends=False), 3))


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAUSE_S", 0.02)
    with pytest.raises(TooSlow):
        asyncio.run(whole_body(request_of(b"a", ends=False), 3))


def test_a_body_that_has_come_takes_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def timer(_: float) -> None:
        raise AssertionError("nothing is waited for")

    request = request_of(b"ab", b"c")
    request.scope[limits.COME] = True
    monkeypatch.setattr(limits.asyncio, "timeout", timer)
    assert asyncio.run(whole_body(request, 3)) == b"abc"


def test_a_stream_that_brings_next_to_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, came = [0.0], []
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def receive() -> Any:
        await asyncio.sleep(0)
        clock[0] += limits.PAUSE_S / 4
        came.append(drop)
        return {"type": "http.request", "body": drop, "more_body": len(came) < 20}

    async def read() -> None:
        async for _ in pieces_of(Request({"type": "http", "headers": []}, receive)):
            clock[0] += 100  # what we do meanwhile is not the client's doing

    drop = b"x" * limits.LEAST
    asyncio.run(read())
    assert len(came) == 20
    drop = b" "
    came.clear()
    with pytest.raises(TooSlow, match=f"less than {limits.LEAST} bytes"):
        asyncio.run(read())
    assert len(came) == 4


def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", -1)
    with pytest.raises(TooSlow):
        asyncio.run(whole_body(request_of(b"a", b"b"), 3))


def test_a_client_that_goes_away_ends_it() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def read() -> None:
        async for _ in pieces_of(Request({"type": "http", "headers": []}, receive)):
            pass

    with pytest.raises(ClientDisconnect):
        asyncio.run(read())


def test_each_has_a_rate_of_its_own_and_a_second_ahead() -> None:
    clock = [100.0]
    rates = Rates(10, lambda: clock[0])
    for _ in range(10):
        rates.take("a")
    with pytest.raises(TooMany) as error:
        rates.take("a")
    assert error.value.retry_s == 1
    rates.take("b")
    clock[0] += 0.1
    rates.take("a")
    with pytest.raises(TooMany):
        rates.take("a")
    clock[0] += 100
    for _ in range(10):
        rates.take("a")


def test_the_rates_of_many_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRINCIPALS", 5)
    rates = Rates(1)
    for n in range(20):
        rates.take(str(n))
    assert len(rates._full_at) == 5


def test_who_asks_too_often_is_told_when_to_come_back(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Rates", lambda rate: Rates(rate, lambda: 0.0))  # however long they take
    served = serve(server_rate=3)
    for _ in range(3):
        assert served.get("/me").status_code == 200
    answer = served.get("/me")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["type"] == "urn:dueline:problem:too-many"


def test_what_was_asked_for_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNHEARD", 2)
    clock = [0.0]
    unheard = Unheard(lambda: clock[0])
    for name in ("a", "b", "a", "c"):
        unheard.note(name)
    assert [unheard.holds(name) for name in ("a", "b", "c", None)] == [True, False, True, False]
    clock[0] += limits.UNHEARD_S + 1
    assert not unheard.holds("a")


def test_what_runs_out_of_time_before_it_is_known_who_asks_is_our_fault(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(**_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(served.services.access, "admitted", late)
    assert served.get("/me").json()["type"] == "urn:dueline:problem:failed"
