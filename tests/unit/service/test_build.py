"""A release holds no faults, and refuses to start when one is asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.core.errors import Refused
from pipeline.service import build
from pipeline.service.build import Build, chosen_build

ROOT = Path(__file__).parents[3]


def left_out_of_the_wheel() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"])


def test_without_a_variable_it_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FAULTS", "pipeline.nowhere")
    assert chosen_build({"DUELINE_KILL_POINT": ""}) == Build()


@pytest.mark.parametrize("name", ["DUELINE_KILL_POINT", "DUELINE_NEGATIVE_CONTROL"])
def test_a_fault_without_its_code_is_refused_naming_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FAULTS", "pipeline.dev.nowhere")
    with pytest.raises(Refused, match=name):
        chosen_build({name: "x"})


def test_a_fault_that_cannot_be_imported_is_not_taken_for_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ModuleNotFoundError("no confluent_kafka", name="confluent_kafka")

    monkeypatch.setattr(build, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        chosen_build({"DUELINE_KILL_POINT": "begun:stop"})


def test_the_module_of_the_faults_is_left_out_of_the_wheel() -> None:
    assert build.FAULTS.replace(".", "/") + ".py" in left_out_of_the_wheel()


@pytest.mark.parametrize(
    "role", [["dispatcher"], ["worker", "--app", "shop:app"]], ids=["dispatcher", "worker"]
)
def test_a_release_exits_4_naming_the_variable_and_touches_nothing(tmp_path: Path, role: list[str]) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    (tmp_path / "shop.py").write_text("from pipeline import Dueline\napp = Dueline()\n")
    for path in left_out_of_the_wheel():
        (tmp_path / path).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *role],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "DUELINE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "DUELINE_STATE_DIR": str(tmp_path / "state"),
            "DUELINE_KILL_POINT": "begun:kill",
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert "DUELINE_KILL_POINT" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()
