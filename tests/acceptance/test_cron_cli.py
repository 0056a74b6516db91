"""`dueline cron` as its user meets it: commands in a shell, on a real broker beside a dispatcher and a worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from integration.fleet import Eventually, Fleet, fleet

pytestmark = pytest.mark.timeout(240)
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
APP = """
from pipeline import Dueline

app = Dueline()

@app.every("1s", id="tick")
@app.job("tick")
def tick(ctx):
    return {"last": ctx.last_success_at and str(ctx.last_success_at)}

@app.job("note")
def note(ctx, text="nothing"):
    return text
"""
WITHOUT_TICK = APP.replace('@app.every("1s", id="tick")\n', "")
MONTHS = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-06-01T00:00:00Z")
Answer = Callable[..., Any]


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def command(shop: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=shop.home,
        env=shop._environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(shop: Fleet, schema: str, *words: str, code: int = 0) -> Any:
    ran = command(shop, *words, "--json")
    assert ran.returncode == code, ran.stderr
    found = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{schema}.json").read_text())).validate(found)
    return found


def cron(shop: Fleet, verb: str, *words: str, code: int = 0) -> Any:
    return answer(shop, f"cron_{verb}", "cron", verb, *words, code=code)


def test_what_an_app_declares_runs_until_it_is_declared_no_more(shop: Fleet, eventually: Eventually) -> None:
    shop.dispatcher()
    worker = deployed(shop, APP, version="1")
    eventually(lambda: shop.outcomes()["succeeded"] >= 3, timeout=60)
    view = cron(shop, "describe", "tick")
    assert (view["state"], view["spec"]["source"], view["spec"]["every"]) == ("active", "app:shop", "1s")
    assert view["counters"]["fired"] >= 3
    # Its occurrences are jobs like any other, and their instants are those of the grid.
    runs = [run for run, _ in shop.work()]
    assert {run.nominal_at % 1_000 for run in runs} == {0}
    assert len({run.occurrence_id for run in runs}) == len(runs)
    job = answer(shop, "job_get", "job", "get", min(runs, key=lambda run: run.nominal_at).occurrence_id)
    assert (job["status"], job["handler"], job["result"]) == ("succeeded", "tick", {"last": None})
    assert answer(shop, "status", "status")["tzdata"]
    eventually(lambda: answer(shop, "status", "status")["schedules"] == {"count": 1, "overdue": []})
    # The decorator goes, and so does the schedule; a worker of the deploy before does not bring it back.
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    deployed(shop, WITHOUT_TICK, version="2")
    eventually(lambda: '"deleted": 1' in shop.log(), timeout=60)
    assert command(shop, "cron", "describe", "tick").returncode == 3
    deployed(shop, APP, version="1")
    eventually(lambda: "schedules.older" in shop.log(), timeout=60)
    assert command(shop, "cron", "describe", "tick").returncode == 3


def deployed(shop: Fleet, app: str, version: str) -> subprocess.Popen[bytes]:
    (shop.home / "shop.py").write_text(app)
    return shop.start("worker", "--app", "shop:app", DUELINE_APP_VERSION=version)


def test_a_schedule_by_hand_from_create_to_delete(shop: Fleet, eventually: Eventually) -> None:
    (shop.home / "shop.py").write_text(WITHOUT_TICK)
    shop.dispatcher()
    shop.worker()
    words = ("tax", "--cron", "0 12 1 1 *", "--tz", "Europe/Berlin", "--handler", "note")
    created = cron(shop, "create", *words, "--payload", '{"text": "hello"}', "--wait", "30s")
    assert (created["outcome"], created["revision"]) == ("created", 1)
    assert created["next_due"].endswith("-01-01T11:00:00.000Z")
    assert cron(shop, "create", *words, "--payload", '{"text": "hello"}')["outcome"] == "existing"
    assert cron(shop, "create", *words, code=4)["outcome"] == "existing"
    assert cron(shop, "pause", "tax", "--note", "tax season")["next_due"] is None
    (listed,) = [cron(shop, "list")]
    assert (listed["id"], listed["paused"], listed["next_at"]) == ("tax", "tax season", None)
    fired = cron(shop, "trigger", "tax")  # paused or not
    eventually(lambda: shop.outcomes()["succeeded"] == 1, timeout=60)
    assert answer(shop, "job_get", "job", "get", fired["occurrence_id"])["result"] == "hello"
    assert cron(shop, "resume", "tax")["next_due"] == created["next_due"]
    updated = cron(shop, "update", "tax", "--cron", "30 12 1 * *", "--clear", "payload")
    assert updated["next_due"].endswith(":30:00.000Z")
    # What was missed before there was a schedule is made up on request only.
    assert cron(shop, "backfill", "tax", *MONTHS, "--dry-run")["total"] == 5
    begun = cron(shop, "backfill", "tax", *MONTHS, "--reverse")
    assert (begun["outcome"], begun["total"]) == ("started", 5)
    eventually(lambda: shop.outcomes()["succeeded"] == 6, timeout=60)
    made_up = [run for run, _ in shop.work() if ":b:" in run.occurrence_id]
    assert {run.nominal_at for run in made_up} == {
        at + 41_400_000 for at in (1767225600000, 1769904000000, 1772323200000)
    } | {
        at + 37_800_000 for at in (1775001600000, 1777593600000)
    }  # 12:30 in Berlin, from April on in summer time
    state = shop.client.schedules.state
    eventually(lambda: state("tax").counts.get("succeeded") == 6, timeout=60)
    described = cron(shop, "describe", "tax")
    assert (described["counters"]["backfilled"], described["counters"]["triggered"]) == (5, 1)
    last = answer(shop, "job_get", "job", "get", made_up[-1].occurrence_id)
    assert (last["status"], last["result"]) == ("succeeded", "nothing")
    occurrence = f"s:tax:{described['incarnation']}:g::{state('tax').next_nominal}"
    pending = answer(shop, "job_get", "job", "get", occurrence)
    assert (pending["status"], pending["due_at"]) == ("pending", described["next"][0]["nominal_at"])
    assert cron(shop, "delete", "tax")["outcome"] == "deleted"
    assert cron(shop, "delete", "tax", code=3)["outcome"] == "not_found"
    assert command(shop, "cron", "describe", "tax").returncode == 3


def test_a_file_is_synced_and_what_came_from_elsewhere_stays(shop: Fleet) -> None:
    shop.dispatcher()
    file = shop.home / "nightly.crontab"
    file.write_text("CRON_TZ=Europe/Berlin\n# dueline: id=report\n30 2 * * * dueline:note\n")
    hand = ("by-hand", "--every", "1h", "--handler", "note", "--wait", "30s")
    assert cron(shop, "create", *hand)["outcome"] == "created"
    first = cron(shop, "sync", str(file), "--dry-run")
    assert (first["create"], first["outcomes"]) == (["report"], {})
    assert cron(shop, "sync", str(file))["outcomes"] == {"created": 1}
    assert cron(shop, "sync", str(file))["unchanged"] == ["report"]
    file.write_text("30 2 * * * dueline:note\n61 * * * * dueline:note\n")
    bad = command(shop, "cron", "sync", str(file))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert f"{file}:2: cron: " in bad.stderr
    file.write_text("# nothing is left\n")
    gone = cron(shop, "sync", str(file))
    assert (gone["delete"], gone["outcomes"]) == (["report"], {"deleted": 1})
    assert cron(shop, "list")["id"] == "by-hand"


def test_a_preview_needs_no_store(tmp_path: Path) -> None:
    words = ("30 2 * * *", "--tz", "Europe/Berlin", "--after", "2027-03-27T00:00:00Z", "--count", "3")
    ran = subprocess.run(
        [sys.executable, "-m", "pipeline", "cron", "preview", *words, "--json"],
        cwd=tmp_path,
        env={"DUELINE_BOOTSTRAP_SERVERS": "127.0.0.1:1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == [
        "2027-03-27T01:30:00.000Z",
        "2027-03-28T01:00:00.000Z",  # right after the gap
        "2027-03-29T00:30:00.000Z",
    ]
