"""Replays: running again what failed, died or was lost in a window of due time (DESIGN §9, H29).

    chosen ──▶ begin or resume ──▶ carry out, round by round ──▶ finished | cancelled

`chosen` surveys the window, `register` keeps the record of each replay on `meta`, `carrying` asks the owners of the
home partitions, who emit the next run of each occurrence under its old idempotency key (`pipeline.commands.replay`).
"""

from __future__ import annotations

from pipeline.replay.carrying import Carrying, Unanswered
from pipeline.replay.chosen import Chosen, Tally, choose
from pipeline.replay.record import Replay, ReplayState
from pipeline.replay.register import Register
from pipeline.replay.replays import Asked, Replays

__all__ = [
    "Asked",
    "Carrying",
    "Chosen",
    "Register",
    "Replay",
    "ReplayState",
    "Replays",
    "Tally",
    "Unanswered",
    "choose",
]
