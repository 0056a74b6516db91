"""Idempotency-Key: one rule at every endpoint that takes it, and what is told of another request under the same one."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.server import once
from pipeline.server.api import ENDPOINTS
from pipeline.server.once import Conflict, Heard

NOTHING = "j" + "0" * 26
JOB = {"handler": "email.send", "in": "1h"}
TAKES_IT: dict[str, Any] = {
    "/jobs": JOB,
    f"/jobs/{NOTHING}/requeue": None,
    "/jobs/bulk": {"verb": "requeue", "ids": [NOTHING]},
    "/dead/requeue": {"everything": True},
    "/schedules/nightly/trigger": None,
    "/schedules/nightly/backfill": {"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z"},
}


def test_each_endpoint_that_takes_it_is_looked_at() -> None:
    assert len([each for each in ENDPOINTS if each.idempotent]) == len(TAKES_IT)


@pytest.mark.parametrize("key", ["", "x" * 257, "a\tb", b"\xe2\x80\x8e"])
@pytest.mark.parametrize("path", TAKES_IT)
def test_a_key_that_is_none_is_refused_everywhere(served: Any, store: Any, path: str, key: str) -> None:
    answer = served.post(path, TAKES_IT[path], headers={"idempotency-key": key})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error == {"field": "Idempotency-Key", "message": "must be 1 to 256 printable characters"}
    assert store.commands == []


def test_what_a_filter_matches_is_not_the_same_the_next_time(served: Any, store: Any) -> None:
    served.post("/jobs", JOB)
    body = {"verb": "cancel", "filter": {"handler": "email.send"}}
    answer = served.post("/jobs/bulk", body, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert "may match other jobs" in answer.json()["detail"]
    assert store.commands == []


def test_another_request_under_the_same_key_is_told(served: Any, store: Any) -> None:
    """As of POST /jobs. But the ids of many may be fewer or more: the key counts for each."""
    ids = [served.post("/jobs", JOB).json()["id"] for _ in range(2)]
    store.owner = lambda command: {"outcome": "rescheduled", "job_id": command.job_id}
    later = {"verb": "reschedule", "ids": ids, "in": "2h"}
    key = {"headers": {"idempotency-key": "k"}}
    assert served.post("/jobs/bulk", {**later, "in": "soon"}, **key).status_code == 422
    assert served.post("/jobs/bulk", later, **key).json()["counts"] == {"rescheduled": 2}
    assert served.post("/jobs/bulk", {**later, "ids": ids[1:]}, **key).json()["counts"] == {"rescheduled": 1}
    told = served.post("/jobs/bulk", {**later, "in": "3h"}, **key)
    assert (told.status_code, told.json()["type"]) == (422, "urn:dueline:problem:idempotency-conflict")
    assert len(store.commands) == 3
    assert served.post(f"/jobs/{ids[0]}/requeue", **key).status_code != 422  # another path


@pytest.mark.parametrize(
    ("path", "first", "other"),
    [
        ("/dead/requeue", {"everything": True}, {"everything": True, "payload": {"a": 1}}),
        ("/schedules/nightly/trigger", {"overlap": "skip"}, {"overlap": "allow"}),
    ],
)
def test_what_else_is_asked_for_counts(served: Any, store: Any, path: str, first: Any, other: Any) -> None:
    store.owner = lambda command: {"outcome": "fired"}
    key = {"headers": {"idempotency-key": "k"}}
    assert served.post(path, first, **key).status_code == 200
    assert served.post(path, other, **key).json()["type"] == "urn:dueline:problem:idempotency-conflict"


def test_how_long_and_how_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    heard = Heard(lambda: clock[0])

    def ask(key: str, what: object, error: Exception | None = None) -> None:
        with heard.asking(("who", key), what):
            if error is not None:
                raise error

    ask("a", {"x": 1, "y": 2})
    ask("a", {"y": 2, "x": 1})
    with pytest.raises(Conflict):
        ask("a", {"x": 2})
    clock[0] += once.KEPT_S
    with pytest.raises(Conflict):
        ask("a", None)
    clock[0] += 1
    ask("a", None)
    with pytest.raises(StoreUnreachable):
        ask("b", 1, StoreUnreachable("it may be done"))
    with pytest.raises(Conflict):
        ask("b", 2)
    with pytest.raises(Refused):
        ask("c", 1, Refused("no"))
    ask("c", 2)
    with pytest.raises(Refused):
        ask("c", 2, Refused("no longer"))
    with pytest.raises(Conflict):  # it was done before
        ask("c", 1)
    monkeypatch.setattr(once, "MOST", 3)
    ask("d", 1)
    ask("a", 3)  # forgotten
