"""The command line in this process, over a store in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from pipeline.cli import main
from pipeline.client import parts

SCHEMAS = Path(__file__).parents[3] / "schemas" / "cli"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def json(self, schema: str) -> Any:
        """The one answer, which has this schema."""
        (answer,) = self.lines(schema)
        return answer

    def lines(self, schema: str) -> list[Any]:
        answers = [json.loads(line) for line in self.out.splitlines()]
        validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{schema}.json").read_text()))
        for answer in answers:
            validator.validate(answer)
        return answers


@pytest.fixture
def dueline(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """`dueline("job", "get", …, stdin="…")`."""
    monkeypatch.setattr(parts, "connector", store.connect)
    monkeypatch.setenv("DUELINE_STATE_DIR", str(tmp_path))

    def run(*words: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin.encode())))
        code = main(words)
        return Ran(code, *capsys.readouterr())

    return run
