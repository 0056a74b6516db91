"""Commands from the client and the command line to a real dispatcher on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from decided import decided
from integration.fleet import Eventually, Fleet, fleet

from pipeline import Dueline, JobFailed
from pipeline.client.request import allowed_queues
from pipeline.core.errors import NotAllowed
from pipeline.core.ids import keyed_id

SHOP = """
import time
from pipeline import Dueline, Retry
app = Dueline()

@app.job("ok")
def ok(ctx): ...

@app.job("slow.retry", max_attempts=3)
def slow_retry(ctx):
    raise Retry(after="1h")

@app.job("fails", max_attempts=1)
def fails(ctx, n=0):
    if n == 0:
        raise ValueError("no")
    return n

@app.job("adds")
def adds(ctx, a, b):
    return {"sum": a + b}

@app.job("runs.on")
def runs_on(ctx):
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("left undone")
"""
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"


@pytest.fixture(scope="module")
def shop(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A dispatcher and a worker for all tests of this module; each has jobs of its own."""
    home = tmp_path_factory.mktemp("shop")
    with fleet(broker, f"t{os.urandom(6).hex()}", home, SHOP) as made:
        made.dispatcher()
        made.worker()
        warm = made.client.schedule("ok", in_="0s")
        deadline = time.monotonic() + 50
        while made.client.get(warm.id)["status"] != "succeeded":
            assert time.monotonic() < deadline, made.log()[-2000:]
            time.sleep(0.1)
        yield made


@pytest.fixture
def app(shop: Fleet) -> Dueline:
    return shop.client


def status(app: Dueline, id_: str) -> Any:
    """Once what was answered can be read: the markers of a transaction come on one partition after the other."""
    connected = app._connected()
    decided(app.settings.require_bootstrap(), app.settings.names.jobs, connected.layout.home(id_))
    return app.get(id_)["status"]


def cli(shop: Fleet, schema: str, *words: str, group: str = "job") -> tuple[int, Any]:
    """(exit code, answer) of `dueline job …`."""
    ran = subprocess.run(
        [sys.executable, "-m", "pipeline", group, *words, "--json"],
        env=shop._environment,
        cwd=shop.home,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.stdout, ran.stderr
    answer = json.loads(ran.stdout)
    jsonschema.validate(answer, json.loads((SCHEMAS / f"{schema}.json").read_text()))
    return ran.returncode, answer


# -- cancel -------------------------------------------------------------------------------------------------


def test_a_cancelled_job_does_not_fire_and_says_so_again(shop: Fleet, app: Dueline) -> None:
    ref = app.schedule("ok", in_="1h")
    assert app.cancel(ref.id).outcome == "cancelled"
    assert app.cancel(ref.id).outcome == "cancelled"
    assert status(app, ref.id) == "cancelled"
    assert not [run for run, _ in shop.work() if run.job_id == ref.id]


def test_a_job_that_fired_is_too_late(app: Dueline, eventually: Eventually) -> None:
    ref = app.schedule("ok", in_="0s")
    eventually(lambda: status(app, ref.id) == "succeeded")
    assert app.cancel(ref.id).outcome == "too_late"
    assert app.reschedule(ref.id, in_="1h").outcome == "too_late"
    assert app.update(ref.id, {}).outcome == "too_late"


def test_nothing_is_not_found(app: Dueline) -> None:
    assert app.cancel("j" + "0" * 26).outcome == "not_found"
    assert app.cancel(keyed_id("nothing")).outcome == "not_found"


def test_a_pending_retry_is_stopped(app: Dueline, eventually: Eventually) -> None:
    ref = app.schedule("slow.retry", in_="0s")
    eventually(lambda: (job := app.get(ref.id))["runs"] and job["due_at"] > job["runs"][0]["fired_at"])
    eventually(lambda: status(app, ref.id) == "retrying")
    assert app.cancel(ref.id).outcome == "stopped"
    assert app.cancel(ref.id).outcome == "stopped"
    assert status(app, ref.id) == "stopped"


# -- stops ------------------------------------------------------------------------------------------------


def test_a_job_that_has_not_fired_is_cancelled_by_a_stop(app: Dueline) -> None:
    ref = app.schedule("ok", in_="1h")
    assert [app.cancel(ref.id, stop=True).outcome for _ in range(2)] == ["cancelled", "cancelled"]


def test_a_stop_of_a_run_that_ended_is_too_late(app: Dueline, eventually: Eventually) -> None:
    ref = app.schedule("ok", in_="0s")
    eventually(lambda: status(app, ref.id) == "succeeded")
    assert app.cancel(ref.id, stop=True).outcome == "too_late"
    assert app.cancel("j" + "0" * 26, stop=True).outcome == "not_found"


def test_a_running_job_is_stopped_and_runs_again_when_it_is_requeued(
    app: Dueline, eventually: Eventually
) -> None:
    ref = app.schedule("runs.on", in_="0s")
    eventually(lambda: status(app, ref.id) == "running")
    assert app.cancel(ref.id, stop=True, wait="40s").outcome == "stopped"
    assert status(app, ref.id) == "stopped"
    with pytest.raises(JobFailed, match="is stopped"):
        app.result(ref.id)
    assert app.requeue(ref.id).outcome == "requeued"
    eventually(lambda: status(app, ref.id) == "running")
    assert app.cancel(ref.id, stop=True, wait="40s").outcome == "stopped"


# -- results ------------------------------------------------------------------------------------------------


def test_a_result_is_waited_for(app: Dueline) -> None:
    ref = app.schedule("adds", {"a": 2, "b": 3}, in_="300ms")
    assert app.result(ref.id, wait="40s") == {"sum": 5}

    async def all_of(refs: list[str]) -> list[Any]:
        return list(await asyncio.gather(*(app.aresult(ref, wait="40s") for ref in refs)))

    refs = [app.schedule("adds", {"a": n, "b": 0}, in_="300ms").id for n in range(20)]
    assert asyncio.run(all_of(refs)) == [{"sum": n} for n in range(20)]


def test_there_is_no_result_of_a_job_that_died_or_is_not_due(app: Dueline) -> None:
    with pytest.raises(JobFailed, match="is dead: ValueError: no"):
        app.result(app.schedule("fails", in_="0s").id, wait="40s")
    with pytest.raises(TimeoutError, match="is still pending"):
        app.result(app.schedule("ok", in_="1h").id, wait="300ms")


# -- dead letters -------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_and_requeued_once_with_another_payload(
    shop: Fleet, app: Dueline, eventually: Eventually
) -> None:
    refs = [app.schedule("fails", {"n": 0}, in_="0s", key=f"dead-{n}" if n else None) for n in range(3)]
    for ref in refs:
        eventually(lambda id_=ref.id: status(app, id_) == "dead")
    assert {ref.id for ref in refs} <= {view["id"] for view in dead_list(shop)}
    words = ("requeue", *(ref.id for ref in refs), "--payload", '{"n": 7}')
    code, counts = cli(shop, "dead_requeue", *words, group="dead")
    assert (code, counts["matched"], counts["requeued"]) == (0, 3, 3)
    assert [app.result(ref.id, wait="40s") for ref in refs] == [7, 7, 7]
    assert {ref.id for ref in refs}.isdisjoint(view["id"] for view in dead_list(shop))
    code, counts = cli(shop, "dead_requeue", *words, group="dead")
    assert (code, counts["matched"], counts["not_found"]) == (3, 0, 3)


