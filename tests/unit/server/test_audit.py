"""Where the record of a change stands, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import codec
from pipeline.core.ids import anonymous_id
from pipeline.core.layout import default_layout
from pipeline.ports import Put
from pipeline.server.access import Principal, Role
from pipeline.server.audit import TEXT_LIMIT, TURN_MS, audit_put

NOW = 1_800_000_000_000
LAYOUT = default_layout()
OPS = Principal(name="ops", role=Role.OPERATOR, token="0123456789abcdef")


def noted(verb: str, number: int = 0, at: int = NOW, who: Principal = OPS, **more: Any) -> Put:
    """Of a job of its own for each number, due in another minute."""
    id_ = anonymous_id(NOW + number * 60_000, number)
    return audit_put(who, verb, topic="events", layout=LAYOUT, at=at, outcome="done", job_id=id_, **more)


def test_new_jobs_are_noted_at_one_partition_and_the_next_second_at_the_next() -> None:
    begin = NOW // TURN_MS * TURN_MS
    of_one_second = {noted("job.create", n, at=begin + n).partition for n in range(TURN_MS)}
    turns = [noted("job.create", at=begin + n * TURN_MS).partition for n in range(LAYOUT.partitions)]
    assert of_one_second == {turns[0]}
    assert sorted(turns) == list(range(LAYOUT.partitions))


def test_other_changes_are_noted_where_the_events_of_their_job_stand() -> None:
    for number in range(LAYOUT.partitions):
        assert noted("job.cancel", number).partition == LAYOUT.home(
            anonymous_id(NOW + number * 60_000, number)
        )


@pytest.mark.parametrize("about", [None, {}, {"key": "k", "left": None, "note": ""}])
def test_it_tells_who_asked_and_what_is_known_beside(about: dict[str, object] | None) -> None:
    event = codec.EVENT.decode(noted("job.create", about=about).value or b"")
    who = {"verb": "job.create", "requested_by": "ops", "role": "operator", "token": OPS.token}
    assert event.detail == {**who, **({"key": "k"} if about else {})}


def test_facts_are_bounded_and_who_has_no_token_has_none() -> None:
    local = Principal(name="x" * (TEXT_LIMIT + 1), role=Role.ADMIN)
    event = codec.EVENT.decode(noted("job.create", who=local).value or b"")
    assert event.detail == {"verb": "job.create", "requested_by": "x" * TEXT_LIMIT, "role": "admin"}
