"""Questions to a server that is not there: what is repeated, what is given up, and what its answers become."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest

from pipeline.client import http_calls
from pipeline.client.http_calls import Calls, Failed, NotDone, Unanswered, _is_here, segment
from pipeline.core.errors import (
    DuelineError,
    InvalidInput,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnreachable,
)

Answer = Callable[[httpx.Request], httpx.Response]
PATIENCE_S = 50
"""So long that no machine is too slow; nobody waits."""


class Asked(NamedTuple):
    calls: Calls
    requests: list[httpx.Request]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """`asked(answer, answer, …)`: answers, or errors, one after the other; the last one again and again."""
    monkeypatch.setattr(http_calls, "PAUSES_S", (0.0, 0.0, 0.0))

    def make(*answers: httpx.Response | Exception, token: str | None = None) -> Asked:
        requests: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            given = answers[min(len(requests), len(answers)) - 1]
            if isinstance(given, Exception):
                raise given
            return httpx.Response(given.status_code, headers=given.headers, content=given.content)

        transport = httpx.MockTransport(answer)
        return Asked(Calls("http://there:1", token, patience_s=PATIENCE_S, transport=transport), requests)

    return make


OK = httpx.Response(200, json={"x": 1})


def problem(
    status: int, word: str = "x", headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {
        "type": f"urn:dueline:problem:{word}",
        "title": "T",
        "status": status,
        "detail": "why\nso",
        **more,
    }
    return httpx.Response(
        status,
        content=json.dumps(body),
        headers={"content-type": "application/problem+json", **(headers or {})},
    )


REFUSED = httpx.ConnectError("refused")
SILENT, BROKEN = httpx.ReadTimeout("late"), httpx.RemoteProtocolError("cut off")


@pytest.mark.parametrize(
    ("answers", "repeatable", "times"),
    [
        ((REFUSED, REFUSED, OK), False, 3),
        ((REFUSED,), True, 4),
        ((problem(429), OK), False, 2),
        ((SILENT,), False, 1),
        ((BROKEN,), False, 1),
        ((problem(503),), False, 1),
        ((SILENT, BROKEN, problem(503), OK), True, 4),
        ((httpx.Response(502, text="<h1>Bad Gateway</h1>"), OK), True, 2),
        ((problem(409),), True, 1),
        ((problem(500),), True, 1),
    ],
)
def test_what_may_have_been_done_is_asked_again_only_if_that_is_safe(
    asked: Callable[..., Asked], answers: Any, repeatable: bool, times: int
) -> None:
    there = asked(*answers)
    if answers[-1] is OK:
        assert there.calls.ask("POST", "/jobs", body={}, repeatable=repeatable) == {"x": 1}
    else:
        with pytest.raises(DuelineError):
            there.calls.ask("POST", "/jobs", body={}, repeatable=repeatable)
    assert len(there.requests) == times


def test_it_is_not_asked_again_after_the_deadline(asked: Callable[..., Asked]) -> None:
    there = asked(problem(429, headers={"retry-after": f"{PATIENCE_S + 1}"}))
    with pytest.raises(StoreUnreachable, match="the server at http://there:1 says: why so"):
        there.calls.ask("POST", "/jobs", body={})
    assert len(there.requests) == 1


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (REFUSED, Unanswered, "no server answers at http://there:1: refused"),
        (SILENT, Unanswered, "did not answer within 50 s; what was asked for may be done all the same"),
        (BROKEN, Unanswered, "broke off: cut off; what was asked for may be done all the same"),
        (problem(401), NotAllowed, "the server at http://there:1 says: why so"),
        (problem(403), NotAllowed, "the server at http://there:1 says: why so"),
        (problem(404, "not-found"), NotFound, "why so"),
        (problem(404, "unknown-path"), StoreUnreachable, "answers 404, but not as a dueline server does"),
        (problem(409), Refused, "why so"),
        (problem(409, outcome="too_late"), NotDone, "why so"),
        (problem(412), Refused, "why so"),
        (problem(413), InvalidInput, "body: why so"),
        (problem(422, errors=[{"field": "in", "message": "bad\nly"}]), InvalidInput, "in_: bad ly"),
        (problem(422, errors=[]), InvalidInput, "body: why so"),
        (problem(422, errors="nonsense"), InvalidInput, "body: why so"),
        (problem(500), Failed, "the server at http://there:1 failed: its log has the details"),
        (problem(503), Unanswered, "the server at http://there:1 says: why so"),
        (
            httpx.Response(404, text="nothing"),
            StoreUnreachable,
            "answers 404, but not as a dueline server does",
        ),
        (httpx.Response(401, text="who"), StoreUnreachable, "answers 401, but not as a dueline server does"),
        (httpx.Response(302, headers={"location": "/x"}), StoreUnreachable, "answers 302, but not"),
        (httpx.Response(200, text="<h1>It works</h1>"), StoreUnreachable, "answers 200, but not"),
        (httpx.Response(200, json=[1]), StoreUnreachable, "answers 200, but not"),
        (httpx.Response(200, content=b"[" * 100_000), StoreUnreachable, "answers 200, but not"),
    ],
)
def test_what_a_server_says_becomes_our_error(
    asked: Callable[..., Asked], answer: Any, error: type[DuelineError], text: str
) -> None:
    with pytest.raises(error) as caught:
        asked(answer).calls.ask("POST", "/jobs", body={})
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("late", [SILENT, BROKEN])
def test_a_question_that_was_not_answered_has_changed_nothing(
    asked: Callable[..., Asked], late: Exception
) -> None:
    with pytest.raises(Unanswered) as caught:
        asked(late).calls.ask("GET", "/jobs")
    assert "may be done" not in str(caught.value)


def test_an_answer_that_lacks_something_is_no_servers(asked: Callable[..., Asked]) -> None:
    with pytest.raises(StoreUnreachable, match="has no 'id'"):
        asked(OK).calls.ask("GET", "/jobs")["id"]


def test_an_answer_without_end_is_given_up(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_calls, "ANSWER_LIMIT", 5)
    with pytest.raises(StoreUnreachable, match="longer than 5 bytes"):
        asked(OK).calls.ask("GET", "/jobs")


def test_the_token_is_sent_and_never_shown(asked: Callable[..., Asked]) -> None:
    there = asked(problem(401), token="dl_secret")
    with pytest.raises(NotAllowed) as caught:
        there.calls.ask("GET", "/jobs")
    assert there.requests[0].headers["authorization"] == "Bearer dl_secret"
    assert "secret" not in str(caught.value)


def test_a_read_waits_for_what_was_written_of_late(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrote(places: str) -> httpx.Response:
        return httpx.Response(200, json={}, headers={"Dueline-Position": places})

    there = asked(wrote("jobs/1:5, jobs/2:7"), wrote("jobs/1:9"), wrote("jobs/2:3, nonsense"), OK)
    for _ in range(3):
        there.calls.ask("POST", "/jobs", body={})
    there.calls.ask("GET", "/jobs")
    assert there.requests[-1].headers["dueline-position"] == "jobs/1:9, jobs/2:7"
    assert "dueline-position" not in there.requests[0].headers
    monkeypatch.setattr(http_calls, "FRESH_S", 0.0)
    there.calls.ask("GET", "/jobs")
    assert "dueline-position" not in there.requests[-1].headers


class Dripping(BaseHTTPRequestHandler):
    """Sends a byte now and then, each in time."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.ended.wait(0.02):  # type: ignore[attr-defined]
            try:
                self.wfile.write(b" ")
            except OSError:
                return

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def dripping() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        server.ended = threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.ended.set()  # type: ignore[attr-defined]
        server.shutdown()


