"""What an attempt puts aside while its handler runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.hashing import murmur2
from pipeline.core.jobref import JobRef
from pipeline.ports import Put

LOG_LIMIT = 8_000
"""Characters of log lines kept with an attempt."""
LINE_LIMIT = 2_000
OUTPUTS_LIMIT = 1_000
OUTPUT_BYTES = 16 * 1024 * 1024
"""Records, and bytes of them, that one attempt may hand to its ack transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the attempts of a worker have to make records with. Any thread may call these.

    `record(request)` makes the record of a new job; InvalidInput naming the option. `partitions(topic)` is 0 for a
    topic that does not exist. `reserved(topic)`: whether it is one of the product's own.
    """

    record: Callable[[Mapping[str, Any]], tuple[JobRef, Put]]
    partitions: Callable[[str], int]
    reserved: Callable[[str], bool]


class Tray:
    """What an attempt puts aside while its handler runs: records for its ack transaction, log lines, its progress.
    Implements `core.context.Side`; appends are atomic, so threads of the handler may share it."""

    def __init__(self, means: Means, stopped: Callable[[], bool]) -> None:
        self._means = means
        self._stopped = stopped
        self._closed = False
        self._bytes = 0
        self._lines: deque[str] = deque()
        self._chars = 0
        self.outputs: list[Put] = []
        self.fraction: float | None = None
        self.note = ""

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        ref, put = self._means.record(request)
        self._keep("schedule", put)
        return ref

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        partition: int | None,
    ) -> None:
        if self._means.reserved(topic):
            raise InvalidInput("topic", f"{topic!r} is one of Dueline's own")
        count = self._means.partitions(topic)
        if count < 1:
            raise InvalidInput("topic", f"{topic!r} does not exist")
        if partition is None:
            # Without a key any place is as good as another: the value spreads them.
            partition = murmur2(key if key is not None else value or b"") % count
        if not 0 <= partition < count:
            raise InvalidInput("partition", f"{partition} is not within 0 … {count - 1}")
        self._keep("produce", Put(topic, partition, key or b"", value, list(headers.items())))

    def _keep(self, what: str, put: Put) -> None:
        size = len(put.key) + len(put.value or b"")
        if self._closed:
            raise Refused(f"{what}: the attempt has come to an end")
        if len(self.outputs) >= OUTPUTS_LIMIT or self._bytes + size > OUTPUT_BYTES:
            raise InvalidInput(
                what, f"one run hands on {OUTPUTS_LIMIT} records or {OUTPUT_BYTES} bytes at most"
            )
        self._bytes += size
        self.outputs.append(put)

    def progress(self, fraction: float | None, note: str) -> None:
        if fraction is not None:
            self.fraction = min(1.0, max(0.0, float(fraction)))
        self.note = printable(note) or self.note

    def log(self, line: str) -> None:
        line = printable(line[:LINE_LIMIT])
        self._lines.append(line)
        self._chars += len(line) + 1
        while self._chars > LOG_LIMIT:
            self._chars -= len(self._lines.popleft()) + 1

    def tail(self) -> str | None:
        """The last lines logged; None if there were none."""
        return "\n".join(self._lines) if self._lines else None

    def stopped(self) -> bool:
        return self._stopped()

    def close(self) -> None:
        """Its outcome is decided: what comes later has no transaction to go into."""
        self._closed = True
        # The attempt, which keeps this tray, is not kept by it: a cycle for each run would be left to the collector.
        self._stopped = _over


def _over() -> bool:
    return True


def printable(text: str) -> str:
    """Text that a record can carry: a lone surrogate is escaped, for UTF-8 has none."""
    return text.encode("utf-8", "backslashreplace").decode()
