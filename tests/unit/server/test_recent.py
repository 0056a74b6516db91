"""Reading what one has written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.readmodel.questions import Position
from pipeline.server import recent
from pipeline.server.recent import KEPT_S, Recent, heard, read_places, written

PLACES = st.lists(
    st.builds(
        Position, st.sampled_from(["p.jobs", "p.events"]), st.integers(0, 99_999), st.integers(0, 10**15 - 1)
    ),
    min_size=1,
    max_size=20,
)


@given(PLACES)
def test_places_are_read_as_they_were_written(places: list[Position]) -> None:
    assert read_places(written(places, "p"), "p") == places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "jobs",
        "jobs/1",
        "jobs/1:",
        "jobs/-1:2",
        "fleet/0:1",
        "jobs/1:2,",
        "jobs/1:2 x",
        ", ".join(["jobs/1:2"] * 257),
    ],
)
def test_other_places_are_refused_by_the_header(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_places(text, "p")
    assert error.value.field == "Dueline-Position"


def test_a_server_remembers_the_last_place_of_each_partition_for_a_while() -> None:
    clock = [0.0]
    memory = Recent(lambda: clock[0])
    memory.note("a", [Position("t", 1, 5)], "job-1")
    memory.note("a", [Position("t", 1, 4), Position("t", 2, 7)], "job-2")
    memory.note("a", [], "job-3")
    assert memory.of_writer("a") == [Position("t", 1, 5), Position("t", 2, 7)]
    assert memory.of_name("job-2") == (Position("t", 1, 4), Position("t", 2, 7))
    assert memory.of_name("job-3") == ()
    assert memory.of_writer("b") == []
    clock[0] = KEPT_S + 1
    assert memory.of_writer("a") == []
    assert memory.of_name("job-2") == ()
    memory.note("a", [Position("t", 3, 1)])
    assert memory.of_writer("a") == [Position("t", 3, 1)]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "NAMES", 3)
    monkeypatch.setattr(recent, "WRITERS", 2)
    memory = Recent()
    for n in range(10):
        memory.note(str(n), [Position("t", 0, n)], str(n))
    assert (len(memory._by_writer), len(memory._by_name)) == (2, 3)


class Heard:
    """Hears of the places 0, 1, … one after the other, a batch each, once somebody waits."""

    def __init__(self, batches: int) -> None:
        self.looks: list[int] = []
        self.known = -1
        self.waiting = 0
        self._batches = batches

    def wait_for(self, position: Position, timeout_ms: int) -> bool:
        assert timeout_ms == 0, "the event loop is never blocked"
        self.looks.append(position.partition)
        return position.partition <= self.known

    @contextmanager
    def awaited(self, wake: Callable[[], None]) -> Iterator[None]:
        def fold() -> None:
            for number in range(self._batches):
                self.known = number
                wake()

        self.waiting += 1
        thread = threading.Thread(target=fold)
        thread.start()
        try:
            yield
        finally:
            self.waiting -= 1
            thread.join()


PLACES_OF_3 = [Position("t", n, 1) for n in range(3)]


def test_a_read_waits_until_all_is_heard_of_and_looks_no_oftener_than_there_is_news() -> None:
    questions = Heard(3)
    assert asyncio.run(heard(questions, PLACES_OF_3))  # type: ignore[arg-type]
    assert questions.looks.count(2) <= 2 + 3
    assert questions.waiting == 0


def test_a_read_waits_no_longer_than_that() -> None:
    questions = Heard(2)
    assert not asyncio.run(heard(questions, PLACES_OF_3, wait_ms=20))  # type: ignore[arg-type]
    assert not asyncio.run(heard(questions, PLACES_OF_3, wait_ms=0))  # type: ignore[arg-type]
    assert questions.waiting == 0


def test_who_goes_away_waits_no_more() -> None:
    questions = Heard(0)

    async def ask() -> None:
        asking = asyncio.ensure_future(heard(questions, PLACES_OF_3))  # type: ignore[arg-type]
        while not questions.waiting:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask())
    assert questions.waiting == 0


def test_what_is_known_already_is_not_waited_for() -> None:
    questions = Heard(0)
    questions.known = 2
    assert asyncio.run(heard(questions, PLACES_OF_3))  # type: ignore[arg-type]
    assert questions.looks == [0, 1, 2]


def test_a_get_sees_the_post_before_it(served: Any) -> None:
    for n in range(20):
        made = served.post("/jobs", {"handler": "h", "in": "1h", "labels": {"n": str(n)}})
        assert served.get(f"/jobs/{made.json()['id']}").status_code == 200
        assert len(served.get("/jobs?limit=200").json()["items"]) == n + 1


def test_another_server_waits_for_the_place_that_it_is_given(serve: Any) -> None:
    one, other = serve(), serve()
    for _ in range(10):
        made = one.post("/jobs", {"handler": "h", "in": "1h"})
        place = {"Dueline-Position": made.headers["dueline-position"]}
        assert other.get(f"/jobs/{made.json()['id']}", headers=place).status_code == 200


def test_what_cannot_be_known_yet_is_not_denied(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "WAIT_MS", 10)
    place = {"Dueline-Position": "jobs/0:999999"}
    answer = served.get("/jobs/j" + "0" * 26, headers=place)
    assert answer.status_code == 503
    listed = served.get("/jobs", headers=place)
    assert listed.status_code == 200
    assert listed.headers["dueline-stale"] == "true"
    assert served.get("/jobs", headers={"Dueline-Position": "x"}).status_code == 422
