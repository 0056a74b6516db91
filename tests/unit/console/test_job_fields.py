"""The form for a new job: what its fields say."""

from __future__ import annotations

import pytest

from pipeline.client.request import Requests
from pipeline.core.errors import InvalidInput
from pipeline.server.console.job_fields import LABELS, field_of, request_of
from pipeline.server.console.names import unknown

REQUESTS = Requests(now=lambda: 10**12, random80=lambda: 0, payload_limit=1_000, default_queue="default")
EMPTY = dict.fromkeys(LABELS, "") | {"when": "now"}


@pytest.mark.parametrize(
    ("typed", "request_"),
    [
        ({}, {"in_": "0s"}),
        ({"in": "soon", "at": "soon"}, {"in_": "0s"}),
        ({"when": "in", "in": "90s", "at": "soon"}, {"in_": "90s"}),
        ({"when": "at", "at": "2027-01-01T00:00:00Z"}, {"at": "2027-01-01T00:00:00Z"}),
        ({"queue": "mail", "key": "a b"}, {"queue": "mail", "key": "a b", "in_": "0s"}),
    ],
)
def test_what_fields_say(typed: dict[str, str], request_: dict[str, object]) -> None:
    request, problems = request_of({**EMPTY, "handler": "h", **typed})
    assert problems == {}
    assert request == {"handler": "h", "payload": {}, **request_}
    take = REQUESTS.command if "key" in request else REQUESTS.run
    take(request)  # what is sent is whole


@pytest.mark.parametrize(
    ("typed", "blamed"),
    [
        ({"handler": ""}, {"handler"}),
        ({"when": "in"}, {"in"}),
        ({"when": "in", "in": "soon"}, {"in"}),
        ({"when": "at", "at": "tomorrow"}, {"at"}),
        ({"handler": "", "when": "at", "payload": "[1]"}, {"handler", "at", "payload"}),
    ],
)
def test_all_that_is_wrong_is_told(typed: dict[str, str], blamed: set[str]) -> None:
    assert request_of({**EMPTY, "handler": "h", **typed})[1].keys() == blamed


def test_an_error_of_the_store_is_about_a_field() -> None:
    assert field_of(InvalidInput("in_", "x")) == "in"
    assert field_of(InvalidInput("payload.to", "x")) == "payload"


def test_whom_nobody_knows() -> None:
    queues = [
        {"queue": "default", "handlers": ["email.send"]},
        {"queue": "mail", "handlers": []},
    ]
    assert unknown(queues, "email.send", "default") == ""
    assert unknown(queues, "email.send", "mail").startswith("No live worker on queue mail knows email.send")
    assert unknown(queues, "email.send", "not-there") == ""
