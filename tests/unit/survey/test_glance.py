"""What is ticked off at a first look is what the full look finds nothing wrong with."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Run
from pipeline.core.token import make_token
from pipeline.ports import Put
from pipeline.survey import Filter, State, hashes, unfired, verifying
from pipeline.survey.glance import Glance, glance
from pipeline.survey.hashes import Hashes, Sieve
from pipeline.survey.promises import Judged
from pipeline.survey.verifying import Verdict, verify_promises
from tests.unit.survey.conftest import DUE, HOUR, Yard

ENDS = (AckState.SUCCEEDED, AckState.DEAD, AckState.CANCELLED)


class Everything(Sieve):
    """A sieve that holds all."""

    def __contains__(self, occurrence: bytes) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def in_full(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """The verdict if everything is suspect."""
    with monkeypatch.context() as patch:
        pending = glance(yard.ground, HOUR).pending
        patch.setattr(verifying, "glance", lambda *_: Glance(pending=pending, suspects=Everything()))
        return verify_promises(yard.ground, HOUR)


def anything(yard: Yard, rng: random.Random, n: int) -> None:
    """One occurrence with whatever may become of it, right or wrong."""
    keyed = rng.random() < 0.2
    id_ = keyed_id(f"key-{n}")
    after = rng.choice([0, 5, -40_000, -1, 3_600_000, 3_599_999])
    run = yard.run(n, after=after)
    if keyed:
        run = replace(run, job_id=id_, occurrence_id=f"{id_}.{n}", key=f"key-{n}")
    if rng.random() < 0.2:
        yard.store.put(run)
        if rng.random() < 0.5:
            return
    told = not keyed and rng.random() < 0.9
    if rng.random() < 0.05:
        if told:
            yard.store.end(run, "fired", place="default/1")
    else:
        yard.fire(run, told=told)
        _end(yard, rng, run)
    while rng.random() < 0.4:
        run = yard.requeued(run) if rng.random() < 0.3 else yard.again(run, due_at=yard.store.clock.now())
        yard.fire(run, told=False)
        _end(yard, rng, run)


def _end(yard: Yard, rng: random.Random, run: Run) -> None:
    yard.store.clock.advance(rng.randrange(3_000))
    if rng.random() < 0.5:
        yard.ack(run, AckState.STARTED)
    if rng.random() < 0.9:
        token = rng.choice([None] * 20 + [5, make_token(2, run.run, 7, 1), make_token(1, 9, 7, 1)])
        for attempt in range(1, 3 if rng.random() < 0.05 else 2):
            yard.ack(run, rng.choice([*ENDS, AckState.RETRYING]), token=token, attempt=attempt)
    if rng.random() < 0.03:
        yard.fire(run, told=False)


@pytest.mark.parametrize("seed", range(25))
def test_both_looks_say_the_same(yard: Yard, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(hashes, "HELD", rng.choice([3, 65_536]))
    for n in range(60):
        anything(yard, rng, n)
    for partition in range(3):
        end = yard.store.cluster.partition(yard.store.names.work("default"), partition).end
        yard.commit(partition, rng.choice([0, end, end // 2]))
    first, full = verify_promises(yard.ground, HOUR), in_full(yard, monkeypatch)
    assert first.judged == full.judged
    assert first.counts == full.counts
    assert {kind: sorted(found) for kind, found in first.first.items()} == {
        kind: sorted(found) for kind, found in full.first.items()
    }
    pending = Filter(outcomes=frozenset({State.PENDING}))
    assert first.pending == len(list(unfired(yard.ground, HOUR, pending)))


def test_what_went_well_is_read_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries, requeues, keyed jobs and what waits too."""
    keyed = keyed_id("invoice-55")
    runs = [yard.run(n) for n in range(5)]
    runs[1] = replace(runs[1], job_id=keyed, occurrence_id=f"{keyed}.7", key="invoice-55")
    for run in runs:
        yard.fire(run, told=run.key is None)
    for run in runs[:3]:
        yard.ack(run, AckState.RETRYING)
        yard.store.clock.advance(6_000)
        yard.ack(yard.fire(yard.again(run)), AckState.DEAD)
        yard.ack(yard.fire(yard.requeued(yard.again(run))), AckState.SUCCEEDED)
    yard.ack(runs[3], AckState.STARTED)
    yard.fire(yard.run(9, after=-50_000), told=False)

    def never(*_: Any) -> None:
        raise AssertionError("it was suspected of something")

    monkeypatch.setattr(verifying, "_facts", never)
    assert verify_promises(yard.ground, HOUR).judged == Judged(5, 11, waiting=1)
    yard.commit_all()
    with pytest.raises(AssertionError, match="suspected"):
        verify_promises(yard.ground, HOUR)


def test_what_is_pending_is_told_by_the_last_record_of_a_job(yard: Yard) -> None:
    earlier, later, ended = yard.run(0, after=-1), yard.run(1), yard.run(2)
    for run in (earlier, later, ended):
        yard.store.put(run)
    for run, due_at in ((earlier, DUE + 5), (later, DUE + 4_000_000)):
        yard.store.put(replace(run, due_at=due_at))
    yard.store.end(ended, "cancelled")
    yard.store.cluster.append(Put(yard.store.names.jobs, 3, keys.job_key("jother"), b"junk"))
    assert glance(yard.ground, HOUR).pending == 1
    yard.store.end(earlier, "fired")
    assert glance(yard.ground, HOUR).pending == 0


def test_a_sieve_holds_what_was_put_in_and_little_else() -> None:
    sieve, names = Sieve(), [b"%d" % n for n in range(2_000)]
    assert not sieve
    for name in names[:1_000]:
        sieve.add(hash(name))
    assert sieve
    assert all(name in sieve for name in names[:1_000])
    assert sum(name in sieve for name in names[1_000:]) < 20


@pytest.mark.parametrize("held", [7, 65_536])
def test_hashes_come_back_in_groups_as_often_as_asked(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "HELD", held)
    mine, theirs = [hash(b"%d" % n) for n in range(100)], [hash(b"%d" % n) for n in range(50, 150)]
    with Hashes(100) as one, Hashes(100) as other:
        for start in range(0, 100, 10):
            one.add(mine[start : start + 10])
            other.add(theirs[start : start + 10])
        pairs = list(zip(one.groups(), other.groups(), strict=True))
        assert sorted(each for group, _ in pairs for each in group) == sorted(mine)
        assert sum(len({*a} & {*b}) for a, b in pairs) == 50
        assert [list(group) for group in one.groups()] == [list(group) for group, _ in pairs]
