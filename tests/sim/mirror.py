"""A read model that follows a simulated installation, and whether it says of every job what the follower says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from sim.world import LAYOUT, NAMES

from pipeline import queues
from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_follow import MemoryFollow
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import DuelineError, NotFound
from pipeline.core.ids import parse_id, schedule_occurrence
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.follower import Follower
from pipeline.follower.values import readable_event, readable_schedule
from pipeline.readmodel.body import open_run, unpack
from pipeline.readmodel.counts import FIGURES, figures_of
from pipeline.readmodel.finding import find
from pipeline.readmodel.folding import Folding
from pipeline.readmodel.open_runs import oldest
from pipeline.readmodel.processes import Processes
from pipeline.readmodel.rows import (
    ENDED,
    HOUR,
    JOB,
    LATE,
    LISTED,
    MINUTE,
    OPEN,
    QUEUED,
    SHARED,
    SHARING,
    after,
    ended_key,
    head_of,
    listed_key,
    minute_of,
    open_key,
    open_row,
    shared_key,
)
from pipeline.readmodel.session import topics_of
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.words import HANDLER, QUEUE, Words

COMPARED = ("status", "handler", "due_at", "queue", "key")


class Mirror:
    """Folds what is there in batches of any size, and begins again from what it has written whenever it likes."""

    def __init__(
        self,
        path: Path,
        cluster: MemoryCluster,
        names: Names = NAMES,
        layout: Layout = LAYOUT,
        seed: int = 0,
        workers: bool = False,
    ) -> None:
        """`workers`: all that ends a run is by workers, which commit it."""
        self.rows = RocksRows(path)
        self._long = RocksRows(path.with_name(f"{path.name}-long"))
        """Folded by the long way alone."""
        self._cluster, self._names, self._layout = cluster, names, layout
        self._random = Random(seed)
        self._workers = workers
        self._positions: dict[tuple[str, int], tuple[int, int | None]] = {
            (topic, partition): (-1, None)
            for topic in topics_of(names, layout)
            for partition in range(cluster.partitions(topic))
        }
        self.statuses = Counter[str]()
        self.begin()

    def begin(self) -> None:
        """From where it has written."""
        self.sheet = Sheet(self.rows)
        self._folding = Folding(self._names, self._layout, self.sheet, Processes())
        self._long_sheet = Sheet(self._long)
        self._long_folding = Folding(self._names, self._layout, self._long_sheet, Processes())
        self._long_folding.quick = False
        self._follow = MemoryFollow(self._cluster)
        self._follow.follow(self._positions)

    def catch_up(self) -> None:
        """Until all is folded."""
        while records := self._follow.poll(self._random.choice([1, 3, 10, 1_000]), 0):
            self._folding.take(records)
            self._long_folding.take(records)
            if self._random.random() < 0.1:
                self.begin()  # killed before it wrote
                continue
            self.sheet.write()
            self._long_sheet.write()
            self._positions = {place: (offset, None) for place, offset in self._follow.positions().items()}

    def check(self) -> None:
        """Every job, by every id that it has."""
        self.catch_up()
        follower = Follower(reader=MemoryReader(self._cluster), names=self._names, layout=self._layout)
        for id_ in sorted(self._ids()):
            try:
                told = follower.job(id_)
            except NotFound:
                continue  # compacted, or only a command
            try:
                view = find(self.rows, self.sheet.words, self._layout, id_)
            except NotFound as error:
                raise AssertionError(f"{id_}: {error}, and it is {told}") from error
            shown = view.story().shown
            mine: dict[str, Any] = {
                "status": str(view.status()),
                "handler": shown and shown.handler,
                "due_at": shown and told["due_at"],
                "queue": shown.queue if shown else told["queue"],
                "key": shown and shown.key,
            }
            known = {name: told[name] for name in COMPARED if told[name] is not None}
            assert {name: mine[name] for name in known} == known, f"{id_}: {mine}, and it is {told}"
            self.statuses[told["status"]] += 1
        self.check_counts()
        both = (dict(rows.scan(b"", b"\xff")) for rows in (self.rows, self._long))
        quick, long = ({k: v for k, v in each.items() if k[:1] not in b"NTIJMHA"} for each in both)
        for key in quick.keys() | long.keys():
            words = (self.sheet.words, self._long_sheet.words)
            assert _plain(key, quick.get(key), words[0]) == _plain(key, long.get(key), words[1])

    def _ids(self) -> set[str]:
        """Whatever is named anywhere."""
        found: set[bytes] = set()
        names = self._names
        for topic in (names.jobs, *(names.work(queue) for queue in self._layout.queues)):
            for partition in range(self._cluster.partitions(topic)):
                log = self._cluster.partition(topic, partition)
                for record in log.read(0, log.end + 1)[0]:
                    key = record.key()
                    found.add(key)
                    found.add(key[2:])
                    found.add(key[2:].rpartition(b"/")[0])
        ids = {key.decode("utf-8", "replace") for key in found} | set(self._instants())
        ids |= {id_.partition(".")[0] for id_ in ids if id_.startswith("k")}
        return {id_ for id_ in ids if _is_id(id_)}

    def _instants(self) -> Iterator[str]:
        """Occurrences that were told of, fired or not."""
        for topic in (self._names.jobs, self._names.events):
            for partition in range(self._cluster.partitions(topic)):
                log = self._cluster.partition(topic, partition)
                for record in log.read(0, log.end + 1)[0]:
                    yield from _told_in(record.key(), record.value())

    def check_counts(self) -> None:
        """What is kept beside the rows of jobs follows from them."""
        listed, ended, open_ = set(), set(), dict[bytes, bytes]()
        minutes: dict[int, list[int]] = {}
        totals = Sheet(self.rows).totals
        pairs = [tuple(pair) for pair in totals.shelves.told()["pairs"]]
        shelves, handlers, by_queue = (Counter[tuple[int, int]]() for _ in range(3))
        waiting = Counter[int]()
        for key, row in self.rows.scan(JOB, after(JOB)):
            head = head_of(row)
            if head.status:
                pair = head.handler, head.queue
                shelf = pairs.index(pair) if pair in pairs else SHARED
                listed.add(listed_key(head, shelf, key[1:]))
                shelves[head.status, shelf] += 1
                if shelf == SHARED:
                    listed |= {
                        shared_key(head, kind, n, key[1:])
                        for kind, n in zip((HANDLER, QUEUE), pair, strict=True)
                    }
                    handlers[head.status, head.handler] += 1
                    by_queue[head.status, head.queue] += 1
                figures = minutes.setdefault(minute_of(head.due_at), [0] * FIGURES)
                figures[head.status - 1] += 1
                figures[-1] += bool(head.flags & LATE)
            if head.ended_at:
                ended.add(ended_key(head, key[1:]))
            if (stands := open_run(row, head)) is not None:
                open_[open_key(head.queue, stands.partition, stands.offset)] = open_row(stands.since, key[1:])
                waiting[head.queue] += head.status == QUEUED
        assert {key for key, _ in self.rows.scan(LISTED, after(SHARING))} == listed
        assert {key for key, _ in self.rows.scan(ENDED, after(ENDED))} == ended
        kept = totals.shelves
        assert (kept.jobs, kept.handlers, kept.queues) == (shelves, handlers, by_queue)
        assert totals.ended == len(ended)
        assert (dict(self.rows.scan(OPEN, after(OPEN))), +totals.waiting) == (open_, +waiting)
        if self._workers:
            self._check_queues(totals.waiting)
        for kind, width in ((MINUTE, 1), (HOUR, 60)):
            wanted: dict[int, list[int]] = {}
            for minute, figures in minutes.items():
                sums = wanted.setdefault(minute // width, [0] * FIGURES)
                wanted[minute // width] = [a + b for a, b in zip(sums, figures, strict=True)]
            found = {
                int.from_bytes(key[1:], "big"): [*figures_of(value)]
                for key, value in self.rows.scan(kind, after(kind))
            }
            assert found == wanted

    def _check_queues(self, waiting: Counter[int]) -> None:
        """Beside what the topics say, read by other code."""
        scan = MemoryScan(self._cluster)
        for queue, partitions in self._layout.queues.items():
            told = queues.waiting(scan, self._names, queue, partitions).count
            number = self.sheet.words.known(QUEUE, queue)
            assert (0 if number is None else waiting[number]) == told
            since = queues.oldest_unended(scan, self._names, queue, partitions)
            assert oldest(self.sheet, queue, partitions, lambda _: 0) == since

    def close(self) -> None:
        self.rows.close()
        self._long.close()


def _told_in(key: bytes, value: bytes | None) -> Iterator[str]:
    state = readable_schedule(value) if key.startswith(b"s/") else None
    if state is not None:
        nominals = [state.next_nominal or 0, *state.buffer, *(each.nominal_at for each in state.recent)]
        for nominal in nominals:
            yield schedule_occurrence(state.spec.id, state.incarnation, "g", "", nominal)
        return
    event = readable_event(value)
    if event is not None and event.kind == "skipped":
        for nominal in (event.detail["first"], event.detail["last"]):
            kind = event.detail["kind"]
            if kind == "g":
                yield f"s:{event.detail['schedule']}:{event.detail['incarnation']}:g::{nominal}"


def _plain(key: bytes, value: bytes | None, words: Words) -> Any:
    """A row as it reads, with words for numbers, which are given in the order in which they come."""
    if value is None or not key.startswith(JOB):
        return value
    head = head_of(value)
    return (
        head.form,
        head.status,
        head.due_at,
        head.ended_at,
        head.flags,
        unpack(key[1:].decode(), value, words),
    )


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except DuelineError:
        return False
    return True
