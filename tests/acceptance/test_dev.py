"""`dueline dev` as its user meets it: a command in a shell, killed in every way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ports import free_port

from pipeline import Dueline
from pipeline.config import running_dev_store

DUELINE = [sys.executable, "-m", "pipeline"]
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "cli" / "dev.json").read_text())


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """A shell with a state directory of its own, and somebody's company cluster in its environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DUELINE_")}
    return own | {
        "DUELINE_STATE_DIR": str(tmp_path / "state"),
        "DUELINE_SERVER_PORT": str(free_port()),
        "KAFKA_BOOTSTRAP_SERVERS": "kafka.company.example:9092",
        "DUELINE_KAFKA__SECURITY_PROTOCOL": "SSL",
    }


def run(shell: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DUELINE, *arguments], env=shell, capture_output=True, text=True, timeout=50)


class Dev:
    """A running `dueline dev`, read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[str] = []

    def until(self, pattern: str, count: int = 1) -> None:
        """Read messages until `pattern` was seen `count` times from the beginning."""
        assert self.process.stderr is not None
        while sum(bool(re.search(pattern, line)) for line in self.seen) < count:
            line = self.process.stderr.readline()
            assert line, "\n".join(self.seen)
            self.seen.append(line.rstrip("\n"))

    def pid(self, role: str) -> int:
        """Of the role's latest process."""
        pattern = re.compile(rf"dueline: {role} (?:re)?started \(pid (\d+)\)")
        return [int(found[1]) for line in self.seen if (found := pattern.search(line))][-1]

    def rest(self) -> int:
        assert self.process.stderr is not None
        self.seen += self.process.stderr.read().splitlines()
        return self.process.wait()


