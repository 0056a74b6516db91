"""The pure half of the bench's shapes for workers: what acks say, marks, runs as a dispatcher writes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline import codec
from pipeline.config import Settings
from pipeline.core.admission import check_run
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState
from pipeline.core.layout import default_layout
from pipeline.dev.bench import bare_worker, burst, crew, handlers, load, marks, workers
from pipeline.dev.bench.acks import Account, Fact, account
from pipeline.dev.bench.marks import Mark, MarkReader, Marks
from pipeline.dev.bench.site import Site

NOW = 1_800_000_000_000
ONE, TWO = anonymous_id(NOW, 1), anonymous_id(NOW, 2)


# -- what acks say -------------------------------------------------------------------------------------------


def fact(
    state: AckState, occurrence: str = ONE, *, attempt: int = 1, token: int = 0, worker: str = "a.0"
) -> Fact:
    ack = Ack(
        job_id=occurrence, occurrence_id=occurrence, run=1, attempt=attempt, token=token or attempt,
        worker=worker, handler="email.send", state=state, at=NOW, work_offset=0,
    )  # fmt: skip
    return Fact(ack, NOW)


STARTED, RELEASED, SUCCEEDED = AckState.STARTED, AckState.RELEASED, AckState.SUCCEEDED


def told(*facts: Fact) -> Account:
    return account(facts)


def test_each_run_started_and_ended_once_keeps_every_promise() -> None:
    found = told(fact(STARTED), fact(STARTED, TWO), fact(SUCCEEDED, TWO), fact(SUCCEEDED))
    found.check([ONE, TWO])
    assert not found.restarted


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ([fact(STARTED)], "did not finish"),
        ([fact(STARTED), fact(SUCCEEDED), fact(SUCCEEDED)], "more than one end"),
        ([fact(SUCCEEDED)], "ended without a start"),
        ([fact(STARTED), fact(SUCCEEDED), fact(STARTED, attempt=2)], "started again after their end"),
        (
            [fact(STARTED), fact(SUCCEEDED), fact(STARTED, TWO), fact(SUCCEEDED, TWO)],
            "finished and nobody asked for them",
        ),
        ([fact(STARTED), fact(AckState.DEAD)], "ended otherwise than well, one as dead"),
    ],
)
def test_a_broken_promise_ends_the_run_with_an_error(facts: list[Fact], problem: str) -> None:
    with pytest.raises(DuelineError, match=problem):
        account(facts).check([ONE])


def test_a_start_behind_the_end_that_was_given_back_is_none() -> None:
    found = told(fact(STARTED), fact(SUCCEEDED), fact(STARTED, token=9), fact(RELEASED, token=9))
    found.check([ONE])
    assert found.released == 1


def test_a_run_is_restarted_if_it_has_a_second_attempt() -> None:
    again = fact(STARTED, attempt=2, worker="b.0")
    found = told(fact(STARTED), again, fact(STARTED, TWO), fact(SUCCEEDED), fact(SUCCEEDED, TWO))
    assert found.restarted == {(ONE, 1): again}


def test_a_second_start_under_the_same_number_counts_as_restarted_too() -> None:
    assert told(fact(STARTED, token=1), fact(STARTED, token=2)).restarted


def test_a_run_that_was_given_back_is_not_restarted() -> None:
    given_back = fact(STARTED, token=1), fact(RELEASED, token=1)
    found = told(*given_back, fact(STARTED, token=2, worker="b.0"), fact(SUCCEEDED, worker="b.0"))
    found.check([ONE])
    assert not found.restarted
    assert found.released == 1


def test_a_worker_left_open_what_it_started_and_did_not_end() -> None:
    found = told(
        fact(STARTED), fact(SUCCEEDED), fact(STARTED, TWO), fact(STARTED, TWO, attempt=2, worker="b.0"),
        fact(SUCCEEDED, TWO, attempt=2, worker="b.0"),
    )  # fmt: skip
    assert found.left_open_by("a.0") == {(TWO, 1)}
    assert not found.left_open_by("b.0")


# -- marks ---------------------------------------------------------------------------------------------------


def test_marks_are_read_as_they_come_by_another_process(tmp_path: Path) -> None:
    kept, reader = Marks(tmp_path / "1.marks"), MarkReader(tmp_path)
    assert reader.count() == 0
    for n in range(2_500):
        kept.add(NOW + n, NOW + n + 5)
    assert reader.count() == 2_500
    kept.add(NOW, NOW)
    Marks(tmp_path / "2.marks").add(NOW, NOW)
    assert reader.count() == 2_502, "of every process"
    assert [mark.due for mark in reader.marks[:2_500]] == list(range(NOW, NOW + 2_500))


def test_no_mark_is_lost_between_threads(tmp_path: Path) -> None:
    kept = Marks(tmp_path / "1.marks")
    threads = [threading.Thread(target=lambda: [kept.add(NOW, NOW) for _ in range(2_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MarkReader(tmp_path).count() == 8_000


def test_a_mark_counts_from_due_and_from_the_log_by_the_clock_of_the_store() -> None:
    mark = Mark(due=NOW, emitted=NOW + 5, began=(NOW + 12) * 1_000_000 + 500_000)
    assert mark.since_due(store_ahead=0) == pytest.approx(12.5, abs=0.01)
    assert mark.since_emitted(store_ahead=3) == pytest.approx(10.5, abs=0.01)


def test_marks_that_do_not_come_are_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match="0 of 1 handlers began"):
        MarkReader(tmp_path).wait(1, 0.0, lambda: None)


def test_a_process_keeps_marks_only_if_somebody_wants_them(tmp_path: Path) -> None:
    assert marks.of_environment({}) is None
    assert marks.of_environment({marks.VARIABLE: str(tmp_path)}) is not None
    assert MarkReader(tmp_path).count() == 0
    assert len(list(tmp_path.iterdir())) == 1


# -- runs and handlers ---------------------------------------------------------------------------------------


def place() -> Site:
    here = SimpleNamespace(layout=default_layout(), now=lambda: NOW, settings=Settings())
    return cast("Site", here)


def test_a_burst_is_what_a_dispatcher_would_have_written() -> None:
    runs = list(burst._runs(place(), handlers.NOTHING, 3_000, [b"{}"]))
    assert len({run.job_id for run in runs}) == 3_000
    for run in runs:
        there = codec.RUN.decode(codec.RUN.encode(run))
        check_run(there, key=run.occurrence_id.encode(), queue="default")
        assert there == run
        assert run.due_at < NOW


def test_every_handler_a_shape_asks_for_is_registered() -> None:
    asked = {load.HANDLER, crew.SLOW, *(kind.handler for kind in workers.KINDS)}
    assert asked <= set(handlers.app.registry.names())
    assert f"{handlers.__name__}:app" == handlers.APP


@pytest.mark.parametrize("kind", workers.KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_what_its_name_says(kind: workers.Kind) -> None:
    spec = handlers.app.registry.get(kind.handler)
    assert spec is not None
    assert spec.asynchronous == ("async" in kind.name)


@pytest.mark.parametrize(
    ("samples", "expected"), [([100, 100, 100, 100], 1), ([50, 100, 80, 150], 1.5), ([80], 1)]
)
def test_growth_compares_the_second_half_with_the_first(samples: list[float], expected: float) -> None:
    assert workers.grown(samples) == expected


# -- bare loops ----------------------------------------------------------------------------------------------


def test_sleeping_coroutines_never_exceed_their_number_and_all_run() -> None:
    now = most = 0

    async def sleep(_seconds: float) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await checkpoint(0)
        now -= 1

    checkpoint: Callable[[float], Any] = asyncio.sleep
    batch = list(range(50))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bare_worker.asyncio, "sleep", sleep)
        assert asyncio.run(bare_worker._slept(batch, 7, 0.001)) == batch
    assert (now, most) == (0, 7)
