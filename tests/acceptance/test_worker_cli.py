"""`dueline worker` as its user meets it: a command in a shell, on a real broker beside a real dispatcher."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.core.topics import Wish

pytestmark = pytest.mark.timeout(240)
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
APP = """
import pathlib, time
from pipeline import Dueline

app = Dueline()

@app.job("version")
def version(ctx):
    return 1

@app.job("wait")
def wait(ctx, file):
    ctx.progress(0.25, "waiting")
    while not pathlib.Path(file).exists():
        time.sleep(0.02)
    return "waited"
"""


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


def answer(ran: subprocess.CompletedProcess[str], schema: str) -> Any:
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{schema}.json").read_text())).validate(found)
    return found


def replaced(file: Path, text: str) -> None:
    """At once: whoever looks at it meanwhile finds no half of it."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def status(shop: Fleet) -> Any:
    return answer(command(shop, "status", "--json"), "status")


class Terminal:
    """A command with a terminal for its stderr, read as it comes."""

    def __init__(self, shop: Fleet, *words: str) -> None:
        self._reading, writing = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *words],
            cwd=shop.home,
            env=shop._environment,
            stdout=subprocess.DEVNULL,
            stderr=writing,
        )
        os.close(writing)
        os.set_blocking(self._reading, False)
        self._said = ""

    def said(self) -> str:
        """All of it so far."""
        try:
            while chunk := os.read(self._reading, 65_536):
                self._said += chunk.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return self._said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._reading)


@pytest.fixture
def terminal(shop: Fleet) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(shop, *words))
        return opened[-1]

    yield start
    for one in opened:
        print(one.said())
        one.close()


def test_a_burst_works_off_its_queues_says_how_many_and_ends(shop: Fleet, eventually: Eventually) -> None:
    ensure_topics(shop.settings, wish=Wish(queues={"mail": None}))
    shop.dispatcher()
    jobs = [{"handler": "version", "in_": 0, "queue": ("default", "mail")[n % 2]} for n in range(40)]
    assert len(list(shop.client.schedule_many(jobs))) == 40
    shop.client.schedule("unheard", None, in_=0)
    shop.client.schedule("version", None, in_="1h")
    work = [shop.settings.names.work(queue) for queue in ("default", "mail")]
    eventually(lambda: sum(len(shop.records(topic)) for topic in work) == 41, timeout=60)
    words = ("worker", "--app", "shop", "--queue", "default:3", "--queue", "mail", "--burst", "--json")
    done = answer(command(shop, *words), "worker_burst")
    assert done == {"finished": 40, "left": 1}
    assert {queue["queue"]: queue["workers"] for queue in status(shop)["queues"]} == {"default": 0, "mail": 0}


def test_a_burst_of_nothing_ends_too(shop: Fleet) -> None:
    ran = command(shop, "worker", "--burst")
    assert (ran.returncode, ran.stdout) == (0, "0 runs finished\n"), ran.stderr


def test_a_change_of_the_code_is_run_and_what_does_not_parse_is_not(
    shop: Fleet, eventually: Eventually, terminal: Callable[..., Terminal]
) -> None:
    def result() -> Any:
        ref = shop.client.schedule("version", None, in_=0)
        eventually(lambda: shop.client.get(ref.id)["status"] == "succeeded", timeout=60)
        return shop.client.get(ref.id)["result"]

    shop.dispatcher()
    worker = terminal("worker", "--reload", "--app", "shop:app")
    assert result() == 1
    replaced(shop.home / "shop.py", "def (")
    eventually(lambda: "shop.py:1: invalid syntax; waiting" in worker.said(), timeout=60)
    assert result() == 1, "the old code goes on"
    replaced(shop.home / "shop.py", APP.replace("return 1", "return 2"))
    eventually(lambda: "shop.py changed: starting again" in worker.said(), timeout=60)
    eventually(lambda: worker.said().count('"action": "started"') == 2, timeout=60)
    assert result() == 2
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    assert "drained: nothing is left running" in worker.said()


def test_ctrl_c_tells_what_runs_waits_for_it_and_says_how_it_ended(
    shop: Fleet, eventually: Eventually, terminal: Callable[..., Terminal]
) -> None:
    shop.dispatcher()
    worker = terminal("worker", "--app", "shop:app")
    go = shop.home / "go"
    ref = shop.client.schedule("wait", {"file": str(go)}, in_=0)
    eventually(lambda: len(status(shop)["runs"]) == 1, timeout=60)
    (run,) = status(shop)["runs"]
    assert (run["job"], run["handler"], run["queue"], run["attempt"]) == (ref.id, "wait", "default", 1)
    assert (run["stuck"], run["held"], run["age_ms"] < 60_000) == (False, False, True)
    worker.process.send_signal(signal.SIGINT)
    eventually(
        lambda: "draining: 1 run in flight; press Ctrl-C again to leave at once" in worker.said(), timeout=30
    )
    go.write_text("")
    assert worker.process.wait(60) == 0
    assert "drained: nothing is left running" in worker.said()
    assert shop.client.get(ref.id)["result"] == "waited"


def test_ctrl_c_twice_leaves_at_once_and_the_run_starts_elsewhere(
    shop: Fleet, eventually: Eventually, terminal: Callable[..., Terminal]
) -> None:
    shop.dispatcher()
    worker = terminal("worker", "--app", "shop:app")
    go = shop.home / "go"
    ref = shop.client.schedule("wait", {"file": str(go)}, in_=0)
    eventually(lambda: len(status(shop)["runs"]) == 1, timeout=60)
    worker.process.send_signal(signal.SIGINT)
    eventually(lambda: "draining: 1 run" in worker.said(), timeout=60)
    eventually(lambda: worker.process.send_signal(signal.SIGINT) or worker.process.poll() is not None)
    assert worker.process.returncode == 130
    assert "left at once: runs in flight start again on another worker" in worker.said()
    go.write_text("")
    shop.worker()
    eventually(lambda: shop.client.get(ref.id)["status"] == "succeeded", timeout=60)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--app", "shop:ap"), r"app: shop has no 'ap'; did you mean 'app'\?"),
        (("--app", "broken"), r"app: importing broken failed at broken\.py:2: ZeroDivisionError"),
        (("--queue", "nowhere"), r"queue: 'nowhere' is unknown: `dueline topics create --queue nowhere`"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(shop: Fleet, words: tuple[str, ...], problem: str) -> None:
    (shop.home / "broken.py").write_text("\n1 / 0\n")
    ran = command(shop, "worker", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    told = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
    assert len(told) == 1
    assert re.search(problem, told[0])


def test_several_workers_share_the_queue_and_leave_together(shop: Fleet, eventually: Eventually) -> None:
    shop.dispatcher()
    parent = shop.worker("--processes", "2")
    eventually(lambda: len(status(shop)["processes"]) == 3, timeout=60)
    parent.terminate()
    assert parent.wait(60) == 0
    assert [process["role"] for process in status(shop)["processes"]] == ["dispatcher"]
