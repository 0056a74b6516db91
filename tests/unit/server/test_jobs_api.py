"""Jobs over HTTP: creating one and many, changing them, and what each outcome is answered with."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pipeline import codec
from pipeline.client.connection import Connection
from pipeline.core.errors import StoreUnreachable
from pipeline.core.handler import RESULT_LIMIT
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState
from pipeline.readmodel.questions import Freshness
from pipeline.server import bulk, job_changes, recent

NDJSON = {"content-type": "application/x-ndjson"}
NOTHING = "j" + "0" * 26
IN_AN_HOUR = {"handler": "email.send", "payload": {"to": "a@b"}, "in": "1h"}


def problem(answer: Any, status: int, word: str) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["type"] == f"urn:dueline:problem:{word}"
    assert body["status"] == status
    assert "\n" not in body["detail"]
    assert "Traceback" not in answer.text
    return body


def field_of(answer: Any) -> str:
    (error,) = problem(answer, 422, "invalid-input")["errors"]
    assert error["message"]
    assert answer.json()["detail"].startswith(error["field"])
    return str(error["field"])


# -- one job -------------------------------------------------------------------------------------------------


def test_a_job_is_stored_before_it_is_answered(served: Any, store: Any) -> None:
    answer = served.post("/jobs", {**IN_AN_HOUR, "payload": {"n": 10**40, "f": 0.1}, "labels": {"t": "a"}})
    assert answer.status_code == 201
    view = answer.json()
    (run,) = store.runs()
    assert (run.job_id, run.handler, dict(run.labels)) == (view["id"], "email.send", {"t": "a"})
    assert run.payload == b'{"n":%d,"f":0.1}' % 10**40
    assert view["status"] == "created"
    assert answer.headers["location"] == f"/api/v1/jobs/{view['id']}"
    assert json.loads(served.get(f"/jobs/{view['id']}").json()["payload"])["n"] == 10**40


def test_who_made_it_is_told_on_events(served: Any) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR, token=served.token("operator")).json()["id"]
    (audit,) = served.audits()
    assert (audit.job_id, audit.outcome) == (id_, "created")
    assert audit.detail["verb"] == "job.create"
    assert (audit.detail["requested_by"], audit.detail["role"]) == ("tess", "operator")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**IN_AN_HOUR, "bogus": 1}, "bogus"),
        ({**IN_AN_HOUR, "in_": "1h"}, "in_"),
        ({**IN_AN_HOUR, "now": True}, "now"),
        ({**IN_AN_HOUR, "": True}, "''"),
        ({**IN_AN_HOUR, "wait": "1h"}, "wait"),
        ({**IN_AN_HOUR, "at": "2030-01-31T09:30:00Z"}, "at"),
        ({"handler": "h"}, "at"),
        ({"in": "1h"}, "handler"),
        ({**IN_AN_HOUR, "handler": "No"}, "handler"),
        ({**IN_AN_HOUR, "handler": None}, "handler"),
        ({**IN_AN_HOUR, "queue": "nowhere"}, "queue"),
        ({**IN_AN_HOUR, "queue": 7}, "queue"),
        ({**IN_AN_HOUR, "queue": {}}, "queue"),
        ({**IN_AN_HOUR, "queue": []}, "queue"),
        ({**IN_AN_HOUR, "queue": False}, "queue"),
        ({**IN_AN_HOUR, "payload": [1]}, "payload"),
        ({**IN_AN_HOUR, "payload": {"a": "\ud800"}}, "payload"),
        ({**IN_AN_HOUR, "max_attempts": 0}, "max_attempts"),
        ({**IN_AN_HOUR, "max_attempts": 10**30}, "max_attempts"),
        ({**IN_AN_HOUR, "max_attempts": True}, "max_attempts"),
        ({**IN_AN_HOUR, "labels": {"a": 1}}, "labels.a"),
        ({**IN_AN_HOUR, "labels": {"": "x"}}, "labels"),
        ({**IN_AN_HOUR, "timeout": "-1s"}, "timeout"),
        ({**IN_AN_HOUR, "unique": "1h"}, "unique"),
        ({**IN_AN_HOUR, "idempotency_key": "\0"}, "idempotency_key"),
        ({"handler": "h", "in": 1e300}, "in"),
        ({"handler": "h", "at": "1999-01-01T00:00:00Z"}, "at"),
        ({"handler": "h", "at": 5}, "at"),
        ([IN_AN_HOUR], "body"),
        ("text", "body"),
        (7, "body"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_stored(served: Any, store: Any, body: Any, field: str) -> None:
    data = json.dumps(body).encode()
    answer = served.ask("POST", "/jobs", content=data, headers={"content-type": "application/json"})
    assert field_of(answer) == field
    assert store.jobs() == []


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"handler":"h","in":NaN}', b"[" * 50])
def test_what_is_no_json_is_malformed(served: Any, data: bytes) -> None:
    answer = served.ask("POST", "/jobs", content=data, headers={"content-type": "application/json"})
    problem(answer, 400, "malformed")


def test_bombs_and_giants_are_turned_away(served: Any) -> None:
    headers = {"content-type": "application/json"}
    deep = b'{"handler":"h","in":"1s","payload":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}"
    assert field_of(served.ask("POST", "/jobs", content=deep, headers=headers)) == "body"
    large = b'{"handler":"h","in":"1s","payload":{"a":"' + b"x" * 1_500_000 + b'"}}'
    assert field_of(served.ask("POST", "/jobs", content=large, headers=headers)) == "payload"
    too_large = served.ask("POST", "/jobs", content=b" " * 3_000_000, headers=headers)
    problem(too_large, 413, "too-large")
    assert too_large.headers["connection"] == "close"
    digits = b'{"handler":"h","in":"1s","payload":{"a":' + b"9" * 10_000 + b"}}"
    told = problem(served.ask("POST", "/jobs", content=digits, headers=headers), 400, "malformed")
    assert told["detail"] == "the body holds a number of more than 4300 digits"


def test_no_name_of_a_queue_is_not_offered_to_be_made(served: Any) -> None:
    answer = served.post("/jobs", {**IN_AN_HOUR, "queue": "No Such!"})
    assert field_of(answer) == "queue"
    assert "topics create" not in answer.text


def test_a_giant_name_is_neither_compared_nor_repeated(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda word, *_, **__: compared.append(len(word)))
    answer = served.post("/jobs", {**IN_AN_HOUR, "x" * 1_000_000: 1})
    assert len(field_of(answer)) == compared[0] == 80


def test_another_kind_of_body_is_not_guessed(served: Any) -> None:
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        problem(served.ask("POST", "/jobs", content=b"{}", headers=kind), 415, "unsupported")
    problem(
        served.ask("POST", "/dead/requeue", content=b"{}", headers={"content-type": "text/plain"}),
        415,
        "unsupported",
    )


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status"), [("created", 201), ("existing", 200), ("replaced", 200), ("debounced", 200)]
)
def test_the_owner_of_a_key_answers(served: Any, store: Any, outcome: str, status: int) -> None:
    store.owner = lambda command: {"outcome": outcome, "job_id": command.job_id}
    answer = served.post("/jobs", {**IN_AN_HOUR, "key": "invoice-55"})
    assert answer.status_code == status
    assert answer.json()["id"] == keyed_id("invoice-55")
    assert answer.json()["status"] == outcome
    (command,) = store.commands
    assert command.requested_by == "local"


def test_a_key_that_is_taken_is_a_conflict(served: Any, store: Any) -> None:
    store.owner = lambda _: {"outcome": "rejected"}
    body = problem(served.post("/jobs", {**IN_AN_HOUR, "key": "k", "on_conflict": "reject"}), 409, "refused")
    assert body["outcome"] == "rejected"


def test_without_an_owner_it_is_accepted(served: Any) -> None:
    answer = served.post("/jobs?wait=20ms", {**IN_AN_HOUR, "key": "k"})
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    assert field_of(served.post("/jobs?wait=1h", {**IN_AN_HOUR, "key": "k"})) == "wait"


def test_what_no_owner_has_answered_for_is_not_denied(served: Any, store: Any) -> None:
    id_ = served.post("/jobs?wait=0s", {**IN_AN_HOUR, "key": "k"}).json()["id"]
    assert "no owner has answered" in problem(served.get(f"/jobs/{id_}"), 503, "behind")["detail"]
    problem(served.get(f"/jobs/{keyed_id('other')}"), 404, "not-found")


def test_an_idempotency_key_makes_the_same_job_on_every_server(serve: Any, store: Any) -> None:
    one, other = serve(), serve()
    answers = iter(["created", "existing"])
    store.owner = lambda _: {"outcome": next(answers)}
    key = {"idempotency-key": "once"}
    first = one.post("/jobs", IN_AN_HOUR, headers=key)
    again = other.post("/jobs", {"labels": None, **dict(reversed(IN_AN_HOUR.items()))}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    made = store.commands[0]
    assert (made.key, made.unique) == ("http/local/once", "86400000ms")
    assert made.headers == store.commands[1].headers


def test_the_same_idempotency_key_for_another_request_is_a_conflict(served: Any, store: Any) -> None:
    from dataclasses import replace

    key = {"idempotency-key": "once"}
    store.owner = lambda _: {"outcome": "created"}
    id_ = served.post("/jobs", IN_AN_HOUR, headers=key).json()["id"]
    (made,) = store.commands
    run = replace(pending(store, id_), headers=made.headers, key=made.key)
    store._append(
        store.names.jobs,
        store.layout.home(id_),
        b"k/" + made.key.encode(),
        codec.KEY_STATE.encode(key_state(run)),
    )
    store.owner = lambda _: {"outcome": "existing"}
    assert served.post("/jobs", IN_AN_HOUR, headers=key).status_code == 200
    answer = served.post("/jobs", {**IN_AN_HOUR, "in": "2h"}, headers=key)
    problem(answer, 422, "idempotency-conflict")


def held(store: Any, key: str) -> str:
    """A pending job on the default queue that holds this key, made without any header; its id."""
    from dataclasses import replace

    id_ = keyed_id(key)
    value = codec.KEY_STATE.encode(key_state(replace(pending(store, id_), key=key)))
    store._append(store.names.jobs, store.layout.home(id_), b"k/" + key.encode(), value)
    return id_


def test_a_job_that_took_the_key_of_a_header_is_not_taken_for_the_same(served: Any, store: Any) -> None:
    held(store, "http/local/once")
    store.owner = lambda _: {"outcome": "existing"}
    answer = served.post("/jobs", IN_AN_HOUR, headers={"idempotency-key": "once"})
    problem(answer, 422, "idempotency-conflict")


def test_who_is_limited_to_a_queue_does_not_reach_others_by_their_keys(
    served: Any, store: Any, eventually: Any
) -> None:
    """Of a stream it is looked up before, since nobody waits for the answers; and the owner keeps to it."""
    store.add_queues({"billing": 2})
    store.owner = lambda _: {"outcome": "not_allowed", "reason": "it is on another queue"}
    id_ = held(store, "k")
    admin, limited = served.token("admin"), served.token("operator", "billing")
    eventually(lambda: served.get(f"/jobs/{id_}", token=admin).status_code == 200)
    job = {**IN_AN_HOUR, "queue": "billing", "key": "k", "on_conflict": "replace"}
    told = served.ask("POST", "/jobs", token=limited, content=lines(job), headers=NDJSON).json()
    assert (told["accepted"], told["errors"][0]["field"]) == (0, "queue")
    assert store.commands == []
    problem(served.post("/jobs", job, token=limited), 403, "forbidden")
    told = served.ask("POST", "/jobs", token=limited, content=lines({**job, "key": "own"}), headers=NDJSON)
    assert told.json()["accepted"] == 1
    asked = [(each.verb, each.detail) for each in store.commands]
    assert asked == [("limited.create", {"queues": "billing"})] * 2
    assert field_of(served.post("/jobs", {**job, "key": "a\0b"}, token=limited)) == "key"


def test_every_command_of_who_is_limited_says_so(served: Any, store: Any, eventually: Any) -> None:
    store.add_queues({"billing": 2})
    store.owner = lambda _: {"outcome": "not_allowed", "reason": "it was moved to another queue"}
    limited = served.token("operator", "billing")
    id_ = served.post("/jobs", {**IN_AN_HOUR, "queue": "billing"}, token=limited).json()["id"]
    spec = {"id": "nightly", "handler": "h", "queue": "billing", "cron": "0 2 * * *"}
    problem(served.post("/schedules", spec, token=limited), 403, "forbidden")
    for path in ("cancel", "requeue"):
        problem(served.post(f"/jobs/{id_}/{path}", token=limited), 403, "forbidden")
    for more in ({}, {"stop": True}):
        told = served.post("/jobs/bulk", {"verb": "cancel", "ids": [id_], **more}, token=limited).json()
        assert (told["counts"], told["errors"][0]["id"]) == ({"refused": 1}, id_)
    asked = [each.verb for each in store.commands]
    verbs = ("schedule.create", "cancel", "requeue", "cancel", "stop")
    assert asked == [f"limited.{verb}" for verb in verbs]
    assert all(each.detail == {"queues": "billing"} for each in store.commands)


def key_state(run: Any) -> Any:
    from pipeline.core.job import KeyState

    return KeyState(incarnation=0, phase="pending", highest_run=0, unique="finished", changed_at=1, run=run)


def pending(store: Any, id_: str) -> Any:
    from pipeline.core.job import Run

    now = store.clock.now()
    return Run(
        job_id=id_,
        occurrence_id=f"{id_}.0",
        due_at=now + 3_600_000,
        run=1,
        queue="default",
        handler="email.send",
        created_at=now,
        nominal_at=now + 3_600_000,
        idempotency_key=f"{id_}.0",
        payload=b"{}",
    )


@pytest.mark.parametrize(
    ("key", "body", "field"),
    [
        ("k", {**IN_AN_HOUR, "key": "own"}, "Idempotency-Key"),
        ("x" * 300, IN_AN_HOUR, "Idempotency-Key"),
        ("k", {**IN_AN_HOUR, "unique": "1h"}, "unique"),
        ("k", {**IN_AN_HOUR, "headers": "x"}, "headers"),
    ],
)
def test_idempotency_keys_that_make_no_sense(served: Any, key: str, body: Any, field: str) -> None:
    assert field_of(served.post("/jobs", body, headers={"idempotency-key": key})) == field


def test_a_token_made_again_under_the_same_name_is_somebody_else(served: Any, store: Any) -> None:
    store.owner = lambda command: {"outcome": "created", "job_id": command.job_id}
    key = {"idempotency-key": "once"}
    for _ in range(2):
        token = served.token("admin", name="billing")
        made = served.get("/me", token=token).json()["token"]
        for _ in range(2):
            assert served.post("/jobs", IN_AN_HOUR, token=token, headers=key).status_code == 201
        assert [command.key for command in store.commands[-2:]] == [f"http/{made}/once"] * 2
        served.services.tokens.remove(made)


def test_a_repeated_requeue_has_the_same_command(serve: Any, store: Any) -> None:
    one, other = serve(), serve()
    id_ = one.post("/jobs", IN_AN_HOUR).json()["id"]
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}
    for served, key in ((one, "a"), (other, "a"), (one, "b")):
        answer = served.post(f"/jobs/{id_}/requeue", headers={"idempotency-key": key})
        assert answer.json()["outcome"] == "requeued"
    one_, again, another = (command.command_id for command in store.commands)
    assert one_ == again != another


def test_a_repeated_change_of_many_has_the_same_command_for_each(serve: Any, store: Any) -> None:
    """Or whoever repeats what was lost on its way runs all of them once more."""
    one, other = serve(), serve()
    ids = [one.post("/jobs", IN_AN_HOUR).json()["id"] for _ in range(2)]
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}

    def asked(served: Any, body: Any, **headers: str) -> list[str]:
        store.commands.clear()
        told = served.post("/jobs/bulk", body, headers=headers).json()
        assert sum(told["counts"].values()) == len(body["ids"])
        made = {command.job_id: command.command_id for command in store.commands}
        return [made[id_] for id_ in body["ids"]]

    a, b, both = {"idempotency-key": "a"}, {"idempotency-key": "b"}, {"verb": "requeue", "ids": ids}
    first = asked(one, both, **a)
    assert len(set(first)) == 2
    assert asked(other, both, **a) == first
    assert asked(other, {**both, "ids": ids[1:]}, **a) == first[1:]
    later = [{"verb": "reschedule", "ids": ids, "in": span} for span in ("1h", "2h")]
    others = [
        asked(one, both, **b),
        asked(one, both),
        asked(one, both),
        *(asked(serve(), each, **a) for each in later),  # servers that have not heard of the key
    ]
    assert len({*first, *(id_ for each in others for id_ in each)}) == 12


def test_many_are_requeued_without_looking_through_the_log_for_each(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one by one, but what they are made of is read where it stands, and who asks for one waits for none of it."""
    job = {**IN_AN_HOUR, "headers": {"a": "1"}, "max_attempts": 3, "timeout": "9s"}
    ids = [served.post("/jobs", job).json()["id"] for _ in range(5)]
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}
    told = served.post("/jobs/bulk", {"verb": "requeue", "ids": [ids[0], NOTHING]}).json()
    assert told["counts"] == {"requeued": 1, "not_found": 1}
    assert [each["id"] for each in told["errors"]] == [NOTHING]
    one_by_one = []
    for id_ in ids:
        assert served.post(f"/jobs/{id_}/requeue").status_code == 200
        one_by_one.append(replace(store.commands[-1], command_id=""))
    store.commands.clear()
    looked = []
    monkeypatch.setattr(Connection, "reading", lambda *_: looked.append(1))
    told = served.post("/jobs/bulk", {"verb": "requeue", "ids": ids}).json()
    assert (told["counts"], told["left"], looked) == ({"requeued": 5}, 0, [])
    many = {command.job_id: replace(command, command_id="") for command in store.commands}
    assert [many[id_] for id_ in ids] == one_by_one


