"""What the payload of `http` may hold, and what is refused with the name of the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from asked import T0, context

from pipeline.core.effect import visible
from pipeline.core.handler import InvalidPayload
from pipeline.handlers.http_request import Request, read_request
from pipeline.handlers.secrets import SecretMissing, Secrets, bound

URL = "https://api.example/v1"
FULL_WIDTH = "".join(chr(ord(letter) + 0xFEE0) if letter != "." else letter for letter in "127.0.0.1")
NONE = Secrets({}, None)


def read(payload: object, secrets: Secrets = NONE) -> Request:
    return read_request(payload, context(), secrets, 60_000)


def test_the_defaults() -> None:
    request = read({"url": URL})
    assert (request.method, request.content, request.timeout_ms) == ("POST", b"", 60_000)
    assert (200 in request.done, 300 in request.done, request.dead) == (True, False, {409, 410, 422})
    assert request.place == "POST https://api.example"


def test_it_says_which_instant_it_is_for_and_when_its_schedule_last_succeeded() -> None:
    sent = dict(read({"url": URL}).headers)
    assert sent["X-Job-Nominal-At"] == "2027-01-15T08:00:00.000Z"
    assert "X-Job-Last-Success-At" not in sent
    with_one = read_request({"url": URL}, context(last_success_at=T0), NONE, 60_000)
    assert dict(with_one.headers)["X-Job-Last-Success-At"] == "2027-01-15T08:00:00.000Z"


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"url": None}, "url"),
        ({"url": 5}, "url"),
        ({"uri": "x"}, "'uri': unknown field; did you mean url?"),
        ({"retries": 1}, "'retries': unknown field; there are url, method"),
        ({"method": "post"}, "method"),
        ({"method": "CONNECT"}, "method"),
        ({"method": ["GET"]}, "method"),
        ({"headers": []}, "headers"),
        ({"headers": {"X": 1}}, "headers.X"),
        ({"headers": {"X y": "a"}}, "headers.X y"),
        ({"headers": {"X\r\nY": "a"}}, "headers.X"),
        ({"headers": {"": "a"}}, "headers."),
        ({"headers": {"X": "a\r\nEvil: b"}}, "headers.X"),
        ({"headers": {"X": "a\nb"}}, "headers.X"),
        ({"headers": {"X": "a\0b"}}, "headers.X"),
        ({"headers": {"X": "ü"}}, "headers.X"),
        ({"headers": {"X": "a", "x": "b"}}, "headers: the same name twice"),
        ({"headers": {f"X{n}": "a" for n in range(65)}}, "headers: more than 64"),
        ({"json": 1, "body": "x"}, "body"),
        ({"body": 1}, "body"),
        ({"body": "\ud800"}, "body"),
        ({"body_base64": "%%%"}, "body_base64"),
        ({"method": "GET", "json": {}}, "json: GET has no body"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "ten"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"ok": 200}, "ok"),
        ({"ok": [99]}, "ok"),
        ({"ok": [True]}, "ok"),
        ({"ok": ["6xx"]}, "ok"),
        ({"ok": ["4xx"], "dead": [404]}, "dead: 404 is in ok too"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_the_name_of_its_field(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPayload, match="^'?" + re.escape(field).lstrip("'")):
        read({"url": URL, **extra})


@pytest.mark.parametrize("payload", [None, [], "https://api.example", 5, {}])
def test_what_is_no_payload_at_all(payload: object) -> None:
    with pytest.raises(InvalidPayload, match=r"^(payload: it must be a JSON object|url: it is missing)"):
        read(payload)


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "TE", "Trailer"),
        *("Upgrade", "Proxy-Authorization", "Expect", "User-Agent", "Accept-Encoding", "Idempotency-Key"),
        *("X-Fence-Token", "x-fence-token", "X-Job-Id", "X-Job-Attempt", "X-Job-Run", "X-Job-Anything"),
    ],
)
def test_headers_of_ours_and_of_the_connection_cannot_be_replaced(name: str) -> None:
    with pytest.raises(InvalidPayload, match=f"headers.{name}: it is set by the handler"):
        read({"url": URL, "headers": {name: "x"}})


@pytest.mark.parametrize(
    "url",
    [
        *("", "/path", "api.example", "//api.example/", "http:", "http://", "https:///x", "http:api.example"),
        *("ftp://api.example/", "file:///etc/passwd", "gopher://api.example/", "javascript:alert(1)"),
        *("http://user@api.example/", "http://user:pw@api.example/", "http://@api.example/"),
        *("http://api.example\\@127.0.0.1/", "http://api.example/\\evil", "http://api.example:99999/"),
        *("http://api.example:x/", "http://a b/", "http://api.example/\r\nX: y", "http://\0/", "http://[::1"),
        *("http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.1/", "http://0/"),
        *("http://[fe80::1%25eth0]/", f"http://{FULL_WIDTH}/", "http://a%2eb/", "http://api.example:0/"),
        *("http://" + "a" * 300 + "/", "http://api.example/" + "a" * 70_000, "http://api.example/\ud800"),
    ],
)
def test_a_url_that_could_mislead_is_refused(url: str) -> None:
    with pytest.raises(InvalidPayload, match=r"^url: "):
        read({"url": url})


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://bücher.example/ä?ö#ü", "xn--bcher-kva.example"),
        ("HTTPS://API.Example:443/", "api.example"),
        ("http://[2606:4700::1111]:8080/", "2606:4700::1111"),
        ("http://localhost:8080", "localhost"),
    ],
)
def test_a_host_is_sent_in_ascii(url: str, host: str) -> None:
    assert read({"url": url}).url.raw_host.decode() == host


@pytest.mark.parametrize(
    ("extra", "content", "type_"),
    [
        ({"json": None}, b"null", "application/json"),
        ({"json": {"a": "ü"}}, '{"a":"ü"}'.encode(), "application/json"),
        ({"body": "ü"}, "ü".encode(), "text/plain; charset=utf-8"),
        ({"body_base64": "AP8="}, b"\0\xff", "application/octet-stream"),
        ({"body": "<a/>", "headers": {"content-type": "text/xml"}}, b"<a/>", "text/xml"),
    ],
)
def test_a_body_with_its_type(extra: dict[str, Any], content: bytes, type_: str) -> None:
    request = read({"url": URL, **extra})
    assert request.content == content
    assert [value for name, value in request.headers if name.lower() == "content-type"] == [type_]


def test_a_payload_asks_for_less_time_never_for_more() -> None:
    assert read({"url": URL, "timeout": "2s"}).timeout_ms == 2_000
    assert read({"url": URL, "timeout": "2h"}).timeout_ms == 60_000


def test_two_idempotency_keys_never_look_the_same() -> None:
    keys = ["a b", "a%20b", "ä", "%C3%A4", "a\r\nb", "a%0D%0Ab", "s:x:1::2", "\ud800"]
    sent = [visible(key) for key in keys]
    assert len({*sent}) == len(keys)
    assert all(re.fullmatch(r"[\x21-\x7e]+", text) for text in sent)
    assert visible("invoice-55/2027:1") == "invoice-55/2027:1"


# -- secrets -------------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Secrets:
    monkeypatch.setenv("DUELINE_SECRET_KEY", "k/1 &2")
    monkeypatch.setenv("DUELINE_SECRET_HOOK", "https://api.example/services/T0/B0")
    monkeypatch.setenv("DUELINE_SECRET_BROKEN", "a\r\nEvil: b")
    monkeypatch.setenv("DUELINE_SECRET_NOTED", "nobody bound it")
    (tmp_path / "FILED").write_text("from a file\n")
    bindings = [
        "KEY@api.example",
        "KEY@clear.example:80",
        "HOOK@*.example",
        "BROKEN@*.example",
        "UNSET@*.example",
    ]
    return Secrets(bound([*bindings, "FILED@api.example"]), tmp_path)


def test_a_secret_stands_in_headers_path_and_query(secrets: Secrets) -> None:
    request = read(
        {"url": URL + "/${secret:KEY}?k=${secret:KEY}", "headers": {"X": "a ${secret:KEY} ${secret:FILED}"}},
        secrets,
    )
    assert request.url.raw_path == b"/v1/k/1%20%262?k=k/1%20%262"
    assert dict(request.headers)["X"] == "a k/1 &2 from a file"
    assert request.mask.text(f"{request.url} k/1 &2 from a file") == f"{URL}/***?k=*** *** ***"


def test_a_secret_may_be_the_whole_url(secrets: Secrets) -> None:
    request = read({"url": "${secret:HOOK}"}, secrets)
    assert str(request.url) == "https://api.example/services/T0/B0"
    assert "T0" not in request.place


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"url": "https://${secret:KEY}/"}, "url: a secret may be all of it or within path and query"),
        ({"url": "${secret:KEY}/x"}, "url: "),
        ({"url": "${secret:KEY}"}, "url: the secret "),
        (
            {"url": URL, "headers": {"X": "${secret:NOTED}"}},
            "headers.X: no secret 'NOTED' is named in DUELINE_HTTP_SECRETS",
        ),
        ({"url": URL, "headers": {"X": "${secret:../KEY}"}}, "headers.X: no secret"),
        (
            {"url": "https://evil.test/", "headers": {"X": "${secret:KEY}"}},
            "secret KEY may not be sent to evil.test:443",
        ),
        (
            {"url": "https://evil.test/api.example?${secret:KEY}"},
            "secret KEY may not be sent to evil.test:443",
        ),
        (
            {"url": "http://api.example/", "headers": {"X": "${secret:KEY}"}},
            "secret KEY is sent over https only",
        ),
    ],
)
def test_a_secret_that_would_go_astray_is_refused(
    secrets: Secrets, payload: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidPayload, match=re.escape(problem)) as error:
        read(payload, secrets)
    assert "k/1" not in str(error.value)


def test_a_host_is_known_by_its_ascii_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_SECRET_KEY", "k")
    known = Secrets(bound(["KEY@xn--bcher-kva.example"]), None)
    assert read({"url": "https://bücher.example/?${secret:KEY}"}, known).url.raw_path == b"/?k"


def test_in_clear_text_only_to_a_port_that_the_operator_named(secrets: Secrets) -> None:
    assert read({"url": "http://clear.example/", "headers": {"X": "${secret:KEY}"}}, secrets)


@pytest.mark.parametrize("name", ["UNSET", "BROKEN"])
def test_a_secret_without_a_usable_value_is_the_workers_fault_not_the_jobs(
    secrets: Secrets, name: str
) -> None:
    with pytest.raises(SecretMissing, match=f"secret {name}") as error:
        read({"url": URL, "headers": {"X": f"${{secret:{name}}}"}}, secrets)
    assert "Evil" not in str(error.value)