@contextmanager
def dev(shell: dict[str, str], *arguments: str, at: Path | None = None) -> Iterator[Dev]:
    command = [*DUELINE, "dev", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=shell, cwd=at, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


def left(shell: dict[str, str]) -> list[int]:
    """Processes that were started for this state directory and still run."""
    mark, found = f"DUELINE_STATE_DIR={shell['DUELINE_STATE_DIR']}\0".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:  # ended, or another user's
            continue
    return found


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--store", "a:1", "--fresh"], "--fresh: is for the embedded Kafka, not for a:1"),
        (["--store", "a:1", "--port", "1"], "--port: is for the embedded Kafka, not for a:1"),
        (["--store", "no good"], "--store: 'no good' is not host:port"),
        (["--nonsense"], "No such option '--nonsense'"),
    ],
)
def test_nonsense_is_refused(shell: dict[str, str], arguments: list[str], problem: str) -> None:
    done = run(shell, "dev", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(shell["DUELINE_STATE_DIR"]).exists()


def test_without_jars_and_network_it_says_what_to_do(shell: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "jgo.conf").write_text("[repositories]\ncentral = http://127.0.0.1:1\n")
    done = run(
        shell | {"XDG_CACHE_HOME": str(tmp_path / "empty"), "JGO_CONFIG_FILE": str(tmp_path / "jgo.conf")},
        "dev",
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert "connect to the network once, or use another Kafka with --store" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
def test_runs_is_found_restarts_what_dies_and_leaves_nothing(
    shell: dict[str, str], eventually: Callable[..., None]
) -> None:
    state = Path(shell["DUELINE_STATE_DIR"])
    with dev(shell, "--json", "--port", str(free_port())) as first:
        for role in ("dispatcher", "worker"):
            first.until(f"^dueline: {role} ready")
        address = running_dev_store(state)
        assert first.process.stdout is not None
        answer = json.loads(first.process.stdout.readline())
        jsonschema.validate(answer, SCHEMA)
        console = answer["server"]
        assert answer == {"bootstrap": address, "store": "embedded", "server": console}
        assert console is not None
        first.until("^dueline: ready; try: .*dueline job create demo.echo .* --in 2s$")
        first.until(r"^dispatcher \| running partitions=\d")
        first.until(rf"^server \| started url={console} ")
        first.until(f"^dueline: console: {console}$")

        second = run(shell, "dev", "--json")
        assert second.returncode == 0
        assert json.loads(second.stdout) == {"bootstrap": address, "store": "running", "server": console}
        assert second.stderr.endswith(f"dueline: console: {console}\n")
        refused = run(shell, "dev", "--fresh")
        assert refused.returncode == 4
        assert "stop it before --fresh" in refused.stderr
        for option, told in (
            (("--app", "x:app"), "start `dueline worker --app x:app`"),
            (
                ("--reload",),
                "--reload is not run here, a `dueline dev` runs already: start `dueline worker --reload`",
            ),
            (("--app", "x:app", "--reload"), "start `dueline worker --app x:app --reload`"),
            (("--port", "1"), f"runs already at {address}"),
        ):
            unused = run(shell, "dev", *option)
            assert (unused.returncode, unused.stdout, unused.stderr.count("\n")) == (4, "", 1)
            assert told in unused.stderr

        for role in ("worker", "dispatcher", "broker"):
            os.kill(first.pid(role), signal.SIGKILL)
            first.until(rf"^dueline: {role} died \(SIGKILL\)")
            first.until(rf"^dueline: {role} restarted")
        eventually(lambda: running_dev_store(state) == address, 60)
        assert echoed(shell, address) == {"text": "hello"}
        clean = {name: value for name, value in shell.items() if "KAFKA" not in name}
        asked = f"dueline: asked the server at {console}\n"
        eventually(lambda: run(clean, "status", "--json").stderr == asked, 40)

        first.process.send_signal(signal.SIGTERM)
        assert first.rest() == 0
        assert first.process.stdout.read() == ""
    assert [line for line in first.seen if line.startswith("dueline:")][-4:] == [
        f"dueline: {role} stopped" for role in ("server", "worker", "dispatcher", "broker")
    ]
    assert left(shell) == []
    assert not (state / "dev.json").exists()


SHOP = """
from pipeline import Dueline

app = Dueline()

@app.job("version")
def version(ctx):
    return {number}
"""


@pytest.mark.timeout(240)
def test_with_reload_the_worker_follows_its_code(
    shell: dict[str, str], tmp_path: Path, broker: str, prefix: str
) -> None:
    code = tmp_path / "shop.py"
    code.write_text(SHOP.format(number=1))
    here = {name: value for name, value in shell.items() if "KAFKA" not in name} | {"DUELINE_PREFIX": prefix}

    def answer() -> Any:
        with Dueline(bootstrap_servers=broker, prefix=prefix, state_dir=str(tmp_path / "own")) as client:
            return client.result(client.schedule("version", in_="1ms").id, wait="40s")

    with dev(here, "--store", broker, "--app", "shop:app", "--reload", at=tmp_path) as running:
        running.until("^dueline: ready")
        assert answer() == 1
        beside = tmp_path / "shop.new"  # at once: whoever looks at it meanwhile finds no half of it
        beside.write_text(SHOP.format(number=22))
        beside.replace(code)
        running.until(r"^worker \| dueline: shop.py changed: starting again")
        running.until(
            r"^worker \| running", count=sum("worker | running" in line for line in running.seen) + 1
        )
        assert answer() == 22
        worker = running.pid("worker")
        running.process.send_signal(signal.SIGTERM)
        assert running.rest() == 0
    assert f"dueline: worker restarted (pid {worker})" not in running.seen, "a change of code is no death"
    assert left(here) == []


def echoed(shell: dict[str, str], address: str | None) -> Any:
    """The result of a job that went all the way, found through the running store alone."""
    clean = {name: value for name, value in shell.items() if "KAFKA" not in name}
    created = run(clean, "job", "create", "demo.echo", "--payload", '{"text": "hello"}', "--now", "--json")
    assert created.returncode == 0, created.stderr
    assert created.stderr.count(f"dueline: store: the development store at {address}\n") == 1
    id_ = json.loads(created.stdout)["id"]
    while True:  # the test's time-out is the deadline
        got = run(clean, "job", "get", id_, "--json")
        job = json.loads(got.stdout) if got.returncode == 0 else {"status": got.stderr}
        if job["status"] == "succeeded":
            return job["result"]
        assert job["status"] in ("pending", "queued", "running"), job


@pytest.mark.timeout(200)
def test_kill_9_leaves_nothing(shell: dict[str, str], eventually: Callable[..., None]) -> None:
    with dev(shell, "--port", str(free_port())) as doomed:
        doomed.until("^dueline: worker started")
        assert {doomed.pid(role) for role in ("broker", "dispatcher", "worker")} < set(left(shell))
        doomed.process.kill()
    eventually(lambda: left(shell) == [])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_starting_leaves_nothing(
    shell: dict[str, str], number: int, eventually: Callable[..., None]
) -> None:
    with dev(shell, "--port", str(free_port())) as early:
        log = Path(shell["DUELINE_STATE_DIR"]) / "kafka" / "kafka.log"
        eventually(log.exists, 60)
        early.process.send_signal(number)
        assert early.rest() == 130
        assert not any("Traceback" in line for line in early.seen)
    assert left(shell) == []
    assert not (Path(shell["DUELINE_STATE_DIR"]) / "dev.json").exists()


@pytest.mark.timeout(200)
def test_a_handler_module_that_is_not_there_ends_it(shell: dict[str, str]) -> None:
    with dev(shell, "--port", str(free_port()), "--app", "no_such_module:app") as misled:
        assert misled.rest() == 2
    assert any(re.search("worker .*no_such_module", line) for line in misled.seen)
    assert left(shell) == []


def test_a_store_that_does_not_answer_is_given_to_nobody(shell: dict[str, str]) -> None:
    done = run(shell | {"DUELINE_STORE_TIMEOUT_MS": "500"}, "dev", "--store", "127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (5, "", 1)
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.timeout(200)
def test_uses_the_store_it_was_told(shell: dict[str, str], broker: str, prefix: str) -> None:
    clean = {name: value for name, value in shell.items() if "KAFKA" not in name} | {"DUELINE_PREFIX": prefix}
    with dev(clean, "--store", broker, "--app", "pipeline.dev.handlers:app") as told:
        told.until(f"^dueline: ready; try: DUELINE_BOOTSTRAP_SERVERS={broker} dueline job create HANDLER ")
        told.process.send_signal(signal.SIGINT)
        assert told.rest() == 0
    assert told.seen[0] == f"dueline: store: the Kafka you named, at {broker}"
    assert not any(line.startswith("dueline: broker") for line in told.seen)
    assert left(clean) == []
