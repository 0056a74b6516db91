"""A stream whose references are told, as a client over HTTP needs them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.server import bulk

NDJSON = {"content-type": "application/x-ndjson"}


def post(served: Any, lines: list[Any], query: str) -> Any:
    body = "\n".join(json.dumps(line) for line in lines)
    answer = served.ask("POST", f"/jobs{query}", content=body, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_references_come_in_order_without_those_of_bad_lines(served: Any) -> None:
    lines = [{"handler": f"h{n}", "at": f"2040-01-01T00:00:0{n}Z"} for n in range(4)]
    lines[2]["at"] = "soon"
    found = post(served, lines, "?refs=true")
    assert (found["accepted"], [each["line"] for each in found["errors"]]) == (3, [3])
    assert [ref["due_at"] for ref in found["refs"]] == [f"2040-01-01T00:00:0{n}.000Z" for n in (0, 1, 3)]
    handlers = {run.job_id: run.handler for run in served.store.runs()}
    assert [handlers[ref["id"]] for ref in found["refs"]] == ["h0", "h1", "h3"]
    assert {ref["status"] for ref in found["refs"]} == {"created"}


def test_nobody_is_told_references_unasked(served: Any) -> None:
    assert "refs" not in post(served, [{"handler": "a", "in": 1}], "")


def test_so_many_lines_are_too_many(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "REFS_LIMIT", 2)
    found = post(served, [{"handler": "a", "in": 1}] * 4, "?refs=true")
    assert (found["accepted"], len(found["refs"]), found["errors"][0]["line"]) == (2, 2, 3)
    assert "it and what follows is left out" in found["errors"][0]["message"]
