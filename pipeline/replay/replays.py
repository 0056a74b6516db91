"""The replays of an installation, to whoever begins, resumes, cancels or looks at one."""

from __future__ import annotations

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
from pipeline.replay.carrying import Carrying
from pipeline.replay.chosen import Chosen
from pipeline.replay.counts import LEFT_OUT, counts_in, settled, within
from pipeline.replay.record import Replay, ReplayState
from pipeline.replay.register import Register
from pipeline.replay.runner import Runner
from pipeline.survey import Filter, Ground, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody asks for; `rate` in runs a second, None: no limit. `beside`: though another replay that is not
    finished may mean the same occurrences."""

    window: Window
    wanted: Filter
    requested_by: str
    rate: float | None = None
    beside: bool = False


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
        return self._register.standing(replay)

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
        """Refused if another one may mean the same occurrences, unless it is to run beside it."""
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
            runner=Runner.here(),
            matched=matched,
        )
        return self._register.begin(replay, beside=asked.beside)

    def resumable(self, replay_id: str, *, force: bool = False) -> Replay:
        """One that this process may take up. NotFound; Refused if it has ended or is being ended, or if another process
        carries it out, unless forced."""
        replay = self._register.get(replay_id)
        if not replay.state.open:
            reason = f" ({replay.reason})" if replay.state is ReplayState.CANCELLED and replay.reason else ""
            raise Refused(
                f"replay {replay.id} is {replay.state.value}{reason}: look with --dry-run what is left, and begin"
                " another one"
            )
        if (by := self._register.cancelled_by(replay.id)) is not None:
            raise Refused(f"replay {replay.id} is about to end ({by}): begin another one once it has")
        if self._register.alive(replay) and not force:
            silence = max(0, self._now() - replay.updated_at) / 1000
            raise Refused(
                f"replay {replay.id} is carried out by {replay.runner}, heard of {silence:.0f} s ago:"
                f" {self._register.remedy(replay)}"
            )
        return replay

    def resumed(self, replay_id: str, *, rate: float | None = None, force: bool = False) -> Replay:
        """The same one, carried out by this process from now on. Raises as `resumable`."""
        replay = self.resumable(replay_id, force=force)
        mine = replace(
            replay,
            runner=Runner.here(),
            updated_at=self._now(),
            rate=rate or replay.rate,
            counts=within(replay.matched, self._recounted(replay)),
            attempt=replay.attempt + 1,
            resumed=replay.resumed + 1,
            reason="",
        )
        self._register.take(mine)
        return mine

    def carry_out(
        self,
        replay: Replay,
        chosen: Chosen,
        tell: Callable[[Replay], None] = lambda replay: None,
        *,
        gone: bool = False,
    ) -> Replay:
        """`gone`: some of the window is no longer in the store. Raises Unanswered, with what was done until then noted;
        Refused once it is no longer this process's."""
        assert replay.runner is not None
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
        done = replace(self._accounted(done, gone), runner=None, updated_at=self._now())
        self._register.save(done, replay.runner)
        return done

    def _accounted(self, done: Replay, gone: bool) -> Replay:
        """What an earlier process, or this one before it was cancelled, had asked for was answered meanwhile."""
        finished = done.state is ReplayState.FINISHED
        if finished and not done.resumed:
            return done
        counts = self._recounted(done)
        if finished:
            return replace(done, counts=settled(done.matched, counts, gone=gone))
        return replace(done, counts=within(done.matched, counts))

    def _recounted(self, replay: Replay) -> Counter[str]:
        """By all answers, whoever heard them, and what its record says of those about which no owner was asked."""
        counts = self.answered(replay)
        for name in LEFT_OUT:
            counts[name] = max(counts[name], replay.counts.get(name, 0))
        return counts

    def leave(self, mine: Replay) -> None:
        """Whoever resumes it need not wait until this process counts as gone. Nothing if it is another's, or ended."""
        known = self._register.get(mine.id)
        if mine.runner is not None and known.state.open and known.runner == mine.runner:
            self._register.save(replace(known, runner=None), mine.runner)

    def cancel(self, replay_id: str, by: str) -> str:
        """Have it end where it stands: `cancelled`, or `cancelling` if another process has to be told. NotFound;
        Refused if it has ended."""
        replay = self._register.get(replay_id)
        if not replay.state.open:
            raise Refused(f"replay {replay.id} is {replay.state.value} already")
        self._register.ask_cancel(replay, by)
        if self._register.alive(replay):
            return "cancelling"
        ended = replace(replay, state=ReplayState.CANCELLED, updated_at=self._now(), reason=by)
        ended = replace(self._accounted(ended, gone=False), runner=None, attempt=replay.attempt + 1)
        self._register.take(ended)
        return ReplayState.CANCELLED.value

    # -- what owners say --------------------------------------------------------------------------------------

    def answered(self, replay: Replay) -> Counter[str]:
        """What became of all that owners were asked for in this replay, by their answers: whoever was killed cannot
        say what it had heard."""
        counts: Counter[str] = Counter()
        heard: set[str] = set()
        for event in self._answers(replay):
            if event.id not in heard:
                heard.add(event.id)
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
