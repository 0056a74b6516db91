"""The read model: what the topics say about jobs and processes, folded from plain reads (DESIGN §9).

Nothing here belongs to a group or owns anything. Reads are filtered while they stream, so memory follows what
matches, not what is stored.
"""

from pipeline.follower.dead import Letter, WantedLetters, latest_of_each, without_letter
from pipeline.follower.job import View
from pipeline.follower.listing import Backlog, Wanted, fold_backlog, fold_due, fold_live, open_jobs
from pipeline.follower.model import FRESH_MS, Follower
from pipeline.follower.schedules import WantedSchedules, is_overdue
from pipeline.follower.values import headers_of, shown_instant
from pipeline.follower.watch import Watch

__all__ = [
    "FRESH_MS",
    "Backlog",
    "Follower",
    "Letter",
    "View",
    "Wanted",
    "WantedLetters",
    "WantedSchedules",
    "Watch",
    "fold_backlog",
    "fold_due",
    "fold_live",
    "headers_of",
    "is_overdue",
    "latest_of_each",
    "open_jobs",
    "shown_instant",
    "without_letter",
]
