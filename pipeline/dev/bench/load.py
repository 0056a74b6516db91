"""The jobs of a measurement: payloads of 150 bytes that differ as those of one application do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

PAYLOAD_BYTES = 150
PAYLOADS = 1_000
"""Different payloads, dealt out in turn: identical ones would compress to nothing, random ones not at all."""
HANDLER = "email.send"
SPREAD_BUCKETS = 24
"""Far jobs are due in so many minutes one after the other: every partition of the default layout has some."""
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def payloads() -> list[dict[str, Any]]:
    """The same ones in every run."""
    random = Random(4)
    made = []
    for _ in range(PAYLOADS):
        payload = {
            "to": f"{random.getrandbits(32):08x}@example.com",
            "invoice": f"{random.getrandbits(64):016x}",
            "text": "",
        }
        missing = PAYLOAD_BYTES - len(encoded(payload))
        payload["text"] = ("your invoice is due, please pay it within fourteen days " * 3)[:missing]
        made.append(payload)
    return made


def encoded(payload: dict[str, Any]) -> bytes:
    """As the client stores it."""
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def instant(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def far(count: int, now: int) -> Iterator[int]:
    """Due times, in epoch ms, hours after `now`: pending for as long as anything is measured."""
    base = (now + 6 * HOUR_MS) // MINUTE_MS * MINUTE_MS
    for n in range(count):
        minute, place = n % SPREAD_BUCKETS, n // SPREAD_BUCKETS
        yield base + minute * MINUTE_MS + place % MINUTE_MS


def steady(start: int, rate: int, seconds: float) -> Iterator[int]:
    """Due times of `rate` jobs a second from `start` on."""
    for n in range(int(rate * seconds)):
        yield start + n * 1000 // rate


def jobs(dues: Iterator[int]) -> Iterator[dict[str, Any]]:
    """As `schedule_many` takes them."""
    pool = payloads()
    for n, due in enumerate(dues):
        yield {"handler": HANDLER, "payload": pool[n % PAYLOADS], "at": instant(due)}
