"""The OpenAPI document: current, complete, and true to what the endpoints do with whatever a fuzzer makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.server import openapi
from pipeline.server.api import ENDPOINTS
from pipeline.server.api.bodies import BODIES

FILE = Path(__file__).parents[3] / "schemas" / "openapi.json"
DOCUMENT = openapi.document()
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def test_the_file_is_current() -> None:
    """If not: python -m pipeline.server.openapi > schemas/openapi.json"""
    assert FILE.read_text("utf-8") == openapi.text()


def test_it_is_served_as_it_is(served: Any) -> None:
    answer = served.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == FILE.read_bytes()


def test_every_endpoint_is_told_with_a_summary_and_its_role() -> None:
    assert {operation["operationId"] for _, _, operation in OPERATIONS} == {each.name for each in ENDPOINTS}
    for _, _, operation in OPERATIONS:
        assert operation["summary"]
        assert "Needs the role" in operation["description"]
        assert {"401", "403", "422", "429", "503"} <= operation["responses"].keys()
        assert any(status.startswith("2") for status in operation["responses"])


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_somewhere() -> None:
    for reference in set(references(DOCUMENT)):
        place: Any = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]


@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_schemas_that_their_examples_fit(name: str) -> None:
    schema = BODIES[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    for example in schema.get("examples", ()):
        jsonschema.Draft202012Validator(schema).validate(example)


def test_answers_are_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


# -- a fuzzer's view -----------------------------------------------------------------------------------------


def resolved(name: str) -> Any:
    return {**DOCUMENT["components"]["schemas"][name], "components": DOCUMENT["components"]}


@pytest.mark.parametrize(
    ("path", "method", "operation"), OPERATIONS, ids=[o["operationId"] for _, _, o in OPERATIONS]
)
def test_whatever_is_asked_is_answered_by_the_document(
    path: str, method: str, operation: Any, serve: Callable[..., Any], store: Any
) -> None:
    """Schemathesis makes requests that fit the document and some that do not: no answer is a failure of ours, each has
    a status and a body that the document tells of."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

    store.owner = lambda command: {"outcome": "created" if "create" in command.verb else "not_found"}
    served = serve(server_rate=1_000_000)
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    fitting, unfit = (schema[path][method.upper()].as_strategy(mode) for mode in GenerationMode)

    @given(case=fitting | unfit)
    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def fuzz(case: Any) -> None:
        asked = case.as_transport_kwargs(base_url="http://localhost")
        headers = {name.lower(): value for name, value in (asked.get("headers") or {}).items()}
        headers = {**headers, "accept": "application/json"}
        for made_up in ("authorization", "dueline-position"):  # 401, and a wait in vain, at best
            headers.pop(made_up, None)
        given = {name: asked[name] for name in ("json", "data", "params", "cookies") if asked.get(name)}
        if "data" in given:
            given["content"] = given.pop("data")
        answer = served.ask(
            asked["method"], "//" + asked["url"].removeprefix("http://localhost/"), headers=headers, **given
        )
        check(answer, operation)

    fuzz()


def check(answer: Any, operation: Any) -> None:
    assert answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text
    assert "<" not in answer.text
    if answer.status_code in (404, 405) and answer.json()["type"].rpartition(":")[2].startswith("unknown"):
        return  # a path that is none
    told = operation["responses"].get(str(answer.status_code))
    assert told is not None, (answer.status_code, answer.text)
    if "$ref" in told:
        told = DOCUMENT["components"]["responses"][told["$ref"].rpartition("/")[2]]
    if "content" not in told:
        assert answer.text == ""
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    reference = told["content"][media_type]["schema"]["$ref"].rpartition("/")[2]
    jsonschema.Draft202012Validator(resolved(reference)).validate(json.loads(answer.text))
