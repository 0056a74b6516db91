"""Which due entries the next transaction settles: lanes, rates and the size of a batch (DESIGN §5.10).

The queue of a partition is read from its front: what the owner owes at once, then jobs in order of due time. While a
backlog fills a batch by itself, what is due now gets a lane of its own beside it, so a catch-up delays nobody; and the
transaction is kept short, since all behind it on the same work partitions wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.job import EARLIEST
from pipeline.core.rates import Rates
from pipeline.partition import Partition
from pipeline.portion import Portion, at_most, weight
from pipeline.ports import Action, Entry

BATCH_LIMIT = 8_000
"""Jobs of one transaction at most."""
FIRST_LIMIT = 2_000
LEAST_LIMIT = 100
"""However slow the store is, a batch need not be smaller than this for its sake."""
BATCH_BYTES = 8 * 1024 * 1024
"""And this many bytes: a transaction that a slow link cannot take within its time would be tried for ever."""
ON_TIME_MS = 1_000
"""A job that is overdue for less is on time: it goes before a backlog."""
SHARED_MS, ALONE_MS = 40, 150
"""How long a batch may take while jobs on time or commands wait behind it, and while nothing does."""
SHARED_FOR_MS = 2_000
"""A backlog shares the way for so long after anything else was last seen beside it."""
THROTTLED_MS = 10
AHEAD_MS = 50
"""A replay takes the places of its queue's rate that fall into so long at once."""

Chosen = list[tuple[Partition, list[Entry]]]


