"""The endpoints under /api/v1, by noun; `ENDPOINTS` is all of them, in the order in which paths are tried."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.server.api import failures, installation, jobs, schedules
from pipeline.server.endpoint import Endpoint

PREFIX = "/api/v1"
ENDPOINTS: Sequence[Endpoint] = (
    *jobs.ENDPOINTS,
    *schedules.ENDPOINTS,
    *failures.ENDPOINTS,
    *installation.ENDPOINTS,
)
