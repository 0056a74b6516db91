"""Who a process is, in heartbeats, takeover records and acks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`process` is unique per start; `started_at` is the store's time in epoch ms."""

    process: str
    host: str
    pid: int
    version: str
    started_at: int
