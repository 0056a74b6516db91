"""The OpenAPI 3.1 document, made of the table of endpoints: `python -m pipeline.server.openapi > schemas/openapi.json`.

Answers have the schemas of the commands that show the same (`schemas/cli/`), open for what a server adds to them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pipeline import __version__
from pipeline.codec.registry import schema_dir
from pipeline.server.api import ENDPOINTS, PREFIX
from pipeline.server.api.answers import answers
from pipeline.server.api.bodies import BODIES
from pipeline.server.endpoint import Endpoint
from pipeline.server.params import described
from pipeline.server.problems import KINDS, MEDIA_TYPE
from pipeline.server.recent import HEADER, STALE

Schema = dict[str, Any]

FILE = "openapi.json"
TAGS: Mapping[str, str] = {
    "jobs": "One thing to run, once.",
    "schedules": "Recurring definitions.",
    "dead letters": "Runs that gave up, and records that nobody could read.",
    "replays": "Running again what failed or was lost in a window of due time.",
    "queues": "What workers take from.",
    "installation": "Owners, processes, events.",
    "access": "Tokens and who asks.",
}
EVERYWHERE = (401, 403, 408, 422, 429, 500, 503)
"""Problems that any endpoint with a role may answer with."""
MEANINGS: Mapping[int, str] = {
    400: "The body is not valid JSON in UTF-8.",
    401: "No token, or one that is unknown, expired or revoked.",
    403: "The role, or the queues of the token, do not allow it.",
    404: "There is nothing of this id.",
    408: "The body, or what was asked for, took too long.",
    409: "What there is forbids it: too late, taken, or too many.",
    412: "It was changed since it was read: read it again.",
    413: "The body is too large.",
    415: "The body is of another kind.",
    422: "A field is wrong; `errors` names it.",
    429: "Too many requests, or too much open at the same time; `Retry-After` says when again.",
    500: "The server failed; its log has the details.",
    503: "The store does not answer, or the server has not caught up, or is busy; `Retry-After`.",
}
DESCRIPTION = """\
Jobs, schedules and what became of them, for services in any language. `docs/api.md` has the whole story.

- **Who asks**: `Authorization: Bearer <token>`; a server without tokens serves this machine alone.
- **Errors** are RFC 9457 problems; `errors` names the field that is wrong. Unknown fields are refused.
- **Read your writes**: a change answers `Dueline-Position`; a read that sends it back waits until it can be seen. On
  one server that happens by itself.
- **Numbers** in payloads keep every digit; tokens of runs are decimal text.
- **Instants** are RFC 3339; answers are UTC with milliseconds and `Z`.
"""


def document() -> Schema:
    """The whole document."""
    paths: dict[str, Schema] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(f"{PREFIX}{endpoint.path}", {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dueline",
            "version": __version__,
            "summary": "A distributed job scheduler on Apache Kafka.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": name, "description": meaning} for name, meaning in TAGS.items()],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `dueline token create`, shown once.",
                }
            },
            "headers": _headers(),
            "responses": {f"Problem{status}": _problem_answer(status) for status in MEANINGS},
            "schemas": {**BODIES, **answers()},
        },
    }


def text() -> str:
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def released() -> bytes:
    """As it is served: the file that a test keeps current."""
    return schema_dir().joinpath(FILE).read_bytes()


# -- operations ----------------------------------------------------------------------------------------------


def _operation(endpoint: Endpoint) -> Schema:
    role = "" if endpoint.role is None else f"Needs the role **{endpoint.role.word}**."
    operation: Schema = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": "\n\n".join(part for part in (endpoint.description, role) if part),
        "parameters": [
            *_path_parameters(endpoint),
            *map(described, endpoint.query),
            *_header_parameters(endpoint),
        ],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        operation["requestBody"] = _request_body(endpoint.body)
    return operation


def _path_parameters(endpoint: Endpoint) -> list[Schema]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": f"Id of the {endpoint.tag.removesuffix('s')}." if name == "id" else f"The {name}.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 512},
        }
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _header_parameters(endpoint: Endpoint) -> list[Schema]:
    told: list[tuple[str, str, str]] = []
    if endpoint.idempotent:
        told.append(("Idempotency-Key", "The same request with the same key is done once.", "3f1c9a52"))
    if endpoint.etag:
        told.append(("If-Match", "Only if it still has this `ETag`.", '"7.3"'))
    if not endpoint.changes:
        told.append((HEADER, "What a change answered: the read waits for it, 2 s at most.", "jobs/5:1234"))
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": meaning,
            "schema": {"type": "string", "maxLength": 4096},
            "example": example,
        }
        for name, meaning, example in told
    ]


def _request_body(name: str) -> Schema:
    schema = {"$ref": f"#/components/schemas/{name}"}
    required = bool(BODIES[name].get("required") or BODIES[name].get("minProperties"))
    content: Schema = {"application/json": {"schema": schema}}
    if name == "NewJob":
        content["application/x-ndjson"] = {
            "schema": {"type": "string", "description": "One `NewJob` a line."},
            "example": '{"handler":"email.send","in":"10m"}\n{"handler":"email.send","in":"20m"}\n',
        }
    return {"required": required, "content": content}


def _responses(endpoint: Endpoint) -> Schema:
    responses: Schema = {}
    for status, (name, meaning) in sorted(endpoint.answers.items()):
        answer: Schema = {"description": meaning}
        if name is not None:
            answer["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        if name == "EventPage":
            answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        names = [HEADER] if endpoint.changes else [STALE]
        if endpoint.path == "/schedules/{id}" and not endpoint.changes:
            names.append("ETag")
        if status in (201, 202) and endpoint.path in ("/jobs", "/schedules", "/replays"):
            names.append("Location")
        answer["headers"] = {each: {"$ref": f"#/components/headers/{each}"} for each in names}
        responses[str(status)] = answer
    problems = {*EVERYWHERE, *endpoint.errors} | ({400, 413, 415} if endpoint.body else {413})
    for status in sorted(problems):
        responses.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    return dict(sorted(responses.items()))


def _headers() -> Schema:
    def header(meaning: str) -> Schema:
        return {"description": meaning, "schema": {"type": "string"}}

    return {
        HEADER: header("Where in the log what was written stands."),
        STALE: header("`true`: what was written last is not in this answer yet."),
        "ETag": header("Changes with each change of it."),
        "Location": header("Where it can be read."),
    }


def _problem_answer(status: int) -> Schema:
    kinds = [kind.word for kind in KINDS.values() if kind.status == status]
    example: Schema = {
        "type": f"urn:dueline:problem:{kinds[0] if kinds else 'failed'}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": MEANINGS[status],
    }
    if status == 422:
        example["errors"] = [{"field": "max_attempts", "message": "0 is no whole number from 1 to 10000"}]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": MEANINGS[status],
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }


if __name__ == "__main__":
    sys.stdout.write(text())
