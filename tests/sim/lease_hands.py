"""An executor whose calls take simulated time: a call begins when a place is free, and ends as its handler planned."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from types import CoroutineType
from typing import Any

from pipeline.core.context import Context
from pipeline.core.verbs import Cancel, Stopped, TimedOut
from pipeline.ports import Call, Done


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a handler of the simulation comes to: it takes `ms`, then returns `value` or raises `error`. One that is
    `polite` ends as soon as its context says that it should."""

    ctx: Context
    ms: int
    value: Any = None
    error: BaseException | None = None
    polite: bool = False


@dataclass(slots=True, eq=False)
class Going:
    """A call that has begun."""

    call: Call
    plan: Plan
    spent: int = 0


class Hands:
    """Implements `ports.Executor`. `began(plan)` and `ended(plan)` are told of handlers; with `eager` 0 … 1 a call that
    finds a free place begins at once, else at the next look."""

    def __init__(
        self,
        places: int,
        random: Callable[[], Random],
        began: Callable[[Plan], None],
        ended: Callable[[Plan], None],
    ) -> None:
        self._places, self._random = places, random
        self._began, self._ended = began, ended
        self._queue: deque[Call] = deque()
        self._going: dict[int, Going] = {}
        self._done: list[Done] = []

    @property
    def idle(self) -> bool:
        return not (self._queue or self._going or self._done)

    @property
    def plans(self) -> list[Plan]:
        """Of the calls that execute, or whose results nobody has collected."""
        return [going.plan for going in self._going.values()]

    def advance(self, ms: int) -> None:
        """Time passes for this process."""
        self._begin()
        for going in list(self._going.values()):
            going.spent += ms
            self._look(going)

    def _begin(self) -> None:
        while self._queue and len(self._going) < self._places:
            call = self._queue.popleft()
            try:
                plan = call.function()
                if isinstance(plan, CoroutineType):
                    plan = _run(plan)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is its result
                self._done.append(Done(call.ticket, None, error))
                continue
            if isinstance(plan, Plan):
                going = self._going[call.ticket] = Going(call, plan)
                self._began(plan)
                self._look(going)
            else:
                self._done.append(Done(call.ticket, plan, None))

    def _look(self, going: Going) -> None:
        plan, limit = going.plan, going.call.timeout_ms
        if limit is not None and going.spent >= limit:
            self._end(going, None, TimedOut("its time is over"))
        elif plan.polite and plan.ctx.cancelled:
            self._end(going, None, Cancel("as asked"))
        elif going.spent >= plan.ms:
            self._end(going, plan.value, plan.error)

    def _end(self, going: Going, value: Any, error: BaseException | None) -> None:
        del self._going[going.call.ticket]
        self._ended(going.plan)
        self._done.append(Done(going.call.ticket, value, error))

    # -- the port -----------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        self._queue.append(call)
        if self._random().random() < 0.6:
            self._begin()

    def completed(self) -> list[Done]:
        self._begin()
        done, self._done = self._done, []
        return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        wanted = set(tickets)
        gone = {call.ticket for call in self._queue if call.ticket in wanted}
        self._queue = deque(call for call in self._queue if call.ticket not in gone)
        return gone

    def stop(self, tickets: Iterable[int]) -> None:
        wanted = set(tickets)
        waiting = self.withdraw(wanted)
        self._done += [Done(ticket, None, Stopped("stopped")) for ticket in waiting]
        for ticket in wanted - waiting:
            going = self._going.get(ticket)
            if going is not None and (going.call.asynchronous or going.call.task is not None):
                self._end(going, None, Stopped("stopped"))

    def close(self, timeout_ms: int) -> bool:
        self._queue.clear()
        self._going.clear()
        return True


def _run(coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """The coroutines of the simulation wait for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a handler of the simulation awaits nothing")
