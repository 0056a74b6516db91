"""Which runs may start."""

from dataclasses import replace

import pytest

from pipeline.core.admission import Quotas, too_old
from pipeline.core.handler import DeadEnd, Registry
from pipeline.core.job import Failure, Run

MEANT = 1_893_456_000_000


def spec(max_age):
    return Registry().add("h", lambda ctx: None, max_age=max_age)


def run(due_at=MEANT):
    return Run(
        job_id="j", occurrence_id="j", due_at=due_at, run=1, queue="q", handler="h", created_at=MEANT,
        nominal_at=MEANT, idempotency_key="j", payload=b"{}",
    )  # fmt: skip


def test_a_run_is_too_old_after_its_max_age():
    assert too_old(spec("10s"), run(), MEANT + 10_000) is None
    problem = "10.001 s after the instant it was meant for, of 10 s at most"
    assert too_old(spec("10s"), run(), MEANT + 10_001) == DeadEnd(
        reason="max_age", error=Failure(type="TooOld", message=problem)
    )


@pytest.mark.parametrize("late", [0, 10**12])
def test_without_a_max_age_nothing_is_too_old(late):
    assert too_old(spec(None), run(), MEANT + late) is None


def test_a_retry_is_as_old_as_its_job():
    assert too_old(spec("10s"), run(due_at=MEANT + 60_000), MEANT + 60_000) is not None


def test_a_handler_with_a_limit_of_its_own_is_full_by_any_of_its_names():
    registry = Registry()
    registry.add("h", lambda ctx: None, concurrency=2, aliases=["old"])
    registry.add("free", lambda ctx: None)
    quotas, other, stranger = (
        Quotas(registry),
        replace(run(), handler="free"),
        replace(run(), handler="nobody"),
    )
    assert quotas.limited
    for one in (run(), replace(run(), handler="old"), other, stranger):
        assert not quotas.full(one)
        quotas.count(one, 1)
    assert [quotas.full(one) for one in (run(), replace(run(), handler="old"), other, stranger)] == [
        True,
        True,
        False,
        False,
    ]
    quotas.count(run(), -1)
    assert not quotas.full(run())


def test_without_limits_nothing_is_counted():
    registry = Registry()
    registry.add("h", lambda ctx: None)
    quotas = Quotas(registry)
    quotas.count(run(), 1)
    assert not quotas.limited
    assert not quotas.full(run())
