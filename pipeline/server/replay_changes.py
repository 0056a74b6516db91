"""Replays that this server begins or takes up, each carried out by a thread and a connection of its own.

If the server ends, what is left of a replay is taken up by any other one, or by `dueline replay resume`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.client.connection import Connection
from pipeline.core.errors import InvalidInput, Refused, StoreUnreachable
from pipeline.core.times import format_instant
from pipeline.ports import Events
from pipeline.replay import Asked, Chosen, Replay, Replays, choose
from pipeline.replay.chosen import REPLAYABLE
from pipeline.server.allowed import Allowed
from pipeline.survey import Filter, Ground, State, Window, check_kept, window

View = dict[str, Any]

ONLY = ("failed", "dead", "unacked", "all")
AT_ONCE = 2
"""Replays that one server carries out at the same time."""
EXIT_FLUSH_MS = 5_000


class Stopping(StoreUnreachable):
    """This server ends, and somebody else may go on; or nobody waits for the answer any more."""


Begun = Callable[[Connection, Replay], None]
"""Hears of a replay that is this process's from now on, before anything of it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asks for. Times are epoch ms, `to_ms` None: now. `limit`: Refused if more would run."""

    from_ms: int
    to_ms: int | None
    wanted: Filter
    requested_by: str
    rate: float | None
    beside: bool
    limit: int
    dry_run: bool


def outcomes_of(only: str, *, force: bool) -> frozenset[State]:
    """InvalidInput('only'), or 'force' if it is missing."""
    if only not in ONLY:
        raise InvalidInput("only", f"{only!r:.40} is none of {', '.join(ONLY)}")
    if only != "all":
        return frozenset({State(only)})
    if not force:
        raise InvalidInput("force", "only=all would run again what succeeded: say force if that is meant")
    return frozenset(REPLAYABLE)


class Desk(NamedTuple):
    connection: Connection
    ground: Ground
    replays: Replays

    def now(self) -> int:
        return self.connection.parts.clock.now()


