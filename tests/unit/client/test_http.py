"""Which way a client goes, and what it sends to a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from pipeline import Dueline, InvalidInput, NotFound, StoreUnreachable
from pipeline.client import http as client_http
from pipeline.client.http_calls import Calls
from pipeline.config import load_settings

REF = {"id": "j" + "0" * 26, "status": "created", "due_at": "2040-01-01T00:00:00.000Z"}
Sent = list[tuple[str, str, Any]]


@pytest.fixture
def sent() -> Sent:
    """(method, path with query, body) of each request."""
    return []


@pytest.fixture
def over_http(monkeypatch: pytest.MonkeyPatch, sent: Sent) -> Callable[..., Dueline]:
    """A client whose server gives these answers, one after the other."""

    def make(*answers: Any, **settings: Any) -> Dueline:
        left = list(answers)

        def answer(request: httpx.Request) -> httpx.Response:
            body = request.content.decode()
            sent.append((request.method, request.url.raw_path.decode(), body and json.loads(body)))
            given = left.pop(0)
            return given if isinstance(given, httpx.Response) else httpx.Response(200, json=given)

        def calls(url: str, token: str | None, *, patience_s: float) -> Calls:
            return Calls(url, token, patience_s=patience_s, transport=httpx.MockTransport(answer))

        monkeypatch.setattr(client_http, "Calls", calls)
        return Dueline(url="http://there:1/", **settings)

    return make


# -- which way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "arguments", "http"),
    [
        ({}, {}, False),
        ({"DUELINE_URL": "http://a:1"}, {}, True),
        ({"DUELINE_URL": "http://a:1", "DUELINE_BOOTSTRAP_SERVERS": "b:1"}, {}, True),
        ({"DUELINE_URL": "http://a:1"}, {"bootstrap_servers": "b:1"}, False),
        ({"DUELINE_BOOTSTRAP_SERVERS": "b:1"}, {"url": "http://a:1"}, True),
    ],
)
def test_the_url_is_asked_unless_brokers_were_named_closer(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], arguments: dict[str, str], http: bool
) -> None:
    for name in ("DUELINE_URL", "DUELINE_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings(**arguments).over_http is http


def test_both_ways_at_once_are_refused() -> None:
    with pytest.raises(InvalidInput, match="url: excludes bootstrap_servers"):
        Dueline(url="http://a:1", bootstrap_servers="b:1")


@pytest.mark.parametrize(
    "url",
    ["a:1", "ftp://a", "http://me:secret@a", "http://a?x=1", "http://a:0", "http://a b", "http://a/%2e#x"],
)
def test_a_url_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"^url: is not http://host:port") as caught:
        Dueline(url=url)
    assert "secret" not in str(caught.value)


def test_a_client_in_a_test_goes_neither_way(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_URL", "http://127.0.0.1:1")
    app = Dueline()
    with app.connected_by(store.connect):
        app.schedule("a", in_="1s")
        assert not app.live_handlers()
    Dueline(connect=store.connect).schedule("a", in_="1s")
    assert len(store.runs()) == 2


def test_nothing_of_http_is_loaded_before_a_url_is_asked() -> None:
    code = (
        "import sys; from pipeline import Dueline; app = Dueline(); app.schedules\n"
        "assert 'httpx' not in sys.modules, 'loaded'\n"
        "Dueline(url='http://127.0.0.1:1'); assert 'httpx' not in sys.modules, 'loaded unasked'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


# -- what is sent -------------------------------------------------------------------------------------------


def test_a_job_is_sent_as_the_api_takes_it(over_http: Callable[..., Dueline], sent: Sent) -> None:
    app = over_http(REF, queue="mail")
    at = datetime(2040, 1, 1, tzinfo=UTC)
    ref = app.schedule(
        "a",
        {"n": 2**70},
        at=at,
        timeout=timedelta(seconds=1.5),
        labels={"x": "y"},
        serial=None,
        wait="45s",
        key="k",
    )
    assert ref == (REF["id"], "created", at)
    assert sent == [
        (
            "POST",
            "/api/v1/jobs?wait=30000ms",
            {
                "handler": "a",
                "payload": {"n": 2**70},
                "at": "2040-01-01T00:00:00.000Z",
                "timeout": "1500ms",
                "labels": {"x": "y"},
                "key": "k",
                "queue": "mail",
            },
        )
    ]


def test_ids_stay_within_their_place_in_the_path(over_http: Callable[..., Dueline], sent: Sent) -> None:
    id_ = "s:nightly:5:g::1800000000000"
    app = over_http({"id": id_, "outcome": "too_late"}, {"id": "x", "outcome": "cancelled"})
    assert app.cancel(id_).outcome == "too_late"
    app.schedules.cancel_backfill("nightly", "../../x?y")
    assert [path for _, path, _ in sent] == [
        "/api/v1/jobs/s%3Anightly%3A5%3Ag%3A%3A1800000000000/cancel?wait=5000ms",
        "/api/v1/schedules/nightly/backfills/..%2F..%2Fx%3Fy?wait=5000ms",
    ]


def test_middleware_puts_headers_on_every_job_here_too(over_http: Callable[..., Dueline], sent: Sent) -> None:
    class Tenant:
        def headers(self) -> dict[str, str]:
            return {"tenant": "7"}

    app = over_http(REF)
    app.use(Tenant())
    app.schedule("a", in_=1)
    assert sent[0][2]["headers"] == {"tenant": "7"}


def test_a_mistake_is_told_without_a_server(over_http: Callable[..., Dueline], sent: Sent) -> None:
    app = over_http(REF)
    app.schedule("a", in_=1)
    for ask in (
        lambda: app.schedule("NO", in_=1),
        lambda: app.cancel("nonsense"),
        lambda: app.reschedule(REF["id"], in_=1, at="2040-01-01T00:00:00Z"),
        lambda: app.schedules.create("x", "a", every="1h", source="file:x"),
    ):
        with pytest.raises(InvalidInput):
            ask()
    assert len(sent) == 1


def test_schedules_are_chosen_by_the_server(over_http: Callable[..., Dueline], sent: Sent) -> None:
    page = {"items": [], "cursor": None}
    assert over_http(page).schedules.list(state="failing", source="app:shop") == []
    assert [path for _, path, _ in sent] == ["/api/v1/schedules?limit=200&state=failing&source=app%3Ashop"]


def test_pages_are_read_to_their_end(over_http: Callable[..., Dueline], sent: Sent) -> None:
    rows = [{"id": name} for name in "abc"]
    pages = (
        {"items": rows[:2], "cursor": "x"},
        {"items": [], "cursor": "y"},
        {"items": rows[2:], "cursor": None},
    )
    assert over_http(*pages).schedules.list() == rows
    assert [path for _, path, _ in sent] == [
        "/api/v1/schedules?limit=200",
        "/api/v1/schedules?limit=200&cursor=x",
        "/api/v1/schedules?limit=200&cursor=y",
    ]


def test_of_a_job_that_is_gone_there_is_no_result(over_http: Callable[..., Dueline]) -> None:
    body = {"type": "urn:dueline:problem:not-found", "detail": "nothing"}
    gone = httpx.Response(404, content=json.dumps(body), headers={"content-type": "application/problem+json"})
    with pytest.raises(NotFound):
        over_http(gone).result(REF["id"], wait=0)


def test_an_instant_that_is_none_is_no_servers(over_http: Callable[..., Dueline]) -> None:
    with pytest.raises(StoreUnreachable, match="the server answers no instant"):
        over_http({**REF, "due_at": "soon"}).schedule("a", in_=1)


JOB = {**dict.fromkeys(client_http.JOB), "id": REF["id"], "handler": "a", "status": "dead", "runs": []}


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        ({**REF, "id": 5}, lambda app: app.schedule("a", in_=1)),
        ({**REF, "status": ["x"]}, lambda app: app.schedule("a", in_=1)),
        ({"id": "x", "outcome": 7}, lambda app: app.cancel(REF["id"])),
        ({"id": "x", "outcome": 7}, lambda app: app.schedules.pause("x")),
        ({**JOB, "id": 5}, lambda app: app.get(REF["id"])),
        ({**JOB, "runs": "ab"}, lambda app: app.result(REF["id"], wait=0)),
        ({**JOB, "runs": [5]}, lambda app: app.result(REF["id"], wait=0)),
        ({**JOB, "status": "x"}, lambda app: app.result(REF["id"], wait=0)),
        ({"processes": [1]}, lambda app: app.live_handlers()),
        ({"processes": 1}, lambda app: app.live_handlers()),
        ({"items": [1], "cursor": None}, lambda app: app.schedules.list()),
        ({"items": 1, "cursor": None}, lambda app: app.schedules.list()),
        ({"items": [1]}, lambda app: list(app.schedule_many([{"handler": "a", "in_": 1}]))),
    ],
)
def test_an_answer_of_other_types_is_no_servers(
    over_http: Callable[..., Dueline], answer: Any, ask: Callable[[Dueline], Any]
) -> None:
    with pytest.raises(StoreUnreachable, match="what the server answers is not what a dueline server does"):
        ask(over_http(answer, answer))


@pytest.mark.parametrize("refs", ["x", [5], [{"id": 5, "status": "s", "due_at": REF["due_at"]}], 7])
def test_references_of_other_types_are_no_servers(over_http: Callable[..., Dueline], refs: Any) -> None:
    app = over_http({"items": [{"queue": "default"}]}, {"accepted": 1, "errors": [], "refs": refs})
    with pytest.raises(StoreUnreachable, match="what the server answers is not"):
        list(app.schedule_many([{"handler": "a", "in_": 1}]))


def test_a_page_that_leads_to_itself_is_the_last(over_http: Callable[..., Dueline], sent: Sent) -> None:
    page = {"items": [], "cursor": "x"}
    with pytest.raises(StoreUnreachable, match="the same page without end"):
        over_http(page, page).schedules.list()
    assert len(sent) == 2
