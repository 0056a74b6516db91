"""`dueline demo` as a user runs it: its promises hold, its JSON is as documented, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from confluent_kafka.admin import AdminClient

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "cli" / "demo.json").read_text())
MARK = "DEMO_TEST_MARK"
STOP_TIMEOUT_S = 30


class Demo:
    """Starts demos that nobody else's store and temporary files can get in the way of."""

    def __init__(self, directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        foreign = ("DUELINE_", "KAFKA_")
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "DUELINE_STATE_DIR": str(directory / "state"),
            # Not for the demo: somebody's cluster.
            "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", "demo", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left_behind(self) -> list[str]:
        """Processes that inherited the mark, and temporary files."""
        files = [str(path) for path in self.temporary.iterdir()]
        return [*files, *(line for line in _command_lines(self.mark))]


def _command_lines(mark: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ProcessLookupError):  # ended meanwhile, or not ours to look at
            continue


@pytest.fixture
def demo() -> Iterator[Demo]:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own path is too deep for some, and kept
        yield Demo(Path(directory))


@pytest.mark.timeout(300)
def test_the_whole_night(demo: Demo) -> None:
    with demo.start("--json") as process:
        out, err = process.communicate()
    assert process.returncode == 0, f"{out}\n{err}"
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert [check for check in found["invariants"] if not check["holds"]] == []
    assert found["ok"] is True
    assert found["store"]["kind"] == "embedded"
    assert found["mails_sent"] == 1000
    assert found["jobs"] == found["runs"] > 1000
    assert found["jobs"] == sum(found["jobs_by_kind"].values())
    assert found["attempts"] > found["jobs"], "the killed worker's runs were started again"
    assert found["emit_delay_ms"]["min"] >= 0
    assert found["duplicates_stopped"]["total"] >= 1
    first, second = found["kill"]["attempts"]
    assert (first["outcome"], first["mail"]) == ("no ack", "sent")
    assert (second["outcome"], second["mail"]) == ("succeeded", "stopped")
    assert first["worker"] != second["worker"]
    assert {first["name"], second["name"]} == {"worker 1", "worker 2"}
    assert found["kill"]["takeover_ms"] < 30_000
    assert "killed with SIGKILL" in err
    assert f"store: Kafka 4.4.0, started here, at {found['store']['bootstrap']}" in err
    assert demo.left_behind() == []


@pytest.mark.timeout(200)
def test_an_interrupted_night_leaves_nothing(
    demo: Demo, broker: str, eventually: Callable[..., None]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    with demo.start("--store", broker, "--jobs", "20") as process:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if "jobs stored" in line:
                break
        assert "jobs stored" in seen, seen
        assert len(demo.left_behind()) > 4, "itself, three processes and its directory"
        topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith("demo-")]
        assert topics, "a store that was named is used"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 130
    assert out == ""
    assert demo.left_behind() == []
    eventually(lambda: not set(topics) & set(admin.list_topics(timeout=10).topics))


@pytest.mark.timeout(120)
def test_an_unreachable_store_is_said_in_one_line(demo: Demo) -> None:
    with demo.start("--store", "127.0.0.1:1") as process:
        out, err = process.communicate()
    assert process.returncode == 5
    assert out == ""
    assert "Traceback" not in err
    assert demo.left_behind() == []