def dead_list(shop: Fleet) -> list[Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "pipeline", "dead", "list", "--json"],
        env=shop._environment,
        cwd=shop.home,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    schema = json.loads((SCHEMAS / "dead_list.json").read_text())
    views = [json.loads(line) for line in ran.stdout.splitlines()]
    for view in views:
        jsonschema.validate(view, schema)
    return views


# -- reschedule and update ----------------------------------------------------------------------------------


def test_a_job_is_brought_forward_with_another_payload(
    shop: Fleet, app: Dueline, eventually: Eventually
) -> None:
    ref = app.schedule("ok", {}, in_="1h", labels={"x": "1"})
    assert app.update(ref.id, {}).outcome == "updated"
    later = datetime.now(UTC) + timedelta(hours=2)
    changed = app.reschedule(ref.id, at=later)
    assert changed.outcome == "rescheduled"
    assert changed.due_at is not None
    assert abs(changed.due_at - later) < timedelta(milliseconds=2)
    assert status(app, ref.id) == "pending"
    assert app.reschedule(ref.id, in_="0s").outcome == "rescheduled"
    eventually(lambda: status(app, ref.id) == "succeeded")
    assert [run.run for run, _ in shop.work() if run.job_id == ref.id] == [1]


# -- keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_held_until_its_job_is_finished(app: Dueline, eventually: Eventually) -> None:
    first = app.schedule("ok", in_="1h", key="a/1")
    assert first[:2] == (keyed_id("a/1"), "created")
    again = app.schedule("ok", in_="2h", key="a/1")
    assert again == (first.id, "existing", first.due_at)
    assert app.schedule("ok", in_="2h", key="a/1", on_conflict="reject").status == "rejected"
    debounced = app.schedule("ok", in_="3h", key="a/1", on_conflict="debounce")
    assert debounced.status == "debounced"
    assert debounced.due_at > first.due_at + timedelta(hours=1)
    assert app.schedule("ok", in_="0s", key="a/1", on_conflict="replace").status == "replaced"
    eventually(lambda: status(app, first.id) == "succeeded")


