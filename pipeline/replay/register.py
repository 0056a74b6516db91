"""The replays of an installation, as their records on `meta` tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pipeline import codec
from pipeline.core.errors import NotFound, Refused, StoreUnreachable, Undecodable
from pipeline.ports import Appender, Put, Reader
from pipeline.replay.record import Replay, ReplayState, of_event, to_event

PREFIX, CANCEL = b"replay/", b"/cancel"
FLUSH_MS = 10_000
READ_BACK_S = 10.0
KEPT_MS = 30 * 86_400_000
"""A replay that has ended is forgotten after so long, as what stands on `events` is."""
LOOK = 1_000


class Register:
    """Reads and writes the records. One thread."""

    def __init__(self, *, topic: str, reader: Reader, appender: Appender, now: Callable[[], int]) -> None:
        """`topic` is `meta`; `now` the store's clock, epoch ms."""
        self._topic = topic
        self._reader = reader
        self._appender = appender
        self._now = now
        self._next = 0
        """Where on the topic the next look goes on."""
        self._records: dict[bytes, bytes] = {}

    def all(self) -> list[Replay]:
        """Those that are known, in the order in which they began. StoreUnreachable."""
        self._read()
        found = []
        for key, value in self._records.items():
            if key.startswith(PREFIX) and not key.endswith(CANCEL):
                replay = _replay(value)
                if replay is not None:
                    found.append(replay)
        return found

    def get(self, replay_id: str) -> Replay:
        """NotFound if there is none."""
        self._read()
        replay = _replay(self._records.get(_key(replay_id), b""))
        if replay is None:
            raise NotFound(f"no replay {replay_id:.80} is known: `dueline replay list` shows them")
        return replay

    def cancelling(self, replay_id: str) -> bool:
        """Whether somebody has asked for its end."""
        self._read()
        return _key(replay_id) + CANCEL in self._records

    def begin(self, replay: Replay, *, force: bool) -> Replay:
        """Write the record of a new one. Refused if another is open whose occurrences could be the same, unless
        `force`: the first in the log goes on, so of two that begin at once there is one."""
        if not force:
            self._refuse(replay, self.all())
        self.save(replay)
        self._read_back(replay)
        known = self.all()
        before = known[: [each.id for each in known].index(replay.id)]
        try:
            if not force:
                self._refuse(replay, before)
        except Refused:
            self.save(replace(replay, state=ReplayState.CANCELLED, runner="", reason="another began first"))
            raise
        self._forget(known)
        return replay

    def _refuse(self, replay: Replay, others: list[Replay]) -> None:
        for other in others:
            if other.id != replay.id and other.state.open and other.overlaps(replay):
                does = "is under way" if other.alive(self._now()) else "is not finished"
                raise Refused(
                    f"replay {other.id} by {other.requested_by} {does} and may mean the same occurrences:"
                    f" `dueline replay show {other.id}`, then resume or cancel it, or add --force"
                )

    def save(self, replay: Replay) -> None:
        """Durable when this returns. StoreUnreachable."""
        self._put(_key(replay.id), codec.EVENT.encode(to_event(replay)))

    def ask_cancel(self, replay_id: str, by: str) -> None:
        mark = codec.EVENT.encode(replace(to_event(self.get(replay_id)), reason=by))
        self._put(_key(replay_id) + CANCEL, mark)

    def take_back_cancel(self, replay_id: str) -> None:
        if self.cancelling(replay_id):
            self._put(_key(replay_id) + CANCEL, None)
            self._records.pop(_key(replay_id) + CANCEL, None)

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._appender.append(Put(self._topic, 0, key, value))
        self._appender.flush(FLUSH_MS)

    def _read_back(self, replay: Replay) -> None:
        """An open transaction of somebody else may hide what stands behind it for a while."""
        deadline = time.monotonic() + READ_BACK_S
        while _key(replay.id) not in self._records:
            if time.monotonic() > deadline:
                raise StoreUnreachable(f"{self._topic} does not give back what was written to it")
            self._read()

    def _read(self) -> None:
        for record in self._reader.read(self._topic, 0, self._next):
            key, value = record.key() or b"", record.value()
            self._next = (record.offset() or 0) + 1
            if not key.startswith(PREFIX):
                continue
            if value is None:
                self._records.pop(key, None)
            else:
                self._records[key] = value

    def _forget(self, known: list[Replay]) -> None:
        for each in known:
            if not each.state.open and self._now() - each.updated_at > KEPT_MS:
                for key in (_key(each.id), _key(each.id) + CANCEL):
                    if key in self._records:
                        self._put(key, None)


def _key(replay_id: str) -> bytes:
    return PREFIX + replay_id.encode()


def _replay(value: bytes) -> Replay | None:
    """None for what is no record of a replay: one damaged record must not hide the others."""
    try:
        return of_event(codec.EVENT.decode(value))
    except Undecodable:
        return None