class Choice:
    """What one dispatcher settles next. Times are ms by the store's clock."""

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates or Rates()
        self._limit = FIRST_LIMIT
        self._turn = 0
        self._shared_until = 0
        self._slots: dict[str, float] = {}
        """By queue: when the next run may be emitted to it."""
        self._tokens, self._filled_at = 0.0, 0
        self.throttled = False
        """Whether overdue jobs wait for their rate alone."""

    def next(self, running: Sequence[Partition], now: int, share: float) -> Chosen:
        """The entries of the next transaction; `share` = the part of all partitions that run here."""
        self.throttled = False
        self._refill(now, share)
        chosen, full = self._front(self._ready(running, now), now)
        fresh = self._on_time(full, now)
        if full and (fresh or any(_urgent(entries, now) for _, entries in chosen)):
            self._shared_until = now + SHARED_FOR_MS
        # One list for a partition: a command at its front may be about a job in its lane.
        whole = [(p, entries + fresh.pop(p.number, [])) for p, entries in chosen]
        return [(p, kept) for p, entries in whole if (kept := self._paced(p, entries, now, share))]

    def _ready(self, running: Sequence[Partition], now: int) -> list[Partition]:
        """Those where something is due; another one first each time, so that a full one cannot starve the others."""
        ready = [p for p in running if (due := p.next_due()) is not None and due <= now]
        turn = self._turn % len(ready) if ready else 0
        self._turn += 1
        return ready[turn:] + ready[:turn]

    def _front(self, running: Sequence[Partition], now: int) -> tuple[Chosen, list[Partition]]:
        """Entries from the front of each queue, and the partitions where jobs on time may stand behind them."""
        chosen: Chosen = []
        full: list[Partition] = []
        left, room = self._limit, BATCH_BYTES
        for i, partition in enumerate(running):
            if left <= 0 or room <= 0:
                break
            quota = max(1, left // (len(running) - i))
            entries = _fitting(partition.due(now, quota, room), quota)
            if not entries:
                continue
            taken = weight(entries)
            left -= taken
            room -= sum(len(entry.value) for entry in entries)
            overdue = entries[-1].fire_at < now - ON_TIME_MS or entries[-1].action == Action.REPLAY
            entries = self._throttle(entries, now)
            if overdue and (self.throttled or left <= 0 or room <= 0 or taken >= quota):
                full.append(partition)
            chosen.append((partition, entries))
        return chosen, full

    def _on_time(self, full: Sequence[Partition], now: int) -> dict[int, list[Entry]]:
        """By partition: the lane of jobs on time, where a backlog stands before them."""
        lanes: dict[int, list[Entry]] = {}
        for partition in full:
            share = max(1, BATCH_LIMIT // len(full))
            entries = partition.due(now, share, BATCH_BYTES // len(full), now - ON_TIME_MS)
            on_time = [entry for entry in entries if entry.action != Action.REPLAY]
            if on_time:
                lanes[partition.number] = on_time
        return lanes

    # -- rates --------------------------------------------------------------------------------------------------

    def _refill(self, now: int, share: float) -> None:
        rate = self._rates.catchup
        if rate is None:
            return
        passed = min(max(now - self._filled_at, 0), 1_000)
        self._tokens = min(self._tokens + passed * rate * share / 1000, max(rate * share, 1.0))
        self._filled_at = now

    def _throttle(self, entries: list[Entry], now: int) -> list[Entry]:
        """What of these the catch-up rate lets pass; what is no overdue job always does."""
        if self._rates.catchup is None:
            return entries
        passed = []
        for entry in entries:
            if entry.action == Action.REPLAY or EARLIEST < entry.fire_at < now - ON_TIME_MS:
                if self._tokens < 1:
                    self.throttled = True
                    continue
                entry = _at_most(entry, int(self._tokens))
                self._tokens -= weight((entry,))
            passed.append(entry)
        return passed

    def _paced(self, partition: Partition, entries: list[Entry], now: int, share: float) -> list[Entry]:
        """What the rates of their queues let pass. The others get the next free place of their queue, and come
        again then: a queue that is full holds up no other."""
        rates = self._rates.queues
        if not rates:
            return entries
        passed, later = [], []
        for entry in entries:
            queue = _paced_queue(entry)
            rate = rates.get(queue)
            if rate is None:
                passed.append(entry)
                continue
            slot = max(self._slots.get(queue, 0.0), float(now))
            step = 1000 / (rate * share)
            if entry.action == Action.REPLAY:
                # It takes places that are free now and reserves none: whatever is due on time goes before it.
                if slot > now:
                    later.append(entry._replace(fire_at=int(slot)))
                    continue
                entry = at_most(entry, max(1, int(AHEAD_MS / step)))
            self._slots[queue] = slot + step * weight((entry,))
            if slot <= now:
                passed.append(entry)
            else:
                later.append(entry._replace(fire_at=int(slot), action=Action.GRANTED))
        partition.postpone(later)
        return passed

    # -- the size of a batch --------------------------------------------------------------------------------------

    def took(self, jobs: int, ms: int, now: int) -> None:
        """A batch of so many entries took so long from choice to commit: the next one is sized by it."""
        aim = SHARED_MS if now < self._shared_until else ALONE_MS
        fitting = jobs * aim // max(ms, 1)
        if ms > aim:
            self._limit = max(LEAST_LIMIT, min(self._limit, fitting))
        elif (
            jobs * 2 > self._limit
        ):  # no further than what would have fitted: twice as many may take twice as long
            self._limit = min(BATCH_LIMIT, self._limit * 2, max(self._limit, fitting))

    def refused(self, jobs: int) -> None:
        """A batch did not go through: it may have been too much for its time-out."""
        self._limit = max(1, jobs // 2)


def _fitting(entries: list[Entry], quota: int) -> list[Entry]:
    """As many of these as are worth `quota` entries, and one at least; of a replay only some of its runs."""
    if all(entry.action != Action.REPLAY for entry in entries):
        return entries
    fitting: list[Entry] = []
    for entry in entries:
        if quota <= 0:
            break
        fitting.append(_at_most(entry, quota))
        quota -= weight(fitting[-1:])
    return fitting


def _at_most(entry: Entry, runs: int) -> Entry:
    return at_most(entry, runs) if entry.action == Action.REPLAY else entry


def _paced_queue(entry: Entry) -> str:
    """The queue whose rate counts for it; of what has its place already, and of what emits nothing, none."""
    if entry.action == Action.REPLAY:
        return Portion.of(entry.detail).queue
    return entry.detail.rpartition("/")[0] if entry.action == Action.FIRE else ""


def _urgent(entries: Sequence[Entry], now: int) -> bool:
    """Whether a command or a job on time is among these, which are in the order of a queue."""
    last = next((entry for entry in reversed(entries) if entry.action != Action.REPLAY), None)
    return last is not None and (entries[0].fire_at < EARLIEST or last.fire_at >= now - ON_TIME_MS)


def halves(chosen: Chosen, size: int) -> tuple[Chosen, Chosen]:
    """The first `size` entries, and the others."""
    first: Chosen = []
    second: Chosen = []
    for partition, entries in chosen:
        cut = max(size, 0)
        first.append((partition, entries[:cut]))
        second.append((partition, entries[cut:]))
        size -= len(entries)
    return first, second
