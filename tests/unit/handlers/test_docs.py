"""The examples of docs/handlers.md can be copied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from asked import Keeping, context

from pipeline.handlers import http_request, kafka, script
from pipeline.handlers.http_request import read_request
from pipeline.handlers.kafka import KafkaHandler
from pipeline.handlers.secrets import Secrets, bound

PAGE = (Path(__file__).parents[3] / "docs" / "handlers.md").read_text("utf-8")
EXAMPLES = [
    (name, json.loads(payload))
    for name, payload in re.findall(r"dueline job create (\w+)[^']*--payload '([^']*)'", PAGE)
]
FIELDS = {"http": http_request.FIELDS, "kafka": kafka.FIELDS, "script": script.FIELDS}


def test_there_are_examples_of_all_three() -> None:
    assert {name for name, _ in EXAMPLES} == {*FIELDS}


@pytest.mark.parametrize(("name", "payload"), EXAMPLES)
def test_an_example_is_a_payload(name: str, payload: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_SECRET_API_KEY", "k")
    monkeypatch.setenv("DUELINE_SECRET_CHAT_HOOK", "https://hooks.example.com/x")
    allowed = re.search(r"DUELINE_HTTP_SECRETS=(\S+)", PAGE)
    assert allowed is not None
    if name == "http":
        assert read_request(payload, context(), Secrets(bound(allowed[1].split(",")), None), 1_000)
    elif name == "kafka":
        KafkaHandler(allow=("reminders",)).run(context(side=Keeping()), payload)
    else:
        assert {*payload} <= {*script.FIELDS}


def test_every_field_has_its_line() -> None:
    for name, fields in FIELDS.items():
        section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
        named = {
            field
            for row in re.findall(r"(?m)^\| (`[^|]*) \|", section)
            for field in re.findall(r"`(\w+)`", row)
        }
        assert {*fields} <= named, name
