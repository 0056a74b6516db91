"""What of one work partition is finished: from acks in any order to an offset that can be committed.

The committed offset is the low-water mark, below which everything is finished; what finished above it travels
in the offset metadata, so that a takeover does not start it again (DESIGN §7). Only delivered offsets count:
markers and compacted records leave gaps that nobody waits for. Putting the finished set into the metadata is
the idea of Confluent's parallel-consumer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from pipeline.core.offset_metadata import (
    WINDOW_LIMIT,
    WORKER_LIMIT,
    OffsetMetadata,
    Start,
    check_start,
    decode,
    encode,
)

__all__ = ["AckTracker", "OffsetMetadata", "Start"]

_FRAME = len("1;;;;") + 19
_NEW_HOLDER = 19 + len("@,") + WORKER_LIMIT
_NEW_REPEAT = len(".255")


class AckTracker:
    """One work partition in one assignment. Not thread-safe: its owner's thread calls everything.

    Order of calls: `deliver` every record read, `begin` once its started record is durable, `finish` only
    after the transaction that carried its ack and what `committable` said has committed.
    All calls take constant time, but `committable` that of the offsets up to the last one started, and `room` that of
    their different starts.
    """

    __slots__ = (
        "_acks_offset", "_ahead", "_ahead_end", "_begun", "_head", "_last", "_next", "_nodes", "_recovered",
        "_runs", "_sizes", "_top",
    )  # fmt: skip

    def __init__(self, mark: int, metadata: OffsetMetadata) -> None:
        self._next = mark
        self._acks_offset = metadata.acks_offset
        # What a predecessor finished and started, not passed by our reading yet.
        self._ahead = deque(metadata.finished)
        self._recovered = dict(metadata.started)
        self._ahead_end = max([mark, *(last for _, last in metadata.finished), *self._recovered])
        self._head = self._last = _Unfinished(-1, None)
        self._nodes: dict[int, _Unfinished] = {}
        self._top = -1
        """No offset above was ever started, or has a finished one behind it: they just wait."""
        self._begun = 0
        self._runs = len(self._ahead)
        self._sizes = Counter(self._recovered.values())
        """How many unfinished offsets have which latest start: nearly all the same few."""

    @classmethod
    def from_committed(cls, offset: int, metadata: str) -> AckTracker:
        """Where the last commit left the partition. StopPartition if the metadata cannot be read in full."""
        return cls(offset, decode(offset, metadata))

    @property
    def mark(self) -> int:
        """The lowest unfinished offset, or the next one to read: what may be committed now."""
        first = self._head.next
        return self._next if first is None else first.offset

    @property
    def next_offset(self) -> int:
        """Everything below was delivered here, or was finished before, or will never be delivered."""
        return self._next

    @property
    def acks_offset(self) -> int:
        """Up to where (exclusive) on the acks partition the last commit knew all starts; 0 if unknown."""
        return self._acks_offset

    @property
    def unfinished(self) -> int:
        """Number of offsets delivered and not finished."""
        return len(self._nodes)

    @property
    def in_flight(self) -> int:
        """Number of unfinished offsets begun in this assignment."""
        return self._begun

    def deliver(self, offset: int) -> bool:
        """Whether this record is to be run: False if it was finished, or delivered in this assignment."""
        if offset < self._next:
            return False
        if self._ahead or self._recovered:
            return self._deliver_recovering(offset)
        self._append(offset)
        return True

    def passed(self, next_offset: int) -> None:
        """The reader stands at `next_offset` and everything it was given below has been delivered here."""
        self._pass(next_offset)

    def last_start(self, offset: int) -> Start | None:
        """The latest known start of an unfinished offset, here or by a predecessor."""
        node = self._nodes.get(offset)
        return self._recovered.get(offset) if node is None else node.start

    def starts(self, offset: int) -> int:
        """How often an unfinished offset was started so far; 0 if it never was, or is not unfinished."""
        start = self.last_start(offset)
        return 0 if start is None else start.starts

    def room(self) -> int:
        """How many more starts keep the text within 3,500 bytes, however the runs end, if they share one token and
        worker; further ones are for the caller to be sparing with. Ask before `begin`.

        A lower bound: each started offset is written as one start or, once finished, as at most one run.
        """
        digits = len(str(max(self._next, self._ahead_end) - self.mark))
        holders = {(token, worker) for _, token, worker in self._sizes}
        run = 2 * digits + len("+,")
        start = digits + len(".,") + len(str(len(holders)))
        taken = _FRAME + (self._runs + self._sizes.total()) * max(run, start)
        taken += sum(len(f"{token}@{worker},") for token, worker in holders)
        taken += sum(count * len(f".{starts}") for (starts, *_), count in self._sizes.items() if starts > 1)
        return max(0, (WINDOW_LIMIT - taken - _NEW_HOLDER) // (max(run, start) + _NEW_REPEAT))

    @property
    def recovering(self) -> bool:
        """Whether a predecessor started runs that have not been delivered here yet."""
        return bool(self._recovered)

    def recovered(self, offset: int) -> Start | None:
        """What a predecessor started at this offset, which has not been delivered here yet."""
        return self._recovered.get(offset) if self._recovered else None

    def begin(self, offset: int, start: Start) -> None:
        """The started record of a delivered offset is durable. ValueError if it is not unfinished."""
        node = self._unfinished(offset)
        if start not in self._sizes:
            check_start(start)
        self._begun += not node.begun
        node.begun = True
        self._replace_start(node, start)

    def forget_start(self, offset: int, earlier: Start | None) -> None:
        """The latest start of an unfinished offset was given back; `earlier` = what counts of those before it, if
        anything. ValueError if the offset is not unfinished."""
        node = self._unfinished(offset)
        self._begun -= node.begun
        node.begun = False
        self._replace_start(node, earlier)

    def _replace_start(self, node: _Unfinished, start: Start | None) -> None:
        if node.start is not None:
            self._drop(node.start)
        node.start = start
        if start is not None:
            if node.offset > self._top:
                self._top = node.offset
            self._sizes[start] = self._sizes.get(start, 0) + 1

    def _drop(self, start: Start) -> None:
        left = self._sizes[start] - 1
        if left:
            self._sizes[start] = left
        else:
            del self._sizes[start]

    def finish(self, offset: int) -> None:
        """A delivered offset is finished, durably. ValueError if it is not unfinished."""
        node = self._unfinished(offset)
        del self._nodes[offset]
        previous, following = node.previous, node.next
        previous.next = following
        if following is None:
            self._last = previous
        else:
            following.previous = previous
        if node.start is not None:
            self._drop(node.start)
        self._begun -= node.begun
        self._runs -= node.done > offset
        self._finished_after(previous, node.done)

    def committable(self, finishing: Iterable[int] = (), acks_offset: int | None = None) -> tuple[int, str]:
        """(offset, metadata) to commit if `finishing` were finished too; changes nothing.

        `acks_offset` = up to where our starts on the acks partition are complete; None = the last commit's.
        """
        ending = frozenset(finishing)
        until = max(self._top, max(ending, default=-1))
        kept = [node for node in self._in_order(until) if node.offset not in ending]
        mark = kept[0].offset if kept else self._next
        metadata = OffsetMetadata(
            acks_offset=self._acks_offset if acks_offset is None else acks_offset,
            finished=(*self._runs_between(kept, ending), *self._ahead),
            started=(
                *((node.offset, node.start) for node in kept if node.start is not None),
                *self._recovered.items(),
            ),
        )
        return mark, encode(mark, metadata)

    def _deliver_recovering(self, offset: int) -> bool:
        self._pass(offset)
        if offset < self._next:
            return False
        self._append(offset)
        self._last.start = self._recovered.pop(offset, None)
        self._top = offset
        self._pass(offset + 1)
        return True

    def _append(self, offset: int) -> None:
        self._last = self._nodes[offset] = _Unfinished(offset, self._last)
        self._next = offset + 1

    def _pass(self, next_offset: int) -> None:
        self._next = max(self._next, next_offset)
        while self._ahead and self._ahead[0][0] <= self._next:
            _, done = self._ahead.popleft()
            self._next = max(self._next, done + 1)
            self._runs -= 1
            self._finished_after(self._last, done)
        while self._recovered and (gone := next(iter(self._recovered))) < self._next:
            self._drop(self._recovered.pop(gone))

    def _finished_after(self, node: _Unfinished, done: int) -> None:
        # Behind the head lies what is below the mark: nobody writes it.
        if node is not self._head:
            self._runs += node.done == node.offset
            node.done = done
            self._top = max(self._top, node.offset)

    def _unfinished(self, offset: int) -> _Unfinished:
        node = self._nodes.get(offset)
        if node is None:
            raise ValueError(f"offset {offset} is not unfinished in this assignment")
        return node

    def _in_order(self, until: int = 1 << 63) -> Iterator[_Unfinished]:
        """Those up to this offset, and one more."""
        node = self._head.next
        while node is not None:
            yield node
            node = node.next if node.offset <= until else None

    def _runs_between(self, kept: list[_Unfinished], ending: frozenset[int]) -> Iterator[tuple[int, int]]:
        for node in kept:
            done, following = node.done, node.next
            while following is not None and following.offset in ending:
                done, following = following.done, following.next
            if done > node.offset:
                yield node.offset + 1, done


class _Unfinished:
    """A delivered, unfinished offset, linked to its neighbours.

    `done` is the last finished offset before the next unfinished one, or `offset` itself if there is none.
    """

    __slots__ = ("begun", "done", "next", "offset", "previous", "start")

    def __init__(self, offset: int, previous: _Unfinished | None) -> None:
        self.offset = offset
        self.previous: _Unfinished = self if previous is None else previous
        self.next: _Unfinished | None = None
        self.done = offset
        self.start: Start | None = None
        self.begun = False
        if previous is not None:
            previous.next = self
