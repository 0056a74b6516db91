"""A replay after an outage on the real broker: killed again and again, beside owners that are killed too, each failed
occurrence runs again once, and each effect is made once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.core.times import written_instant
from pipeline.portion import REPLAY_HEADER

SHOP = """
import pathlib
from pipeline import Dueline
app = Dueline()

@app.job("mail", max_attempts=1)
def mail(ctx, n):
    if pathlib.Path("outage").exists() and n % 3:
        raise ConnectionError("the mail server is down")
    with open("effects", "a") as effects:
        effects.write(f"{ctx.idempotency_key} {ctx.run}\\n")
"""
JOBS = 600
FAILED = JOBS - JOBS // 3
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, SHOP) as made:
        yield made


class Outage:
    """Jobs of which two thirds failed for good, and how to ask for them again."""

    def __init__(self, shop: Fleet, eventually: Eventually) -> None:
        self.shop, self._eventually = shop, eventually
        self.dispatcher = shop.dispatcher()
        shop.worker()
        (shop.home / "outage").touch()
        due = datetime.now(UTC) - timedelta(minutes=3)
        jobs = (
            {"handler": "mail", "payload": {"n": n}, "at": due + timedelta(milliseconds=n)}
            for n in range(JOBS)
        )
        for _ in shop.client.schedule_many(jobs):
            pass
        eventually(lambda: shop.outcomes().total() == JOBS, timeout=60)
        assert shop.outcomes() == {"dead": FAILED, "succeeded": JOBS - FAILED}
        (shop.home / "outage").unlink()
        self.window = "--from", written_instant(due), "--to", written_instant(due + timedelta(minutes=1))

    def ask(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "replay", *words, "--json"],
            cwd=self.shop.home,
            env=self.shop._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, schema: str, *words: str) -> Any:
        (found,) = self.answers(schema, *words)
        return found

    def answers(self, schema: str, *words: str) -> list[Any]:
        process = self.ask(*words)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        found = [json.loads(line) for line in out.splitlines()]
        for each in found:
            jsonschema.validate(each, json.loads((SCHEMAS / f"{schema}.json").read_text()))
        return found

    def emitted_by(self, replay_id: str) -> int:
        return sum(run.headers.get(REPLAY_HEADER) == replay_id for run, _ in self.shop.work())

    def again(self) -> Counter[str]:
        """Later runs by occurrence."""
        return Counter(run.occurrence_id for run, _ in self.shop.work() if run.run > 1)

    def end_after(self, process: subprocess.Popen[str], runs: int) -> None:
        """Kill the process once so many were run again."""
        self._eventually(lambda: self.again().total() >= runs or process.poll() is not None, timeout=60)
        process.kill()
        process.communicate()

    def check(self) -> None:
        """Each that failed has one run more, of this replay alone, and each effect was made once."""
        self._eventually(lambda: self.shop.outcomes()["succeeded"] == JOBS, timeout=60)
        again = self.again()
        assert (len(again), set(again.values())) == (FAILED, {1})
        effects = [line.split()[0] for line in (self.shop.home / "effects").read_text().splitlines()]
        assert len(effects) == len(set(effects)) == JOBS


def counts(view: Any) -> dict[str, int]:
    return {name: n for name, n in view["counts"].items() if n}


@pytest.fixture
def outage(shop: Fleet, eventually: Eventually) -> Outage:
    return Outage(shop, eventually)


def test_h29_a_replay_that_is_killed_at_any_point_is_resumed_without_repeating(outage: Outage) -> None:
    counted = outage.answer("replay", *outage.window, "--dry-run", "--rate", "200")
    assert (counted["matched"], counted["outcomes"]) == (FAILED, {"dead": FAILED, "succeeded": JOBS - FAILED})
    process = outage.ask(*outage.window, "--rate", "30", "--yes")
    points = sorted(random.Random(7).sample(range(1, FAILED // 2), 2))
    outage.end_after(process, points[0])
    (listed,) = [outage.answer("replay_list", "list")]
    assert listed["state"] == "interrupted", "a process of this machine that is gone is not waited for"
    outage.end_after(outage.ask(*outage.window), points[1])
    outage.dispatcher.kill()
    outage.dispatcher.wait()
    process = outage.ask("resume", listed["id"])
    outage.shop.dispatcher()
    assert process.stderr is not None
    assert any(f"replay {listed['id']} of" in line for line in process.stderr), "it is at work"
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert f"dueline replay resume {listed['id']}" in said
    done = outage.answer("replay", "resume", listed["id"], "--rate", "1000")
    assert (done["state"], done["id"]) == ("finished", listed["id"])
    outage.check()
    shown = outage.answer("replay_show", "show", listed["id"])
    assert (shown["state"], shown["matched"]) == ("finished", FAILED)
    assert 1 <= shown["resumed"] <= 3, "one that was killed as it began has not told"
    assert counts(shown) == {"replayed": FAILED}, "each is told once, whichever process asked for it"
    assert outage.emitted_by(listed["id"]) == FAILED
    left = outage.answer("replay", *outage.window, "--dry-run")
    assert (left["matched"], left["outcomes"]) == (0, {"succeeded": JOBS})


def test_a_replay_that_stood_still_leaves_it_to_whoever_took_it_up_or_cancelled_it(outage: Outage) -> None:
    still = outage.ask(*outage.window, "--rate", "30")
    outage._eventually(lambda: outage.again().total() >= 20, timeout=60)
    still.send_signal(signal.SIGSTOP)
    (listed,) = [outage.answer("replay_list", "list")]
    assert counts(listed)["replayed"] > 0, "how far it is was told a moment ago"
    outage.answer("replay", "resume", listed["id"], "--force", "--rate", "1000")
    before = outage.answer("replay_show", "show", listed["id"])
    assert (before["state"], counts(before)) == ("finished", {"replayed": FAILED})
    still.send_signal(signal.SIGCONT)
    assert still.communicate(timeout=60)[0] == ""
    assert still.returncode == 4
    assert outage.answer("replay_show", "show", listed["id"]) == before
    outage.check()

    # Twice the same replay of all: the first one is killed, and cancelled at once and for good.
    everything = (*outage.window, "--only", "all", "--force", "--rate", "30")
    killed = outage.ask(*everything)
    outage._eventually(lambda: outage.again().total() >= FAILED + 20, timeout=60)
    twice = outage.ask(*everything)
    assert "is carried out by" in twice.communicate(timeout=60)[1]
    assert twice.returncode == 4
    killed.kill()
    killed.communicate()
    id_ = next(each["id"] for each in outage.answers("replay_list", "list") if each["state"] == "interrupted")
    assert outage.answer("replay_cancel", "cancel", id_)["outcome"] == "cancelled"
    refused = outage.ask("resume", id_, "--force")
    assert "is cancelled" in refused.communicate(timeout=60)[1]
    assert refused.returncode == 4
    shown = outage.answer("replay_show", "show", id_)
    assert (shown["state"], shown["matched"]) == ("cancelled", JOBS)
    assert counts(shown) == {"replayed": outage.emitted_by(id_)}


def test_a_replay_keeps_to_its_rate_and_two_at_once_are_one(outage: Outage) -> None:
    first = outage.ask(*outage.window, "--rate", "50")  # eight seconds: the second comes in time
    outage._eventually(lambda: outage.again().total() > 0, timeout=60)
    second = outage.ask(*outage.window)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 4
    assert "is carried out by" in err
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    found = json.loads(out)
    assert found["counts"]["replayed"] == FAILED
    at = sorted(at for run, at in outage.shop.work() if run.run > 1)
    began, last = at[0], next(each for each in at if each > at[-1] - 100)
    rate = at.index(last) / (last - began) * 1000
    # By the log's time, on a machine where an owner may stand still for a second; the pace itself is a unit test's.
    assert 25 <= rate <= 60, "runs a second"
    outage.check()
