"""The runbook, and the pages of doctor and versions: whatever they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from pipeline.cli import COMMANDS, dueline
from pipeline.doctor import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = ("doctor", "runbook", "versions")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
SCENES = RUNBOOK.split("\n## ")[1:]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_and_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named <= there, named - there
    for path in re.findall(r"`((?:tests|schemas)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    for words in re.findall(r"dueline ([a-z][^`\n]*)", text):
        command: click.Command = dueline
        context = click.Context(dueline)
        rest = words.split()
        while rest and isinstance(command, click.Group) and rest[0] in command.list_commands(context):
            found = command.get_command(context, rest.pop(0))
            assert found is not None
            command = found
        assert command is not dueline, f"dueline {words}"
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= {*known, "--help"}, f"dueline {words}"
    assert "doctor" in COMMANDS


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.splitlines()[0])
def test_every_scene_says_how_it_was_drilled(scene: str) -> None:
    (drilled,) = re.findall(r"^\| Drilled by \| (.+) \|$", scene, re.MULTILINE)
    assert re.search(r"`test_\w+`", drilled)
    for told in re.findall(r"doctor: ((?:`\w+`(?:, | and )?)+)", scene):
        assert set(re.findall(r"`(\w+)`", told)) <= CHECKS.keys()


def test_the_page_of_the_doctor_has_every_check() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \| .+ \| (?:all|(?:error|warning|note).*) \|$", text, re.MULTILINE)
    assert listed == [*CHECKS]


def test_what_the_doctor_refers_to_is_a_scene() -> None:
    from pipeline.doctor.findings import CUT

    (scene,) = re.findall(r"`([A-Z][\w ]+)` in docs/runbook.md", CUT)
    assert any(each.startswith(f"{scene}\n") for each in SCENES)
