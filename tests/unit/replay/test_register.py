"""Records on `meta`: two that begin at once are one, one attempt counts, and those of long ago are forgotten."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryReader
from pipeline.codec import Era
from pipeline.core.errors import NotFound, Refused
from pipeline.core.keys import ERA_KEY
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.ports import Put
from pipeline.replay.record import STALE_MS, Replay, ReplayState, to_event
from pipeline.replay.register import KEPT_MS, Register
from pipeline.replay.runner import Runner
from tests.unit.replay.test_record import replay

RUNNERS = [Runner(host="engine", pid=n, place="boot/1", nonce=f"n{n}") for n in range(1, 4)]
ONE, TWO, THREE = RUNNERS


class Registers:
    """Of several processes over one topic; those in `gone` are known to be."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.gone: set[Runner] = set()
        self._appender = store.connect().appender

    def __call__(self) -> Register:
        return Register(
            topic=self.store.names.meta,
            reader=MemoryReader(self.store.cluster),
            appender=self._appender,
            now=self.store.clock.now,
            gone=self.gone.__contains__,
        )

    def fresh(self, **changes: Any) -> Replay:
        now = self.store.clock.now()
        return replay(id=str(uuid.uuid4()), created_at=now, updated_at=now, **{"runner": ONE, **changes})

    def put(self, key: bytes, value: bytes | None) -> None:
        self.store.cluster.append(Put(self.store.names.meta, 0, key, value))


@pytest.fixture
def made(store: Any) -> Registers:
    store.cluster.create_topic(store.names.meta, 1)
    return Registers(store)