def test_who_has_not_heard_of_all_looks_many_up_in_the_log(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}
    monkeypatch.setattr(served.questions, "wait_for", lambda *_: False)
    monkeypatch.setattr(recent, "WAIT_MS", 10)
    monkeypatch.setattr(served.questions, "runs_of", lambda _: pytest.fail("it knows a part"))
    told = served.post("/jobs/bulk", {"verb": "requeue", "ids": [id_]}).json()
    assert told["counts"] == {"requeued": 1}


# -- a stream ------------------------------------------------------------------------------------------------


def lines(*requests: Any) -> bytes:
    return b"".join(
        (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in requests
    )


def test_a_stream_stores_good_lines_and_numbers_bad_ones(served: Any, store: Any) -> None:
    body = lines(
        IN_AN_HOUR,
        b"",
        {"handler": "h"},
        b"{",
        IN_AN_HOUR,
        [1],
        {**IN_AN_HOUR, "x": 1},
        {**IN_AN_HOUR, "queue": "no"},
        {**IN_AN_HOUR, "queue": {}},
        b"\xff",
        {**IN_AN_HOUR, "key": "k"},
    )
    answer = served.ask("POST", "/jobs", content=body, headers=NDJSON)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["accepted"], told["rejected"]) == (3, 7)
    assert [(each["line"], each["field"]) for each in told["errors"]] == [
        (3, "at"),
        (4, "line"),
        (6, "body"),
        (7, "x"),
        (8, "queue"),
        (9, "queue"),
        (10, "line"),
    ]
    assert len(store.jobs()) == 3
    assert answer.headers["dueline-position"]
    (audit,) = served.audits()
    assert (audit.detail["verb"], audit.detail["accepted"]) == ("jobs.create", "3")


