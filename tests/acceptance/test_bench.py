"""`dueline bench` as a user runs it, with very few jobs: real processes, its JSON as documented, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from confluent_kafka.admin import AdminClient

pytestmark = pytest.mark.slow

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "cli" / "bench.json").read_text())


def run(tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    foreign = ("DUELINE_", "KAFKA_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "bench", *arguments],
        env=environment | {"TMPDIR": str(temporary), "DUELINE_STATE_DIR": str(tmp_path / "state")} | more,
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(300)
def test_a_small_bench_measures_and_leaves_nothing(
    tmp_path: Path, broker: str, eventually: Callable[..., None]
) -> None:
    plot = tmp_path / "bench.svg"
    shapes = ("create", "drain", "lateness", "restart")
    done = run(
        tmp_path,
        *("--json", "-n", "1000", "--store", broker, "--plot", str(plot)),
        *(part for shape in shapes for part in ("--shape", shape)),
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert done.returncode == (1 if found["missed"] else 0)
    assert found["store"] == {"kind": "external", "bootstrap": broker}
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert {figure["shape"] for figure in figures.values()} == {*shapes, "index"}
    for name in ("create", "index (cold rebuild)", "drain of 1,000"):
        assert figures[name]["value"] > 0
        assert figures[name]["bare"] > 0
        assert figures[name]["ratio"] > 0
    assert figures["drain of 1,000"]["detail"]["surplus_records"] == 0
    delays = [figure for name, figure in figures.items() if "least emit delay" in name]
    assert len(delays) >= 2
    assert all(figure["value"] >= 0 for figure in delays), "none before it was due"
    assert ET.parse(plot).getroot().tag.endswith("svg")
    assert list((tmp_path / "tmp").iterdir()) == []
    admin = AdminClient({"bootstrap.servers": broker})
    eventually(lambda: not [t for t in admin.list_topics(timeout=10).topics if t.startswith("bench-")])


@pytest.mark.timeout(300)
def test_a_server_is_measured_but_its_pages_only_where_there_is_a_browser(
    tmp_path: Path, broker: str
) -> None:
    done = run(tmp_path, "--json", "-n", "1000", "--store", broker, "--shape", "server", PATH=str(tmp_path))
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    figures = {figure["name"]: figure for figure in found["figures"]}
    for name in ("server, POST of one job, 50 at once", "server, stream of jobs"):
        assert min(figures[name]["value"], figures[name]["bare"], figures[name]["ratio"]) > 0
    assert figures["server, page of 50, p99"]["detail"]["count"] > 0
    assert figures["server, memory (RSS) of the server, at most"]["value"] > 0
    assert "server, first paint of any page" not in figures
    assert "pages: not measured" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.timeout(120)
def test_an_unreachable_store_is_said_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--store", "127.0.0.1:1")
    assert done.returncode == 5
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
