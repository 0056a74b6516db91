"""Open transactions: how old, what waits behind them, and who holds them."""

from __future__ import annotations

import pytest
from unit.doctor.healthy import FLEET, HEALTHY, JOBS, NAMES, NOW, WORK, beat, found, only, spoilt

from pipeline import codec
from pipeline.core.job import Ack, AckState, Takeover
from pipeline.doctor import Danger, Facts, Severity
from pipeline.doctor.facts import Ends, Place, Undecided
from pipeline.doctor.transactions import HANGING_MS, OPEN_MS

ACKS = NAMES.acks("default")


def undecided(
    topic: str = JOBS, partition: int = 1, key: bytes = b"j/1", value: bytes | None = None, age: int = 5_000
) -> Undecided:
    return Undecided(place=Place(topic, partition), offset=70, key=key, value=value, at=NOW - age)


def opened(*found: Undecided, **more: object) -> Facts:
    ends = {one.place: Ends(first=0, stable=70, last=100) for one in found}
    return spoilt(undecided=found, ends={**HEALTHY.ends, **ends}, **more)


def takeover(process: str) -> bytes:
    return codec.TAKEOVER.encode(
        Takeover(process=process, transactional_ids=("t",), generation=1, nonce="n", at=1)
    )


def terminal(worker: str) -> bytes:
    ack = Ack(
        job_id="j", occurrence_id="j", run=1, attempt=1, token=1, worker=worker, handler="h",
        state=AckState.SUCCEEDED, at=1, work_offset=0,
    )  # fmt: skip
    return codec.ACK.encode(ack)


def test_a_transaction_under_way_is_no_finding() -> None:
    assert found("transactions", opened(undecided(age=OPEN_MS - 1))) == []


@pytest.mark.parametrize(
    ("age", "severity"), [(HANGING_MS - 1, Severity.WARNING), (HANGING_MS, Severity.ERROR)]
)
def test_it_hangs_once_no_coordinator_would_leave_it_open(age: int, severity: Severity) -> None:
    told = only("transactions", opened(undecided(age=age)))
    assert (told.severity, told.danger, told.subject) == (severity, Danger.ON_TIME, JOBS)
    assert "is open for 30 s on partitions 1, 30 offsets wait behind it" in told.problem


def test_of_one_holder_the_oldest_counts_for_all_its_partitions() -> None:
    told = only(
        "transactions",
        opened(undecided(age=4_000), undecided(partition=3, age=9_000), undecided(partition=2, age=5_000)),
    )
    assert told.problem.startswith("a transaction is open for 9 s on partitions 1-3, 90 offsets")
    assert f"--topic {JOBS} --partition 3 " in told.remedy


def test_the_record_of_a_takeover_names_its_holder() -> None:
    gone = beat("bb.0", "dispatcher", at=NOW - 40_000, transactional_ids=("t1", "t2"), host="h9", pid=33)
    fleet = (*FLEET, gone, beat("cc.0", "dispatcher", Place(JOBS, 1), at=NOW - 30_000))
    told = only("transactions", opened(undecided(key=b"o/1", value=takeover("bb.0")), fleet=fleet))
    assert "it is of dispatcher bb.0 (silent for 40 s, transactional ids t1, t2)" in told.problem
    assert told.remedy == (
        "end process 33 on h9, if it is still there, then kafka-transactions.sh --bootstrap-server k:9092 abort"
        f" --topic {JOBS} --partition 1 --start-offset 70"
    )


def test_so_does_an_ack() -> None:
    told = only("transactions", opened(undecided(ACKS, key=b"t/j/1/1", value=terminal("aa.0.w"))))
    assert "it is of worker aa.0.w (alive, transactional ids unknown)" in told.problem
    assert told.remedy.startswith("wait 30 s; if it is still open, end process 7 on h1, then ")


@pytest.mark.parametrize("value", [takeover("zz"), b"garbage", None])
def test_a_takeover_of_nobody_is_told_as_it_is(value: bytes | None) -> None:
    told = only("transactions", opened(undecided(key=b"o/1", value=value), fleet=FLEET[1:]))
    words = (
        "by zz, of which nothing was heard"
        if value == takeover("zz")
        else "b'o/1', a dispatcher's, and no process"
    )
    assert words in told.problem
    assert "describe-producers" in told.remedy


SILENT_OWNER = beat("so", "dispatcher", Place(JOBS, 1), at=NOW - 9_000)
SILENT = beat("s1", "dispatcher", at=NOW - 9_000)


def test_first_suspects_are_those_who_went_silent_as_owners() -> None:
    told = only("transactions", opened(undecided(), fleet=(*FLEET, SILENT, SILENT_OWNER)))
    assert "it is most likely of dispatcher so (silent for 9 s" in told.problem


def test_then_all_who_went_silent() -> None:
    fleet = (*FLEET, SILENT, beat("s2", "dispatcher", at=NOW - 9_000))
    told = only("transactions", opened(undecided(), fleet=fleet))
    assert "it may be of s1 or s2" in told.problem
    assert "describe-producers" in told.remedy


def test_then_the_owner_that_is_alive() -> None:
    assert "most likely of dispatcher aa.0.x (alive" in only("transactions", opened(undecided())).problem


def test_a_worker_owns_the_acks_of_its_work_and_is_one_process_on_several_queues() -> None:
    told = only("transactions", opened(undecided(ACKS, key=b"f/x", value=b"?")))
    assert "most likely of worker aa.0.w (alive" in told.problem


@pytest.mark.parametrize(
    ("topic", "key", "value", "maker"),
    [
        (JOBS, b"j/1", None, "dispatcher"),
        (JOBS, b"a/1", b"v", "dispatcher"),
        (JOBS, b"r/1/1", b"v", "worker"),
        (JOBS, b"r/1/1", None, "dispatcher"),
        (JOBS, b"j/1", b"v", ""),
        (JOBS, b"foreign", None, ""),
        (JOBS, b"", b"v", ""),
        (ACKS, b"x/1", b"v", "dispatcher"),
        (ACKS, b"t/1/1/1", b"?", "worker"),
        (WORK, b"1", b"v", "dispatcher"),
        (NAMES.events, b"1", b"v", "dispatcher"),
        (NAMES.dead, b"1", b"v", ""),
    ],
)
def test_the_kind_of_a_record_says_who_writes_such(
    topic: str, key: bytes, value: bytes | None, maker: str
) -> None:
    told = only("transactions", opened(undecided(topic, 0, key, value), fleet=()))
    assert (f", a {maker}'s, and no process" in told.problem) is bool(maker)
    assert f"its first record is {key!r}" in told.problem


def test_of_logs_whose_ends_are_unknown_nothing_is_counted() -> None:
    told = only("transactions", spoilt(undecided=(undecided(),), ends={}))
    assert "0 offsets wait" in told.problem
