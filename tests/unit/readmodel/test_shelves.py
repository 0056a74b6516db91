"""Lists by handler and queue beside a plain filter over all jobs, whatever became of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from unit.readmodel.test_jobs import DUE, run_of
from unit.readmodel.test_lists import put_keyed

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.job import AckState, JobStatus, Run
from pipeline.readmodel import JobsWanted, shelves
from pipeline.readmodel.body import unpack
from pipeline.readmodel.folding import Folding
from pipeline.readmodel.forgetting import Retention, forget
from pipeline.readmodel.lists import JobList
from pipeline.readmodel.processes import Processes
from pipeline.readmodel.rows import JOB, Head, after, due_bytes, head_of
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.shelves import Narrowed, Shelves
from pipeline.readmodel.words import OTHER

QUEUES, HANDLERS = ("default", "mail", "sms", "slow"), ("a", "b", "c")
PENDING = frozenset({JobStatus.PENDING})


class Desk:
    """A fold without a thread, and the list of what it has written."""

    def __init__(self, store: Any, path: Path) -> None:
        self.rows, self._store = RocksRows(path), store
        self._read: dict[tuple[str, int], int] = {}
        self.begin()

    def begin(self) -> None:
        """From what is written."""
        self.sheet = Sheet(self.rows)
        self._folding = Folding(self._store.names, self._store.layout, self.sheet, Processes())

    @property
    def jobs(self) -> JobList:
        return JobList(self.rows, self.sheet.words, self.sheet.totals.shelves)

    def fold(self) -> None:
        """What has come, in one batch."""
        names, cluster = self._store.names, self._store.cluster
        queues = [of(queue) for queue in self._store.layout.queues for of in (names.work, names.acks)]
        for topic in (names.jobs, *queues):
            for number in range(cluster.partitions(topic)):
                begin = self._read.get((topic, number), 0)
                records, self._read[topic, number] = cluster.partition(topic, number).read(begin, 100_000)
                self._folding.take(records)
        self.sheet.write()

    def forget(self, most: int) -> None:
        forget(self.sheet, DUE, Retention(ended_most=most))
        self.sheet.write()

    def all(self, wanted: JobsWanted, limit: int) -> list[str]:
        """Page by page."""
        found, place, more = list[str](), None, True
        while more:
            page, place, _ = self.jobs.page(wanted, limit, place)
            found += [each.id for each in page]
            more = place is not None
        return found


@pytest.fixture
def desk(store: Any, tmp_path: Path) -> Iterator[Desk]:
    store.add_queues(dict.fromkeys(QUEUES[1:], 2))
    desk = Desk(store, tmp_path / "rows")
    yield desk
    desk.rows.close()


def filtered(desk: Desk, wanted: JobsWanted) -> list[str]:
    """The same by looking at every job."""
    found = []
    for key, row in desk.rows.scan(JOB, after(JOB)):
        id_, head = key[1:].decode(), head_of(row)
        tale = unpack(id_, row, desk.sheet.words)
        run, status = tale.story().shown, tale.status()
        if status is None:
            continue
        labels = {} if run is None else run.labels
        fits = (  # of some no run is known
            (not wanted.statuses or status in wanted.statuses)
            and wanted.handler in (None, run and run.handler)
            and (queue := run.queue if run else tale.queue) == (wanted.queue or queue)
            and (wanted.queues is None or queue in wanted.queues)
            and wanted.labels.items() <= labels.items()
            and (wanted.due_from is None or head.due_at >= wanted.due_from)
            and (wanted.due_to is None or head.due_at < wanted.due_to)
        )
        if fits:
            found.append((due_bytes(head.due_at), id_))
    return [id_ for _, id_ in sorted(found, reverse=wanted.order == "-due")]


class Life:
    """What happens to jobs, by chance."""

    def __init__(self, store: Any, chance: Random) -> None:
        self._store, self._chance = store, chance
        self._waiting: list[Run] = []
        self._ended: list[Run] = []

    def step(self) -> None:
        chance = self._chance
        step = chance.choice(
            [self.create, self.create, self.key, self.move, self.cancel, self.run, self.replay]
        )
        step(self._store)

    def _kind(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "queue": chance.choice(QUEUES[:3]),
            "handler": chance.choice(HANDLERS),
            "labels": chance.choice([{}, {}, {"team": "x"}]),
        }

    def _due(self) -> int:
        return DUE + self._chance.randrange(40) * 7_000

    def _taken(self, runs: list[Run]) -> Run | None:
        return runs.pop(self._chance.randrange(len(runs))) if runs else None

    def create(self, store: Any) -> None:
        run = run_of(self._chance.getrandbits(40), due_at=self._due(), **self._kind())
        store.put(run)
        self._waiting.append(run)

    def key(self, store: Any) -> None:
        """A new incarnation of a key, or the same at another time, on another queue."""
        put_keyed(
            store, f"k{self._chance.randrange(4)}", self._due(), self._chance.randrange(7, 10), **self._kind()
        )

    def move(self, store: Any) -> None:
        if (run := self._taken(self._waiting)) is not None:
            moved = replace(run, due_at=self._due())
            store.put(moved)
            self._waiting.append(moved)

    def cancel(self, store: Any) -> None:
        if (run := self._taken(self._waiting)) is not None:
            store.end(run, "cancelled")

    def run(self, store: Any) -> None:
        if (run := self._taken(self._waiting)) is not None:
            store.fire(run)
            states = [AckState.STARTED, AckState.SUCCEEDED, AckState.DEAD]
            for state in states[: self._chance.randrange(4)]:
                store.ack(run, state)
            self._ended.append(run)

    def replay(self, store: Any) -> None:
        if (run := self._taken(self._ended)) is not None:
            again = replace(run, run=run.run + 1)
            store.put(again)
            self._waiting.append(again)


def question(chance: Random) -> JobsWanted:
    some = [
        None,
        None,
        frozenset(chance.sample(QUEUES, 2)),
        frozenset(chance.sample(QUEUES, 1)),
        frozenset[str](),
    ]
    return JobsWanted(
        statuses=frozenset(chance.sample([*JobStatus], chance.choice([0, 0, 1, 3]))),
        handler=chance.choice([None, None, *HANDLERS, "nobody"]),
        queue=chance.choice([None, None, None, *QUEUES, "none"]),
        queues=chance.choice(some),
        labels=chance.choice([{}, {}, {}, {"team": "x"}]),
        due_from=chance.choice([None, None, DUE + 50_000]),
        due_to=chance.choice([None, None, DUE + 200_000]),
        order=chance.choice(["due", "-due"]),
    )


class Case(NamedTuple):
    shared: int
    words: int


CASES = {
    "own": Case(255, 60_000),
    "some share": Case(3, 60_000),
    "all": Case(0, 60_000),
    "no numbers": Case(3, 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_pages_and_counts_are_those_of_a_filter(
    store: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    monkeypatch.setattr(shelves, "SHARED", CASES[name].shared)
    monkeypatch.setattr("pipeline.readmodel.words.MOST", CASES[name].words)
    chance = Random(seed)
    life, matched = Life(store, chance), 0
    for _ in range(6):
        for _ in range(chance.randrange(1, 40)):
            life.step()
        desk.fold()
        if chance.random() < 0.3:
            desk.begin()
        if chance.random() < 0.3:
            desk.forget(most=chance.randrange(5))
        for _ in range(15):
            wanted = question(chance)
            expected = filtered(desk, wanted)
            assert desk.all(wanted, chance.choice([1, 3, 200])) == expected, wanted
            assert desk.jobs.count(wanted, 1_000) == (len(expected), False), wanted
            matched += bool(expected)
    assert matched > 10


def test_a_few_among_very_many_are_found_at_once(store: Any, desk: Desk) -> None:
    """Of whoever is limited to their queue too."""
    few, many = list[str](), 10_500
    for n in range(many):
        run = run_of(n, due_at=DUE + n, queue="mail" if n % 105 == 5 else "default")
        store.put(run)
        if run.queue == "mail":
            few.append(run.job_id)
    desk.fold()
    for wanted in (JobsWanted(queue="mail"), JobsWanted(queues=frozenset({"mail", "sms"}), statuses=PENDING)):
        found, place, scanned = desk.jobs.page(wanted, 50, None)
        assert ([each.id for each in found], scanned) == (few[:50], 50)
        rest, place, scanned = desk.jobs.page(wanted, 200, place)
        assert ([each.id for each in rest], place, scanned) == (few[50:], None, 50)
    assert desk.jobs.count(JobsWanted(queue="mail", due_from=DUE + many // 2), 10_000) == (50, False)


def test_what_shares_a_shelf_is_found_by_its_queue_or_handler(
    store: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever are fewer."""
    monkeypatch.setattr(shelves, "SHARED", 0)
    kinds = [("default", "a")] * 6 + [("mail", "a")] * 3 + [("default", "b")] * 2 + [("mail", "b")]
    runs = [
        run_of(n, due_at=DUE + n, queue=queue, handler=handler) for n, (queue, handler) in enumerate(kinds)
    ]
    for run in runs:
        store.put(run)
    desk.fold()
    looked = {
        "of a queue": (JobsWanted(queue="mail"), 4, 4),
        "of a handler": (JobsWanted(handler="b"), 3, 3),
        "of both": (JobsWanted(queue="default", handler="b"), 2, 3),
        "of none": (JobsWanted(queue="sms", handler="b"), 0, 0),
    }
    for name, (wanted, number, most) in looked.items():
        found, _, scanned = desk.jobs.page(wanted, 50, None)
        assert (name, len(found), scanned) == (name, number, most)


