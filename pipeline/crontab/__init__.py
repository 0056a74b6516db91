"""Schedules from files that people have: crontab text, TOML, Celery's `beat_schedule`; and what a sync of them does.

Everything here is pure: bytes in, specs and findings out. Nothing is executed, no file is opened.
"""

from __future__ import annotations

from pipeline.crontab.beat import parse_beat
from pipeline.crontab.parsed import Finding, Parsed
from pipeline.crontab.plan import Changed, Foreign, Plan, Update, plan
from pipeline.crontab.table import parse_crontab
from pipeline.crontab.toml import parse_toml

__all__ = [
    "Changed",
    "Finding",
    "Foreign",
    "Parsed",
    "Plan",
    "Update",
    "parse_beat",
    "parse_crontab",
    "parse_toml",
    "plan",
]
