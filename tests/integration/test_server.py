"""`dueline server` as a process, over a real broker, with a real dispatcher and worker."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.fleet import Eventually, Fleet, fleet
from ports import free_port

from pipeline.dev.broker import EmbeddedBroker

SHOP = """
from pipeline import Dueline
app = Dueline()

@app.job("ok")
def ok(ctx, **payload):
    return payload

@app.job("fails", max_attempts=1)
def fails(ctx, **payload):
    raise ValueError("no")
"""
NDJSON = {"content-type": "application/x-ndjson"}
pytestmark = pytest.mark.timeout(240)


@contextmanager
def server(
    of: Fleet, name: str, *arguments: str, **environment: str
) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """A server of the installation, with a state directory of its own, and a client of it."""
    log = of.home / f"{name}.log"
    with log.open("ab") as events:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "server", "--port", "0", *arguments],
            cwd=of.home,
            env={**of._environment, "DUELINE_STATE_DIR": str(of.home / name), **environment},
            stdout=subprocess.DEVNULL,
            stderr=events,
        )
    try:
        url = _url(log, process)
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client, process
    finally:
        process.terminate()
        process.wait(60)
    assert all(isinstance(json.loads(line), dict) for line in log.read_text().splitlines())


def _url(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 80
    while time.monotonic() < deadline:
        text = log.read_text("utf-8", "replace")
        if found := re.search(r'"url": "([^"]+)"', text):
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8", "replace"))


@pytest.fixture(scope="module")
def shop(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("server")
    with fleet(broker, f"t{os.urandom(6).hex()}", home, SHOP) as made:
        made.dispatcher()
        made.worker()
        yield made


@pytest.fixture(scope="module")
def api(shop: Fleet) -> Iterator[httpx.Client]:
    with server(shop, "one") as (client, _):
        deadline = time.monotonic() + 80
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, client.get("/readyz").text
            time.sleep(0.1)
        yield client


def status(api: httpx.Client, id_: str) -> Any:
    return api.get(f"/api/v1/jobs/{id_}").json().get("status")


def test_a_job_that_is_posted_runs(api: httpx.Client, eventually: Eventually) -> None:
    body = {"handler": "ok", "in": "0s", "payload": {"n": 2**70}}
    made = api.post("/api/v1/jobs", json=body)
    assert made.status_code == 201
    id_ = made.json()["id"]
    eventually(lambda: status(api, id_) == "succeeded", timeout=60)
    assert api.get(f"/api/v1/jobs/{id_}").json()["result"] == {"n": 2**70}
    refused = api.post(f"/api/v1/jobs/{id_}/cancel")
    assert (refused.status_code, refused.json()["outcome"]) == (409, "too_late")


def test_a_job_is_changed_and_cancelled_and_every_read_sees_it(api: httpx.Client) -> None:
    id_ = api.post("/api/v1/jobs", json={"handler": "ok", "in": "1h", "payload": {"n": 1}}).json()["id"]
    assert api.patch(f"/api/v1/jobs/{id_}", json={"payload": {"n": 2}}).json()["outcome"] == "updated"
    assert json.loads(api.get(f"/api/v1/jobs/{id_}").json()["payload"]) == {"n": 2}
    at = "2035-01-01T00:00:00.000Z"
    assert api.post(f"/api/v1/jobs/{id_}/reschedule", json={"at": at}).json()["due_at"] == at
    assert api.get(f"/api/v1/jobs/{id_}").json()["due_at"] == at
    assert api.post(f"/api/v1/jobs/{id_}/cancel").json()["outcome"] == "cancelled"
    assert status(api, id_) == "cancelled"


def test_a_repeated_post_gives_the_same_job_on_any_server(shop: Fleet, api: httpx.Client) -> None:
    body = {"handler": "ok", "in": "1h", "payload": {"n": 1}}
    key = {"idempotency-key": "order-7"}
    first = api.post("/api/v1/jobs", json=body, headers=key)
    with server(shop, "two") as (other, _):
        again = other.post("/api/v1/jobs", json=body, headers=key)
        conflict = other.post("/api/v1/jobs", json={**body, "payload": {"n": 2}}, headers=key)
    assert (first.status_code, first.json()["status"]) == (201, "created")
    assert (again.status_code, again.json()["status"]) == (200, "existing")
    assert first.json()["id"] == again.json()["id"]
    assert conflict.status_code == 422


def test_what_is_posted_to_one_server_is_read_from_another(shop: Fleet, api: httpx.Client) -> None:
    with server(shop, "three") as (other, _):
        for _ in range(10):
            made = api.post("/api/v1/jobs", json={"handler": "ok", "in": "1h"})
            place = {"dueline-position": made.headers["dueline-position"]}
            assert other.get(f"/api/v1/jobs/{made.json()['id']}", headers=place).status_code == 200


def test_a_stream_is_stored_and_counted(api: httpx.Client, eventually: Eventually) -> None:
    lines = b'{"handler":"ok","in":"2h","labels":{"of":"stream"}}\n' * 5_000 + b'{"handler":"ok"}\n'
    told = api.post("/api/v1/jobs", content=lines, headers=NDJSON).json()
    assert (told["accepted"], told["rejected"], told["errors"][0]["line"]) == (5_000, 1, 5_001)
    counted = {"count": 5_000, "capped": False}
    # Once it is heard of: a read waits for some seconds, and then says that it did not.
    eventually(lambda: api.get("/api/v1/jobs/count?label=of%3Dstream").json() == counted, timeout=60)


def test_a_schedule_lives_through_all_its_verbs(api: httpx.Client, eventually: Eventually) -> None:
    spec = {"id": "daily", "handler": "ok", "cron": "0 10 * * *", "tz": "Europe/Berlin"}
    made = api.post("/api/v1/schedules", json=spec)
    assert made.status_code == 201
    tag = {"if-match": made.headers["etag"]}
    assert api.get("/api/v1/schedules/daily").headers["etag"] == tag["if-match"]
    patched = api.patch("/api/v1/schedules/daily", json={"cron": "0 11 * * *"}, headers=tag)
    assert patched.json()["outcome"] == "updated"
    again = {"if-match": patched.headers["etag"]}
    assert api.patch("/api/v1/schedules/daily", json={"cron": "0 11 * * *"}, headers=again).status_code == 200
    assert api.patch("/api/v1/schedules/daily", json={"cron": "0 12 * * *"}, headers=tag).status_code == 412
    key = {"idempotency-key": "now"}
    fired = [api.post("/api/v1/schedules/daily/trigger", headers=key).json() for _ in range(2)]
    assert fired[0]["occurrence_id"] == fired[1]["occurrence_id"]
    eventually(lambda: status(api, fired[0]["occurrence_id"]) == "succeeded", timeout=60)
    paused = api.post("/api/v1/schedules/daily/pause", json={"note": "why"})
    assert paused.json()["outcome"] == "paused"
    read = api.get("/api/v1/schedules/daily")
    assert (read.json()["paused"], read.headers["etag"]) == ("why", paused.headers["etag"])
    assert api.delete("/api/v1/schedules/daily").json()["outcome"] == "deleted"
    assert api.get("/api/v1/schedules/daily").status_code == 404


def test_the_next_instant_of_a_schedule_is_refused_at_once_and_by_all_ways(api: httpx.Client) -> None:
    made = api.post("/api/v1/schedules", json={"id": "alone", "handler": "ok", "cron": "0 10 * * *"})
    assert made.status_code == 201
    instant = {"schedule": "alone", "status": "pending"}
    (row,) = api.get("/api/v1/jobs", params=instant).json()["items"]
    for verb, body in (("cancel", {}), ("cancel", {"stop": True}), ("reschedule", {"in": "1h"})):
        refused = api.post(f"/api/v1/jobs/{row['id']}/{verb}", json=body)
        assert refused.status_code == 409, refused.text
        assert "pause alone" in refused.json()["detail"]
    assert api.patch(f"/api/v1/jobs/{row['id']}", json={"payload": {}}).status_code == 409
    assert api.post(f"/api/v1/jobs/{row['id']}/requeue").status_code == 409
    for verb in ("cancel", "requeue"):
        many = api.post("/api/v1/jobs/bulk", json={"verb": verb, "ids": [row["id"]]}).json()
        assert many["counts"] == {"refused": 1}
    assert [each["id"] for each in api.get("/api/v1/jobs", params=instant).json()["items"]] == [row["id"]]
    assert api.delete("/api/v1/schedules/alone").status_code == 200
    assert api.get(f"/api/v1/jobs/{row['id']}").json()["status"] == "cancelled"
    assert api.post(f"/api/v1/jobs/{row['id']}/cancel").json()["outcome"] in ("cancelled", "too_late")


def test_many_that_have_died_are_told_as_one_is(api: httpx.Client, eventually: Eventually) -> None:
    ids = [api.post("/api/v1/jobs", json={"handler": "fails", "in": "0s"}).json()["id"] for _ in range(3)]
    eventually(lambda: {status(api, id_) for id_ in ids} == {"dead"}, timeout=60)
    single = api.post(f"/api/v1/jobs/{ids[0]}/cancel")
    assert (single.status_code, single.json()["outcome"]) == (409, "too_late")
    nothing = "j" + "0" * 26
    many = api.post("/api/v1/jobs/bulk", json={"verb": "cancel", "ids": [*ids, nothing]}).json()
    assert many["counts"] == {"too_late": 3, "not_found": 1}
    again = api.post("/api/v1/jobs/bulk", json={"verb": "requeue", "ids": [*ids, nothing]}).json()
    assert again["counts"] == {"requeued": 3, "not_found": 1}
    for id_ in ids:
        eventually(lambda id_=id_: len(api.get(f"/api/v1/jobs/{id_}").json()["runs"]) == 2, timeout=60)


def test_what_died_is_requeued_and_replayed(api: httpx.Client, eventually: Eventually) -> None:
    id_ = api.post("/api/v1/jobs", json={"handler": "fails", "in": "0s"}).json()["id"]
    eventually(lambda: status(api, id_) == "dead", timeout=60)
    assert api.post("/api/v1/dead/requeue", json={"ids": [id_]}).json()["requeued"] == 1
    eventually(lambda: len(api.get(f"/api/v1/jobs/{id_}").json()["runs"]) == 2, timeout=60)
    eventually(lambda: status(api, id_) == "dead", timeout=60)
    begun = api.post("/api/v1/replays", json={"from": "2020-01-01T00:00:00Z", "handler": "fails"})
    assert begun.status_code == 202, begun.text
    replay = begun.json()["id"]
    eventually(lambda: api.get(f"/api/v1/replays/{replay}").json().get("state") == "finished", timeout=60)
    eventually(lambda: len(api.get(f"/api/v1/jobs/{id_}").json()["runs"]) == 3, timeout=60)
    replayed = api.get(f"/api/v1/replays/{replay}").json()["counts"]["replayed"]
    dead = {"counts": {"dead": replayed}, "capped": False}
    eventually(lambda: api.get(f"/api/v1/replays/{replay}").json()["outcomes"] == dead, timeout=60)
    audits = [each for each in api.get("/api/v1/events?limit=500").json()["items"] if each["kind"] == "audit"]
    assert {"job.create", "dead.requeue", "replay.start"} <= {each["detail"]["verb"] for each in audits}


def test_tokens_close_the_door_of_every_server(shop: Fleet, eventually: Eventually) -> None:
    """On an installation of its own: the door stays closed for all others of this module otherwise."""
    environment = {**shop._environment, "DUELINE_PREFIX": f"{shop.settings.prefix}x"}

    def token(*words: str) -> Any:
        ran = subprocess.run(
            [sys.executable, "-m", "pipeline", *words, "--json"],
            env=environment,
            cwd=shop.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(ran.stdout)

    token("topics", "create")
    beyond = subprocess.run(
        [sys.executable, "-m", "pipeline", "server", "--host", "0.0.0.0", "--port", "0"],
        env={**environment, "DUELINE_STATE_DIR": str(shop.home / "beyond")},
        cwd=shop.home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert beyond.returncode == 4
    assert "dueline token create" in beyond.stderr
    only = {"DUELINE_PREFIX": environment["DUELINE_PREFIX"]}
    with server(shop, "four", **only) as (client, process):
        assert client.get("/api/v1/me").json()["name"] == "local"
        made = token("token", "create", "ops", "--role", "viewer")
        eventually(lambda: client.get("/api/v1/me").status_code == 401)
        bearer = {"authorization": f"Bearer {made['token']}"}
        assert client.get("/api/v1/me", headers=bearer).json()["name"] == "ops"
        assert client.post("/api/v1/jobs", json={}, headers=bearer).status_code == 403
        token("token", "create", "root", "--role", "admin")
        token("token", "revoke", made["id"])
        eventually(lambda: client.get("/api/v1/me", headers=bearer).status_code == 401)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_connections_that_say_too_much_or_nothing_are_closed(api: httpx.Client) -> None:
    port = api.base_url.port
    assert port is not None

    def talk(*pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                return connection.recv(65_536)
            except (BrokenPipeError, ConnectionResetError):
                return b""

    head = b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\n"
    assert talk(head + b"\r\n").startswith(b"HTTP/1.1 200")
    assert talk(head, b"X: " + b"x" * 200_000).partition(b"\r\n")[0] in (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"",
    )
    assert talk(head + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n")[:12] == b"HTTP/1.1 431"
    assert talk(b"nonsense\r\n\r\n")[:12] == b"HTTP/1.1 400"
    large = head.replace(b"GET /api/v1/me", b"POST /api/v1/dead/requeue")
    large += b"Content-Type: application/json\r\nContent-Length: 9999999999\r\n\r\n"
    assert talk(large)[:12] == b"HTTP/1.1 413"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_store_that_stops_is_told_and_found_again(
    prefix: str, tmp_path: Path, eventually: Eventually
) -> None:
    """On a broker of its own. What the server knows is read all the while; what it cannot store it says at once."""
    with (
        EmbeddedBroker(tmp_path / "store", port=free_port()) as store,
        fleet(store.bootstrap, prefix, tmp_path, SHOP) as shop,
    ):
        shop.dispatcher()
        with server(shop, "one", DUELINE_STORE_TIMEOUT_MS="5000") as (client, process):
            eventually(lambda: client.get("/readyz").status_code == 200, timeout=60)
            job = {"handler": "ok", "in": "1h"}
            made: list[httpx.Response] = []
            eventually(
                lambda: made.append(client.post("/api/v1/jobs", json=job)) or made[-1].status_code == 201
            )
            id_ = made[-1].json()["id"]
            eventually(lambda: status(client, id_) == "pending")
            store.process.kill()
            store.process.wait(60)
            first = client.post("/api/v1/jobs", json=job)
            assert first.status_code == 503
            assert first.headers["retry-after"]
            began = time.monotonic()
            assert {client.post("/api/v1/jobs", json=job).status_code for _ in range(20)} == {503}
            assert time.monotonic() - began < 50, "half of what it takes if each waits for the store"
            assert status(client, id_) == "pending"
            eventually(lambda: client.get("/readyz").status_code == 503, timeout=60)
            assert client.get("/healthz").status_code == 200
            store.respawn()
            eventually(lambda: client.post("/api/v1/jobs", json=job).status_code == 201, timeout=60)
            eventually(lambda: client.get("/readyz").status_code == 200, timeout=60)
            cancel = f"/api/v1/jobs/{id_}/cancel?wait=20s"  # once the dispatcher is back, too
            eventually(lambda: client.post(cancel).json().get("outcome") == "cancelled", timeout=60)
            assert process.poll() is None