# -- beginning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True])
def test_of_two_that_begin_at_once_the_first_in_the_log_goes_on(
    made: Registers, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    one, two = made(), made()
    first, second = made.fresh(), made.fresh()
    put = Register._put_record

    def race(self: Register, mine: Replay) -> None:
        monkeypatch.setattr(Register, "_put_record", put)
        two.begin(second, beside=beside)
        self._put_record(mine)

    monkeypatch.setattr(Register, "_put_record", race)
    with pytest.raises(Refused, match=second.id):
        one.begin(first, beside=beside)
    states = {each.id: each.state for each in two.all()}
    assert states == {second.id: ReplayState.RUNNING, first.id: ReplayState.CANCELLED}


def test_beside_another_one_it_begins_if_that_is_said(made: Registers) -> None:
    other = replace(made.fresh().wanted, handler="mail")
    first = made().begin(made.fresh(), beside=False)
    with pytest.raises(Refused, match=f"(?s)is under way .*{first.id}.*--beside"):
        made().begin(made.fresh(wanted=other), beside=False)
    made().begin(made.fresh(wanted=other), beside=True)
    assert len(made().all()) == 2


@pytest.mark.parametrize("beside", [False, True])
def test_the_same_request_never_begins_twice(made: Registers, beside: bool) -> None:
    first = made().begin(made.fresh(), beside=False)
    with pytest.raises(Refused, match=f"asks for the same: .*dueline replay resume {first.id} --force"):
        made().begin(made.fresh(), beside=beside)
    made.gone.add(ONE)
    with pytest.raises(Refused, match=f"is not finished and asks for the same: .*resume {first.id}`"):
        made().begin(made.fresh(), beside=beside)


def test_one_that_ended_stands_in_nobodys_way_and_is_forgotten_in_the_end(made: Registers) -> None:
    old = made().begin(made.fresh(), beside=False)
    again = replace(old, attempt=1, runner=TWO)
    made().take(again)
    made().save(replace(again, state=ReplayState.FINISHED, runner=None), TWO)
    made().ask_cancel(old, "ada")
    left = made().begin(made.fresh(runner=None), beside=False)
    made.store.clock.advance(KEPT_MS + 1)
    assert KEPT_MS <= WORK_RETENTION_MS, "what it emitted is still known"
    other = replace(made.fresh().wanted, handler="mail")
    new = made().begin(made.fresh(wanted=other), beside=True)
    assert [each.id for each in made().all()] == [left.id, new.id], "one that is not finished is kept"
    with pytest.raises(NotFound, match="is known"):
        made().get(old.id)
    log = made.store.cluster.partition(made.store.names.meta, 0).read(0, 100)[0]
    last = {record.key(): record.value() for record in log if old.id.encode() in record.key()}
    assert len(last) == 3
    assert set(last.values()) == {None}, "each of its records is removed"


# -- whose it is ----------------------------------------------------------------------------------------------


def test_whoever_lost_it_writes_nothing_more_to_it(made: Registers) -> None:
    one, two = made(), made()
    mine = one.begin(made.fresh(), beside=False)
    two.take(replace(mine, attempt=1, runner=TWO, counts={"replayed": 5}))
    for _ in range(2):
        with pytest.raises(Refused, match=r"was taken up by engine \(process 2\) meanwhile: this process"):
            one.save(replace(mine, counts={"replayed": 1}), ONE)
    assert one.get(mine.id).counts == {"replayed": 5}


def test_what_a_process_that_stood_still_appends_all_the_same_does_not_count(made: Registers) -> None:
    """It may stand still between looking and appending."""
    mine = made().begin(made.fresh(), beside=False)
    ended = replace(mine, attempt=1, runner=None, state=ReplayState.CANCELLED)
    made().take(ended)
    made()._put_record(replace(mine, counts={"replayed": 1}))
    assert made().get(mine.id) == ended


def test_what_compaction_leaves_tells_the_same(made: Registers) -> None:
    mine = made().begin(made.fresh(), beside=False)
    made().take(replace(mine, attempt=1, runner=TWO))
    made()._put_record(mine)
    log = made.store.cluster.partition(made.store.names.meta, 0).read(0, 100)[0]
    last = {record.key(): record for record in log}
    compacted = [record for record in log if last[record.key()] is record]
    register = made()
    for record in compacted:
        register._take(record.key(), record.value())
    assert register._stored(mine.id) == replace(mine, attempt=1, runner=TWO)


def test_of_two_that_take_it_up_at_once_one_goes_on(made: Registers) -> None:
    mine = made().begin(made.fresh(), beside=False)
    two, three = made(), made()
    attempts = [replace(mine, attempt=1, runner=each) for each in (TWO, THREE)]
    two.take(attempts[0])
    three.take(attempts[1])
    with pytest.raises(Refused, match="process 3"):
        two.check(mine.id, TWO)
    three.check(mine.id, THREE)
    with pytest.raises(Refused, match="process 3"):
        two.save(attempts[0], TWO)


def test_one_that_ended_meanwhile_is_told(made: Registers) -> None:
    mine = made().begin(made.fresh(), beside=False)
    made().take(
        replace(mine, attempt=1, runner=None, state=ReplayState.CANCELLED, reason="cancelled by ada@engine")
    )
    with pytest.raises(
        Refused, match=r"is cancelled by now \(cancelled by ada@engine\): this process leaves"
    ):
        made().check(mine.id, ONE)
    made().take(replace(mine, attempt=2, runner=None))
    with pytest.raises(Refused, match="was taken up by another process meanwhile"):
        made().check(mine.id, ONE)
    with pytest.raises(Refused, match="is no longer known"):
        made().check(str(uuid.uuid4()), ONE)


def test_a_process_that_is_known_to_be_gone_is_not_waited_for(made: Registers) -> None:
    register = made()
    mine = register.begin(made.fresh(), beside=False)
    assert register.alive(mine)
    made.gone.add(ONE)
    assert not register.alive(mine)
    made.gone.clear()
    made.store.clock.advance(STALE_MS)
    assert not register.alive(mine)


# -- ends that nobody wrote -----------------------------------------------------------------------------------


def test_a_request_to_cancel_is_final(made: Registers) -> None:
    one, two = made(), made()
    mine = one.begin(made.fresh(), beside=False)
    one.check(mine.id, ONE)
    assert one.cancelled_by(mine.id) is None
    two.ask_cancel(mine, "cancelled by ada@engine")
    one.check(mine.id, ONE)
    assert one.cancelled_by(mine.id) == "cancelled by ada@engine"
    assert one.get(mine.id).state.open, "its process is told"
    made.gone.add(ONE)
    ended = one.get(mine.id)
    assert (ended.state, ended.reason) == (ReplayState.CANCELLED, "cancelled by ada@engine")
    made().begin(made.fresh(), beside=False)


def test_one_of_another_era_has_ended(made: Registers) -> None:
    """What was open when a backup was taken: a restored `work` does not hold its runs."""
    made.put(ERA_KEY, codec.ERA.encode(Era(era=4)))
    mine = made().begin(made.fresh(), beside=False)
    assert mine.era == 4
    made.put(ERA_KEY, codec.ERA.encode(Era(era=5)))
    found = made().get(mine.id)
    assert (found.state, found.runner) == (ReplayState.CANCELLED, None)
    assert found.reason.startswith("it began in era 4, and this is era 5")
    with pytest.raises(Refused, match="is cancelled by now"):
        made().check(mine.id, ONE)
    made().begin(made.fresh(), beside=False)


@pytest.mark.parametrize("name", [b"", b"/", b"/x", b"/-1", b"/" + b"9" * 400, b"/1/2", b"/cancel"])
def test_what_else_stands_there_is_no_record(made: Registers, name: bytes) -> None:
    mine = made().begin(made.fresh(), beside=False)
    record = codec.EVENT.encode(to_event(made.fresh()))
    made.put(b"replay/" + uuid.uuid4().hex.encode() + name, record)
    made.put(ERA_KEY, b"garbage")
    assert [each.id for each in made().all()] == [mine.id]
