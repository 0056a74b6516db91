"""The client over Kafka and over HTTP: the same verbs, answers and errors, on a real broker with a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from integration.fleet import Fleet, fleet

from pipeline import Dueline, InvalidInput, InvalidSchedule, JobFailed, NotAllowed, NotFound, Refused
from pipeline.cli import main as cli
from pipeline.core.ids import keyed_id

SHOP = """
import time
from pipeline import Dueline
app = Dueline()

@app.job("ok")
def ok(ctx): ...

@app.job("adds")
def adds(ctx, a, b):
    return {"sum": a + b}

@app.job("fails", max_attempts=1)
def fails(ctx):
    raise ValueError("no\\nway")

@app.job("runs.on")
def runs_on(ctx):
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("left undone")
"""
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
LATER = datetime(2040, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@pytest.fixture(scope="module")
def shop(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A dispatcher, a worker and a server with tokens for all tests of this module; each has jobs of its own."""
    with fleet(broker, f"t{os.urandom(6).hex()}", tmp_path_factory.mktemp("shop"), SHOP) as made:
        assert token(made, "admin")  # the first, without which the server would trust whoever is here
        made.start("server", "--port", "0")
        made.dispatcher()
        made.worker()
        made.client.result(made.client.schedule("ok", in_=0).id, wait="40s")
        yield made


@pytest.fixture(scope="module")
def url(shop: Fleet) -> str:
    async def started() -> str:
        while not (found := re.search(r'"url": "(http://[^"]+)"', shop.log())):
            await asyncio.sleep(0.05)
        return found[1]

    return asyncio.run(asyncio.wait_for(started(), 80))