def test_a_stream_of_any_length_costs_bounded_errors_and_is_counted(served: Any, store: Any) -> None:
    body = lines(*[IN_AN_HOUR] * 3_000, *[b"x"] * 500)
    told = served.ask("POST", "/jobs", content=body, headers=NDJSON).json()
    assert (told["accepted"], told["rejected"], len(told["errors"])) == (3_000, 500, bulk.TOLD)
    assert len({record.key() for record in store.jobs()}) == 3_000


def test_a_line_that_is_too_long_ends_the_stream(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.server import body as bodies

    monkeypatch.setattr(bodies, "LINE_LIMIT", 1_000)

    async def body() -> Any:
        yield lines(IN_AN_HOUR) + b"x" * 900
        yield b"x" * 900
        yield lines(b"", IN_AN_HOUR)

    told = served.ask("POST", "/jobs", content=body(), headers=NDJSON).json()
    assert [(each["line"], each["field"]) for each in told["errors"]] == [(2, "line")]
    assert (told["accepted"], len(store.jobs())) == (1, 1)


def test_a_stream_that_breaks_off_leaves_what_came(served: Any, store: Any) -> None:
    from starlette.requests import ClientDisconnect

    from pipeline.server.access import LOCAL

    async def create() -> Any:
        async def broken() -> Any:
            yield lines(*[IN_AN_HOUR] * 250)
            raise ClientDisconnect

        return await served.services.actions.create_jobs(LOCAL, broken())

    with pytest.raises(ClientDisconnect):
        served.run(create())
    assert len(store.jobs()) == 250
    (audit,) = served.audits()
    assert audit.detail["verb"] == "jobs.create"
    assert (audit.outcome, audit.detail["accepted"]) == ("broken_off", "250"), "of all that is stored"


@pytest.mark.parametrize(("much", "times"), [(-1.0, 3), (100.0, 0)])
def test_the_fold_gives_way_to_a_stream_that_keeps_its_thread_busy(
    served: Any, monkeypatch: pytest.MonkeyPatch, much: float, times: int
) -> None:
    words: list[int] = []
    monkeypatch.setattr(bulk, "MUCH", much)
    monkeypatch.setattr(bulk, "CHUNK_AGE_MS", 10**9)
    monkeypatch.setattr(served.questions, "give_way", lambda: words.append(1))
    told = served.ask("POST", "/jobs", content=lines(*[IN_AN_HOUR] * 3_500), headers=NDJSON).json()
    assert (told["accepted"], len(words)) == (3_500, times)


def test_effort_is_what_a_thread_computes_of_the_time_that_goes_by() -> None:
    computed, elapsed = [0.0], [0.0]
    effort = bulk.Effort(lambda: computed[0], lambda: elapsed[0])
    elapsed[0], computed[0] = 1.0, 0.2
    assert not effort.much(), "it waits for its client, or for the store"
    elapsed[0], computed[0] = 2.0, 0.5
    assert effort.much()


def test_a_server_that_ends_tells_a_stream_how_far_it_came(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = [False]
    services = dataclasses.replace(served.services, stopping=lambda: stopping[0])
    monkeypatch.setattr(served.app._app._app._serving, "_services", services)

    async def ended() -> Any:
        async def body() -> Any:
            yield lines(*[IN_AN_HOUR] * 3)
            await asyncio.Event().wait()

        transport = httpx.ASGITransport(app=served.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asking = asyncio.ensure_future(client.post("/api/v1/jobs", content=body(), headers=NDJSON))
            while len(store.jobs()) < 3:
                await asyncio.sleep(0.005)
            stopping[0] = True
            asking.cancel()  # as the library does when its patience ends
            return await asking

    told = problem(served.run(ended()), 503, "store-unreachable")["detail"]
    assert told.startswith("this server ends, and what was asked for may be done: ")
    assert told.endswith(" jobs were confirmed before")


def test_whose_a_key_is_nobody_knows_who_has_not_caught_up(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_queues({"billing": 2})
    limited = served.token("operator", "billing")
    fresh = Freshness(behind=5, age_ms=1, ready=False, problem=None)
    monkeypatch.setattr(served.services.questions, "freshness", lambda: fresh)
    job = {**IN_AN_HOUR, "queue": "billing", "key": "k", "on_conflict": "replace"}
    problem(
        served.ask("POST", "/jobs", token=limited, content=lines(job), headers=NDJSON),
        503,
        "store-unreachable",
    )
    assert store.commands == []


def test_a_stream_has_no_idempotency_key(served: Any) -> None:
    answer = served.ask(
        "POST", "/jobs", content=lines(IN_AN_HOUR), headers={**NDJSON, "idempotency-key": "k"}
    )
    assert field_of(answer) == "Idempotency-Key"


# -- reading -------------------------------------------------------------------------------------------------


def test_pages_go_on_where_they_ended(served: Any) -> None:
    ids = [served.post("/jobs", {"handler": "h", "in": f"{n}h"}).json()["id"] for n in range(1, 8)]
    found, cursor = [], ""
    while True:
        page = served.get(f"/jobs?limit=3{cursor}").json()
        found += [row["id"] for row in page["items"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert found == ids
    assert served.get("/jobs/count").json() == {"count": 7, "capped": False}
    assert field_of(served.get("/jobs?cursor=bogus")) == "cursor"
    assert field_of(served.get("/jobs?nope=1")) == "nope"


def test_a_job_that_is_not_there(served: Any) -> None:
    problem(served.get(f"/jobs/{NOTHING}"), 404, "not-found")
    assert field_of(served.get("/jobs/<script>")) == "id"
    assert "<script>" not in served.get("/jobs/%3Cscript%3E").text


def test_who_is_limited_to_a_queue_learns_nothing_of_others_by_pages(
    served: Any, store: Any, eventually: Any
) -> None:
    store.add_queues({"billing": 2})
    admin, limited = served.token("admin"), served.token("viewer", "billing")
    theirs = [
        served.post("/jobs", {**IN_AN_HOUR, "queue": queue, "in": f"{n}h"}, token=admin).json()["id"]
        for n, queue in enumerate(["default", "billing", "default", "billing", "default"], 1)
    ][1::2]
    eventually(lambda: served.get("/jobs/count", token=admin).json()["count"] == 5)
    first = served.get("/jobs?limit=1", token=limited).json()
    second = served.get(f"/jobs?limit=1&cursor={first['cursor']}", token=limited).json()
    assert [row["id"] for row in (*first["items"], *second["items"])] == theirs
    assert "scanned" not in first
    assert served.get("/jobs/count", token=limited).json() == {"count": 2, "capped": False}
    problem(served.get("/jobs?queue=default", token=limited), 403, "forbidden")
    problem(served.get("/jobs/count?queue=default", token=limited), 403, "forbidden")


def test_a_result_of_any_size_that_a_handler_may_return_is_told_whole(
    served: Any, store: Any, eventually: Any
) -> None:
    id_ = served.post("/jobs", {**IN_AN_HOUR, "in": "0s"}).json()["id"]
    (run,) = store.runs()
    store.fire(run)
    result = json.dumps({"text": "x" * (RESULT_LIMIT - 100)}).encode()
    store.ack(run, AckState.SUCCEEDED, result=result)
    eventually(lambda: served.get(f"/jobs/{id_}").json()["status"] == "succeeded")
    assert served.get(f"/jobs/{id_}").json()["result"] == json.loads(result)


# -- changing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "outcome", "status"),
    [
        ("cancel", None, "cancelled", 200),
        ("cancel", {}, "fired", 409),
        ("cancel", None, None, 202),
        ("reschedule", {"in": "2h"}, "rescheduled", 200),
        ("reschedule", {"at": "2030-01-31T09:30:00Z"}, "cancelled", 409),
        ("reschedule", {"in": "2h"}, "fired", 409),
        ("requeue", None, "requeued", 200),
        ("requeue", None, "pending", 409),
        ("requeue", None, "cancelled", 409),
    ],
)
def test_what_an_owner_answers_has_a_status(
    served: Any, store: Any, path: str, body: Any, outcome: str | None, status: int
) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    store.owner = lambda command: None if outcome is None else {"outcome": outcome, "job_id": command.job_id}
    wait = "30ms" if outcome is None else "10s"
    answer = served.post(f"/jobs/{id_}/{path}?wait={wait}", body)
    assert answer.status_code == status, answer.text
    assert store.commands[-1].requested_by == "local"
    if status == 200:
        assert answer.headers["dueline-position"]
    if status == 409:
        assert problem(answer, 409, "refused")["outcome"] in ("too_late", "cancelled", "pending")
    assert f"job.{path}" in {each.detail["verb"] for each in served.audits()}


def test_what_an_owner_forgot_is_looked_up(served: Any, store: Any) -> None:
    id_ = served.post("/jobs", {"handler": "h", "in": "0s"}).json()["id"]
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED)
    store.owner = lambda _: {"outcome": "not_found"}
    assert problem(served.post(f"/jobs/{id_}/cancel"), 409, "refused")["outcome"] == "too_late"
    problem(served.post(f"/jobs/{NOTHING}/cancel"), 404, "not-found")


def test_a_payload_is_replaced(served: Any, store: Any) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    store.owner = lambda _: {"outcome": "updated"}
    assert served.ask("PATCH", f"/jobs/{id_}", json={"payload": {"a": 10**30}}).json()["outcome"] == "updated"
    assert store.commands[-1].payload == b'{"a":%d}' % 10**30
    for body, field in (
        ({}, "payload"),
        ({"payload": None}, "payload"),
        ({"payload": 1}, "payload"),
        ({"x": 1}, "x"),
    ):
        assert field_of(served.ask("PATCH", f"/jobs/{id_}", json=body)) == field


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"/jobs/{NOTHING}/reschedule", {}, "at"),
        (f"/jobs/{NOTHING}/reschedule", {"at": "2030-01-31T09:30:00Z", "in": "1h"}, "at"),
        (f"/jobs/{NOTHING}/reschedule", {"in": "soon"}, "in"),
        (f"/jobs/{NOTHING}/cancel", {"stop": 1}, "stop"),
        (f"/jobs/{NOTHING}/cancel", {"force": True}, "force"),
        ("/jobs/nothing/cancel", None, "id"),
        (f"/jobs/{NOTHING}/requeue", {"x": 1}, "body"),
    ],
)
def test_changes_that_make_no_sense(served: Any, store: Any, path: str, body: Any, field: str) -> None:
    assert field_of(served.post(path, body)) == field
    assert store.commands == []


# -- changing many -------------------------------------------------------------------------------------------


def test_many_are_counted_first_and_then_changed(served: Any, store: Any) -> None:
    ids = [served.post("/jobs", {**IN_AN_HOUR, "labels": {"n": str(n % 2)}}).json()["id"] for n in range(6)]
    store.owner = lambda command: {"outcome": "cancelled", "job_id": command.job_id}
    half = {
        "verb": "cancel",
        "filter": {"handler": "email.send", "labels": {"n": "1"}, "status": ["pending"]},
    }
    assert served.post("/jobs/bulk", {**half, "dry_run": True}).json()["matched"] == 3
    assert store.commands == []
    assert served.post("/jobs/bulk", half).json()["counts"] == {"cancelled": 3}
    assert sorted(command.job_id for command in store.commands) == sorted(ids[1::2])
    named = served.post("/jobs/bulk", {"verb": "cancel", "ids": [ids[0], ids[0], NOTHING]}).json()
    assert named["matched"] == 2
    counts = [each.detail["count"] for each in served.audits() if each.detail["verb"] == "jobs.cancel"]
    assert sorted(counts) == ["2", "3"]


def test_of_many_that_their_owners_have_forgotten_the_same_is_told_as_of_one(served: Any, store: Any) -> None:
    """An owner remembers what fired for half an hour; what has ended before that is no less there."""
    ids = [served.post("/jobs", IN_AN_HOUR).json()["id"] for _ in range(3)]
    for run in store.runs():
        store.fire(run)
        store.ack(run, AckState.DEAD)
    store.owner = lambda command: {"outcome": "not_found", "job_id": command.job_id}
    single = problem(served.post(f"/jobs/{ids[0]}/cancel"), 409, "refused")
    assert single["outcome"] == "too_late"
    told = served.post("/jobs/bulk", {"verb": "cancel", "ids": [*ids, NOTHING]}).json()
    assert told["counts"] == {"too_late": 3, "not_found": 1}


def test_many_that_were_forgotten_are_looked_for_in_the_log_while_the_rows_are_behind(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.DEAD)
    monkeypatch.setattr(served.questions, "wait_for", lambda *_: False)
    store.owner = lambda command: {"outcome": "not_found", "job_id": command.job_id}
    told = served.post("/jobs/bulk", {"verb": "cancel", "ids": [id_]}).json()
    assert told["counts"] == {"too_late": 1}


@pytest.mark.parametrize("path", ["cancel", "reschedule", "requeue"])
def test_the_next_instant_of_a_schedule_is_refused_with_what_to_do(
    served: Any, store: Any, path: str
) -> None:
    id_ = "s:nightly:1:g::1800003600000"
    store.owner = lambda command: {"outcome": "not_alone", "reason": f"{command.job_id}: pause nightly"}
    body = {"in": "1h"} if path == "reschedule" else None
    many = served.post("/jobs/bulk", {"verb": path, "ids": [id_], **(body or {})}).json()
    if path == "requeue":
        assert many["counts"] == {"not_found": 1}, "no run of it is stored that could be run again"
        return
    told = problem(served.post(f"/jobs/{id_}/{path}", body), 409, "refused")
    assert told["detail"] == f"{id_}: pause nightly"
    stopped = served.post(f"/jobs/{id_}/cancel", {"stop": True})
    assert problem(stopped, 409, "refused")["detail"] == f"{id_}: pause nightly"
    assert many["counts"] == {"refused": 1}
    assert many["errors"] == [{"id": id_, "message": f"{id_}: pause nightly"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"verb": "purge", "ids": []}, "verb"),
        ({"verb": "cancel"}, "ids"),
        ({"verb": "cancel", "ids": [NOTHING], "filter": {"handler": "h"}}, "ids"),
        ({"verb": "cancel", "ids": ["nothing"]}, "ids[0]"),
        ({"verb": "cancel", "ids": [1]}, "ids"),
        ({"verb": "cancel", "filter": {}}, "filter"),
        ({"verb": "cancel", "filter": {"handler": None, "status": [], "labels": {}}}, "filter"),
        ({"verb": "cancel", "filter": {"x": 1}}, "x"),
        ({"verb": "cancel", "filter": {"status": ["gone"]}}, "status"),
        ({"verb": "cancel", "filter": {"labels": {"a": 1}}}, "labels"),
        ({"verb": "cancel", "filter": {"due_from": "x"}}, "due_from"),
        ({"verb": "reschedule", "ids": [NOTHING]}, "at"),
        ({"verb": "cancel", "ids": [NOTHING], "limit": 0}, "limit"),
        ({"ids": [NOTHING]}, "verb"),
    ],
)
def test_bulk_changes_that_make_no_sense(served: Any, store: Any, body: Any, field: str) -> None:
    assert field_of(served.post("/jobs/bulk", body)) == field
    assert store.commands == []


