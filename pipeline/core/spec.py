"""What somebody asks for when they make a schedule: values alone, so that a command can carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """A recurring definition, as its user gave it (schemas/schedule.avsc). Instants and durations in ms.

    Exactly one of `cron`, `every_ms` and `after_ms` (so long after the last occurrence finished) is set. `exclude` =
    calendars by name, each a set of rules (core.timing). `start_at` is included, `end_at` is not. `misfire` is
    latest | none | all(n); `catch_up_ms` None = nothing is too old to be caught up. `overlap` is skip | buffer_one |
    buffer_all(n) | cancel_other | allow. `source` is who keeps it: cli, api, app:<name> or file:<name>; `version` the
    deploy version of an app.
    """

    id: str
    handler: str
    queue: str = "default"
    payload: bytes = b"{}"
    cron: str | None = None
    every_ms: int | None = None
    after_ms: int | None = None
    phase_ms: int = 0
    tz: str = "UTC"
    dst_gap: str = "run_after"
    dst_overlap: str = "first"
    exclude: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_at: int | None = None
    end_at: int | None = None
    max_occurrences: int | None = None
    jitter_ms: int = 0
    misfire: str = "latest"
    catch_up_ms: int | None = None
    misfire_threshold_ms: int = 60_000
    overlap: str = "skip"
    overlap_timeout_ms: int = 86_400_000
    pause_after: int | None = None
    attempt_limit: int | None = None
    timeout_ms: int | None = None
    serial: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    source: str = "api"
    version: str = ""
    note: str = ""