def command(shop: Fleet, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        env=shop._environment | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def token(shop: Fleet, role: str) -> str:
    made = command(shop, "token", "create", f"the-{role}", "--role", role)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def operator(shop: Fleet) -> str:
    return token(shop, "operator")


@pytest.fixture(scope="module")
def http(shop: Fleet, url: str, operator: str) -> Iterator[Dueline]:
    with Dueline(url=url, token=operator, state_dir=str(shop.home / "nowhere")) as made:
        yield made


@pytest.fixture(params=["kafka", "http"])
def app(request: pytest.FixtureRequest, shop: Fleet, http: Dueline) -> Dueline:
    return shop.client if request.param == "kafka" else http


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test and way alone."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-60:]


# -- jobs ---------------------------------------------------------------------------------------------------


def test_a_job_is_created_seen_and_cancelled(app: Dueline) -> None:
    ref = app.schedule("ok", {"x": 2**70}, at=LATER, labels={"a": "b"}, timeout=timedelta(minutes=1))
    assert (ref.id[0], ref.status, ref.due_at) == ("j", "created", LATER)
    view = app.get(ref.id)
    assert re.fullmatch(r"20\d\d-.+Z", view.pop("created_at"))
    assert view == {
        "id": ref.id,
        "handler": "ok",
        "status": "pending",
        "due_at": "2040-01-02T03:04:05.678Z",
        "ended_at": None,
        "key": None,
        "queue": "default",
        "labels": {"a": "b"},
        "schedule": None,
        "occurrence": ref.id,
        "serial": None,
        "failures": 0,
        "skipped": None,
        "reason": None,
        "waits_behind": None,
        "kept": True,
        "payload": '{"x":1180591620717411303424}',
        "result": None,
        "runs": [],
    }
    assert app.cancel(ref.id).outcome == "cancelled"
    assert app.cancel(ref.id).outcome == "cancelled", "asked again, the answer is the same"
    assert app.get(ref.id)["status"] == "cancelled"


def test_a_job_runs_and_its_result_is_waited_for(app: Dueline) -> None:
    ref = app.schedule("adds", {"a": 2**70, "b": 1}, in_="50ms")
    assert app.result(ref.id, wait="40s") == {"sum": 2**70 + 1}
    assert app.cancel(ref.id).outcome == "too_late"
    assert app.reschedule(ref.id, in_="1h").outcome == "too_late"
    assert app.update(ref.id, {}).outcome == "too_late"


def test_both_ways_show_the_same(shop: Fleet, http: Dueline, eventually: Callable[..., None]) -> None:
    ids = [shop.client.schedule(handler, in_=0).id for handler in ("ok", "fails")]
    ids.append(http.schedule("ok", key="shown", in_="1h").id)
    for id_ in ids:
        eventually(lambda id_=id_: http.get(id_)["status"] == shop.client.get(id_)["status"] != "running")
        eventually(lambda id_=id_: http.get(id_) == shop.client.get(id_))


def test_a_failed_job_says_so(app: Dueline) -> None:
    ref = app.schedule("fails", in_=0)
    with pytest.raises(JobFailed, match=r"is dead: ValueError: no$") as caught:
        app.result(ref.id, wait=timedelta(seconds=40))
    assert caught.value.error is not None
    assert (caught.value.status, caught.value.error.message) == ("dead", "no\nway")


def test_a_wait_ends(app: Dueline) -> None:
    ref = app.schedule("ok", in_="1h")
    with pytest.raises(TimeoutError, match=r"is still pending after waiting 50ms"):
        app.result(ref.id, wait="50ms")
    with pytest.raises(NotFound, match="j00000000000000000000000000"):
        app.result("j" + "0" * 26, wait="50ms")


def test_nothing_is_not_found(app: Dueline) -> None:
    for id_ in ("j" + "0" * 26, keyed_id("nothing")):
        assert app.cancel(id_).outcome == "not_found"
        assert app.requeue(id_).outcome == "not_found"
        with pytest.raises(NotFound, match=id_):
            app.get(id_)


def test_a_job_is_put_off_and_changed(app: Dueline) -> None:
    ref = app.schedule("adds", {"a": 1, "b": 1}, in_="1h")
    moved = app.reschedule(ref.id, at=LATER)
    assert (moved.outcome, moved.due_at) == ("rescheduled", LATER)
    assert app.update(ref.id, {"a": 40, "b": 2}).outcome == "updated"
    assert app.reschedule(ref.id, in_=timedelta(0)).outcome == "rescheduled"
    assert app.result(ref.id, wait="40s") == {"sum": 42}


def test_a_job_is_run_once_more(app: Dueline, eventually: Callable[..., None]) -> None:
    ref = app.schedule("ok", in_="1h")
    assert app.requeue(ref.id).outcome == "pending"
    app.reschedule(ref.id, in_=0)
    app.result(ref.id, wait="40s")
    again = app.requeue(ref.id)
    assert (again.outcome, again.run) == ("requeued", 2)
    eventually(lambda: len(app.get(ref.id)["runs"]) == 2)


def test_a_run_is_stopped(app: Dueline, eventually: Callable[..., None]) -> None:
    ref = app.schedule("runs.on", in_=0)
    eventually(lambda: app.get(ref.id)["status"] == "running")
    assert app.cancel(ref.id).outcome == "too_late"
    assert app.cancel(ref.id, stop=True, wait="40s").outcome == "stopped"
    assert app.get(ref.id)["status"] == "stopped"


def test_a_key_is_held(app: Dueline, name: str) -> None:
    due = [LATER + timedelta(hours=n) for n in range(4)]
    made = app.schedule("ok", key=name, at=due[1])
    assert made == (keyed_id(name), "created", due[1])
    for conflict, at, outcome, then in (
        (None, due[0], "existing", due[1]),
        ("reject", due[0], "rejected", due[1]),
        ("replace", due[2], "replaced", due[2]),
        ("debounce", due[3], "debounced", due[3]),
    ):
        ref = app.schedule("ok", key=name, at=at, on_conflict=conflict, unique=timedelta(hours=1))
        assert ref == (made.id, outcome, then)
    assert app.get(made.id)["key"] == name
    assert app.cancel(made.id).outcome == "cancelled"


def test_coroutines_do_the_same(app: Dueline) -> None:
    async def play() -> Any:
        refs = await asyncio.gather(*(app.aschedule("adds", {"a": n, "b": 0}, in_=0) for n in range(20)))
        sums = await asyncio.gather(*(app.aresult(ref.id, wait="40s") for ref in refs))
        late = await app.aschedule("ok", in_="1h")
        moved = await app.areschedule(late.id, in_="2h")
        return [each["sum"] for each in sums], moved.outcome, (await app.acancel(late.id)).outcome

    assert asyncio.run(play()) == (list(range(20)), "rescheduled", "cancelled")


BAD: list[Callable[[Dueline], Any]] = [
    lambda app: app.schedule("NO", in_=0),
    lambda app: app.schedule("ok"),
    lambda app: app.schedule("ok", in_="soon"),
    lambda app: app.schedule("ok", in_=1, at=LATER),
    lambda app: app.schedule("ok", at="2030-01-01"),
    lambda app: app.schedule("ok", {"x": float("nan")}, in_=1),
    lambda app: app.schedule("ok", {"x": {1, 2}}, in_=1),
    lambda app: app.schedule("ok", {"x": "y" * 1_100_000}, in_=1),
    lambda app: app.schedule("ok", in_=1, labels={"a": 1}),  # type: ignore[dict-item]
    lambda app: app.schedule("ok", in_=1, max_attempts=0),
    lambda app: app.schedule("ok", in_=1, on_conflict="replace"),
    lambda app: app.schedule("ok", in_=1, nonsense=1),  # type: ignore[call-arg]
    lambda app: app.schedule("ok", in_=1, queue="nowhere"),
    lambda app: app.schedule("ok", in_=1, key="k", queue="nowhere"),
    lambda app: app.get("nonsense"),
    lambda app: app.cancel("nonsense"),
    lambda app: app.cancel("j" + "0" * 26, wait="soon"),
    lambda app: app.reschedule("j" + "0" * 26),
    lambda app: app.reschedule("j" + "0" * 26, in_="soon"),
    lambda app: app.update("j" + "0" * 26, []),  # type: ignore[arg-type]
    lambda app: app.schedules.create("NO", "ok", every="1h"),
    lambda app: app.schedules.create("fine", "ok", cron="61 * * * *"),
    lambda app: app.schedules.create("fine", "ok", every="1h", overlap="never"),
    lambda app: app.schedules.create("fine", "ok", every="1h", queue="nowhere"),
    lambda app: app.schedules.backfill("fine", LATER, LATER),
    lambda app: app.schedules.trigger("fine", overlap="never"),
    lambda app: list(app.schedule_many([{"handler": "ok", "in_": 1}, {"handler": "ok"}])),
    lambda app: list(app.schedule_many([{"handler": "ok", "in_": 1, "queue": "nowhere"}])),
    lambda app: list(app.schedule_many([17])),  # type: ignore[list-item]
]


def told(ask: Callable[[], Any]) -> tuple[type, str, str]:
    try:
        ask()
    except InvalidInput as error:
        return type(error), error.field, error.problem
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_mistake_is_told_in_the_same_words(shop: Fleet, http: Dueline, number: int) -> None:
    assert told(lambda: BAD[number](http)) == told(lambda: BAD[number](shop.client))


# -- many ---------------------------------------------------------------------------------------------------


def test_many_jobs_have_their_references_in_order(app: Dueline, name: str) -> None:
    items = (
        {"handler": "ok", "at": LATER + timedelta(seconds=n), "labels": {"of": name}} for n in range(5_000)
    )
    refs = list(app.schedule_many(items))
    assert [ref.due_at for ref in refs] == [LATER + timedelta(seconds=n) for n in range(5_000)]
    assert len({ref.id for ref in refs}) == 5_000
    assert {ref.status for ref in refs} == {"created"}
    assert app.get(refs[-1].id)["status"] == "pending"
    keyed = list(app.schedule_many([{"handler": "ok", "in_": "1h", "key": name}]))
    assert keyed[0][:2] == (keyed_id(name), "accepted")


def test_what_stands_before_a_bad_item_is_stored_and_told(app: Dueline) -> None:
    jobs: list[dict[str, Any]] = [{"handler": "ok", "in_": "1h"} for _ in range(2_500)]
    jobs[2_345]["in_"] = "soon"
    refs: list[Any] = []
    with pytest.raises(InvalidInput, match=r"^item 2346: in_: 'soon'"):
        refs.extend(app.schedule_many(jobs))
    assert len(refs) == 2_345
    assert app.get(refs[-1].id)["status"] == "pending"


def test_an_error_of_the_source_comes_after_what_it_gave(app: Dueline) -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield from ({"handler": "ok", "in_": "1h"} for _ in range(5))
        raise OSError("disk")

    refs = app.schedule_many(source())
    assert len(list(islice(refs, 5))) == 5
    with pytest.raises(OSError, match="disk"):
        next(refs)


# -- schedules ----------------------------------------------------------------------------------------------


def test_a_schedule_lives_and_ends(app: Dueline, name: str) -> None:
    schedules = app.schedules
    made = schedules.create(name, "ok", cron="0 3 * * *", tz="Europe/Berlin", jitter=timedelta(seconds=5))
    assert (made.id, made.outcome, made.revision) == (name, "created", 1)
    assert made.next_due is not None
    there = schedules.create(name, "adds", every="1h")
    assert (there.outcome, there.revision, there.next_due) == ("existing", 1, made.next_due)
    assert schedules.get(name)["spec"]["cron"] == "0 3 * * *"
    assert name in [each["id"] for each in schedules.list()]
    changed = schedules.update(name, cron="0 4 * * *", note="later", jitter=None)
    assert (changed.outcome, changed.revision) == ("updated", 2)
    assert schedules.get(name)["spec"]["note"] == "later"
    assert schedules.get(name)["spec"]["jitter"] == "0ms"
    assert schedules.pause(name, "broken").outcome == "paused"
    assert schedules.get(name)["state"] == "paused"
    fired = schedules.trigger(name)
    assert fired.outcome == "fired"
    assert fired.occurrence_id is not None
    assert app.result(fired.occurrence_id, wait="40s") is None
    assert schedules.resume(name).outcome == "resumed"
    assert schedules.delete(name).outcome == "deleted"
    with pytest.raises(NotFound):
        schedules.get(name)
    assert {schedules.delete(name).outcome, schedules.update(name, note="x").outcome} == {"not_found"}
    assert schedules.pause(name).outcome == "not_found"


def test_the_past_is_made_up_for(app: Dueline, name: str) -> None:
    app.schedules.create(name, "ok", every="1h")
    range_ = datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T03:00:00Z"
    assert app.schedules.count(name, *range_) == 3
    with pytest.raises(NotFound):
        app.schedules.count("no-such", *range_)
    with pytest.raises(Refused):
        app.schedules.backfill(name, *range_, limit=2)
    begun = app.schedules.backfill(name, *range_, rate=60, reverse=True)
    assert (begun.outcome, begun.detail["total"]) == ("started", "3")
    assert app.schedules.cancel_backfill(name, begun.detail["backfill"]).outcome == "cancelled"
    assert app.schedules.cancel_backfill(name, "none").outcome == "not_found"
    app.schedules.delete(name)


def test_an_occurrence_is_skipped_beside_another(app: Dueline, name: str) -> None:
    app.schedules.create(name, "runs.on", cron="0 0 1 1 *")
    first = app.schedules.trigger(name)
    assert app.schedules.trigger(name, overlap="skip").outcome == "skipped"
    assert first.occurrence_id is not None
    assert app.cancel(first.occurrence_id, stop=True, wait="40s").outcome == "stopped"
    app.schedules.delete(name)


def test_both_ways_show_the_same_schedules(
    shop: Fleet, http: Dueline, eventually: Callable[..., None]
) -> None:
    shop.client.schedules.create("same", "ok", cron="0 3 * * *", payload={"x": 2**70}, labels={"a": "b"})
    eventually(lambda: "same" in [each["id"] for each in http.schedules.list()])
    assert http.schedules.get("same") == shop.client.schedules.get("same")
    assert http.schedules.list() == shop.client.schedules.list()
    both = [each.schedules.list(state="active", source="api", handler="ok") for each in (http, shop.client)]
    assert "same" in [each["id"] for each in both[0]]
    assert both[0] == both[1]


def test_a_wrong_expression_is_an_invalid_schedule_both_ways(app: Dueline) -> None:
    app.schedules.create("right", "ok", every="1h")
    with pytest.raises(InvalidSchedule):
        app.schedules.update("right", cron="61 * * * *")


def test_the_handlers_that_live_are_known(app: Dueline) -> None:
    assert {"ok", "adds", "fails", "runs.on"} <= app.live_handlers()
    assert json.dumps(sorted(app.live_handlers()))


# -- over HTTP alone ----------------------------------------------------------------------------------------


def test_over_http_nothing_is_kept_here(http: Dueline, shop: Fleet) -> None:
    http.schedule("ok", in_="1h")
    assert not Path(shop.home / "nowhere").exists()


def test_who_may_not_is_told_so(http: Dueline, shop: Fleet, url: str) -> None:
    ref = http.schedule("ok", in_="1h")
    with Dueline(url=url, token=token(shop, "viewer")) as viewer:
        assert viewer.get(ref.id)["status"] == "pending"
        with pytest.raises(NotAllowed, match="needs the role operator"):
            viewer.cancel(ref.id)
        with pytest.raises(NotAllowed, match="needs the role operator"):
            list(viewer.schedule_many([{"handler": "ok", "in_": 1}]))
    with Dueline(url=url) as nobody, pytest.raises(NotAllowed):
        nobody.get(ref.id)
    assert NotAllowed.exit_code == 4


def test_commands_go_through_the_server(http: Dueline, shop: Fleet, url: str, operator: str) -> None:
    """Of a shell that cannot reach Kafka."""
    away = {"DUELINE_URL": url, "DUELINE_TOKEN": operator, "DUELINE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    made = command(shop, "job", "create", "ok", "--in", "1h", "--json", **away)
    assert made.returncode == 0, made.stderr
    id_ = json.loads(made.stdout)["id"]
    for words, schema in ((("job", "get", id_), "job_get"), (("status",), "status")):
        ran = command(shop, *words, "--json", **away)
        assert (ran.returncode, ran.stderr) == (0, f"dueline: asked the server at {url}\n")
        jsonschema.validate(json.loads(ran.stdout), json.loads((SCHEMAS / f"{schema}.json").read_text()))


def test_what_commands_read_from_the_server_is_what_they_read_from_the_topics(
    http: Dueline, shop: Fleet, url: str, operator: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], eventually: Callable[..., None],
) -> None:  # fmt: skip
    for each, value in shop._environment.items():
        monkeypatch.setenv(each, value)
    waiting, failing = http.schedule("ok", in_="1h"), http.schedule("fails", in_=0)
    http.schedules.create(
        "..", "ok", cron="0 2 * * *"
    )  # a legal name that must not leave its place in the path
    eventually(lambda: http.get(failing.id)["status"] == "dead", timeout=60)

    def read(*words: str) -> list[Any]:
        assert cli(words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    reads = (
        *(("job", "why", waiting.id), ("cron", "list"), ("cron", "describe", ".."), ("dead", "list")),
        *(("cron", "list", "--state", "active", "--source", "api"), ("cron", "list", "--state", "paused")),
        *(("dead", "groups"), ("dead", "list", "--error", "ValueError"), ("dead", "list", "--error", "E")),
    )
    stored = [read(*words, "--json") for words in reads]
    monkeypatch.setenv("DUELINE_URL", url)
    monkeypatch.setenv("DUELINE_TOKEN", operator)
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    served: list[Any] = []
    del stored[0][0]["sentence"]  # it counts the seconds

    def same() -> bool:
        """Once the server has heard of it all: a letter comes on another partition than its ack."""
        served[:] = [read(*words, "--json") for words in reads]
        del served[0][0]["sentence"]
        return served == stored

    with contextlib.suppress(AssertionError):
        eventually(same)
    assert served == stored
    assert failing.id in {each["id"] for each in served[3]}
    assert served[4][0]["id"] == ".."
    assert (served[5], served[8]) == ([], [])
    assert sum(each["count"] for each in served[6]) == len(served[3])
    assert failing.id in {each["id"] for each in served[7]}
    assert http.schedules.delete("..").outcome == "deleted"


def test_a_server_and_the_topics_show_and_list_jobs_alike(
    http: Dueline, shop: Fleet, url: str, operator: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], eventually: Callable[..., None],
) -> None:  # fmt: skip
    for each, value in shop._environment.items():
        monkeypatch.setenv(each, value)
    running = http.schedule("runs.on", in_=0, labels={"both": "ways"})
    keyed = http.schedule("ok", {"n": 2**70}, in_="1h", key="both-ways", labels={"both": "ways"})
    failing = http.schedule("fails", in_=0)
    eventually(lambda: shop.client.get(running.id)["status"] == "running", timeout=60)
    eventually(lambda: shop.client.get(failing.id)["status"] == "dead", timeout=60)

    def read(**environment: str) -> list[list[Any]]:
        with monkeypatch.context() as shell:
            for each, value in environment.items():
                shell.setenv(each, value)
            return [[json.loads(line) for line in told(words)] for words in reads]

    def told(words: tuple[str, ...]) -> list[str]:
        assert cli((*words, "--json")) == 0
        return capsys.readouterr().out.splitlines()

    reads = (
        *(("job", "get", ref.id) for ref in (running, keyed, failing)),
        ("job", "list", "--label", "both=ways", "--order", "-due"),
    )
    stored = read()
    server = {"DUELINE_URL": url, "DUELINE_TOKEN": operator, "DUELINE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    with contextlib.suppress(AssertionError):
        eventually(lambda: read(**server) == stored)
    assert read(**server) == stored
    occurrence = stored[1][0]["occurrence"]
    assert [(row["id"], row["status"]) for row in stored[3]] == [
        (keyed.id, "pending"),
        (running.id, "running"),
    ]
    assert stored[2][0]["ended_at"] == stored[2][0]["runs"][0]["attempts"][0]["finished_at"]
    assert http.cancel(running.id, stop=True).outcome in ("stopped", "stopping")
    assert http.cancel(occurrence).outcome == "cancelled"
