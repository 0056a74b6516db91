"""Every status has a look of its own kind."""

from __future__ import annotations

import pytest

from pipeline.core.job import JobStatus
from pipeline.server.console.parts.looks import kind_of


@pytest.mark.parametrize("status", JobStatus)
def test_every_status_of_a_job_has_a_look(status: JobStatus) -> None:
    assert kind_of(status) != "idle"


def test_a_reason_does_not_change_it() -> None:
    assert kind_of("skipped.overlap") == kind_of("skipped") == "off"
    assert kind_of("something new") == "idle"
