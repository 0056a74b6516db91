"""Dead letters, replays, buckets, queues, events and probes over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from unit.server.test_jobs_api import IN_AN_HOUR, field_of, problem

from pipeline import codec
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, AttemptRecord, DeadLetter, Failure, InFlight
from pipeline.core.keys import schedule_key
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.ports import Put
from pipeline.readmodel.lists import Cursor
from pipeline.server.access import LOCAL


def dead_job(served: Any, store: Any, token: str | None = None) -> Any:
    """A job that died in its first run."""
    id_ = served.post("/jobs", {**IN_AN_HOUR, "in": "0s"}, token=token).json()["id"]
    (run,) = [run for run in store.runs() if run.job_id == id_]
    store.fire(run)
    store.ack(run, AckState.DEAD)
    attempt = AttemptRecord(
        run=1,
        attempt=1,
        worker="w",
        token=7,
        at=store.clock.now(),
        outcome="dead",
        error=Failure(type="E", message="no"),
    )
    letter = DeadLetter(
        reason="max_attempts",
        detail="no",
        at=store.clock.now(),
        source_topic=store.names.work("default"),
        source_partition=0,
        source_offset=0,
        run=run,
        attempts=(attempt,),
    )
    put = Put(store.names.dead, 0, run.occurrence_id.encode(), codec.DEAD_LETTER.encode(letter))
    store.cluster.append(put)
    return run


# -- dead letters --------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_and_requeued(served: Any, store: Any, eventually: Any) -> None:
    run = dead_job(served, store)
    eventually(lambda: served.get("/dead").json()["items"])
    (row,) = served.get("/dead?handler=email.send").json()["items"]
    assert (row["id"], row["reason"]) == (run.job_id, "max_attempts")
    assert served.get("/dead?handler=other").json()["items"] == []
    counted = served.post("/dead/requeue", {"everything": True, "dry_run": True}).json()
    assert (counted["matched"], counted["requeued"]) == (1, 0)
    assert store.commands == []
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}
    done = served.post(
        "/dead/requeue", {"ids": [run.job_id, "j" + "0" * 26], "payload": {"to": "c@d"}}
    ).json()
    assert (done["matched"], done["requeued"], done["not_found"]) == (1, 1, 1)
    (command,) = store.commands
    assert (command.payload, command.requested_by) == (b'{"to":"c@d"}', "local")
    for headers in ({"idempotency-key": "k"}, {"idempotency-key": "k"}, {"idempotency-key": "l"}):
        served.post("/dead/requeue", {"ids": [run.job_id]}, headers=headers)
    _, one, again, another = (each.command_id for each in store.commands)
    assert one == again != another
    audit = next(each for each in served.audits() if each.detail["verb"] == "dead.requeue")
    assert (audit.detail["count"], audit.detail["counts"]) == ("1", "{'requeued': 1}")


@pytest.mark.parametrize(
    "answer",
    [{"outcome": "refused", "reason": "verb: unknown"}, {"outcome": "not_alone", "reason": "pause nightly"}],
)
def test_a_letter_that_its_owner_refuses_stops_no_other(served: Any, store: Any, answer: Any) -> None:
    refused, _ = dead_job(served, store), dead_job(served, store)
    done = {"outcome": "requeued", "run": 2}
    store.owner = lambda command: answer if command.job_id == refused.job_id else done
    told = served.post("/dead/requeue", {"everything": True}).json()
    assert (told["matched"], told["requeued"], told["refused"]) == (2, 1, 1)
    assert [error["id"] for error in told["errors"]] == [refused.job_id]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"everything": False}, "ids"),
        ({"everything": True, "handler": "h"}, "ids"),
        ({"ids": ["j" + "0" * 26], "group": "g"}, "ids"),
        ({"since": "yesterday"}, "since"),
        ({"error": 1}, "error"),
        ({"ids": ["x"]}, "id"),
        ({"ids": "x"}, "ids"),
        ({"everything": True, "payload": []}, "payload"),
        ({"everything": 1}, "everything"),
        ({"x": 1}, "x"),
    ],
)
def test_requeues_that_make_no_sense(served: Any, store: Any, body: Any, field: str) -> None:
    assert field_of(served.post("/dead/requeue", body)) == field
    assert store.commands == []


@pytest.mark.parametrize(
    ("path", "listed", "good"),
    [("/dead", ["letters", [None] * 8], b"D"), ("/schedules", ["schedules", *[None] * 5], b"G")],
)
def test_a_cursor_that_somebody_made_up_reads_no_other_rows(
    served: Any, path: str, listed: Any, good: bytes
) -> None:
    secret = served.services.questions._following.secret
    assert served.get(f"{path}?cursor={Cursor('cursor', listed, secret).written(good)}").status_code == 200
    places = {b"W": secret, b"": secret, b"\xff": secret, good: b"guessed"}
    for place, key in places.items():
        cursor = Cursor("cursor", listed, key).written(place)
        assert field_of(served.get(f"{path}?cursor={cursor}")) == "cursor"


CHOICES = [
    *({"handler": "email.send"}, {"queue": "default"}, {"reason": "max_attempts"}, {"error": "E"}),
    *({"since": "2027-01-15T08:00:00Z"}, {"handler": "email.send", "error": "E"}),
]
OTHERS = [
    *({"handler": "e"}, {"queue": "other"}, {"reason": "timeout"}, {"error": "F"}, {"group": "0" * 12}),
    *({"since": "2028-01-15T08:00:00Z"}, {"handler": "e", "error": "E"}),
]


def test_letters_are_chosen_alike_for_a_list_for_groups_and_to_be_requeued(
    served: Any, store: Any, eventually: Any
) -> None:
    store.add_queues({"other": 2})
    run = dead_job(served, store)
    eventually(lambda: served.get("/dead").json()["items"])
    page = served.get("/dead/groups").json()
    (group,) = page["items"]
    assert (page["cursor"], page["scanned"]) == (None, 1)
    assert group == {
        "group": group["group"],
        "handler": "email.send",
        "reason": "max_attempts",
        "error": "E",
        "message": "no",
        "count": 1,
        "oldest": group["newest"],
        "newest": group["oldest"],
        "example": run.job_id,
    }
    both = [(each, 1) for each in [*CHOICES, {"group": group["group"]}]] + [(each, 0) for each in OTHERS]
    for choice, number in both:
        assert len(served.get("/dead", params=choice).json()["items"]) == number, choice
        assert len(served.get("/dead/groups", params=choice).json()["items"]) == number, choice
        counted = served.post("/dead/requeue", {**choice, "dry_run": True}).json()
        assert counted["matched"] == number, choice
    assert store.commands == []


def test_letters_of_another_queue_are_left_alone(served: Any, store: Any, eventually: Any) -> None:
    store.add_queues({"billing": 2})
    dead_job(served, store)
    eventually(lambda: served.get("/dead").json()["items"])
    limited = served.token("operator", "billing")
    assert served.post("/dead/requeue", {"everything": True}, token=limited).json()["matched"] == 0
    assert served.post("/dead/requeue", {"queue": "default"}, token=limited).status_code == 403
    for path in ("/dead", "/dead/groups"):
        assert served.get(path, token=limited).json() == {"items": [], "cursor": None}
        assert served.get(f"{path}?queue=default", token=limited).status_code == 403


# -- replays -------------------------------------------------------------------------------------------------

SINCE = {"from": "2027-01-15T00:00:00Z"}


def test_a_replay_is_counted_begun_and_goes_on_by_itself(served: Any, store: Any, eventually: Any) -> None:
    dead_job(served, store)
    store.clock.advance(1_000)
    counted = served.post("/replays", {**SINCE, "dry_run": True, "rate": 2}).json()
    assert (counted["id"], counted["matched"], counted["estimated_seconds"]) == (None, 1, 0.5)
    problem(served.post("/replays", {**SINCE, "limit": 1, "only": "all"}), 422, "invalid-input")
    store.owner = lambda _: {"outcome": "replayed", "detail": {"replayed": "1"}}
    begun = served.post("/replays", SINCE)
    assert begun.status_code == 202
    id_ = begun.json()["id"]
    assert begun.headers["location"] == f"/api/v1/replays/{id_}"
    eventually(lambda: any(action == "replay_ended" for action, _ in served.events.lines), timeout=20)
    eventually(lambda: served.get(f"/replays/{id_}").json()["state"] == "finished")
    view = served.get(f"/replays/{id_}").json()
    assert (view["requested_by"], view["counts"]["replayed"]) == ("local", 1)
    assert view["outcomes"] == {"counts": {}, "capped": False}, "its owner here only says that it did"
    assert served.get("/replays").json()["items"][0]["id"] == id_
    problem(served.post(f"/replays/{id_}/cancel"), 409, "refused")
    problem(served.post(f"/replays/{id_}/resume"), 409, "refused")


def test_nothing_to_replay_begins_nothing(served: Any, store: Any) -> None:
    served.post("/jobs", IN_AN_HOUR)
    answer = served.post("/replays", SINCE)
    assert (answer.status_code, answer.json()["id"]) == (200, None)
    problem(served.post("/replays/nothing/cancel"), 404, "not-found")
    problem(served.get("/replays/nothing"), 404, "not-found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "from"),
        ({"from": "x"}, "from"),
        ({"from": "2100-01-01T00:00:00Z"}, "from"),
        ({**SINCE, "to": "2027-01-14T00:00:00Z"}, "to"),
        ({**SINCE, "only": "some"}, "only"),
        ({**SINCE, "only": "all"}, "force"),
        ({**SINCE, "rate": 0}, "rate"),
        ({**SINCE, "rate": "1"}, "rate"),
        ({**SINCE, "handler": "No"}, "handler"),
        ({**SINCE, "queue": "nowhere"}, "queue"),
        ({**SINCE, "labels": {"a": 1}}, "labels"),
        ({**SINCE, "limit": 0}, "limit"),
    ],
)
def test_replays_that_make_no_sense(served: Any, store: Any, body: Any, field: str) -> None:
    store.clock.advance(1_000)
    assert field_of(served.post("/replays", body)) == field


# -- what is going on ----------------------------------------------------------------------------------------


def test_buckets_are_counted_within_bounds(served: Any) -> None:
    served.post("/jobs", IN_AN_HOUR)
    span = "from=2027-01-15T08:00:00Z&to=2027-01-15T10:00:00Z"
    (bucket,) = served.get(f"/buckets?{span}&width=1h").json()["items"]
    assert (bucket["from"], bucket["counts"]) == ("2027-01-15T09:00:00.000Z", {"pending": 1})
    for query, field in (
        ("to=2027-01-15T10:00:00Z", "from"),
        ("from=2027-01-15T08:00:00Z", "to"),
        ("from=2027-01-15T10:00:00Z&to=2027-01-15T08:00:00Z", "to"),
        (f"{span}&width=1s", "width"),
        (f"{span}&width=0s", "width"),
        ("from=2027-01-15T08:00:00Z&to=2028-01-15T08:00:00Z", "width"),
    ):
        assert field_of(served.get(f"/buckets?{query}")) == field


def test_queues_fleet_and_status(served: Any, eventually: Any) -> None:
    eventually(lambda: served.get("/status").json()["freshness"]["ready"])
    assert [each["queue"] for each in served.get("/queues").json()["items"]] == ["default"]
    assert "partitions" in served.get("/fleet").json()
    assert field_of(served.post("/queues/No/pause")) == "queue"


def test_who_is_limited_hears_of_no_run_and_no_name_of_another_queue(
    served: Any, store: Any, eventually: Any
) -> None:
    """Figures are of all."""
    flight = InFlight(
        occurrence_id=anonymous_id(store.clock.now(), 1), run=1, attempt=1, token=1, handler="h", started_at=1,
        note="customer 42",
    )  # fmt: skip
    store.beat("w1", queues=("beta",), handlers=("beta.h",), in_flight=(flight,))
    store.beat("w2", queues=("default",), handlers=("default.h",), in_flight=(flight,))
    now = store.clock.now()
    for queue in ("beta", "default"):
        spec = ScheduleSpec(id=f"late-{queue}", handler="h", cron="* * * * *", queue=queue)
        state = Schedule(
            incarnation=1, revision=1, spec=spec, created_at=1, changed_at=1, last_nominal=1,
            next_nominal=now - 90_000, next_due=now - 90_000,
        )  # fmt: skip
        home = store.layout.home_of_name(spec.id)
        store.cluster.append(Put(store.names.jobs, home, schedule_key(spec.id), codec.SCHEDULE.encode(state)))
    admin, limited = served.token("admin"), served.token("viewer", "default")
    eventually(lambda: len(served.get("/fleet", token=admin).json()["runs"]) == 2)
    overdue = ["late-beta", "late-default"]
    eventually(lambda: served.get("/status", token=admin).json()["schedules"]["overdue"] == overdue)
    fleet = served.get("/fleet", token=limited).json()
    assert [run["queue"] for run in fleet["runs"]] == ["default"]
    assert [(each["queues"], each["handlers"]) for each in fleet["processes"]] == [
        (["beta"], []),
        (["default"], ["default.h"]),
    ]
    status = served.get("/status", token=limited).json()
    assert (status["schedules"]["count"], status["schedules"]["overdue"]) == (2, ["late-default"])
    assert status["handlers"] == []


def test_a_queue_is_paused_resumed_and_purged(served: Any, store: Any) -> None:
    paused = served.post("/queues/default/pause", {"note": "provider down"}).json()
    assert (paused["outcome"], paused["by"], paused["reason"]) == ("paused", "local", "provider down")
    again = served.post("/queues/default/pause", token=served.token("operator")).json()
    assert (again["by"], again["reason"]) == ("local", "provider down"), "whoever was first"
    admin = served.token("admin")
    assert served.post("/queues/default/resume", token=admin).json()["outcome"] == "running"
    assert served.post("/queues/default/purge", token=admin).json()["outcome"] == "nothing"
    dead_job(served, store, token=admin)
    counted = served.post("/queues/default/purge", {"dry_run": True}, token=admin).json()
    assert (counted["outcome"], counted["waiting"], counted["id"]) == ("counted", 1, None)
    assert served.queues.states["default"].purge is None
    purged = served.post("/queues/default/purge", token=admin).json()
    assert (purged["outcome"], purged["waiting"]) == ("purging", 1)
    assert served.queues.states["default"].purge.id == purged["id"]
    verbs = {each.detail["verb"]: each.detail for each in served.audits()}
    assert verbs["queue.purge"]["waiting"] in ("0", "1")
    assert {"queue.pause", "queue.resume", "queue.purge"} <= verbs.keys()
    problem(served.post("/queues/nowhere/pause", token=admin), 404, "not-found")
    answer = served.post("/queues/default/purge", {"before": "x"}, token=admin)
    assert field_of(answer) == "before"


def test_a_purge_ends_what_was_counted_and_no_more(served: Any, store: Any) -> None:
    purge = served.services.actions.purge_queue
    admin = served.token()  # which stands on `meta`, as what is said of queues does

    def emitted() -> None:
        id_ = served.post("/jobs", {**IN_AN_HOUR, "in": "0s"}, token=admin).json()["id"]
        (run,) = [run for run in store.runs() if run.job_id == id_]
        store.fire(run)

    emitted()
    counted = served.run(purge(LOCAL, "default", dry_run=True)).view
    emitted()
    done = served.run(purge(LOCAL, "default", counted=counted))
    assert (counted["waiting"], done.view["waiting"]) == (1, 1)
    assert done.positions[0].topic == store.names.meta
    assert served.queues.states["default"].purge.ends == tuple(counted["ends"])
    assert served.run(purge(LOCAL, "default", dry_run=True)).view["waiting"] == 2
    with pytest.raises(Refused, match="1 of these wait in default by now"):
        served.run(purge(LOCAL, "default", counted={**counted, "waiting": 0}))


def test_a_replay_that_is_asked_for_again_begins_again_and_says_so_to_who_relies_on_a_key(
    served: Any,
) -> None:
    answer = served.post("/replays", {**SINCE, "dry_run": True}, headers={"idempotency-key": "k"})
    assert field_of(answer) == "Idempotency-Key"


def test_the_audit_is_of_who_asked_and_not_for_who_sees_some_queues_only(
    served: Any, eventually: Any
) -> None:
    ops, other = served.token("operator", name="ops"), served.token("operator", name="other")
    made = [served.post("/jobs", IN_AN_HOUR, token=who).json()["id"] for who in (ops, other)]
    eventually(lambda: len(served.get("/audit", token=ops).json()["items"]) == 2)
    (mine,) = served.get("/audit?by=ops", token=ops).json()["items"]
    assert (mine["verb"], mine["job"], mine["role"]) == ("job.create", made[0], "operator")
    (its,) = served.get(f"/audit?job={made[1]}", token=ops).json()["items"]
    assert its["by"] == "other"
    first = served.get("/audit?limit=1", token=ops).json()
    (second,) = served.get(f"/audit?limit=1&cursor={first['cursor']}", token=ops).json()["items"]
    assert {second["job"], first["items"][0]["job"]} == set(made)
    assert served.get("/audit", token=served.token("viewer", "default")).status_code == 403


def test_events_from_now_on_leave_out_what_there_was(served: Any, eventually: Any) -> None:
    assert served.get("/events?after=now").json()["items"] == [], "nothing was ever told"
    served.post("/jobs", IN_AN_HOUR)
    eventually(lambda: served.get("/events").json()["items"])
    begun = served.get("/events?after=now").json()
    assert begun["items"] == []
    late = served.post("/jobs", IN_AN_HOUR).json()["id"]
    path = f"/events?after={begun['cursor']}"
    eventually(lambda: served.get(path).json()["items"])
    assert [late in json.dumps(item) for item in served.get(path).json()["items"]] == [True]


def test_events_are_a_page_or_a_stream_that_goes_on(served: Any, eventually: Any) -> None:
    served.post("/jobs", IN_AN_HOUR)
    eventually(lambda: served.get("/events").json()["items"])
    (event,) = served.get("/events").json()["items"]
    assert (event["kind"], event["by"]) == ("audit", "local")
    assert field_of(served.get("/events?after=bogus")) in ("after", "cursor")

    async def stream() -> list[str]:
        """Raw ASGI: the test client of httpx waits for the end of an answer, and this has none."""
        sent: asyncio.Queue[Any] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "raw_path": b"/api/v1/events",
            "scheme": "http",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"accept", b"text/event-stream"),
                (b"last-event-id", event["id"].encode()),
            ],
        }

        async def receive() -> Any:
            if not asked:
                asked.append(1)
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        asked: list[int] = []
        gone = asyncio.Event()
        serving = asyncio.ensure_future(served.app(scope, receive, sent.put))
        head = await asyncio.wait_for(sent.get(), 10)
        assert (head["status"], dict(head["headers"])[b"content-type"]) == (
            200,
            b"text/event-stream; charset=utf-8",
        )
        found: list[str] = []
        deadline = time.monotonic() + 20
        await asyncio.wait_for(sent.get(), 10)  # retry
        job = asyncio.to_thread(served.post, "/jobs", IN_AN_HOUR)
        making = asyncio.ensure_future(job)
        while not found:
            assert time.monotonic() < deadline
            piece = await asyncio.wait_for(sent.get(), 15)
            found += [line for line in piece["body"].decode().splitlines() if line.startswith("data: ")]
        await making
        gone.set()
        await asyncio.wait_for(serving, 10)
        return found

    (line,) = served.run(stream())
    told = json.loads(line.removeprefix("data: "))
    assert (told["kind"], told["detail"]["verb"]) == ("audit", "job.create")
    assert told["id"] != event["id"]


# -- probes and what is no path --------------------------------------------------------------------------------


def test_probes(served: Any, eventually: Any) -> None:
    assert served.get("//healthz").text == "ok\n"
    eventually(lambda: served.get("//readyz").text == "no dispatcher owns partition 0, 1, 2, 3, 4\n")
    assert served.get("//readyz").status_code == 503
    served.get("/me")
    metrics = served.get("//metrics").text
    assert 'dueline_server_requests_total{endpoint="getMe",status="200"} 1.0' in metrics
    served.token("admin")
    assert served.get("//healthz").status_code == 200
    assert served.get("//metrics").status_code == 401


def test_what_is_no_path_and_no_method(served: Any) -> None:
    problem(served.get("/nothing"), 404, "unknown-path")
    problem(served.get("/jobs/"), 404, "unknown-path")
    problem(served.get("//api/v1"), 404, "unknown-path")
    problem(served.get("/jobs/a/b/c"), 404, "unknown-path")
    problem(served.get("/jobs/%ff"), 404, "unknown-path")
    problem(served.get("/jobs/%00"), 404, "unknown-path")
    problem(served.get("//nope"), 404, "unknown-path")
    shown = served.get("//nope", headers={"accept": "text/html,*/*;q=0.8"})
    assert (shown.status_code, 'href="/console/"' in shown.text) == (404, True)
    answer = served.ask("PUT", "/jobs")
    problem(answer, 405, "unknown-method")
    assert answer.headers["allow"] == "GET, POST"


def test_what_fails_by_our_fault_tells_nobody_but_the_log(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(served.services.questions, "queues", fail)
    answer = served.get("/queues")
    problem(answer, 500, "failed")
    assert "secret" not in answer.text
    ((action, told),) = served.events.lines
    assert (action, told["endpoint"]) == ("request_failed", "listQueues")
    assert "secret" in told["trace"]


def test_answers_are_not_kept_framed_or_sniffed(served: Any) -> None:
    for path in ("/me", "/nothing", "//healthz"):
        assert served.get(path).headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in served.get("/me").headers["content-security-policy"]
    assert served.get("//page").headers["x-frame-options"] == "DENY"
    assert served.get("/me").headers["cache-control"] == "no-store"


# -- a store that is away --------------------------------------------------------------------------------------


def test_a_store_that_does_not_confirm_is_told_and_not_asked_again_until_it_is_back(
    serve: Any, store: Any, eventually: Any
) -> None:
    served = serve()
    served.post("/jobs", IN_AN_HOUR)
    served.hurry()
    (appender,) = store.appenders
    appender.silent = True
    store.cluster.reachable = False
    answer = served.post("/jobs", IN_AN_HOUR)
    problem(answer, 503, "store-unreachable")
    assert answer.headers["retry-after"]
    before = len(store.jobs())
    served.services.store._patience_s = 30.0
    began = time.monotonic()
    problem(served.post("/jobs", IN_AN_HOUR), 503, "store-unreachable")
    assert time.monotonic() - began < 15, "told at once"
    assert served.get("//readyz").text in ("the store does not answer\n", "no broker can be reached\n")
    assert len(store.jobs()) == before, "nothing more was tried"
    appender.silent = False
    store.cluster.reachable = True
    eventually(lambda: served.post("/jobs", IN_AN_HOUR).status_code == 201)


def test_a_server_that_starts_before_its_store_finds_it(serve: Any, store: Any, eventually: Any) -> None:
    served = serve()
    store.cluster.reachable = False
    problem(served.post("/jobs", IN_AN_HOUR), 503, "store-unreachable")
    store.cluster.reachable = True
    eventually(lambda: served.post("/jobs", IN_AN_HOUR).status_code == 201)


def test_an_audit_that_cannot_be_stored_stands_in_the_log(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    store.owner = lambda command: {"outcome": "cancelled", "job_id": command.job_id}

    async def away(_: Any) -> None:
        raise StoreUnreachable("away")

    monkeypatch.setattr(served.services.store, "append", away)
    assert served.post(f"/jobs/{id_}/cancel").json()["outcome"] == "cancelled"
    ((action, told),) = served.events.lines
    assert (action, told["verb"], told["who"], told["id"]) == ("audit_lost", "job.cancel", "local", id_)


def test_what_was_never_caught_up_denies_nothing(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.readmodel.questions import Freshness

    fresh = Freshness(behind=5, age_ms=1, ready=False, problem=None)
    monkeypatch.setattr(served.services.questions, "freshness", lambda: fresh)
    problem(served.get("/jobs/j" + "0" * 26), 503, "behind")
    for path in ("/jobs", "/jobs/count", "/schedules", "/dead", "/replays", "/buckets"):
        told = served.get(path)
        assert "5 records behind" in problem(told, 503, "behind")["detail"], (
            "a part would look like all of it"
        )
        assert told.headers["retry-after"]
    answer = served.get("/status")
    assert (answer.headers["dueline-stale"], answer.json()["freshness"]["ready"]) == ("true", False)
    problem(served.post("/jobs/bulk", {"verb": "cancel", "filter": {"handler": "h"}}), 503, "behind")
    assert served.get("//readyz").text == "catching up: 5 records behind\n"


@pytest.mark.parametrize(
    ("problem_", "age_ms", "why"),
    [("the disk is full", 20, "the disk is full"), (None, 60_001, "it is behind")],
)
def test_what_does_not_follow_any_more_changes_nothing_by_what_it_knew(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch, problem_: str | None, age_ms: int, why: str
) -> None:
    """It has caught up once, but what matches now nobody can tell; nor whose a key is."""
    from pipeline.readmodel.questions import Freshness

    fresh = Freshness(behind=1, age_ms=age_ms, ready=True, problem=problem_)
    monkeypatch.setattr(served.services.questions, "freshness", lambda: fresh)
    cancel = {"verb": "cancel", "filter": {"handler": "h"}}
    assert why in problem(served.post("/jobs/bulk", cancel), 503, "behind")["detail"]
    assert store.commands == []


def test_what_lags_is_told_to_be_stale_and_denies_nothing(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.readmodel.questions import Freshness

    fresh = Freshness(behind=5, age_ms=11_000, ready=True, problem=None)
    monkeypatch.setattr(served.services.questions, "freshness", lambda: fresh)
    answer = served.get("/jobs")
    assert (answer.status_code, answer.headers["dueline-stale"]) == (200, "true")
    problem(served.get("/jobs/j" + "0" * 26), 503, "behind")
    assert "behind by" not in served.get("//readyz").text, "a long stream puts it as far behind"
    fresh = fresh._replace(age_ms=60_001)
    assert served.get("//readyz").text == "behind by 60001 ms\n"
