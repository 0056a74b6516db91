"""The test kit: run one job through the real executor, and see what application code schedules, without a store.

    from pipeline.testing import FakeClock, recording, run_job

A pytest fixture `dueline` comes with the package. See docs/testing.md. Names are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from pipeline.testing.clock import FakeClock
    from pipeline.testing.recorded import Recording, recording
    from pipeline.testing.records import ProducedRecord, ScheduledJob
    from pipeline.testing.running import Outcome, run_job

__all__ = ["FakeClock", "Outcome", "ProducedRecord", "Recording", "ScheduledJob", "recording", "run_job"]

_MODULES = {
    "FakeClock": "pipeline.testing.clock",
    "Outcome": "pipeline.testing.running",
    "ProducedRecord": "pipeline.testing.records",
    "Recording": "pipeline.testing.recorded",
    "ScheduledJob": "pipeline.testing.records",
    "recording": "pipeline.testing.recorded",
    "run_job": "pipeline.testing.running",
}

if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> "Any":
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
