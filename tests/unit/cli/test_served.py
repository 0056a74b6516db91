"""Reads that ask a running server first."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pipeline.cli import served
from tests.unit.cli.test_cron import STATE, put

ID = "j" + "0" * 26
AT = "2027-01-15T08:00:00.000Z"
JOB = {
    "id": ID,
    "handler": "a",
    "status": "dead",
    "due_at": AT,
    "created_at": AT,
    "ended_at": AT,
    "key": None,
    "queue": "default",
    "labels": {},
    "schedule": None,
    "occurrence": ID,
    "serial": None,
    "failures": 1,
    "skipped": None,
    "reason": None,
    "waits_behind": None,
    "kept": False,
    "payload": None,
    "result": None,
    "runs": [],
    "more": 1,
}
ROW = {
    "id": ID,
    "handler": "a",
    "status": "dead",
    "due_at": AT,
    "queue": "default",
    "key": None,
    "run": 1,
    "failures": 1,
    "labels": {},
    "schedule": None,
    "ended_at": AT,
    "error": "no",
    "more": 1,
}
FRESH = {"behind": 0, "age_ms": 0, "ready": True, "problem": None}
OVERVIEW = {
    "at": AT,
    "held": None,
    "pending": 7,
    "oldest_overdue": None,
    "schedules": {"count": 2, "overdue": [], "paused": 1},
    "freshness": FRESH,
}
PARTITION = {
    "topic": "there.jobs",
    "partition": 0,
    "owner": None,
    "state": None,
    "generation": None,
    "pending": None,
}
FLEET = {"at": AT, "era": 1, "partitions": [{**PARTITION, "era": None}], "processes": [], "runs": []}
QUEUE = {
    "queue": "default",
    "lag": 0,
    "oldest_unacked": None,
    "workers": 0,
    "in_flight": 0,
    "held": 0,
    "parked": 0,
    "handlers": [],
    "started_per_min": 0,
    "ended_per_min": 0,
    "paused": {"by": "me@here", "at": AT, "reason": None},
}


class Server(ThreadingHTTPServer):
    """Answers what it is told to, by path; 404 to the rest."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.authorised: list[str | None] = []
        self.closed = False
        self.views: dict[str, Any] = {
            "/api/v1/status": OVERVIEW,
            "/api/v1/fleet": FLEET,
            "/api/v1/queues": {"items": [QUEUE]},
            "/api/v1/jobs": {"items": [ROW], "cursor": None},
            f"/api/v1/jobs/{ID}": JOB,
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append((parts.path, parse_qs(parts.query)))
        self.server.authorised.append(self.headers.get("authorization"))
        cursor = self.server.asked[-1][1].get("cursor", [])
        view = self.server.views.get("?".join([parts.path, *cursor]))
        if self.server.closed:
            kind, status = "application/problem+json", 401
            view = {"type": "urn:dueline:problem:unauthenticated", "detail": "a token is needed"}
        elif view is None:
            kind, status = "application/problem+json", 404
            view = {"type": "urn:dueline:problem:not-found", "detail": f"{parts.path}: nothing of this id"}
        else:
            kind, status = "application/json", 200
        body = json.dumps(view).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that DUELINE_URL names; there is a proxy too, which is of no use for this machine."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(served, "PATIENCE_S", 30.0)
    with Server() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        monkeypatch.setenv("DUELINE_URL", made.url)
        yield made
        made.shutdown()


def test_a_job_that_only_a_server_knows_is_shown(dueline: Any, server: Server) -> None:
    ran = dueline("job", "get", ID, "--json")
    assert ran.json("job_get") | {"more": 1} == JOB
    assert (ran.code, ran.err) == (0, f"dueline: asked the server at {server.url}\n")


def test_a_job_that_a_server_has_not_heard_of_is_looked_for_in_the_topics(
    dueline: Any, store: Any, app: Any, server: Server
) -> None:
    ref = app.schedule("a", in_="1h")
    assert dueline("job", "get", ref.id, "--json").json("job_get")["status"] == "pending"
    store.cluster.reachable = False
    ran = dueline("job", "get", ref.id)
    assert (ran.code, ran.err.count("\n")) == (3, 2)
    assert "nothing of this id" in ran.err


def test_a_server_lists_what_has_ended_too(dueline: Any, server: Server) -> None:
    ran = dueline(
        *("job", "list", "--status", "dead", "--handler", "a", "--label", "x=y", "--label", "z=1"),
        *("--due-from", "2026-01-01T01:00:00+01:00", "--limit", "1", "--json"),
    )
    assert [row["id"] for row in ran.lines("job_list")] == [ID]
    assert server.asked[-1] == (
        "/api/v1/jobs",
        {
            "status": ["dead"],
            "handler": ["a"],
            "label": ["x=y", "z=1"],
            "due_from": ["2026-01-01T00:00:00.000Z"],
            "order": ["due"],
            "limit": ["1"],
        },
    )


def test_a_server_is_asked_by_all_that_it_can_filter_by(dueline: Any, server: Server) -> None:
    choice = {"queue": "q", "schedule": "daily", "key": "k", "key_prefix": "p", "text": "t", "order": "-due"}
    words = [word for name, value in choice.items() for word in (f"--{name.replace('_', '-')}", value)]
    (row,) = dueline("job", "list", *words, "--status", "dead", "--status", "queued", "--json").lines(
        "job_list"
    )
    assert row | {"more": 1} == ROW
    assert server.asked[-1][1] == {
        **{name: [value] for name, value in choice.items()}, "status": ["queued", "dead"], "limit": ["200"],
    }  # fmt: skip


def test_a_list_leaves_out_only_what_has_ended_unless_it_is_asked_for(dueline: Any, server: Server) -> None:
    dueline("job", "list")
    assert server.asked[-1][1]["status"] == ["pending", "queued", "running", "retrying"]


def test_without_a_server_what_has_ended_is_not_listed(dueline: Any) -> None:
    ran = dueline("job", "list", "--status", "dead", "--status", "pending")
    assert (ran.code, ran.out) == (2, "")
    assert (
        "--status: dead needs a server; without one there are pending, retrying, queued, running" in ran.err
    )


def test_a_row_that_lacks_something_is_no_servers(dueline: Any, server: Server) -> None:
    server.views["/api/v1/jobs"] = {"items": [{"id": ID}], "cursor": None}
    ran = dueline("job", "list")
    assert (ran.code, ran.out) == (5, "")
    assert "what the server answers has no 'handler'" in ran.err


def test_a_status_comes_from_a_server(dueline: Any, server: Server) -> None:
    view = dueline("status", "--json").json("status")
    assert (view["prefix"], view["pending"], view["schedules"]) == ("there", 7, {"count": 2, "overdue": []})
    assert view["queues"][0]["paused"] == {"by": "me@here", "at": AT, "reason": ""}
    assert "there at 2027-01-15T08:00:00.000Z: pending 7" in dueline("status").out


@pytest.mark.parametrize(
    "freshness", [{"ready": False}, {"problem": "the store is away"}, {"age_ms": 10_001}]
)
def test_a_server_that_has_not_caught_up_is_not_believed(
    dueline: Any, server: Server, freshness: dict[str, Any]
) -> None:
    server.views["/api/v1/status"] = {**OVERVIEW, "freshness": {**FRESH, **freshness}}
    ran = dueline("status", "--json")
    assert ran.json("status")["prefix"] == "unit"
    assert ran.err == f"dueline: the server at {server.url} has not caught up; the topics are read instead\n"


def test_a_server_that_is_silent_is_waited_for_a_second_at_most(
    dueline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DUELINE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        ran = dueline("status", "--json")
    assert ran.json("status")["prefix"] == "unit"
    assert "did not answer within 0.1 s" in ran.err
    assert ran.err.endswith("; the topics are read instead\n")


def test_something_else_at_the_url_is_not_believed(dueline: Any, server: Server) -> None:
    server.views.clear()
    server.views["/api/v1/status"] = {"hello": "world"}
    ran = dueline("status", "--json")
    assert ran.json("status")["prefix"] == "unit"
    assert "it is no dueline server" in ran.err


# -- what a job waits for, schedules, dead letters -----------------------------------------------------------

WHY = {"id": ID, "status": "pending", "waits_for": "time", "sentence": "It is due in 3 s.", "more": 1}
LETTER = {
    "id": ID,
    "occurrence_id": ID,
    "handler": "a",
    "queue": "default",
    "reason": "max_attempts",
    "detail": "no",
    "at": AT,
    "run": 1,
    "attempts": [],
    "source": {"topic": "there.work.default", "partition": 0, "offset": 3},
    "payload_bytes": 2,
    "more": 1,
}
GROUP = {
    "group": "0" * 12,
    "handler": "a",
    "reason": "max_attempts",
    "error": "E",
    "message": "no",
    "count": 1,
    "oldest": AT,
    "newest": AT,
    "example": ID,
    "more": 1,
}


def test_a_server_says_what_a_job_waits_for(dueline: Any, server: Server) -> None:
    server.views[f"/api/v1/jobs/{ID}/why"] = WHY
    ran = dueline("job", "why", ID, "--json")
    assert ran.json("job_why") == {name: WHY[name] for name in ("id", "status", "waits_for", "sentence")}
    assert ran.err == f"dueline: asked the server at {server.url}\n"


def test_what_a_job_waits_for_that_a_server_has_not_heard_of_is_read(
    dueline: Any, app: Any, server: Server
) -> None:
    ref = app.schedule("a", in_="1h")
    assert dueline("job", "why", ref.id, "--json").json("job_why")["waits_for"] == "time"


def test_a_servers_schedules_are_those_of_the_topics_and_it_tells_more(
    dueline: Any, store: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, STATE)
    monkeypatch.delenv("DUELINE_URL")
    (listed,) = dueline("cron", "list", "--json").lines("cron_list")
    described = dueline("cron", "describe", "daily", "--json").json("cron_describe")
    more = {"recent": [], "upcoming": [], "etag": '"1"'}
    server.views["/api/v1/schedules"] = {"items": [{**listed, **more}], "cursor": None}
    server.views["/api/v1/schedules/daily"] = {**described, **more}
    monkeypatch.setenv("DUELINE_URL", server.url)
    store.cluster.reachable = False
    words = ("--handler", "report", "--state", "overdue", "--source", "cli")
    assert dueline("cron", "list", *words, "--json").lines("cron_list") == [listed]
    asked = {"handler": ["report"], "state": ["overdue"], "source": ["cli"], "limit": ["200"]}
    assert server.asked[-1] == ("/api/v1/schedules", asked)
    ran = dueline("cron", "describe", "daily", "--json")
    assert ran.json("cron_describe") == described
    assert dueline("cron", "describe", "nobody").code == 3
    assert ran.err == f"dueline: asked the server at {server.url}\n"


CHOICE = {
    "handler": "a", "queue": "q", "reason": "max_attempts", "error": "E", "group": "0" * 12,
    "since": "2027-01-15T07:30:00.000Z",
}  # fmt: skip


def test_a_server_is_asked_for_the_dead_letters_that_are_wanted(dueline: Any, server: Server) -> None:
    odd = {**LETTER, "at": "99999999999999999"}
    server.views["/api/v1/dead"] = {"items": [odd, LETTER, LETTER], "cursor": None}
    words = [word for name, value in CHOICE.items() for word in (f"--{name}", value)]
    ran = dueline("dead", "list", *words, "--limit", "2", "--json")
    assert [each["at"] for each in ran.lines("dead_list")] == [odd["at"], AT]
    assert server.asked[-1][1] == {**{name: [value] for name, value in CHOICE.items()}, "limit": ["200"]}
    server.views["/api/v1/dead"] = {"items": [], "cursor": None}
    assert "no dead letter matches" in dueline("dead", "list", "--reason", "x").err
    assert server.asked[-1][1] == {"reason": ["x"], "limit": ["200"]}


def test_groups_of_a_server_are_those_of_its_pages_together(dueline: Any, server: Server) -> None:
    small = {**GROUP, "group": "1" * 12, "count": 2}
    server.views["/api/v1/dead/groups"] = {"items": [small, GROUP], "cursor": "c"}
    older = {**GROUP, "count": 4, "oldest": "2027-01-14T08:00:00.000Z", "newest": "2027-01-14T09:00:00.000Z"}
    server.views["/api/v1/dead/groups?c"] = {"items": [older], "cursor": None}
    ran = dueline("dead", "groups", "--queue", "q", "--json")
    first, second = ran.lines("dead_groups")
    assert first | {"more": 1} == {**GROUP, "count": 5, "oldest": older["oldest"]}
    assert (second["group"], second["count"]) == (small["group"], 2)
    assert server.asked[-1][1]["queue"] == ["q"]


def test_a_server_that_does_not_group_leaves_it_to_the_topics(dueline: Any, server: Server) -> None:
    ran = dueline("dead", "groups")
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "dueline: no dead letter matches")


def test_payloads_of_dead_letters_are_in_the_topic_only(dueline: Any, server: Server) -> None:
    assert dueline("dead", "list", "--payload").err == "dueline: no dead letter matches\n"
    assert server.asked == []


# -- the server of `dueline dev` ----------------------------------------------------------------------------


@pytest.fixture
def beside(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A running `dueline dev` whose file says so."""
    monkeypatch.delenv("DUELINE_URL")

    def run(**more: Any) -> None:
        found = {"bootstrap": f"127.0.0.1:{server.server_port}", "pid": os.getpid()}
        (tmp_path / "dev.json").write_text(json.dumps(found | more))

    return run


def test_the_server_of_a_running_dev_is_found_and_sent_no_token(
    dueline: Any, server: Server, beside: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_TOKEN", "dl_elsewhere")
    beside(server={"url": server.url, "prefix": "dueline"})
    ran = dueline("job", "get", ID)
    assert (ran.code, f"dueline: asked the server at {server.url}\n" in ran.err) == (0, True)
    assert server.authorised == [None, None]


def test_how_a_server_that_wants_a_token_gets_it_is_told(
    dueline: Any, server: Server, beside: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.closed = True
    monkeypatch.setenv("DUELINE_TOKEN", "dl_mine")
    beside(server={"url": server.url, "prefix": "dueline"})
    how = "; DUELINE_TOKEN is sent to the server that DUELINE_URL names"
    assert f"says: a token is needed{how}; the topics are read instead" in dueline("status").err
    monkeypatch.setenv("DUELINE_URL", server.url)
    assert how not in dueline("status").err
    assert server.authorised == [None, "Bearer dl_mine"]


@pytest.mark.parametrize(
    ("more", "prefix", "brokers"),
    [
        ({}, "", ""),
        ({"server": None}, "", ""),
        ({"server": {"prefix": "dueline"}}, "", ""),
        ("told", "other", ""),
        ("told", "", "elsewhere:9092"),
    ],
)
def test_a_server_of_another_store_is_not_asked(
    dueline: Any,
    server: Server,
    beside: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    more: Any,
    prefix: str,
    brokers: str,
) -> None:
    beside(**({"server": {"url": server.url, "prefix": "dueline"}} if more == "told" else more))
    monkeypatch.setenv("DUELINE_PREFIX", prefix)
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", brokers)
    assert dueline("status", "--json").json("status")["prefix"] == "unit"
    assert server.asked == []
