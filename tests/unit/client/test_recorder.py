"""Creating many: the same records and the same refusals as creating one, whatever was seen before."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.client import recorder
from pipeline.client.recorder import Recorder
from pipeline.client.request import Requests
from pipeline.core.errors import InvalidInput
from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.jobref import JobRef
from pipeline.core.keys import job_key
from pipeline.core.layout import default_layout
from pipeline.core.minting import Mint

NOW = 1_800_000_000_000
LAYOUT = default_layout()
BITS = (7 << 70) - 1


def requests() -> Requests:
    return Requests(now=lambda: NOW, random80=lambda: 1, payload_limit=200, default_queue="default")


def recorder_of(**more: Any) -> Recorder:
    mint = Mint(LAYOUT, lambda n: BITS & (1 << n) - 1)
    return Recorder(requests(), "jobs", mint, more.get("admit", lambda queue: None))


def recorded(made: Recorder, job: dict[str, Any]) -> Any:
    """(reference, run as stored) of one job; whatever the id, it must be told alike everywhere."""
    result = made.record(job, NOW)
    assert result is not None
    ref, put = result
    run = codec.RUN.decode(put.value or b"")
    assert put == ("jobs", LAYOUT.home(ref.id), job_key(ref.id), put.value, None)
    assert run.job_id == run.occurrence_id == ref.id
    assert ref == JobRef.of(run)
    return run


GOOD: dict[str, list[Any]] = {
    "handler": ["email.send", "a"],
    "payload": [None, {}, {"to": "ä@b", "n": 2**70, "f": 0.1, "in": [1, {"x": None}]}, {1: True}, {"x": "y" * 150}],
    "in_": [0, 1, 1.0, 5.5, "90s", "1h30m", timedelta(milliseconds=1), None],
    "at": ["2030-01-31T09:30:00+02:00", datetime(2031, 1, 1, tzinfo=UTC), None],
    "queue": ["mail", "", None],
    "max_attempts": [1, 5, None],
    "timeout": [1, 1.5, "1s", timedelta(seconds=1), None],
    "serial": ["customer 7", None],
    "idempotency_key": ["dunning", "ü" * 100, None],
    "labels": [{"customer": "7", "empty": ""}, {}, None],
    "headers": [{"traceparent": "00-1"}, None],
}  # fmt: skip
BAD: dict[str, list[Any]] = {
    "handler": ["NO", "", None, 7, ["a"]],
    "payload": [[1], "text", {"x": math.nan}, {"x": {1}}, {"x": "\ud800"}, {"x": "y" * 300}],
    "in_": ["soon", -1, True, math.nan, [], "201y", 10**12],
    "at": ["tomorrow", 1_800_000_000, datetime(1999, 1, 1, tzinfo=UTC)],
    "queue": ["no/such", b"bytes", 7],
    "max_attempts": [0, True, 1.0, "3", [1]],
    "timeout": [0, True, "soon", []],
    "serial": ["", 5, "a\0b"],
    "idempotency_key": ["", "\udfff"],
    "labels": [["a"], {"": "x"}, {"a": 1}],
    "headers": [{str(n): "x" for n in range(65)}],
}


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(GOOD)), unique=True))
    names = [*names, *({"handler"} - set(names))]
    if not {"at", "in_"} & set(names):
        names.append("in_")
    job = {name: draw(st.sampled_from(GOOD[name])) for name in names}
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from(sorted(BAD)))
        job[name] = draw(st.sampled_from(BAD[name]))
    return job


def outcome(make: Any, job: dict[str, Any]) -> Any:
    try:
        run = make(job)
    except InvalidInput as error:
        return str(error)
    same = None if run.idempotency_key == run.job_id else run.idempotency_key
    return [
        getattr(run, name)
        for name in run.__slots__
        if name not in ("job_id", "occurrence_id", "idempotency_key")
    ], same


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(stream=st.lists(jobs(), min_size=1, max_size=12))
def test_a_job_among_many_becomes_what_it_becomes_alone(stream: list[dict[str, Any]]) -> None:
    """Whatever was learned from those before it; good, bad, and bad in the guise of good (True for 1)."""
    made = recorder_of()
    for job in [*stream, *stream]:
        assert outcome(lambda job: recorded(made, job), job) == outcome(requests().run, job)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_attempts", 1, True),
        ("max_attempts", 1, 1.0),
        ("timeout", 1, True),
        ("in_", 1, True),
        ("queue", "mail", {}),
    ],
)
def test_what_equals_a_good_value_is_not_taken_for_it(name: str, good: Any, bad: Any) -> None:
    made = recorder_of()
    job = {"handler": "h", "in_": 5}
    recorded(made, {**job, name: good})
    with pytest.raises(InvalidInput, match=name):
        made.record({**job, name: bad}, NOW)


def test_what_only_a_single_job_may_ask_for_is_left_to_its_way() -> None:
    made = recorder_of()
    for job in (
        {"in_": 1},
        {"handler": "h", "in_": 1, "key": "k"},
        {"handler": "h", "in_": 1, "spread": "5s"},
        {},
    ):
        assert made.record(job, NOW) is None
        assert made.record(job, NOW) is None


def test_a_queue_is_admitted_once_for_all_jobs_alike() -> None:
    asked: list[str] = []
    made = recorder_of(admit=asked.append)
    for n in range(10):
        recorded(made, {"handler": "h", "in_": n, "queue": "mail"})
    assert asked == ["mail"]


def test_a_queue_that_is_not_admitted_is_asked_for_again() -> None:
    def admit(queue: str) -> None:
        raise InvalidInput("queue", queue)

    made = recorder_of(admit=admit)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="queue: mail"):
            made.record({"handler": "h", "in_": 1, "queue": "mail"}, NOW)


def test_a_job_created_later_says_so() -> None:
    made = recorder_of()
    job = {"handler": "h", "in_": 10}
    for now in (NOW, NOW + 1, NOW):
        result = made.record(job, now)
        assert result is not None
        run = codec.RUN.decode(result[1].value or b"")
        assert (run.created_at, run.due_at) == (now, now + 10_000)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "REMEMBERED", 3)
    made = recorder_of()
    for n in range(20):
        recorded(made, {"handler": f"h{n}", "in_": n})
    for names in (["labels"], ["serial"], ["queue"], ["timeout"], ["headers"]):
        recorded(made, {"handler": "h", "in_": 1, **dict.fromkeys(names)})
        assert len(made._shapes) <= 3
    assert all(len(shape.known) <= 3 for shape in made._shapes.values())
    shapes = list(made._shapes)
    assert made.record({"handler": "h", "in_": 1, "made up": 1}, NOW) is None
    assert list(made._shapes) == shapes


@given(at=st.integers(EARLIEST, LATEST))
def test_the_reference_tells_the_instant_that_is_stored(at: int) -> None:
    instant = datetime.fromtimestamp(0, UTC) + at * timedelta(milliseconds=1)
    assert recorded(recorder_of(), {"handler": "h", "at": instant}).due_at == at


@pytest.mark.parametrize(
    ("at", "in_"),
    [
        (datetime(2000, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1), None),
        (datetime(2000, 1, 1, tzinfo=UTC), None),
        (datetime(2200, 1, 1, tzinfo=UTC), None),
        (datetime(2200, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1), None),
        (datetime(2031, 1, 1, 0, 0, 0, 1001, UTC), None),
        (datetime(2031, 1, 1, tzinfo=timezone(timedelta(hours=2))), None),
        (datetime(2031, 1, 1), None),  # noqa: DTZ001
        (datetime(2031, 1, 1, tzinfo=UTC), 5),
        (datetime(2031, 1, 1, tzinfo=UTC), 0),
    ],
)
def test_an_instant_among_many_is_judged_as_if_it_were_alone(at: datetime, in_: int | None) -> None:
    """And told in UTC, as it is stored."""
    made = recorder_of()
    job: dict[str, Any] = {"handler": "h", "at": datetime(2030, 1, 1, tzinfo=UTC), "in_": None}
    recorded(made, job)
    job |= {"at": at, "in_": in_}
    expected = outcome(requests().run, job)
    assert outcome(lambda job: recorded(made, job), job) == expected
    if not isinstance(expected, str):
        result = made.record(job, NOW)
        assert result is not None
        assert result[0].due_at.tzinfo is UTC


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["me"] = payload
    with pytest.raises(InvalidInput, match=r"^payload: "):
        recorder_of().record({"handler": "h", "in_": 1, "payload": payload}, NOW)