def test_a_server_that_drips_does_not_hold_anybody(dripping: str) -> None:
    calls = Calls(dripping, None, patience_s=0.2)
    with pytest.raises(StoreUnreachable, match=r"did not answer within 0\.2 s"):
        calls.ask("GET", "/jobs")
    calls.close()


ENDLESS = {
    "head": [b"HTTP/1.1 200 OK\r\nx: ", b"x"],
    "more to come": [b"", b"HTTP/1.1 102 Processing\r\n\r\n"],
    "chunk": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x"],
    "many": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"],
}


@pytest.mark.parametrize("what", ENDLESS)
def test_whatever_comes_bit_by_bit_a_call_ends_in_its_time(what: str) -> None:
    begin, again = ENDLESS[what]
    ended = threading.Event()

    class Trickling(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(10_000)
            with suppress(OSError):
                self.request.sendall(begin)
                while not ended.wait(0.02):
                    self.request.sendall(again)

    with ThreadingTCPServer(("127.0.0.1", 0), Trickling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls = Calls(f"http://127.0.0.1:{server.server_address[1]}", None, patience_s=0.2)
        with pytest.raises(StoreUnreachable, match=r"did not answer within 0\.2 s"):
            calls.ask("GET", "/jobs")
        ended.set()
        calls.close()
        server.shutdown()


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "br", "x"])
def test_what_is_packed_is_not_unpacked(encoding: str) -> None:
    """It may be any size, and nobody asked for it."""
    packed = gzip.compress(json.dumps({"x": 1}).encode())
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, stream=httpx.ByteStream(packed), headers={"content-encoding": encoding})
    )
    calls = Calls("http://there:1", None, patience_s=PATIENCE_S, transport=transport)
    with pytest.raises(Unanswered, match="its answer is encoded, which was not asked for"):
        calls.ask("POST", "/jobs")


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("https://localhost", True),
        ("http://10.0.0.1:1", False),
        ("http://there", False),
    ],
)
def test_a_proxy_is_not_asked_for_this_machine(url: str, here: bool) -> None:
    assert _is_here(url) is here


