"""What a replay is about: of the jobs that had one key after the other, the latest; and its places, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.adapters.memory_scan import MemoryScan
from pipeline.core.ids import anonymous_id, keyed_id, occurrence_of_keyed
from pipeline.core.job import AckState, Run
from pipeline.ports import Put
from pipeline.replay.chosen import Chosen, choose
from pipeline.replay.reading import Rereading, emitted_by
from pipeline.survey import Filter, Ground, State, Window
from tests.unit.replay.test_record import replay

T0 = 1_800_000_000_000
FAILED = Filter(outcomes=frozenset({State.FAILED}))
WINDOW = Window(from_ms=T0 - 60_000, to_ms=T0 + 1)
DEAD, DONE = AckState.DEAD, AckState.SUCCEEDED


@pytest.fixture
def ground(store: Any) -> Ground:
    return Ground(scan=MemoryScan(store.cluster), names=store.names, layout=store.layout)


def fired(store: Any, job_id: str, occurrence: str, state: AckState | None, **fields: Any) -> Run:
    run = Run(
        job_id=job_id,
        occurrence_id=occurrence,
        due_at=T0,
        run=1,
        queue="default",
        handler="mail",
        created_at=T0 - 1,
        nominal_at=T0,
        idempotency_key=occurrence,
        payload=b"{}",
    )
    run = replace(run, **fields)
    store.fire(run)
    if state is not None:
        at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
        store.ack(run, state, work_offset=at)
    return run


def keyed(store: Any, key: str, incarnation: int, state: AckState | None, **fields: Any) -> Run:
    id_ = keyed_id(key)
    return fired(store, id_, occurrence_of_keyed(id_, incarnation), state, key=key, **fields)


def occurrences(store: Any, chosen: Chosen) -> list[str]:
    """In the order of their places."""
    found = []
    for stretch in chosen.stretches:
        log = store.cluster.partition(store.names.work(stretch.part.queue), stretch.part.partition)
        at = [spot.offset for page in chosen.spots(stretch) for spot in page]
        assert at == sorted(at)
        found += [log.read(offset, 1)[0][0].key().decode() for offset in at]
    return found


def test_of_the_jobs_of_one_key_only_the_latest_is_run_again(store: Any, ground: Ground) -> None:
    for incarnation in (3, 10, 7):
        keyed(store, "invoice-55", incarnation, DEAD)
    other = keyed(store, "invoice-56", 4, DEAD)
    plain = fired(store, anonymous_id(T0, 1), anonymous_id(T0, 1), DEAD)
    with choose(ground, WINDOW, FAILED) as chosen:
        latest = occurrence_of_keyed(keyed_id("invoice-55"), 10)
        assert set(occurrences(store, chosen)) == {latest, other.occurrence_id, plain.occurrence_id}
        assert (chosen.tally.matched, chosen.tally.key_taken) == (3, 2)
        assert chosen.tally.states == {"dead": 5}, "all that fired is counted"


@pytest.mark.parametrize("state", [DONE, None, AckState.CANCELLED])
@pytest.mark.parametrize("later", [{}, {"due_at": T0 + 86_400_000, "nominal_at": T0 + 86_400_000}])
@pytest.mark.parametrize("handler", ["mail", "bill"])
def test_whatever_became_of_the_latest_and_whenever_it_was_due(
    store: Any, ground: Ground, state: AckState | None, later: dict[str, int], handler: str
) -> None:
    keyed(store, "invoice-55", 3, DEAD)
    keyed(store, "invoice-55", 9, state, handler=handler, **later)
    with choose(ground, WINDOW, replace(FAILED, handler="mail")) as chosen:
        assert (chosen.tally.matched, chosen.tally.key_taken) == (0, 1)


def test_a_later_run_of_the_latest_is_no_later_job(store: Any, ground: Ground) -> None:
    run = keyed(store, "invoice-55", 3, AckState.RETRYING)
    again = replace(run, run=2)
    store.fire(again)
    at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
    store.ack(again, DEAD, work_offset=at)
    with choose(ground, WINDOW, FAILED) as chosen:
        assert (chosen.tally.matched, chosen.tally.key_taken) == (1, 0)


@pytest.mark.parametrize("number", [b"", b"x", b"-1", b"\xc2\xb2", b"9" * 5_000])
def test_a_strangers_record_is_no_job_of_the_key(store: Any, ground: Ground, number: bytes) -> None:
    run = keyed(store, "invoice-55", 3, DEAD)
    key = b"%b.%b" % (keyed_id("invoice-55").encode(), number)
    store.cluster.append(Put(store.names.work("default"), store._work(run), key, b"x"))
    with choose(ground, WINDOW, FAILED) as chosen:
        assert chosen.tally.matched == 1


def test_many_keys_go_through_a_file(store: Any, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.survey.spill.ROWS", 7)
    for incarnation in range(1, 4):
        for n in range(40):
            keyed(store, f"invoice-{n}", incarnation, DEAD)
    with choose(ground, WINDOW, FAILED) as chosen:
        assert (chosen.tally.matched, chosen.tally.key_taken) == (40, 80)
        assert {each.rpartition(".")[2] for each in occurrences(store, chosen)} == {"3"}


# -- what is left of it when its turn comes -------------------------------------------------------------------


def test_what_is_gone_when_its_turn_comes_is_missing(store: Any, ground: Ground) -> None:
    runs = [fired(store, anonymous_id(T0, n), anonymous_id(T0, n), DEAD, serial="s") for n in range(4)]
    store.clock.advance(1)
    heeded = []
    with choose(ground, WINDOW, FAILED) as chosen:
        (stretch,) = (each for each in chosen.stretches if each.count)
        log = store.cluster.partition(store.names.work("default"), store._work(runs[0]))
        log.entries[:2] = [None, None]
        log.start = 2
        mine = replay(created_at=T0)
        reading = Rereading(ground, MemoryScan(store.cluster), stretch, mine, lambda: heeded.append(1))
        (round_,) = reading.rounds(chosen, 0, lambda: 100)
        found, left_out = reading.fresh(round_)
    assert ([each.key.decode() for each in found], left_out) == (
        [run.occurrence_id for run in runs[2:]],
        {"missing": 2},
    )
    assert heeded, "however long the way, its process says that it lives"


def test_which_run_a_replay_has_emitted(store: Any) -> None:
    from pipeline import codec

    id_ = anonymous_id(T0, 1)
    run = fired(store, id_, id_, None)
    mine = codec.RUN.encode(replace(run, headers={"dueline-replay": "mine"}))
    assert emitted_by("mine", mine)
    assert not emitted_by("other", mine)
    assert not emitted_by("mine", codec.RUN.encode(replace(run, payload=b"mine")))
    assert not emitted_by("mine", b"mine")
