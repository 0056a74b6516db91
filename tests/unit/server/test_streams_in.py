"""Streams of jobs that come slowly: they hold no thread while nothing comes, and take turns where many come at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pipeline.server import bulk
from pipeline.server.bulk import Pipe
from pipeline.server.store import STREAMS
from pipeline.server.threads import Busy, Threads

NDJSON = {"content-type": "application/x-ndjson"}
LINE = b'{"handler":"h","in":"1h"}\n'


class Sending:
    """A stream of jobs: `first`, and once `end` is set `rest`."""

    def __init__(self, served: Any, first: bytes, rest: bytes) -> None:
        self.end = threading.Event()
        self.answer: Any = None

        async def body() -> AsyncIterator[bytes]:
            yield first
            while not self.end.is_set():
                await asyncio.sleep(0.005)
            yield rest

        def send() -> None:
            self.answer = served.ask("POST", "/jobs", content=body(), headers=NDJSON)

        self._thread = threading.Thread(target=send)
        self._thread.start()

    def ended(self) -> Any:
        self.end.set()
        self._thread.join(20)
        return self.answer.json()


def free_threads(served: Any) -> int:
    free: int = served.services.store._streams._free._value
    return free


def test_no_stream_holds_a_thread_while_its_client_is_silent(
    served: Any, store: Any, eventually: Any
) -> None:
    half = len(LINE) // 2
    sending = [Sending(served, LINE + LINE[:half], LINE[half:] + b"no\n") for _ in range(STREAMS)]
    eventually(lambda: len(store.runs()) == STREAMS)  # what came before the silence is stored
    eventually(lambda: free_threads(served) == STREAMS)
    assert served.services.intakes.open == STREAMS
    for each in sending:
        told = each.ended()
        assert (told["accepted"], told["rejected"], told["errors"][0]["line"]) == (2, 1, 3)
    assert len(store.runs()) == 2 * STREAMS


def test_streams_that_never_pause_let_others_in(
    served: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TURN_S", 0.0)
    end = threading.Event()

    async def lines() -> AsyncIterator[bytes]:
        while not end.is_set():
            yield LINE
            await asyncio.sleep(0.005)

    def send() -> None:
        answers.append(served.ask("POST", "/jobs", content=lines(), headers=NDJSON))

    answers: list[Any] = []
    sending = [threading.Thread(target=send) for _ in range(STREAMS)]
    for each in sending:
        each.start()
    eventually(lambda: free_threads(served) == 0)
    monkeypatch.setattr(served.services.intakes, "_each", STREAMS + 1)
    assert served.ask("POST", "/jobs", content=LINE * 3, headers=NDJSON).json()["accepted"] == 3
    assert not answers, "none of them has ended"
    end.set()
    for each in sending:
        each.join(20)
    assert {answer.status_code for answer in answers} == {200}


def test_who_gets_no_thread_is_told_how_far_it_came(served: Any, store: Any, eventually: Any) -> None:
    streams, begin = served.services.store._streams, threading.Event()
    sending = Sending(served, LINE, LINE)
    eventually(lambda: len(store.runs()) == 1 and free_threads(served) == STREAMS)
    streams._patience_s = 0.05

    async def hold() -> None:
        await asyncio.gather(*(streams.run(begin.wait, 20) for _ in range(STREAMS)))

    holding = asyncio.run_coroutine_threadsafe(hold(), served.loop)
    eventually(lambda: free_threads(served) == 0)
    told = sending.ended()
    assert (told["status"], told["type"]) == (503, "urn:dueline:problem:busy")
    assert told["detail"].endswith("1 jobs were confirmed before")
    assert sending.answer.headers["retry-after"]
    begin.set()
    holding.result(20)


def taking(*pieces: bytes | None) -> list[bytes]:
    """What is taken of these, up to the end or a pause."""

    async def taken() -> list[bytes]:
        pipe = Pipe(asyncio.get_running_loop())

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                if piece is None:
                    await asyncio.Event().wait()
                else:
                    yield piece

        def take(found: Iterator[bytes]) -> list[bytes]:
            return list(iter(lambda: next(found, b""), b""))

        filling = asyncio.ensure_future(pipe.fill(body()))
        try:
            await pipe.come()
            return await asyncio.to_thread(take, pipe.take(lambda: False))
        finally:
            filling.cancel()

    return asyncio.run(asyncio.wait_for(taken(), 20))


def test_a_pipe_pauses_where_nothing_comes() -> None:
    assert taking(b"a", b"b", None) == [b"a", b"b"]
    assert taking() == []


def test_who_is_waited_for_is_known_from_any_thread() -> None:
    async def wait() -> None:
        threads = Threads("t", 1, patience_s=0.05)
        held = threading.Event()
        first = asyncio.ensure_future(threads.run(held.wait, 20))
        await asyncio.sleep(0)
        assert not threads.waited_for
        second = asyncio.ensure_future(threads.run(held.wait, 20))
        await asyncio.sleep(0)
        assert threads.waited_for
        with pytest.raises(Busy):
            await second
        assert not threads.waited_for
        held.set()
        await first
        threads.close()

    asyncio.run(wait())


def test_a_body_that_ends_within_a_line_ends_it(served: Any) -> None:
    sending = Sending(served, b"\n\n" + LINE[:3], LINE[3:-1])
    assert sending.ended()["accepted"] == 1