# -- the shelves alone --------------------------------------------------------------------------------------


def head(handler: int, queue: int, status: int = 1) -> Head:
    return Head(form=1, status=status, handler=handler, queue=queue, due_at=DUE, ended_at=0, flags=0)


def test_a_pair_keeps_its_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "SHARED", 2)
    mine = Shelves({})
    places = [mine.change(head(*pair), b"x", 1) for pair in ((7, 1), (7, 2), (8, 1), (7, 1))]
    assert [len(each) for each in places] == [1, 1, 3, 1]
    assert places[0] == places[3] != places[1]
    again = Shelves(mine.told())
    assert again.told() == mine.told()
    assert again.change(head(7, 1), b"x", -1) == places[0]
    assert again.change(head(8, 1), b"x", -1) == places[2]
    assert (again.handlers, again.queues, again.total({1}), mine.total({1})) == ({}, {}, 2, 4)


def test_who_has_no_number_shares_and_is_not_counted_by_name() -> None:
    mine = Shelves({})
    assert len(mine.change(head(OTHER, 1), b"x", 1)) == len(mine.change(head(1, OTHER), b"y", 1)) == 3
    exact = {
        (kind, number): [each.exact for each in mine.stretches(Narrowed({1}, **{kind: {number}}))]
        for kind in ("handlers", "queues")
        for number in (1, OTHER)
    }
    assert exact == {
        ("handlers", 1): [True], ("handlers", OTHER): [False], ("queues", 1): [True], ("queues", OTHER): [False],
    }  # fmt: skip
    assert [each.exact for each in mine.stretches(Narrowed({1}))] == [True]
