"""A worker that drains leaves its group at once if somebody takes over, and stays if nobody does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.core.errors import StoreUnreachable
from pipeline.core.job import Heartbeat
from pipeline.heartbeat import Seen
from pipeline.service.heirs import FRESH_MS, LOOK_S, SETTLE_S, Heirs


class Leaver:
    def __init__(self, *, busy: bool = True) -> None:
        self.busy = busy
        self.left = False

    def hand_over(self) -> None:
        self.left = True


class House:
    """`others` = heartbeats by process; time is the test's."""

    def __init__(self) -> None:
        self.monotonic = 0.0
        self.others: list[Heartbeat] = []
        self.asked: list[int] = []
        self.heirs = Heirs(
            process="me", read=self._read, now=lambda: 100_000, monotonic=lambda: self.monotonic
        )

    def _read(self, since: int) -> list[Seen]:
        self.asked.append(since)
        return [Seen(one, 99_000) for one in self.others]


def beat(
    process: str, *queues: str, handlers: tuple[str, ...] = ("work",), role: str = "worker"
) -> Heartbeat:
    return Heartbeat(
        process=process, role=role, version="0", host="h", pid=1, started_at=0, generation=1,
        transactional_ids=(), handlers=handlers, queues=queues, owned=(), in_flight=(), held=(), parked=0,
    )  # fmt: skip


@pytest.fixture
def house() -> House:
    return House()


def after(house: House, *workers: Leaver, seconds: float = SETTLE_S) -> list[bool]:
    house.monotonic += seconds
    house.heirs.look({f"q{n}": worker for n, worker in enumerate(workers)})
    return [worker.left for worker in workers]


def test_it_leaves_the_queues_that_another_worker_takes_runs_of(house: House) -> None:
    house.others = [beat("other", "q1", "q2")]
    assert after(house, Leaver(), Leaver(), Leaver()) == [False, True, True]
    assert house.asked == [100_000 - FRESH_MS]


@pytest.mark.parametrize(
    "others",
    [
        [],
        [beat("me", "q0")],
        [beat("drains too", "q0", handlers=())],
        [beat("d", handlers=(), role="dispatcher")],
        [beat("other", "another")],
    ],
    ids=["nobody", "itself", "one that drains", "a dispatcher", "of another queue"],
)
def test_it_stays_if_nobody_else_takes_them(house: House, others: list[Heartbeat]) -> None:
    """Else what it finishes would wait for the next worker that comes."""
    house.others = others
    assert after(house, Leaver()) == [False]


def test_workers_that_were_told_to_end_together_have_time_to_say_so(house: House) -> None:
    house.others = [beat("other", "q0")]
    assert after(house, Leaver(), seconds=SETTLE_S - 0.1) == [False]
    assert house.asked == []


def test_whoever_is_started_meanwhile_takes_over_too(house: House) -> None:
    worker = Leaver()
    assert after(house, worker) == [False]
    house.others = [beat("new", "q0")]
    assert after(house, worker, seconds=LOOK_S - 0.1) == [False]
    assert after(house, worker, seconds=0.1) == [True]


def test_one_that_has_nothing_left_to_finish_does_not_ask(house: House) -> None:
    house.others = [beat("other", "q0")]
    assert after(house, Leaver(busy=False)) == [False]
    assert house.asked == []


def test_each_is_told_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.others = [beat("other", "q0")]
    staying: dict[str, Leaver] = {"q0": Leaver()}
    house.monotonic = SETTLE_S
    house.heirs.look(staying)  # type: ignore[arg-type]
    assert staying == {}


def test_a_store_that_cannot_be_read_keeps_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(since: int) -> list[Seen]:
        raise StoreUnreachable("gone")

    broken: Callable[[int], list[Seen]] = fail
    house.heirs = Heirs(process="me", read=broken, now=lambda: 1, monotonic=lambda: house.monotonic)
    assert after(house, Leaver()) == [False]
