"""The replays of an installation, to whoever begins, resumes, cancels or looks at one."""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from pipeline import codec
from pipeline.client.connection import Connection
from pipeline.core.errors import Refused, Undecodable
from pipeline.core.job import Event
from pipeline.portion import REPLAY
from pipeline.replay.carrying import CHANGED, Carrying, counts_in
from pipeline.replay.chosen import Chosen
from pipeline.replay.record import Replay, ReplayState
from pipeline.replay.register import Register
from pipeline.survey import Filter, Ground, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody asks for; `rate` in runs a second, None: no limit."""

    window: Window
    wanted: Filter
    requested_by: str
    rate: float | None = None
    force: bool = False


class Replays:
    """Raises StoreUnreachable from every method."""

    def __init__(self, connection: Connection, ground: Ground) -> None:
        parts = connection.parts
        self._connection = connection
        self._ground = ground
        self._now = parts.clock.now
        self._register = Register(
            topic=parts.names.meta, reader=parts.reader, appender=parts.appender, now=self._now
        )

    # -- looking ----------------------------------------------------------------------------------------------

    def all(self) -> list[tuple[Replay, str]]:
        """Those of the last 30 days, in the order in which they began, each with how it stands."""
        return [(replay, self.standing(replay)) for replay in self._register.all()]

    def get(self, replay_id: str) -> Replay:
        """NotFound if there is none."""
        return self._register.get(replay_id)

    def standing(self, replay: Replay) -> str:
        """running | cancelling | interrupted (its process is gone: it can be resumed) | finished | cancelled."""
        if not replay.state.open:
            return replay.state.value
        if not replay.alive(self._now()):
            return "interrupted"
        return "cancelling" if self._register.cancelling(replay.id) else "running"

    # -- changing ---------------------------------------------------------------------------------------------

    def unfinished(self, asked: Asked) -> Replay | None:
        """The replay that was begun by the same request and is not finished: asked for again, it goes on."""
        alike = (
            each
            for each in self._register.all()
            if each.state.open and (each.window, each.wanted) == (asked.window, asked.wanted)
        )
        return next(alike, None)

    def begin(self, asked: Asked, matched: int) -> Replay:
        """Refused if another one may mean the same occurrences, unless forced."""
        now = self._now()
        replay = Replay(
            id=str(uuid.uuid4()),
            state=ReplayState.RUNNING,
            window=asked.window,
            wanted=asked.wanted,
            requested_by=asked.requested_by,
            created_at=now,
            updated_at=now,
            rate=asked.rate,
            runner=runner(),
            matched=matched,
        )
        return self._register.begin(replay, force=asked.force)

    def resumed(self, replay: Replay, *, rate: float | None = None, force: bool = False) -> Replay:
        """The same one, carried out by this process from now on. Refused if it has ended, or if another process
        carries it out, unless forced."""
        now = self._now()
        if not replay.state.open:
            raise Refused(f"replay {replay.id} is {replay.state.value}: begin another one")
        if replay.alive(now) and not force:
            raise Refused(
                f"replay {replay.id} is carried out by {replay.runner}: cancel it there, or wait until that process"
                " counts as gone (30 s)"
            )
        self._register.take_back_cancel(replay.id)
        counts = {**self.answered(replay), CHANGED: replay.counts.get(CHANGED, 0)}
        mine = replace(
            replay,
            state=ReplayState.RUNNING,
            runner=runner(),
            updated_at=now,
            rate=rate or replay.rate,
            counts=counts,
            resumed=replay.resumed + 1,
            reason="",
        )
        self._register.save(mine)
        return mine

    def carry_out(
        self, replay: Replay, chosen: Chosen, tell: Callable[[Replay], None] = lambda replay: None
    ) -> Replay:
        """Raises Unanswered, with what was done until then noted; NotFound."""
        with closing(self._connection.parts.open_scan()) as acks:
            carrying = Carrying(
                connection=self._connection,
                ground=self._ground,
                acks=acks,
                register=self._register,
                now=self._now,
                tell=tell,
            )
            done = carrying.carry_out(replay, chosen)
        if done.state is ReplayState.FINISHED and not done.resumed:
            return done
        # What an earlier process, or this one before it was cancelled, had asked for was answered meanwhile.
        left_out = {name: n for name, n in done.counts.items() if name == CHANGED}
        done = replace(done, counts={**self.answered(done), **left_out})
        self._register.save(done)
        return done

    def leave(self, replay_id: str) -> None:
        """Whoever resumes it need not wait until this process counts as gone. Nothing if it is another's, or ended."""
        replay = self._register.get(replay_id)
        if replay.state.open and replay.runner == runner():
            self._register.save(replace(replay, runner=""))

    def cancel(self, replay_id: str, by: str) -> str:
        """Have it end where it stands: `cancelled`, or `cancelling` if another process has to be told. NotFound;
        Refused if it has ended."""
        replay = self._register.get(replay_id)
        if not replay.state.open:
            raise Refused(f"replay {replay.id} is {replay.state.value} already")
        if replay.alive(self._now()):
            self._register.ask_cancel(replay.id, by)
            return "cancelling"
        ended = replace(replay, state=ReplayState.CANCELLED, runner="", updated_at=self._now(), reason=by)
        self._register.save(ended)
        return ReplayState.CANCELLED.value

    # -- what owners say --------------------------------------------------------------------------------------

    def answered(self, replay: Replay) -> Counter[str]:
        """What became of all that owners were asked for in this replay, by their answers: whoever was killed cannot
        say what it had heard."""
        counts: Counter[str] = Counter()
        for event in {event.id: event for event in self._answers(replay)}.values():
            counts += counts_in(event)
        return counts

    def _answers(self, replay: Replay) -> Iterator[Event]:
        events, mark = self._connection.parts.names.events, replay.id.encode()
        for partition in range(self._connection.layout.partitions):
            reader = self._connection.parts.reader
            for record in reader.read(events, partition, since_ms=replay.created_at):
                value = record.value()
                if value is None or mark not in value:
                    continue
                event = _decoded(value)
                if event is not None and event.detail.get(REPLAY) == replay.id:
                    yield event


def _decoded(value: bytes) -> Event | None:
    try:
        return codec.EVENT.decode(value)
    except Undecodable:
        return None


def runner() -> str:
    """This process, to people."""
    return f"{socket.gethostname()} (process {os.getpid()})"
