"""`http` against a server that answers as servers must not: each answer is a defined outcome of the run."""

from __future__ import annotations

import asyncio
import base64
import gzip
import ipaddress
import json
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asked import context
from confluent_kafka.admin import AdminClient, NewTopic
from integration.fleet import fleet
from integration.hostile_server import HostileServer, hostile_server

from pipeline.core.handler import Dead, InvalidPayload, Retry, encode_result
from pipeline.handlers.addresses import policy
from pipeline.handlers.http import CallFailed, HttpHandler
from pipeline.handlers.secrets import Secrets, bound

TOKEN = "sk-live/7Qx"


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with hostile_server() as made:
        yield made


def handler(
    *, allow: Sequence[str] = (), loopback: bool = True, secrets: Sequence[str] = (), **options: Any
) -> HttpHandler:
    values = {"longest_ms": 5_000, "tls": ssl.create_default_context(), **options}
    return HttpHandler(
        policy=policy(allow, loopback=loopback), secrets=Secrets(bound(secrets), None), **values
    )


def call(made: HttpHandler, *payloads: object) -> Any:
    """What the last call returns; the others share its pool of connections."""

    async def calls() -> Any:
        try:
            for payload in payloads:
                last = await made.run(context(), payload)
            return last
        finally:
            await made.aclose()

    return asyncio.run(calls())


def url(server: HostileServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


# -- what is sent --------------------------------------------------------------------------------------------


def test_a_call_carries_what_makes_its_effect_happen_once(server: HostileServer) -> None:
    answer = call(handler(), {"url": url(server, "/echo?a=b"), "json": {"ü": 1}})
    echoed = json.loads(answer["body"])
    assert (answer["status"], echoed["path"]) == (200, "/echo?a=b")
    assert json.loads(echoed["body"].encode("latin-1")) == {"ü": 1}
    sent = {name.lower(): value for name, value in echoed["headers"].items()}
    assert re.fullmatch(r"dueline/[0-9.]+", sent.pop("user-agent"))
    assert sent == {
        "host": f"127.0.0.1:{server.port}",
        "content-length": "8",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "idempotency-key": "invoice-55",
        "x-fence-token": str(2**62 + 1),
        "x-job-id": "j0",
        "x-job-run": "2",
        "x-job-attempt": "3",
        "x-job-nominal-at": "2027-01-15T08:00:00.000Z",
    }


def test_one_connection_serves_several_jobs_and_no_cookie_goes_from_one_to_the_next(
    server: HostileServer,
) -> None:
    connects: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        connects.append(host)
        return ["127.0.0.1"]

    answer = call(handler(resolve=resolve), *[{"url": url(server, "/echo")}] * 3)
    assert len(connects) == 1
    assert "cookie" not in answer["body"].lower().replace("set-cookie", "")
    assert "set-cookie" not in answer["headers"]


def test_proxies_of_the_environment_are_not_used(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert call(handler(), {"url": url(server, "/status?204")})["status"] == 204


# -- each answer, its outcome --------------------------------------------------------------------------------

FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "/slow-headers": ({"timeout": "300ms"}, r"no complete answer within 0\.3 s"),
    "/silent": ({"timeout": "300ms"}, r"no complete answer within 0\.3 s"),
    "/dribble": ({"timeout": 0.3}, r"no complete answer within 0\.3 s"),
    "/only-1xx": ({"timeout": "300ms"}, r"no complete answer within 0\.3 s"),
    "/redirect": ({}, r"answered 302, a redirect to http://169\.254\.169\.254/.*none is followed"),
    "/upgrade": ({}, "RemoteProtocolError"),
    "/bad-header": ({}, "RemoteProtocolError"),
    "/bad-length": ({}, "RemoteProtocolError"),
    "/many-headers": ({}, "RemoteProtocolError"),
    "/no-http": ({}, "RemoteProtocolError"),
    "/hang-up": ({}, "RemoteProtocolError"),
    "/reset": ({}, "ReadError|RemoteProtocolError"),
    "/short": ({}, "RemoteProtocolError"),
    "/status?400": ({}, "answered 400: so it is"),
    "/status?404": ({}, "answered 404"),
    "/status?408": ({}, "answered 408"),
    "/status?425": ({}, "answered 425"),
    "/status?500": ({}, "answered 500"),
    "/status?502&7": ({}, "answered 502"),
    "/status?200": ({"ok": [201]}, "answered 200"),
    "/status?410": ({"dead": []}, "answered 410"),
    "/status?429": ({}, "answered 429"),
    "/status?503&soon": ({}, "answered 503"),
    "/status?503&-5": ({}, "answered 503"),
    "/status?503&1e3": ({}, "answered 503"),
    "/status?503&99999999999": ({}, "answered 503"),
    "/status?503&Fri, 99 Foo 2027 99:99:99 GMT": ({}, "answered 503"),
}


@pytest.mark.parametrize("path", FAILURES)
def test_a_failure_is_tried_again(server: HostileServer, path: str) -> None:
    extra, message = FAILURES[path]
    with pytest.raises(CallFailed, match=message) as error:
        call(handler(), {"url": url(server, path.replace(" ", "%20")), "method": "GET", **extra})
    assert str(error.value).startswith(f"GET http://127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/status?409", {}),
        ("/status?410", {}),
        ("/status?422", {}),
        ("/status?404", {"dead": ["4xx"]}),
        ("/status?429&5", {"dead": [429]}),
    ],
)
def test_a_status_that_no_attempt_can_change_ends_the_job(
    server: HostileServer, path: str, extra: dict[str, Any]
) -> None:
    with pytest.raises(Dead, match=r"answered 4\d\d: so it is") as error:
        call(handler(), {"url": url(server, path), **extra})
    assert not isinstance(error.value, InvalidPayload)