class Replayer:
    """Begins, resumes and cancels. Its methods block; any thread."""

    def __init__(self, connect: Callable[[], Connection], events: Events) -> None:
        self._connect = connect
        self._events = events
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def _desk(self) -> Iterator[Desk]:
        connection = self._connect()
        try:
            with closing(connection.parts.open_scan()) as scan:
                ground = Ground(scan=scan, names=connection.parts.names, layout=connection.layout)
                yield Desk(connection, ground, Replays(connection, ground))
        finally:
            connection.close(EXIT_FLUSH_MS)

    def count(self, wish: Wish, allowed: Allowed) -> View:
        """What would run. Stopping if it is given up meanwhile."""
        with self._desk() as here, naming():
            asked = _asked(here, wish)
            gone = check_kept(here.ground, asked.window, asked.wanted, here.now())
            with choose(here.ground, asked.window, asked.wanted, self._heeding(allowed)) as chosen:
                return _view(asked, chosen, gone, None, dry_run=True)

    def start(self, wish: Wish, allowed: Allowed, begun: Begun) -> Future[View]:
        """Begin it, or go on with an unfinished one that was asked for alike; told once it is under way. What is not
        allowed any more when it would begin does not. Refused if too many would run, or are under way here."""
        return self._under_way(lambda told: self._begin(wish, allowed, begun, told))

    def resume(
        self, replay_id: str, rate: float | None, force: bool, *, allowed: Allowed, begun: Begun
    ) -> Future[View]:
        """Raises NotFound, Refused."""
        return self._under_way(lambda told: self._resume(replay_id, rate, force, allowed, begun, told))

    def cancel(self, replay_id: str, by: str, allowed: Allowed) -> str:
        """`cancelled` | `cancelling`. Raises NotFound, Refused; Stopping if it is given up meanwhile."""
        with self._desk() as here:
            self._heed(allowed)
            return here.replays.cancel(replay_id, by)

    def close(self) -> None:
        """Leave what is under way: others may go on with it at once."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=10)

    # -- on a thread of its own -------------------------------------------------------------------------------

    def _heed(self, allowed: Allowed) -> None:
        if allowed.over or self._stopping.is_set():
            raise Stopping("nobody waits for it any more")

    def _heeding(self, allowed: Allowed) -> Callable[[int, int], None]:
        """Called between two partitions of a survey."""
        return lambda _done, _all: self._heed(allowed)

    def _under_way(self, work: Callable[[Future[View]], None]) -> Future[View]:
        if not self._free.acquire(blocking=False):
            raise Refused(f"{AT_ONCE} replays are carried out by this server: wait, or use `dueline replay`")
        told: Future[View] = Future()
        told.set_running_or_notify_cancel()  # so that whoever gives up waiting cannot cancel it

        def run() -> None:
            try:
                work(told)
            except Stopping as error:
                self._events.on("replay_left")
                if not told.done():
                    told.set_exception(error)
            except BaseException as error:  # noqa: BLE001 -- told to who waits, or in the log
                if not told.done():
                    told.set_exception(error)
                else:
                    self._events.on("replay_failed", reason=str(error))
            finally:
                self._free.release()

        thread = threading.Thread(target=run, name="replay", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()
        return told

    def _begin(self, wish: Wish, allowed: Allowed, begun: Begun, told: Future[View]) -> None:
        with self._desk() as here, naming():
            asked = _asked(here, wish)
            gone = check_kept(here.ground, asked.window, asked.wanted, here.now())
            unfinished = here.replays.unfinished(asked)
            if unfinished is not None:
                here.replays.resumable(unfinished.id)
            with choose(here.ground, asked.window, asked.wanted, self._heeding(allowed)) as chosen:
                if unfinished is not None:
                    mine = here.replays.resumed(unfinished.id, rate=wish.rate)
                elif not chosen.tally.matched:
                    told.set_result(_view(asked, chosen, gone, None, dry_run=False))
                    return
                elif chosen.tally.matched > wish.limit:
                    raise Refused(
                        f"{chosen.tally.matched} occurrences are more than {wish.limit}: give a limit that allows them"
                    )
                else:
                    mine = here.replays.begin(asked, chosen.tally.matched)
                begun(here.connection, mine)
                told.set_result(_view(asked, chosen, gone, mine, dry_run=False))
                self._carry_out(here, mine, chosen, gone)

    def _resume(
        self,
        replay_id: str,
        rate: float | None,
        force: bool,
        allowed: Allowed,
        begun: Begun,
        told: Future[View],
    ) -> None:
        with self._desk() as here, naming():
            found = here.replays.resumable(replay_id, force=force)
            gone = check_kept(here.ground, found.window, found.wanted, here.now())
            with choose(here.ground, found.window, found.wanted, self._heeding(allowed)) as chosen:
                mine = here.replays.resumed(replay_id, rate=rate, force=force)
                asked = Asked(
                    window=mine.window, wanted=mine.wanted, requested_by=mine.requested_by, rate=mine.rate
                )
                begun(here.connection, mine)
                told.set_result(_view(asked, chosen, gone, mine, dry_run=False))
                self._carry_out(here, mine, chosen, gone)

    def _carry_out(self, here: Desk, mine: Replay, chosen: Chosen, gone: int | None) -> None:
        def heed(_: Replay) -> None:
            if self._stopping.is_set():
                raise Stopping("this server ends")

        try:
            done = here.replays.carry_out(mine, chosen, heed, gone=gone is not None)
        except BaseException:
            here.replays.leave(mine)
            raise
        self._events.on("replay_ended", replay=mine.id, state=done.state.value, counts=dict(done.counts))


def _asked(here: Desk, wish: Wish) -> Asked:
    queue, queues = wish.wanted.queue, here.connection.layout.queues
    if queue is not None and queue not in queues:
        raise InvalidInput("queue", f"{queue!r} is unknown")
    return Asked(
        window=window(wish.from_ms, wish.to_ms, here.now()),
        wanted=wish.wanted,
        requested_by=wish.requested_by,
        rate=wish.rate,
        beside=wish.beside,
    )


@contextmanager
def naming() -> Iterator[None]:
    """The survey names the options of a command line."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(error.field.removeprefix("--").replace("-", "_"), error.problem) from None


def _view(asked: Asked, chosen: Chosen, gone: int | None, mine: Replay | None, *, dry_run: bool) -> View:
    tally = chosen.tally
    span: Window = asked.window
    estimate = None if asked.rate is None else round(tally.matched / asked.rate, 3)
    return {
        "id": None if mine is None else mine.id,
        "state": None if mine is None else "running",
        "dry_run": dry_run,
        "from": format_instant(span.from_ms),
        "to": format_instant(span.to_ms),
        **tally.view(),
        "matched": tally.matched if mine is None else mine.matched,
        "waiting": tally.waiting,
        "rate": asked.rate,
        "estimated_seconds": estimate,
        "gone_until": None if gone is None else format_instant(gone),
    }
