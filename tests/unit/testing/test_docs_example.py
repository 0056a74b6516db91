"""What docs/testing.md says to copy can be copied."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pipeline import Dueline
from pipeline.core.registry import HandlerOptions

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)


def pytest_in(folder: Path, file: str) -> str:
    """What a run of its own says, with no configuration."""
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull]
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, file],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DUELINE"))},
    )  # fmt: skip
    return ran.stdout + ran.stderr


def test_the_example_passes_as_it_stands(tmp_path: Path) -> None:
    (example,) = blocks("testing.md")
    (tmp_path / "test_example.py").write_text(example)
    assert "3 passed" in pytest_in(tmp_path, "test_example.py")


def test_the_example_of_orders_passes() -> None:
    assert "3 passed" in pytest_in(DOCS.parent / "examples", "test_orders.py")


def test_the_page_about_handlers_has_every_option_and_is_python() -> None:
    for block in blocks("writing-handlers.md"):
        compile(block, "writing-handlers.md", "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT
    text = (DOCS / "writing-handlers.md").read_text("utf-8")
    for option in HandlerOptions.__annotations__:
        assert f"| `{option}=" in text, option
        assert f"        {option}: " in (Dueline.job.__doc__ or ""), option
