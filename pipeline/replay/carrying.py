"""Carrying a replay out: round by round, each asked of the owners and answered before its place is noted.

    read a round ──▶ leave out what was acked meanwhile ──▶ a command for each home ──▶ their answers ──▶ note the place

A few rounds are under way at once, so that owners are never idle. The place that is noted lies behind rounds that are
answered in full: whoever resumes a replay whose process was killed reads the rounds after it again, and finds most of
their occurrences run again by then. What was asked for and not executed yet is asked for twice; its owner then finds
a later run than the one seen, and emits none (`superseded`).

Before each round, and before each word that it writes, the process looks whether the replay is still its own: it may
have stood still while somebody cancelled it, or took it up elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.client.commands import Sent, answer_of, send
from pipeline.client.connection import Connection
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.ports import Scan
from pipeline.replay.batches import Batch, batched, command_of
from pipeline.replay.chosen import Chosen, Stretch
from pipeline.replay.counts import REFUSED, counts_in, within
from pipeline.replay.reading import Reread, Rereading
from pipeline.replay.record import Replay, ReplayState
from pipeline.replay.register import Register
from pipeline.survey import Ground, Part

FIRST_ROUND, LEAST_ROUND, ROUND = 200, 10, 5_000
QUICK_S, SLOW_S = 1.0, 5.0
"""A round that is answered sooner is followed by a larger one, one that takes longer by a smaller one."""
UNDER_WAY = 3
PATIENCE_MS = 300_000
"""So long an answer is waited for: an owner may be far behind, or bound by the rate of the queue."""
LOOK_S, SLICE_S, LAST_ANSWERS_S = 1.0, 0.5, 5.0
SAVE_S, SAVE_SHARE = 10.0, 0.05
"""A word on how far it is comes after a twentieth of the time that the replay has taken, a second at least, and after
10 s at most: one that takes a day must not fill the topic."""
BURST_S = 0.1
"""So much of a pause is made up for by going faster than the rate afterwards."""
ROUNDS_A_SECOND = 5


class Unanswered(DuelineError):
    """Start a dispatcher, then resume the replay: what was asked for is stored and will be done."""


class _Cancelled(Exception):
    """Somebody has asked for its end."""


class Round(NamedTuple):
    """Commands under way; the place behind what they are about; how many of it were left out, and when they were
    sent (monotonic s)."""

    sent: list[tuple[Batch, Sent | str]]
    part: Part
    offset: int
    left_out: Counter[str]
    began: float


@dataclass(slots=True)
class Pace:
    """When the next round may go, and how large it is."""

    rate: float | None
    """Runs a second; None: as many as are taken."""
    size: int = FIRST_ROUND
    _next: float | None = None

    def __call__(self) -> int:
        if self.rate is None:
            return self.size
        return max(1, min(self.size, int(self.rate / ROUNDS_A_SECOND)))

    def delay(self, runs: int, now: float) -> float:
        """In how many seconds so many runs may be asked for; `now` = monotonic s."""
        if self.rate is None:
            return 0.0
        begin = now if self._next is None else max(self._next, now - BURST_S)
        self._next = begin + runs / self.rate
        return max(0.0, begin - now)

    def took(self, seconds: float) -> None:
        """A round was answered after so long."""
        if seconds < QUICK_S:
            self.size = min(ROUND, self.size * 2)
        elif seconds > SLOW_S:
            self.size = max(LEAST_ROUND, self.size // 2)


class Carrying:
    """One replay that this process carries out. One thread."""

    def __init__(
        self,
        *,
        connection: Connection,
        ground: Ground,
        acks: Scan,
        register: Register,
        now: Callable[[], int],
        tell: Callable[[Replay], None] = lambda replay: None,
    ) -> None:
        """`acks` reads acks while `ground` reads runs; `tell` is told after each round; `now` is the store's clock,
        epoch ms."""
        self._connection = connection
        self._ground, self._acks = ground, acks
        self._register = register
        self._now = now
        self._tell = tell
        self._under_way: deque[Round] = deque()
        self._began = self._saved = self._looked = time.monotonic()

    def carry_out(self, replay: Replay, chosen: Chosen) -> Replay:
        """Until it is finished or cancelled; how it stands then, which is not written yet.

        Unanswered, StoreUnreachable: what was done until then is noted, and it can be resumed. Refused if it is no
        longer this process's."""
        assert replay.runner is not None
        self._replay, self._runner = replay, replay.runner
        self._pace = Pace(replay.rate)
        try:
            for stretch in chosen.stretches:
                if stretch.part >= replay.part:
                    self._part(stretch, chosen)
            while self._under_way:
                self._settle()
        except _Cancelled:
            self._hear_the_last()
            by = self._register.cancelled_by(replay.id) or ""
            return replace(self._replay, state=ReplayState.CANCELLED, reason=by)
        except BaseException:
            self._leave()
            raise
        return replace(self._replay, state=ReplayState.FINISHED)

    def _part(self, stretch: Stretch, chosen: Chosen) -> None:
        since = self._replay.offset if stretch.part == self._replay.part else 0
        reading = Rereading(self._ground, self._acks, stretch, self._replay, self._heed)
        for round_ in reading.rounds(chosen, since, self._pace):
            while len(self._under_way) >= UNDER_WAY:
                self._settle()
            self._sleep(self._pace.delay(len(round_), time.monotonic()))
            self._ask(stretch, round_, reading)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._heed()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))
            self._heed()

    def _heed(self) -> None:
        """Say that this process lives, and look at the record, now and then. Raises as `_look`."""
        now = time.monotonic()
        if now - self._saved > min(SAVE_S, max(LOOK_S, (now - self._began) * SAVE_SHARE)):
            self._save()
        if now - self._looked > LOOK_S:
            self._look()

    def _look(self) -> None:
        """_Cancelled if somebody has asked for the end of the replay; Refused if it is no longer this process's."""
        self._looked = time.monotonic()
        self._register.check(self._replay.id, self._runner)
        if self._register.cancelled_by(self._replay.id) is not None:
            raise _Cancelled

    def _ask(self, stretch: Stretch, round_: Sequence[Reread], reading: Rereading) -> None:
        found, left_out = reading.fresh(round_)
        batches, homeless = batched(found, self._connection.layout)
        began = time.monotonic()
        self._look()
        sent = []
        for batch in batches:
            self._heed()  # it may stand still between any two
            sent.append((batch, self._send(batch, stretch.part.queue)))
        left_out[REFUSED] += homeless
        after = round_[-1].spot.offset + 1
        self._under_way.append(Round(sent, stretch.part, after, left_out, began))

    def _send(self, batch: Batch, queue: str) -> Sent | str:
        command = command_of(batch, queue, self._replay.id, self._replay.requested_by)
        try:
            return send(self._connection, command, PATIENCE_MS, batch.home)
        except StoreUnreachable:
            raise
        except DuelineError as error:  # a run that fills a message leaves no room for a command around it
            return str(error)

    def _settle(self) -> None:
        """Wait for the answers to the oldest round, and note its place."""
        oldest = self._under_way[0]
        counts = Counter(self._replay.counts) + oldest.left_out
        reason = self._replay.reason
        for batch, sent in oldest.sent:
            outcomes, problem = self._outcomes(batch, sent)
            counts += outcomes
            reason = reason or problem
        self._under_way.popleft()
        self._pace.took(time.monotonic() - oldest.began)
        self._replay = replace(
            self._replay,
            counts=within(self._replay.matched, counts),
            reason=reason,
            part=oldest.part,
            offset=oldest.offset,
        )
        self._tell(self._replay)

    def _outcomes(self, batch: Batch, sent: Sent | str) -> tuple[Counter[str], str]:
        if isinstance(sent, str):
            return Counter({REFUSED: len(batch.values)}), sent
        assert sent.answer is not None, "an answer is waited for"
        while time.monotonic() < sent.deadline and not wait((sent.answer,), SLICE_S).done:
            self._heed()
        try:
            event = answer_of(self._connection, sent)
        except StoreUnreachable:
            raise
        except DuelineError as error:
            return Counter({REFUSED: len(batch.values)}), str(error)
        if event is None:
            raise Unanswered(
                f"no owner answered within {PATIENCE_MS / 1000:g} s: does a `dueline dispatcher` run?"
                f" What was asked for is stored; go on with `dueline replay resume {self._replay.id}`"
            )
        return counts_in(event), event.reason or ""

    def _save(self) -> None:
        self._saved = time.monotonic()
        self._replay = replace(self._replay, updated_at=self._now())
        self._register.save(self._replay, self._runner)

    def _hear_the_last(self) -> None:
        """What was asked for before the end is still done: an owner that is at it has answered in a moment."""
        answers = [
            sent.answer for round_ in self._under_way for _, sent in round_.sent if isinstance(sent, Sent)
        ]
        wait([answer for answer in answers if answer is not None], LAST_ANSWERS_S)

    def _leave(self) -> None:
        """It is not finished: whoever resumes it need not wait until this process counts as gone."""
        self._replay = replace(self._replay, runner=None)
        try:
            self._save()
        except DuelineError:
            return  # its record is as it was a few seconds ago, or another's
