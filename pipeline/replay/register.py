"""The replays of an installation, as their records on `meta` tell.

Nothing there keeps a process that stood still from appending when it comes back, so it is the reading that fences:
each attempt at a replay writes a record of its own, `replay/<id>/<attempt>`, and the highest attempt is the one that
counts, whatever is appended behind it. Of two that take it up at once the last word is that of one of them, and the
other one finds that before its next round. A request to cancel, `replay/<id>/cancel`, is final.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pipeline import codec
from pipeline.core.errors import NotFound, Refused, StoreUnreachable, Undecodable
from pipeline.core.keys import ERA_KEY
from pipeline.ports import Appender, Put, Reader
from pipeline.replay.record import Replay, ReplayState, of_event, to_event
from pipeline.replay.runner import Runner

PREFIX, CANCEL = b"replay/", b"cancel"
DIGITS = 9
"""Of an attempt at most: whoever may append can put anything there."""
FLUSH_MS = 10_000
READ_BACK_S = 10.0
KEPT_MS = 30 * 86_400_000
"""A replay that has ended is forgotten after so long, as what stands on `events` is."""


class Register:
    """Reads and writes the records. One thread. Every method may raise StoreUnreachable."""

    def __init__(
        self,
        *,
        topic: str,
        reader: Reader,
        appender: Appender,
        now: Callable[[], int],
        gone: Callable[[Runner], bool] = Runner.gone,
    ) -> None:
        """`topic` is `meta`; `now` the store's clock, epoch ms; `gone` says whether a process certainly is."""
        self._topic = topic
        self._reader = reader
        self._appender = appender
        self._now = now
        self._gone = gone
        self._next = 0
        """Where on the topic the next look goes on."""
        self._era = 1
        self._attempts: dict[bytes, dict[int, bytes]] = {}
        """By id: the record of each attempt."""
        self._cancels: dict[bytes, bytes] = {}

    # -- looking ------------------------------------------------------------------------------------------------

    def all(self) -> list[Replay]:
        """Those that are known, in the order in which they began."""
        self._read()
        found = (_replay(attempts[max(attempts)]) for attempts in self._attempts.values())
        return [self._as_it_stands(replay) for replay in found if replay is not None]

    def get(self, replay_id: str) -> Replay:
        """NotFound if there is none."""
        self._read()
        replay = self._stored(replay_id)
        if replay is None:
            raise NotFound(f"no replay {replay_id:.80} is known: `dueline replay list` shows them")
        return self._as_it_stands(replay)

    @property
    def era(self) -> int:
        """The installation's, as of the last look."""
        return self._era

    def alive(self, replay: Replay) -> bool:
        """Whether some process carries it out."""
        return replay.alive(self._now()) and replay.runner is not None and not self._gone(replay.runner)

    def cancelled_by(self, replay_id: str) -> str | None:
        """Who has asked for its end, as of the last look; None: nobody."""
        mark = self._cancels.get(replay_id.encode())
        if mark is None:
            return None
        with suppress(Undecodable):
            return codec.EVENT.decode(mark).reason or "cancelled"
        return "cancelled"

    def standing(self, replay: Replay) -> str:
        """How it stands as of the last look: running | cancelling | interrupted (its process is gone: it can be
        resumed) | finished | cancelled."""
        if not replay.state.open:
            return replay.state.value
        if not self.alive(replay):
            return "interrupted"
        return "running" if self.cancelled_by(replay.id) is None else "cancelling"

    def _stored(self, replay_id: str) -> Replay | None:
        attempts = self._attempts.get(replay_id.encode())
        return None if attempts is None else _replay(attempts[max(attempts)])

    def _as_it_stands(self, replay: Replay) -> Replay:
        """An open one that nobody may go on with has ended, though nobody has written so."""
        if not replay.state.open:
            return replay
        if replay.era != self._era:
            return _cancelled(
                replay,
                f"it began in era {replay.era}, and this is era {self._era}, whose topics may not hold its runs",
            )
        by = self.cancelled_by(replay.id)
        return replay if by is None or self.alive(replay) else _cancelled(replay, by)

    # -- beginning and taking up --------------------------------------------------------------------------------

    def begin(self, replay: Replay, *, beside: bool) -> Replay:
        """Write the record of a new one. Refused if another is open whose occurrences could be the same; with `beside`
        only if that asks for just the same. The first in the log goes on, so of two that begin at once there is one."""
        self._refuse(replay, self.all(), beside)
        replay = replace(replay, era=self._era)
        self._put_record(replay)
        self._read_back(replay)
        known = self.all()
        before = known[: [each.id for each in known].index(replay.id)]
        try:
            self._refuse(replay, before, beside)
        except Refused:
            self._put_record(_cancelled(replay, "another began first"))
            raise
        self._forget(known)
        return replay

    def _refuse(self, replay: Replay, others: list[Replay], beside: bool) -> None:
        for other in others:
            if other.id == replay.id or not other.state.open or not other.overlaps(replay):
                continue
            same = other.asks_as(replay)
            if same or not beside:
                raise Refused(
                    f"replay {other.id} by {other.requested_by} {self._does(other)} and"
                    f" {'asks for the same' if same else 'may mean the same occurrences'}: {self.remedy(other)}"
                    f"{'' if same else ', or add --beside'}"
                )

    def _does(self, other: Replay) -> str:
        return "is under way" if self.alive(other) else "is not finished"

    def remedy(self, other: Replay) -> str:
        """What to do about an open one, to whoever wants it out of the way or to go on."""
        if not self.alive(other):
            return f"`dueline replay resume {other.id}`, or cancel it"
        return (
            f"wait for it, or `dueline replay cancel {other.id}`; if that process is gone"
            f" `dueline replay resume {other.id} --force`"
        )

    def take(self, replay: Replay) -> None:
        """Write the record of the next attempt at it. Refused if another process has done the same a moment later."""
        self._put_record(replay)
        self._read_back(replay)
        if replay.runner is not None:
            self.check(replay.id, replay.runner)

    # -- while it is carried out --------------------------------------------------------------------------------

    def check(self, replay_id: str, runner: Runner) -> None:
        """Refused unless it is open, and `runner` the one that carries it out."""
        self._read()
        known = self._stored(replay_id)
        if known is not None and known.state.open and (known.runner, known.era) == (runner, self._era):
            return
        raise Refused(f"replay {replay_id} {self._why(known)}: this process leaves it alone")

    def _why(self, known: Replay | None) -> str:
        if known is None:
            return "is no longer known"
        known = self._as_it_stands(known)
        if not known.state.open:
            reason = f" ({known.reason})" if known.reason else ""
            return f"is {known.state.value} by now{reason}"
        return f"was taken up by {known.runner or 'another process'} meanwhile"

    def save(self, replay: Replay, runner: Runner) -> None:
        """The last word of `runner` on it, durable when this returns. Refused if it is no longer its own."""
        self.check(replay.id, runner)
        self._put_record(replay)

    def ask_cancel(self, replay: Replay, by: str) -> None:
        mark = codec.EVENT.encode(replace(to_event(replay), reason=by))
        self._put(_key(replay.id, CANCEL), mark)

    # -- the topic ----------------------------------------------------------------------------------------------

    def _put_record(self, replay: Replay) -> None:
        self._put(_key(replay.id, b"%d" % replay.attempt), codec.EVENT.encode(to_event(replay)))

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._appender.append(Put(self._topic, 0, key, value))
        self._appender.flush(FLUSH_MS)

    def _read_back(self, replay: Replay) -> None:
        """An open transaction of somebody else may hide what stands behind it for a while."""
        deadline = time.monotonic() + READ_BACK_S
        while replay.attempt not in self._attempts.get(replay.id.encode(), ()):
            if time.monotonic() > deadline:
                raise StoreUnreachable(f"{self._topic} does not give back what was written to it")
            self._read()

    def _read(self) -> None:
        for record in self._reader.read(self._topic, 0, self._next):
            self._next = (record.offset() or 0) + 1
            key, value = record.key() or b"", record.value()
            if key == ERA_KEY and value is not None:
                with suppress(Undecodable):
                    self._era = codec.ERA.decode(value).era
            elif key.startswith(PREFIX):
                self._take(key, value)

    def _take(self, key: bytes, value: bytes | None) -> None:
        id_, _, name = key.removeprefix(PREFIX).partition(b"/")
        if name == CANCEL:
            if value is None:
                self._cancels.pop(id_, None)
            else:
                self._cancels[id_] = value
        elif name.isdigit() and len(name) <= DIGITS:
            attempts = self._attempts.setdefault(id_, {})
            if value is None:
                attempts.pop(int(name), None)
            else:
                attempts[int(name)] = value
            if not attempts:
                del self._attempts[id_]

    def _forget(self, known: list[Replay]) -> None:
        for each in known:
            if each.state.open or self._now() - each.updated_at <= KEPT_MS:
                continue
            # The highest last: without it, an earlier one would count again.
            for attempt in sorted(self._attempts[each.id.encode()]):
                self._put(_key(each.id, b"%d" % attempt), None)
            if each.id.encode() in self._cancels:
                self._put(_key(each.id, CANCEL), None)


def _cancelled(replay: Replay, reason: str) -> Replay:
    return replace(replay, state=ReplayState.CANCELLED, runner=None, reason=reason)


def _key(replay_id: str, name: bytes) -> bytes:
    return b"%b%b/%b" % (PREFIX, replay_id.encode(), name)


def _replay(value: bytes) -> Replay | None:
    """None for what is no record of a replay: one damaged record must not hide the others."""
    try:
        return of_event(codec.EVENT.decode(value))
    except Undecodable:
        return None
