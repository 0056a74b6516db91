"""What a job's page offers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.server.console.job_verbs import verbs_of


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ({"status": "pending", "schedule": None}, ["now", "reschedule", "payload", "cancel"]),
        ({"status": "pending", "schedule": "daily", "waits_behind": None}, []),
        ({"status": "pending", "schedule": "daily", "waits_behind": "s:daily:1:g::1"}, ["cancel"]),
        ({"status": "retrying", "schedule": "daily"}, ["retry", "cancel"]),
        ({"status": "skipped", "schedule": "daily"}, []),
        ({"status": "dead", "schedule": "daily"}, ["requeue", "mend"]),
        ({"status": "stopped", "schedule": "daily"}, ["requeue"]),
    ],
)
def test_nothing_is_offered_that_is_always_refused(view: dict[str, Any], names: list[str]) -> None:
    assert [name for name, _ in verbs_of(view)] == names
