"""The pure half of the bench's server shape, and what asks over a socket of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random

import pytest

from pipeline.core.errors import DuelineError
from pipeline.core.times import parse_instant
from pipeline.dev.bench import server, server_load
from pipeline.dev.bench.process import read_port
from pipeline.dev.bench.server_load import Answers, ask, lines, piece, post, stream
from pipeline.dev.bench.server_paint import Paint, median

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("count", [1, 999, 1_000, 2_345])
def test_a_stream_has_as_many_jobs_as_asked_for_whatever_its_pieces(count: int) -> None:
    found = [json.loads(line) for line in b"".join(lines(count)).splitlines()]
    assert len(found) == count
    assert all(job.keys() == {"handler", "payload", "in"} for job in found)


def test_pieces_are_those_of_a_chunked_body() -> None:
    assert piece(b"a" * 26) == b"1a\r\n" + b"a" * 26 + b"\r\n"
    assert piece(b"") == b"0\r\n\r\n"


def test_an_answer_is_whole_once_all_of_it_has_come() -> None:
    answers = Answers()
    assert [answers.take(OK[n : n + 1]) for n in range(len(OK) - 1)] == [None] * (len(OK) - 1)
    assert answers.take(OK[-1:] + OK[:5]) == b"{}"
    assert answers.take(OK[5:]) == b"{}", "what came of the next one is kept"


def test_an_answer_that_is_no_success_ends_it() -> None:
    with pytest.raises(DuelineError, match="answered 503: gone"):
        Answers().take(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\ngone")


class Site:
    """A server that answers what it is told to."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await read_head(reader):
                body = await self._body(reader, head)
                self.requests.append(body)
                writer.write(self._answer(body))
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"chunked" not in head:
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            return await reader.readexactly(size)
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        return b"".join(pieces)

    def run(self, asking: Callable[[int], object]) -> list[float]:
        async def both() -> list[float]:
            serving = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            async with serving:
                port = serving.sockets[0].getsockname()[1]
                found: list[float] = await asking(port)  # type: ignore[misc]
                return found

        return asyncio.run(both())


async def read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def test_each_request_is_sent_once_over_as_many_connections_as_asked_for() -> None:
    site = Site(lambda _body: OK)
    requests = [post(b"%d" % n) for n in range(50)]
    times = site.run(lambda port: ask(port, 5, iter(requests)))
    assert sorted(map(int, site.requests)) == list(range(50))
    assert (site.connections, len(times)) == (5, 50)
    assert all(took > 0 for took in times)


def test_a_server_that_refuses_or_goes_away_ends_the_load() -> None:
    refusing = Site(lambda _body: b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
    with pytest.raises(DuelineError, match="answered 429"):
        refusing.run(lambda port: ask(port, 2, iter([post(b"1")] * 10)))

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    gone = Site(lambda _body: OK)
    gone.serve = closing  # type: ignore[method-assign]
    with pytest.raises(DuelineError, match="closed a connection"):
        gone.run(lambda port: ask(port, 2, iter([post(b"1")] * 10)))


def test_a_stream_is_one_request_and_all_of_it_must_be_accepted() -> None:
    def told(body: bytes) -> bytes:
        answer = json.dumps({"accepted": min(body.count(b"\n"), 2_000), "rejected": 0}).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer)

    site = Site(told)
    assert len(site.run(lambda port: stream(port, 1_500))) == 1
    assert len(site.requests) == 1
    with pytest.raises(DuelineError, match="not all of 2500"):
        Site(told).run(lambda port: stream(port, 2_500))


def test_where_a_server_serves_stands_in_its_log() -> None:
    told = {"action": "started", "url": "http://127.0.0.1:4711", "access": "by token"}
    log = b'what is no JSON\n[]\n{"action":"tokens_unread"}\n' + json.dumps(told).encode()
    assert read_port(log) == 4711
    assert read_port(log[:-5]) is None


def test_a_small_measurement_asks_little() -> None:
    assert [server.posts(pending) for pending in (100, 20_000, 10**7)] == [50, 2_000, 8_000]


def test_pages_begin_anywhere_between_the_first_job_and_the_last() -> None:
    chance = Random(1)
    found = {
        parse_instant("at", server.anywhere(chance, 1_000_000_000_000, 1_000_000_000_009)) for _ in range(200)
    }
    assert found == set(range(1_000_000_000_000, 1_000_000_000_010))


def test_what_is_told_of_a_page_is_the_median_of_each_time() -> None:
    assert median([Paint(1, 9), Paint(3, 7), Paint(2, 8)]) == Paint(2, 8)


def test_unknown_words_on_the_command_line_are_explained() -> None:
    with pytest.raises(SystemExit, match="server_load post PORT"):
        server_load.run(["put", "1"])