def test_each_phase_of_a_call_has_what_is_left_of_its_time(
    asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting, sending and waiting are timed one by one: three times as long in all, if each had the whole."""
    there, now = asked(OK), [7.0]
    monkeypatch.setattr(http_calls, "time", SimpleNamespace(monotonic=lambda: now[0]))
    there.calls.ask("GET", "/jobs")
    (request,) = there.requests
    limits = request.extensions["timeout"]
    assert all(limits[phase] == PATIENCE_S for phase in ("pool", "connect", "write", "read"))
    for later, left in ((20, 30), (40, 10), (90, 0.001)):
        now[0] = 7.0 + later
        request.extensions["trace"]("http11.receive_response_headers.started", {})
        assert limits["read"] == limits["write"] == left


class Slow(BaseHTTPRequestHandler):
    """Takes its time to take the question, and never answers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.ended.wait(2.4)  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["content-length"]))
        self.server.taken = time.monotonic()  # type: ignore[attr-defined]
        self.server.ended.wait(30)  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None: ...


def test_what_sending_takes_is_not_given_again_to_waiting() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.ended = threading.Event()  # type: ignore[attr-defined]
        server.taken = float("inf")  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls = Calls(f"http://127.0.0.1:{server.server_port}", None, patience_s=3.0)
        with pytest.raises(StoreUnreachable, match="did not answer within 3 s"):
            calls.ask("POST", "/jobs", lines=b"x" * 20_000_000)
        waited = time.monotonic() - server.taken  # type: ignore[attr-defined]
        server.ended.set()  # type: ignore[attr-defined]
        calls.close()
        server.shutdown()
    assert waited < 2.9, "not three seconds more than the sending took"


@pytest.mark.parametrize(
    ("id_", "sent"), [(".", "%2E"), ("..", "%2E%2E"), ("a.b", "a.b"), ("a/b", "a%2Fb"), ("...", "...")]
)
def test_an_id_stays_one_part_of_the_path(asked: Callable[..., Asked], id_: str, sent: str) -> None:
    there = asked(OK)
    there.calls.ask("GET", f"/schedules/{segment(id_)}")
    assert there.requests[0].url.raw_path == f"/api/v1/schedules/{sent}".encode()


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        ("http://there", "dl_secret", 1),
        ("https://there", "dl_secret", 0),
        ("http://127.0.0.1:1", "dl_secret", 0),
        ("http://there", None, 0),
    ],
)
def test_a_token_that_goes_in_clear_is_told_once(
    url: str, token: str | None, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    http_calls._warn_in_clear.cache_clear()
    for _ in range(2):
        Calls(url, token, patience_s=1).close()
    assert len(caplog.records) == said
    assert "secret" not in caplog.text