@pytest.mark.parametrize("stop", [False, True])
def test_many_of_which_some_may_be_changed_are_audited(
    served: Any, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]

    async def stopped(*_: Any) -> Any:
        raise StoreUnreachable("away")

    def changed(*_: Any) -> Any:
        raise StoreUnreachable("away")

    monkeypatch.setattr(job_changes, "stop", stopped)
    monkeypatch.setattr(job_changes, "change_all", changed)
    answer = served.post("/jobs/bulk", {"verb": "cancel", "ids": [id_], "stop": stop})
    problem(answer, 503, "store-unreachable")
    assert ("jobs.cancel", "broken_off") in [(each.detail["verb"], each.outcome) for each in served.audits()]


def test_more_than_the_limit_is_refused_whole(served: Any, store: Any) -> None:
    for _ in range(3):
        served.post("/jobs", IN_AN_HOUR)
    body = {"verb": "cancel", "filter": {"handler": "email.send"}, "limit": 2}
    problem(served.post("/jobs/bulk", body), 409, "refused")
    assert store.commands == []


def test_nobody_is_advised_to_make_a_queue_of_an_impossible_name(served: Any) -> None:
    answer = served.post("/jobs", {**IN_AN_HOUR, "queue": "No Such!"})
    assert field_of(answer) == "queue"
    assert "topics create" not in answer.text
    assert "topics create" in served.post("/jobs", {**IN_AN_HOUR, "queue": "no-such"}).text


def test_a_queue_that_is_no_text_is_not_taken_for_none(served: Any) -> None:
    odd = [{**IN_AN_HOUR, "queue": queue} for queue in ({}, [], 0)]
    for job in odd:
        assert field_of(served.post("/jobs", job)) == "queue"
    told = served.ask("POST", "/jobs", content=lines(*odd, IN_AN_HOUR), headers=NDJSON).json()
    assert (told["accepted"], told["rejected"]) == (1, 3)
