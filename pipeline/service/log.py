"""Events of the owners as log lines: one JSON object each, always with an `action` and ids."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

QUIET = frozenset({"emitted", "acked", "transaction", "answered", "gauges"})
"""Happen many times a second; metrics count them, a log would drown in them."""


class LogEvents:
    """Writes each event to stderr. Implements `ports.Events`."""

    def __init__(self, role: str, slot: int | None = None) -> None:
        self._who = {"role": role} if slot is None else {"role": role, "slot": slot}

    def on(self, action: str, **fields: Any) -> None:
        if action in QUIET:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"at": now, **self._who, "action": action, **fields}
        sys.stderr.write(json.dumps(line, default=str) + "\n")
        sys.stderr.flush()