@pytest.mark.parametrize(
    ("after", "wait_ms"),
    [("7", 7_000), ("0", 1_000), ("86400", 3_600_000), ("Sun, 06 Nov 1994 08:49:37 GMT", 1_000)],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_is_heard_within_bounds(
    server: HostileServer, status: int, after: str, wait_ms: int
) -> None:
    with pytest.raises(Retry, match=f"answered {status}") as error:
        call(handler(), {"url": url(server, f"/status?{status}&{after.replace(' ', '%20')}")})
    assert error.value.after_ms == wait_ms


@pytest.mark.parametrize(
    ("path", "extra", "status"),
    [
        ("/status?200", {}, 200),
        ("/status?204", {"method": "HEAD"}, 204),
        ("/status?299", {}, 299),
        ("/early-hints", {}, 204),
        ("/status?404", {"ok": ["2xx", 404]}, 404),
        ("/redirect", {"ok": ["3xx"]}, 302),
        ("/status?409", {"ok": [409]}, 409),
    ],
)
def test_an_answer_that_is_good_is_the_result(
    server: HostileServer, path: str, extra: dict[str, Any], status: int
) -> None:
    assert call(handler(), {"url": url(server, path), **extra})["status"] == status


@pytest.mark.parametrize("path", ["/endless", "/huge"])
def test_a_body_without_end_is_cut_and_the_job_is_done(server: HostileServer, path: str) -> None:
    answer = call(handler(longest_ms=20_000), {"url": url(server, path)})
    assert (answer["status"], answer["truncated"]) == (200, True)
    assert len(encode_result(answer) or b"") <= 64 * 1024
    assert "result_dropped" not in answer


def test_what_is_compressed_stays_so(server: HostileServer) -> None:
    answer = call(handler(), {"url": url(server, "/bomb")})
    assert answer["headers"]["content-encoding"] == "gzip"
    assert len(answer["body_base64"]) < 64 * 1024
    assert base64.b64decode(answer["body_base64"]).startswith(gzip.compress(b"")[:2])


def test_what_is_no_text_is_kept_as_base64(server: HostileServer) -> None:
    answer = call(handler(), {"url": url(server, "/binary")})
    assert base64.b64decode(answer["body_base64"]).startswith(bytes(range(256)))
    assert answer["truncated"] is True
    assert b"result_dropped" not in (encode_result(answer) or b"")


def test_nobody_at_the_port_is_a_failure() -> None:
    with hostile_server() as gone:
        port = gone.port
    with pytest.raises(CallFailed, match="ConnectError"):
        call(handler(), {"url": f"http://127.0.0.1:{port}/"})


# -- where it may go -----------------------------------------------------------------------------------------


def resolver(*answers: list[str]) -> Callable[[str, int], Any]:
    """Gives each answer once, the last one for ever."""
    left = [*answers]

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def test_a_name_is_resolved_once_and_that_address_is_called(server: HostileServer) -> None:
    """Rebinding: a name that is public when it is checked and this machine when it is called."""
    first = ipaddress.ip_address("203.0.114.1")
    made = handler(loopback=False, resolve=resolver([str(first)], ["127.0.0.1"]))
    reached: list[str] = []

    async def connect(address: str, *_: object) -> Any:
        reached.append(address)
        raise ConnectionRefusedError

    made._backend._inner.connect_tcp = connect  # type: ignore[method-assign,assignment]
    payload = {"url": f"http://rebind.example:{server.port}/echo"}
    with pytest.raises(CallFailed):
        call(made, payload)
    with pytest.raises(Dead, match=r"url: rebind\.example is 127\.0\.0\.1, which is not public"):
        call(made, payload)
    assert reached == [str(first)]
    assert server.seen == []


@pytest.mark.parametrize(
    "answer",
    [["10.0.0.5"], ["93.184.215.14", "10.0.0.5"], ["::ffff:127.0.0.1"], ["fe80::1"], ["64:ff9b::a00:5"]],
)
def test_a_name_with_an_address_that_is_not_public_is_not_called(answer: list[str]) -> None:
    with pytest.raises(Dead, match=r"url: inside\.example is "):
        call(handler(loopback=False, resolve=resolver(answer)), {"url": "http://inside.example/"})


@pytest.mark.parametrize(
    "literal",
    [
        "http://127.0.0.1:{port}/echo",
        "http://[::ffff:127.0.0.1]:{port}/echo",
        "http://0.0.0.0:{port}/echo",
        "http://[::]:{port}/echo",
        "http://localhost:{port}/echo",
    ],
)
def test_this_machine_is_called_in_development_only(server: HostileServer, literal: str) -> None:
    with pytest.raises(Dead, match="not public; DUELINE_HTTP_ALLOW"):
        call(handler(loopback=False), {"url": literal.format(port=server.port)})
    assert server.seen == []


@pytest.mark.parametrize("allowed", ["hooks.example:{port}", "*.example", "127.0.0.0/8", "127.0.0.1:{port}"])
def test_what_the_operator_allows_is_called_by_its_name(server: HostileServer, allowed: str) -> None:
    made = handler(allow=[allowed.format(port=server.port)], loopback=False, resolve=resolver(["127.0.0.1"]))
    answer = call(made, {"url": f"http://Hooks.Example:{server.port}/echo"})
    assert json.loads(answer["body"])["headers"]["Host"] == f"hooks.example:{server.port}"


def test_the_next_address_is_called_if_the_first_does_not_answer(server: HostileServer) -> None:
    made = handler(resolve=resolver(["::1", "127.0.0.1"]))  # the server listens on IPv4 alone
    assert call(made, {"url": f"http://both.example:{server.port}/status?200"})["status"] == 200


def test_a_name_that_is_not_known_is_a_failure() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(CallFailed, match=r"nowhere\.example is not resolved: no such host"):
        call(handler(resolve=resolve), {"url": "https://nowhere.example/"})


# -- secrets -------------------------------------------------------------------------------------------------


def test_a_secret_is_sent_and_shown_nowhere(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DUELINE_SECRET_API", TOKEN)
    caplog.set_level(logging.DEBUG)
    made = handler(secrets=[f"API@127.0.0.1:{server.port}"])
    payload = {
        "url": url(server, "/echo?key=${secret:API}"),
        "headers": {"Authorization": "Bearer ${secret:API}"},
    }
    answer = call(made, payload)
    _, path, headers, _ = server.seen[-1]
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert path == f"/echo?key={TOKEN}"
    assert TOKEN not in json.dumps(answer)
    assert "***" in answer["body"]
    tagged = call(made, {"url": url(server, "/tag"), "headers": {"X-Key": "${secret:API}"}})
    assert tagged["headers"]["etag"] == "***"
    with pytest.raises(CallFailed) as error:
        call(made, {**payload, "ok": [201]})
    assert TOKEN not in str(error.value)
    assert TOKEN not in caplog.text
    assert "127.0.0.1" in caplog.text


def test_a_secret_goes_only_where_the_operator_said(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_SECRET_API", TOKEN)
    payload = {"url": url(server, "/echo"), "headers": {"X-Key": "${secret:API}"}}
    for binding in ("API@api.example", f"API@127.0.0.1:{server.port + 1}", "API@127.0.0.1"):
        with pytest.raises(InvalidPayload, match="secret API"):
            call(handler(secrets=[binding]), payload)
    assert server.seen == []


# -- TLS -----------------------------------------------------------------------------------------------------

CERTIFICATE = Path(__file__).with_name("hooks.example.pem")


@pytest.fixture
def tls_server() -> Iterator[HostileServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    with hostile_server(tls) as made:
        yield made


def test_the_certificate_is_checked_for_the_name_not_for_the_address(tls_server: HostileServer) -> None:
    made = handler(resolve=resolver(["127.0.0.1"]), tls=ssl.create_default_context(cafile=str(CERTIFICATE)))
    assert call(made, {"url": f"https://hooks.example:{tls_server.port}/status?200"})["status"] == 200
    with pytest.raises(CallFailed, match=r"not valid for 'other\.example'"):
        call(made, {"url": f"https://other.example:{tls_server.port}/status?200"})
    with pytest.raises(CallFailed, match="CERTIFICATE_VERIFY_FAILED"):
        call(handler(resolve=resolver(["127.0.0.1"])), {"url": f"https://hooks.example:{tls_server.port}/"})


# -- through a worker ----------------------------------------------------------------------------------------


@pytest.mark.timeout(200)
def test_jobs_without_a_line_of_python(
    broker: str, prefix: str, tmp_path: Path, server: HostileServer, eventually: Callable[..., None]
) -> None:
    """`dueline job create http|kafka|script`, a worker, and what the topics say."""
    program = tmp_path / "report"
    program.write_text("#!/bin/sh\ncat; echo $DUELINE_TOKEN\n")
    program.chmod(0o700)
    topic = f"audit-{prefix}"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
    eventually(lambda: topic in admin.list_topics(timeout=10).topics)
    with fleet(broker, prefix, tmp_path, "from pipeline import Dueline\napp = Dueline()\n") as shop:
        shop.dispatcher()
        allowed = {
            "DUELINE_HTTP_ALLOW": f"127.0.0.1:{server.port}",
            "DUELINE_SCRIPT_ALLOW": str(program),
            "DUELINE_TOPIC_ALLOW": "audit-*",
        }
        shop.start("worker", "--app", "shop:app", **allowed)
        payloads: dict[str, object] = {
            "http": {"url": url(server, "/echo"), "json": {"n": 1}},
            "script": {"command": "report", "input": {"n": 2}},
            "kafka": {"topic": topic, "key": "k", "json": {"n": 3}},
        }
        for name, payload in payloads.items():
            create = shop.start("job", "create", name, "--payload", json.dumps(payload), "--now")
            assert create.wait(60) == 0, shop.log()
        eventually(lambda: shop.outcomes()["succeeded"] == 3, timeout=60)
        results = [json.loads(ack.result or b"null") for ack in shop.acks(b"t/")]
        (script,) = [result for result in results if "exit" in result]
        (record,) = shop.records(topic)
        sent = server.seen[-1][2]
    assert script["output"].startswith('{"n":2}')
    assert (record.key(), record.value()) == (b"k", b'{"n":3}')
    assert int(sent["X-Fence-Token"]) > 0
    assert sent["Idempotency-Key"] == sent["X-Job-Id"]
