"""What the README shows is what the repository has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli import COMMANDS, dueline

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_example_is_the_committed_file() -> None:
    (shown,) = re.findall(r"```python\n(.*?)\n```", README, re.S)
    assert shown == (ROOT / "examples" / "quickstart.py").read_text("utf-8").rstrip()


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("target", re.findall(r"^make ([a-z]+)", README, re.M))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.M)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"dueline ([a-z]+)", README)) - {"dev"}))
def test_every_command_is_known(command: str) -> None:
    assert command in COMMANDS
    assert CliRunner().invoke(dueline, [command, "--help"]).exit_code == 0


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    for command in ("make demo", "make test"):
        assert command in README
        assert command in script