def test_a_keyed_job_is_cancelled_and_made_again(app: Dueline) -> None:
    first = app.schedule("ok", in_="1h", key="b")
    assert app.cancel(first.id).outcome == "cancelled"
    assert status(app, first.id) == "cancelled"
    assert app.schedule("ok", in_="1h", key="b").status == "created"
    assert status(app, first.id) == "pending"


def test_many_jobs_with_keys_are_executed(app: Dueline, eventually: Eventually) -> None:
    refs = list(app.schedule_many({"handler": "ok", "in_": "1h", "key": f"m{n % 50}"} for n in range(100)))
    assert {ref.status for ref in refs} == {"accepted"}
    assert len({ref.id for ref in refs}) == 50
    for ref in refs[:50]:
        eventually(lambda id_=ref.id: _found(app, id_) == "pending")


def _found(app: Dueline, id_: str) -> str | None:
    from pipeline import NotFound

    try:
        return str(app.get(id_)["status"])
    except NotFound:
        return None


# -- requeue ------------------------------------------------------------------------------------------------


def test_a_dead_job_runs_once_more(app: Dueline, eventually: Eventually) -> None:
    ref = app.schedule("fails", in_="0s")
    eventually(lambda: status(app, ref.id) == "dead")
    change = app.requeue(ref.id)
    assert (change.outcome, change.run) == ("requeued", 2)
    eventually(lambda: [len(run["attempts"]) for run in app.get(ref.id)["runs"]] == [1, 1])


def test_a_requeue_of_a_pending_job_does_nothing(app: Dueline) -> None:
    ref = app.schedule("ok", in_="1h")
    assert app.requeue(ref.id).outcome == "pending"
    assert status(app, ref.id) == "pending"


# -- the command line ---------------------------------------------------------------------------------------


def test_the_command_line_says_the_same(shop: Fleet) -> None:
    code, job = cli(shop, "job_create", "create", "ok", "--in", "1h", "--key", "cli")
    assert (code, job["status"]) == (0, "created")
    code, job = cli(
        shop, "job_create", "create", "ok", "--in", "1h", "--key", "cli", "--on-conflict", "reject"
    )
    assert (code, job["status"]) == (4, "rejected")
    code, why = cli(shop, "job_why", "why", job["id"])
    assert (code, why["status"], why["waits_for"]) == (0, "pending", "time")
    code, change = cli(shop, "job_reschedule", "reschedule", job["id"], "--in", "2h")
    assert (code, change["outcome"]) == (0, "rescheduled")
    assert cli(shop, "job_cancel", "cancel", job["id"]) == (0, {"id": job["id"], "outcome": "cancelled"})
    code, change = cli(shop, "job_update", "update", job["id"], "--payload", "{}")
    assert (code, change["outcome"]) == (4, "cancelled")


# -- how long an answer takes -------------------------------------------------------------------------------


def test_answers_come_soon_and_in_parallel(app: Dueline) -> None:
    """A bound with room for a busy machine; the figure itself is the bench's."""
    refs = list(app.schedule_many({"handler": "ok", "in_": "1h"} for _ in range(60)))
    app.cancel(refs[0].id)
    took = []
    for ref in refs[1:20]:
        start = time.monotonic()
        assert app.cancel(ref.id).outcome == "cancelled"
        took.append(time.monotonic() - start)
    assert sorted(took)[len(took) // 2] < 1.0

    async def cancel_all() -> list[str]:
        return [each.outcome for each in await asyncio.gather(*(app.acancel(ref.id) for ref in refs[20:]))]

    assert asyncio.run(cancel_all()) == ["cancelled"] * 40


# -- who is limited to some queues --------------------------------------------------------------------------


@contextmanager
def limited_to(*queues: str) -> Iterator[None]:
    """As a server asks for a token that is limited to these queues."""
    before = allowed_queues.set(frozenset(queues))
    try:
        yield
    finally:
        allowed_queues.reset(before)


def test_the_owner_refuses_whoever_is_limited_to_other_queues(app: Dueline) -> None:
    free, held = app.schedule("ok", in_="1h"), app.schedule("ok", {"n": 1}, in_="1h", key="of-default")
    before = app.get(held.id)
    with limited_to("billing"):
        for change in (app.cancel, app.requeue, lambda id_: app.cancel(id_, stop=True)):
            for ref in (free, held):
                with pytest.raises(NotAllowed, match="another queue"):
                    change(ref.id)
        with pytest.raises(NotAllowed):
            app.schedule("ok", in_="2h", key="of-default", on_conflict="replace", queue="default")
        with pytest.raises(NotAllowed):
            app.schedules.create("nightly", "ok", cron="0 2 * * *")
    assert (status(app, free.id), app.get(held.id)) == ("pending", before)
    with limited_to("billing", "default"):
        assert app.schedule("ok", in_="2h", key="of-default", on_conflict="replace").status == "replaced"
        assert [app.cancel(ref.id).outcome for ref in (free, held)] == ["cancelled", "cancelled"]
