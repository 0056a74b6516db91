"""The page on which people read what the API takes and answers."""

from __future__ import annotations

import re
from copy import deepcopy
from html import unescape
from typing import Any

from pipeline.server import openapi, reference
from pipeline.server.api import ENDPOINTS

DOCUMENT = openapi.document()
ANCHORS = re.compile(r'href="#([^"]+)"')
PLACES = re.compile(r'id="([^"]+)"')


def test_it_is_served_to_whoever_asks_and_a_browser_may_style_it_and_run_nothing(served: Any) -> None:
    answer = served.get("/docs", token=None)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'"
    )
    assert answer.text == reference.page("http://localhost")
    assert "<script" not in answer.text


def test_examples_are_for_the_server_that_was_asked() -> None:
    page = reference.page("https://jobs.example:8443")
    assert "curl https://jobs.example:8443/api/v1/jobs " in page
    assert reference.LOCAL not in page
    for url in ("http://a'b", "http://<b>", "http://a b", "javascript://a", "http://" + "a" * 300):
        assert reference.page(url) == reference.page()


def test_no_markdown_is_left() -> None:
    text = unescape(re.sub(r"<pre>.*?</pre>|<style>.*?</style>|<[^>]+>", "", reference.page(), flags=re.S))
    assert not re.search(r"\*\*|`|\]\(|\[[\w./-]+\.md\]", text)


def test_every_endpoint_is_there_with_an_example_and_what_it_takes() -> None:
    page = unescape(reference.page())
    for endpoint in ENDPOINTS:
        assert f'<details id="{endpoint.name}">' in page
        assert f"http://localhost:9664/api/v1{endpoint.path} -H 'Authorization: Bearer '$TOKEN" in page
        if endpoint.body is not None:
            assert f'Takes <a href="#schema-{endpoint.body}">' in page
    assert """-d '{"handler": "email.send", "payload": {"to": "a@b"}, "in": "10m"}'""" in page


def test_every_link_leads_somewhere() -> None:
    page = reference.page()
    assert set(ANCHORS.findall(page)) <= set(PLACES.findall(page))
    assert len(ANCHORS.findall(page)) > 100


def test_what_stands_in_the_document_is_text() -> None:
    """It is ours; but an example of a payload may hold anything."""
    hostile = "<img src=x onerror=alert(1)>'"
    document = deepcopy(DOCUMENT)
    told = document["paths"]["/api/v1/jobs"]["post"]
    told["summary"], told["description"] = hostile, f"`{hostile}`\n\n- **{hostile}**"
    job = document["components"]["schemas"]["NewJob"]
    job["properties"]["handler"]["description"] = hostile
    job["examples"] = [{"payload": hostile}]
    page = reference.rendered(document)
    assert "<img" not in page
    assert unescape(page).count(hostile) >= 4


def test_kinds_in_a_word() -> None:
    kinds: dict[str, Any] = {
        "text or null": {"type": ["string", "null"]},
        "instant": {"type": "string", "format": "date-time"},
        "integer, 1 to 5": {"type": "integer", "minimum": 1, "maximum": 5},
        "number": {"type": "number"},
        "list of JobRow": {"type": "array", "items": {"$ref": "#/components/schemas/JobRow"}},
        "a | null": {"enum": ["a", None]},
        "one": {"const": "one"},
        "text or integer": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "anything": {},
    }
    assert {kind: reference.kind_of(schema) for kind, schema in kinds.items()} == {
        kind: kind for kind in kinds
    }
