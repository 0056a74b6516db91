"""The OpenAPI document as a page for people, `GET /api/v1/docs`: no script, nothing from elsewhere, so it can be read
wherever the server can be reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.server import openapi
from pipeline.server.guard import NOSNIFF

Schema = Mapping[str, Any]

TEMPLATE = "reference.html"
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    NOSNIFF,
)
LOCAL = "http://localhost:9664"
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]{1,255}")
"""Whoever asks says what the host is called: only what means nothing to a browser or a shell is shown."""


class Row(NamedTuple):
    """A parameter, or a member of a body or an answer."""

    name: str
    kind: str
    required: bool
    meaning: str
    example: str


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    summary: str
    description: str
    parameters: Sequence[Row]
    body: str | None
    """Name of the schema of what it takes."""
    answers: Sequence[tuple[str, str, str | None]]
    """Status, meaning, name of the schema."""
    example: str
    """As a command of curl."""


def page(url: str = LOCAL) -> str:
    """The page, as HTML, with examples for the server that was asked as `url`."""
    whole = _page()
    return whole.replace(LOCAL, url) if _URL.fullmatch(url) else whole


@cache
def _page() -> str:
    return rendered(json.loads(openapi.released()))


def rendered(document: Schema) -> str:
    environment = Environment(
        loader=PackageLoader("pipeline.server", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "inline": inline}
    schemas = document["components"]["schemas"]
    named = {name: rows(schema) for name, schema in schemas.items()}
    return environment.get_template(TEMPLATE).render(
        info=document["info"],
        tags=[(tag, list(operations(document, tag["name"]))) for tag in document["tags"]],
        schemas={name: each for name, each in named.items() if each},
        choices={name: choices(schema) for name, schema in schemas.items()},
    )


def operations(document: Schema, tag: str) -> Iterator[Operation]:
    """Those of one tag, in the order of the document."""
    components = document["components"]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            if tag not in told["tags"]:
                continue
            content = told.get("requestBody", {}).get("content", {})
            body = _name_of(content.get("application/json", {}).get("schema", {}))
            yield Operation(
                name=told["operationId"],
                method=method.upper(),
                path=path,
                summary=told["summary"],
                description=told["description"],
                parameters=[_parameter(each) for each in told["parameters"]],
                body=body,
                answers=[
                    _answer(status, each, components["responses"])
                    for status, each in told["responses"].items()
                ],
                example=_curl(method.upper(), path, components["schemas"].get(body)),
            )


def rows(schema: Schema) -> list[Row]:
    """The members of an object; none if it is something else."""
    required = schema.get("required", ())
    return [
        Row(name, kind_of(member), name in required, member.get("description", ""), _example(member))
        for name, member in schema.get("properties", {}).items()
    ]


def choices(schema: Schema) -> list[list[Row]]:
    """The members of each of several objects that it may be."""
    return [rows(each) for each in schema.get("anyOf", schema.get("oneOf", ())) if each.get("properties")]


def kind_of(schema: Schema) -> str:
    """What a value may be, in a word or two: `text`, `list of JobRow`, `integer or null`."""
    if (name := _name_of(schema)) is not None:
        return name
    if "enum" in schema:
        return " | ".join("null" if each is None else str(each) for each in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    several = schema.get("anyOf", schema.get("oneOf"))
    if several:
        return " or ".join(dict.fromkeys(map(kind_of, several)))
    given = schema.get("type", "anything")
    kinds = [given] if isinstance(given, str) else list(given)
    return " or ".join(_word(each, schema) for each in kinds)


def prose(text: str) -> Markup:
    """Paragraphs, lists, `code` and **weight**: as much of Markdown as the document has."""
    parts = []
    for part in re.split(r"\n\n+", text.strip()):
        if part.startswith("- "):
            items = (Markup("<li>{}</li>").format(inline(line)) for line in part[2:].split("\n- "))
            parts.append(Markup("<ul>{}</ul>").format(Markup("").join(items)))
        else:
            parts.append(Markup("<p>{}</p>").format(inline(part)))
    return Markup("\n").join(parts)


def inline(text: str) -> Markup:
    """`code` and **weight**, and nothing else that a browser would take for markup."""
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", safe))  # noqa: S704 -- escaped above


def _word(kind: str, schema: Schema) -> str:
    match kind:
        case "array":
            return f"list of {kind_of(schema.get('items', {}))}"
        case "string":
            return "instant" if schema.get("format") == "date-time" else "text"
        case "number" | "integer" if "minimum" in schema and "maximum" in schema:
            return f"{kind}, {schema['minimum']} to {schema['maximum']}"
        case _:
            return kind


def _name_of(schema: Schema) -> str | None:
    reference = schema.get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]


def _parameter(told: Schema) -> Row:
    name = f"{told['name']} (header)" if told["in"] == "header" else told["name"]
    example = told.get("example", "")
    shown = example if isinstance(example, str) else ", ".join(map(str, example))
    return Row(name, kind_of(told["schema"]), told["required"], told.get("description", ""), shown)


def _answer(status: str, told: Schema, responses: Schema) -> tuple[str, str, str | None]:
    if (name := _name_of(told)) is not None:
        return status, responses[name]["description"], "Problem"
    content = told.get("content", {}).get("application/json", {})
    return status, told["description"], _name_of(content.get("schema", {}))


def _example(schema: Schema) -> str:
    examples = schema.get("examples")
    if not examples:
        return ""
    return examples[0] if isinstance(examples[0], str) else json.dumps(examples[0], ensure_ascii=False)


def _curl(method: str, path: str, body: Schema | None) -> str:
    verb = "" if method == "GET" else f"-X {method} "
    command = f"curl {verb}{LOCAL}{path} -H 'Authorization: Bearer '$TOKEN"
    if body is None:
        return command
    example = json.dumps(body.get("examples", [{}])[0], ensure_ascii=False).replace("'", "'\\''")
    return f"{command} -H 'Content-Type: application/json' \\\n  -d '{example}'"
