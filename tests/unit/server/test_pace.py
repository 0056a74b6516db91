"""How often somebody may ask who need not say who they are, and what one token may have open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from unit.server.test_jobs_api import IN_AN_HOUR, problem

from pipeline.server import app, pace, schedule_changes
from pipeline.server.endpoint import INTAKES_EACH, LOOKS_EACH, STREAMS_EACH
from pipeline.server.limits import Slots
from pipeline.server.pace import Pace
from pipeline.server.problems import TooMany


def asked(
    front: Pace, method: str, path: str, address: str | None = "10.0.0.1"
) -> tuple[int, dict[bytes, bytes]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    client = None if address is None else (address, 1234)
    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": client}
    asyncio.run(front(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("POST", "/console/sign-in", 20),
        ("GET", "/console/sign-in", 100),
        ("GET", "/console/jobs", 100),
        ("GET", "/readyz", 100),
        ("GET", "/api/v1/openapi.json", 100),
        ("GET", "/api/v1/docs", 100),
    ],
)
def test_each_address_has_its_pace(method: str, path: str, most: int) -> None:
    clock = [0.0]
    front = Pace(PlainTextResponse("ok"), lambda: clock[0])
    assert {asked(front, method, path)[0] for _ in range(most - 1)} == {200}
    asked(front, method, path)
    status, headers = asked(front, method, path)
    assert (status, headers[b"retry-after"]) == (429, b"1")
    assert asked(front, method, path, "10.0.0.2")[0] == 200
    assert asked(front, method, path, None)[0] == 200
    clock[0] += 1
    assert asked(front, method, path)[0] == 200


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/console/_nicegui/x.js", "/console/static/x", "/"])
def test_what_costs_nothing_or_is_counted_by_token_has_none(path: str) -> None:
    front = Pace(PlainTextResponse("ok"), lambda: 0.0)
    assert {asked(front, "GET", path)[0] for _ in range(300)} == {200}


def test_slots_are_counted_for_each_and_together() -> None:
    slots = Slots("doors open", each=2, together=3, retry_s=7)
    with slots.held("a"):
        slots.take("a")
        with pytest.raises(TooMany, match="you have 2 doors open") as error:
            slots.take("a")
        assert error.value.retry_s == 7
        slots.take("b")
        with pytest.raises(TooMany, match="there are 3 doors open"):
            slots.take("c")
    assert slots.open == 2
    slots.take("a")


def streaming(served: Any, count: int, token: str, last: bytes | None = None) -> list[tuple[int, bytes]]:
    """The statuses of so many event streams that are open at the same time, and what each begins with."""

    async def opened() -> list[tuple[int, bytes]]:
        gone = asyncio.Event()
        headers = [
            (b"host", b"localhost"),
            (b"accept", b"text/event-stream"),
            (b"authorization", f"Bearer {token}".encode()),
            *([] if last is None else [(b"last-event-id", last)]),
        ]
        path = "/api/v1/events"
        more = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        scope = {"type": "http", "method": "GET", "scheme": "http", "client": None, **more}

        async def one() -> tuple[int, bytes]:
            sent: asyncio.Queue[Any] = asyncio.Queue()
            asked = [{"type": "http.request", "body": b"", "more_body": False}]

            async def receive() -> Any:
                if not asked:
                    await gone.wait()
                    return {"type": "http.disconnect"}
                return asked.pop()

            running.append(asyncio.ensure_future(served.app(dict(scope), receive, sent.put)))
            head = await asyncio.wait_for(sent.get(), 20)
            pieces = [
                (await asyncio.wait_for(sent.get(), 20))["body"] for _ in range(1 if last is None else 3)
            ]
            return head["status"], b"".join(pieces)

        running: list[Any] = []
        begun = [await one() for _ in range(count)]
        gone.set()
        await asyncio.wait_for(asyncio.gather(*running), 20)
        return begun

    begun: list[tuple[int, bytes]] = served.run(opened())
    return begun


def test_who_comes_from_another_server_is_told_that_the_stream_begins_anew(
    served: Any, eventually: Any
) -> None:
    token = served.token("admin")
    served.post("/jobs", IN_AN_HOUR, token=token)
    eventually(lambda: served.get("/events", token=token).json()["items"])
    ((status, text),) = streaming(served, 1, token, last=b"bogus")
    assert status == 200
    assert text.startswith(b"retry: 2000\n\nevent: anew\n")
    assert b"event: audit" in text


def test_one_token_has_so_many_event_streams_and_no_more(served: Any) -> None:
    token = served.token("viewer")
    statuses = [status for status, _ in streaming(served, STREAMS_EACH + 2, token)]
    assert statuses == [200] * STREAMS_EACH + [429, 429]
    assert served.services.streams.open == 0
    assert streaming(served, 1, token)[0][0] == 200
    problem(served.get("/events?after=bogus", token=token), 422, "invalid-input")
    bad = served.get("/events?after=bogus", token=token, headers={"accept": "text/event-stream"})
    assert bad.status_code == 422
    assert served.services.streams.open == 0


def test_one_token_asks_so_much_at_once_and_no_more(
    served: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    busy, other = served.token("viewer"), served.token("viewer", name="other")
    id_ = served.post("/jobs", IN_AN_HOUR, token=served.token("operator")).json()["id"]
    end, count = threading.Event(), served.services.questions.count

    def slow(*args: Any, **options: Any) -> Any:
        end.wait(20)
        return count(*args, **options)

    monkeypatch.setattr(served.services.questions, "count", slow)
    asking = [
        threading.Thread(target=served.get, args=("/jobs/count",), kwargs={"token": busy})
        for _ in range(LOOKS_EACH)
    ]
    for each in asking:
        each.start()
    eventually(lambda: served.services.looks.open == LOOKS_EACH)
    previews = {"json": {"cron": "0 0 29 2 *", "count": 1_000}}
    for method, path, given in (
        ("GET", "/jobs/count", {}),
        ("GET", f"/jobs/{id_}/why", {}),
        ("POST", "/schedules/preview", previews),
    ):
        answer = served.ask(method, path, token=busy, **given)
        assert f"you have {LOOKS_EACH} counts" in problem(answer, 429, "too-many")["detail"]
        assert answer.headers["retry-after"] == "1"
    assert served.get(f"/jobs/{id_}", token=busy).status_code == 200, (
        "what costs little is asked all the same"
    )
    assert served.services.looks.open == LOOKS_EACH
    end.set()
    for each in asking:
        each.join(20)
    assert served.get(f"/jobs/{id_}/why", token=other).status_code == 200
    assert served.services.looks.open == 0


def test_previews_keep_no_other_reader_waiting(
    served: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """They compute for as long as their expression likes."""
    end, preview = threading.Event(), schedule_changes.preview

    def slow(*args: Any) -> Any:
        end.wait(20)
        return preview(*args)

    monkeypatch.setattr(schedule_changes, "preview", slow)
    token = served.token("viewer")
    asking = [
        threading.Thread(
            target=served.post, args=("/schedules/preview", {"every": "1m"}), kwargs={"token": token}
        )
        for _ in range(LOOKS_EACH)
    ]
    for each in asking:
        each.start()
    eventually(lambda: served.services.looks.open == LOOKS_EACH)
    assert served.get("/jobs", token=token).status_code == 200
    end.set()
    for each in asking:
        each.join(20)


def test_a_head_of_the_events_is_no_stream(served: Any) -> None:
    answer = served.ask("HEAD", "/events", headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"] == "application/json"
    assert served.services.streams.open == 0


def test_one_token_sends_so_many_streams_of_jobs_at_once(served: Any, eventually: Any) -> None:
    slow, other = served.token("operator"), served.token("operator", name="other")
    end = threading.Event()

    async def drops() -> Any:
        while not end.is_set():
            yield b"\n"
            await asyncio.sleep(0.01)

    def send(token: str) -> Any:
        headers = {"content-type": "application/x-ndjson"}
        return served.ask("POST", "/jobs", token=token, content=drops(), headers=headers)

    sending = [threading.Thread(target=send, args=(slow,)) for _ in range(INTAKES_EACH)]
    for each in sending:
        each.start()
    eventually(lambda: served.services.intakes.open == INTAKES_EACH)
    assert f"you have {INTAKES_EACH} streams" in problem(send(slow), 429, "too-many")["detail"]
    line = {"content": b'{"handler":"h","in":"1h"}', "headers": {"content-type": "application/x-ndjson"}}
    assert served.ask("POST", "/jobs", token=other, **line).json()["accepted"] == 1
    end.set()
    for each in sending:
        each.join(20)
    assert served.services.intakes.open == 0


def test_a_server_keeps_everybody_to_their_pace(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PROBES", 2.0)
    monkeypatch.setattr(pace, "SIGN_INS_AHEAD_S", 1.0)
    monkeypatch.setattr(app, "Pace", lambda routes: Pace(routes, lambda: 0.0))  # however long they take
    served = serve()
    assert 429 not in [served.get("//healthz").status_code, served.get("//readyz").status_code]
    assert "probes a second" in problem(served.get("//healthz"), 429, "too-many")["detail"]
    tried = [served.ask("POST", "//console/sign-in", data={"token": "x"}).status_code for _ in range(4)]
    assert tried[-1] == 429
