"""The small server: exact paths, two methods, bounded connections, loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from pipeline.core.errors import InvalidInput, Refused
from pipeline.service import http
from pipeline.service.http import HttpServer, metrics_route, verdict_route

WAIT_S = 30


class Verdict:
    problem: str | None = None

    def __call__(self) -> str | None:
        return self.problem


@pytest.fixture
def verdict() -> Verdict:
    return Verdict()


@pytest.fixture
def server(verdict: Verdict) -> Iterator[HttpServer]:
    registry = CollectorRegistry()
    Counter("dueline_things", "Things.", registry=registry).inc(3)
    routes = {"/metrics": metrics_route(registry), "/healthz": verdict_route(verdict)}
    made = HttpServer("127.0.0.1", (0,), routes)
    yield made
    made.close()


def ask(
    server: HttpServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = HTTPConnection(server.address, timeout=WAIT_S)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, dict(response.getheaders()), body


def test_a_scrape_is_readable(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {s.name: s.value for family in text_string_to_metric_families(body) for s in family.samples}
    assert samples["dueline_things_total"] == 3


def test_a_scrape_in_openmetrics_for_who_asks_for_it(server: HttpServer) -> None:
    _, headers, body = ask(server, "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_a_verdict_is_200_or_503_with_the_reason(server: HttpServer, verdict: Verdict) -> None:
    assert ask(server, "/healthz")[::2] == (200, "ok\n")
    verdict.problem = "no step for 40 s"
    assert ask(server, "/healthz")[::2] == (503, "no step for 40 s\n")


def test_head_says_the_same_without_a_body(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(1_000), b""))
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"\r\nContent-Length: 3\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/x/healthz", "/healthz/..", "/HEALTHZ", "/admin"])
def test_only_exact_paths_are_known(server: HttpServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_a_query_does_not_change_the_path(server: HttpServer) -> None:
    assert ask(server, "/healthz?verbose=1")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
def test_any_other_method_is_refused_naming_those_allowed(server: HttpServer, method: str) -> None:
    status, headers, _ = ask(server, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_idle_connections_gather_no_threads_and_block_nobody_for_long(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http._Handler.timeout == http.SILENCE_S
    monkeypatch.setattr(http._Handler, "timeout", 0.2)
    host, _, port = server.address.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(http.CONNECTIONS)]
    over = socket.create_connection((host, int(port)))
    over.settimeout(WAIT_S)
    assert over.recv(1) == b"", "one too many is closed at once"
    for connection in idle:
        connection.settimeout(WAIT_S)
        assert connection.recv(1) == b"", "a silent one is let go"
    assert ask(server, "/healthz")[0] == 200
    for connection in (*idle, over):
        connection.close()


def test_a_client_that_talks_nonsense_harms_nobody(
    server: HttpServer, capfd: pytest.CaptureFixture[str]
) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"\x16\x03\x01\x00\xff\r\n\r\n")
        connection.settimeout(WAIT_S)
        connection.recv(1_000)
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_gives_way_to_the_next(server: HttpServer) -> None:
    taken = int(server.address.rpartition(":")[2])
    second = HttpServer("127.0.0.1", (taken, 0), {"/healthz": verdict_route(lambda: None)})
    assert second.address != server.address
    assert ask(second, "/healthz")[0] == 200
    second.close()


def test_no_free_port_is_refused_naming_those_tried(server: HttpServer) -> None:
    taken = int(server.address.rpartition(":")[2])
    with pytest.raises(Refused, match=f"no free port on 127.0.0.1 from {taken} to {taken}"):
        HttpServer("127.0.0.1", (taken,), {})


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused_by_name(host: str) -> None:
    with pytest.raises(InvalidInput) as error:
        HttpServer(host, (0,), {})
    assert error.value.field == "DUELINE_METRICS_HOST"


def test_a_closed_server_frees_its_port(verdict: Verdict) -> None:
    first = HttpServer("127.0.0.1", (0,), {"/healthz": verdict_route(verdict)})
    port = int(first.address.rpartition(":")[2])
    first.close()
    second = HttpServer("127.0.0.1", (port,), {"/healthz": verdict_route(verdict)})
    assert ask(second, "/healthz")[0] == 200
    second.close()


def test_ipv6_loopback() -> None:
    with_v6 = HttpServer("::1", (0,), {"/healthz": verdict_route(lambda: None)})
    assert with_v6.address.startswith("[::1]:")
    assert ask(with_v6, "/healthz")[0] == 200
    with_v6.close()
