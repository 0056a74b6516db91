"""The store's clock over brokers that a test moves (DESIGN §6, H23)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.adapters import store_clock
from pipeline.adapters.store_clock import Rounds, StoreClock
from pipeline.core.errors import DuelineError, NotFound, StoreUnreachable

EPOCH_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
Eventually = Callable[..., None]


class Brokers:
    """A `Prober` over brokers that answer at the next poll; each is `ahead` of EPOCH + CLOCK_MONOTONIC, in ms."""

    def __init__(self, *ahead: int) -> None:
        self.ahead = dict(enumerate(ahead))
        self.led = dict(enumerate(range(len(ahead))))
        self.silent: set[int] = set()
        self.problem: DuelineError | None = None
        self.asked = 0
        self.sent: list[int] = []
        self.closed = False
        self.now_us = lambda: time.monotonic_ns() // 1_000
        self._reports: list[Callable[[], None]] = []

    def leaders(self) -> dict[int, int]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return dict(self.led)

    def send(self, partition: int, done: Callable[[int], None]) -> None:
        self.sent.append(partition)
        broker = self.led[partition]
        stamp = EPOCH_MS + self.ahead[broker] + self.now_us() // 1_000
        if broker not in self.silent:
            self._reports.append(lambda: done(stamp))

    def poll(self, timeout_ms: int) -> None:
        if not self._reports:
            time.sleep(0.001)
        while self._reports:
            self._reports.pop(0)()

    def close(self) -> None:
        self.closed = True


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.threads: set[threading.Thread] = set()

    def on(self, action: str, **fields: Any) -> None:
        self.events.append((action, fields["broker"]))
        self.threads.add(threading.current_thread())


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ms in {
        "ROUND_MS": 5,
        "ANSWER_MS": 20,
        "FIRST_MS": 30_000,
        "ALL_MS": 60,
        "AWAKE_MS": 2_000,
    }.items():
        monkeypatch.setattr(store_clock, name, ms)


@pytest.fixture
def started() -> Iterator[Callable[..., StoreClock]]:
    clocks: list[StoreClock] = []

    def start(brokers: Brokers, told: Told | None = None) -> StoreClock:
        clocks.append(StoreClock(brokers, events=told))
        return clocks[-1]

    yield start
    for clock in clocks:
        clock.close()


def ahead(clock: StoreClock) -> int:
    """The store's time beside EPOCH + CLOCK_MONOTONIC, ms: 0 or a little less."""
    return clock.now() - EPOCH_MS - clock.monotonic()


def around(value: int) -> Any:
    """A busy machine makes it late, nothing makes it early."""
    return pytest.approx(value - 400, abs=401)


# -- rounds -------------------------------------------------------------------------------------------------


def test_a_round_probes_every_leader_on_a_partition_it_leads() -> None:
    brokers = Brokers(0, 0, 0)
    brokers.led = {0: 2, 1: 2, 2: 0, 3: 0}
    leaders, samples = Rounds(brokers, brokers.now_us).turn()
    assert leaders == {0, 2}
    assert set(brokers.sent) == {0, 2}
    assert sorted(
        {(sample.broker, brokers.led[n]) for sample, n in zip(samples, brokers.sent, strict=True)}
    ) == [
        (0, 0),
        (2, 2),
    ]
    assert all(sample.sent_us <= sample.received_us for sample in samples)


def test_h23_a_report_counts_for_no_broker_if_the_partition_moved_meanwhile() -> None:
    brokers = Brokers(0, HOUR_MS)
    rounds = Rounds(brokers, brokers.now_us)
    brokers.led = {0: 0, 1: 1}
    rounds.turn()
    brokers.led = {0: 1, 1: 1}  # after the round before had looked
    leaders, samples = rounds.turn()
    assert leaders == {1}
    assert {sample.broker for sample in samples} == {1}
    assert len(samples) == store_clock.BURST


def test_who_leads_is_asked_anew_after_a_rest_and_after_a_failure() -> None:
    brokers = Brokers(0)
    rounds = Rounds(brokers, brokers.now_us)
    rounds.turn()
    assert brokers.asked == 2
    rounds.turn()
    assert brokers.asked == 3
    brokers.problem = StoreUnreachable("no broker")
    with pytest.raises(StoreUnreachable):
        rounds.turn()
    brokers.problem = None
    rounds.turn()
    assert brokers.asked == 6
    brokers.now_us = lambda: brokers.asked * 10_000_000
    resting = Rounds(brokers, lambda: brokers.now_us())
    resting.turn()
    brokers.now_us = lambda: 100 * 10_000_000
    resting.turn()
    assert brokers.asked == 10


def test_a_silent_broker_costs_a_round_one_wait_and_its_late_report_still_counts() -> None:
    brokers = Brokers(0, 0)
    brokers.silent = {1}
    rounds = Rounds(brokers, brokers.now_us)
    late: list[Callable[[int], None]] = []
    send = brokers.send
    brokers.send = lambda n, done: late.append(done) if n == 1 else send(n, done)  # type: ignore[method-assign]
    _, samples = rounds.turn()
    assert [sample.broker for sample in samples] == [0]
    late[0](EPOCH_MS)
    _, samples = rounds.turn()
    assert sorted(sample.broker for sample in samples) == [0, 1]


# -- the clock ----------------------------------------------------------------------------------------------


def test_h23_this_machines_wall_clock_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, started: Callable[..., StoreClock]
) -> None:
    """It is an hour off."""
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + 3_600)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + 3_600_000_000_000)
    clock = started(Brokers(0))
    assert ahead(clock) == around(0)
    assert clock.error() < 1_000
    assert clock.held_ms == 0


def test_h23_one_of_three_an_hour_ahead_is_excluded_and_told_on_the_owners_thread(
    started: Callable[..., StoreClock], eventually: Eventually
) -> None:
    told, brokers = Told(), Brokers(0, 0, HOUR_MS)
    clock = started(brokers, told)
    assert ahead(clock) == around(0)
    assert told.events == [("clock_disagreement", 2)]
    assert {n for n, reading in clock.readings.items() if reading.outside} == {2}
    assert clock.disagreement_ms == pytest.approx(HOUR_MS, abs=2_000)
    brokers.ahead[2] = 0
    eventually(lambda: clock.now() and len(told.events) > 1)
    assert told.events[1:] == [("clock_agreement", 2)]
    assert told.threads == {threading.current_thread()}


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_h23_one_of_three_that_jumps_changes_nothing(
    ahead_ms: int, started: Callable[..., StoreClock], eventually: Eventually
) -> None:
    brokers = Brokers(0, 0, 0)
    clock = started(brokers)
    clock.now()
    brokers.ahead[1] = ahead_ms
    eventually(lambda: clock.readings[1].outside)
    assert ahead(clock) == around(0)


def test_h23_all_set_forward_are_followed_and_set_back_hold_the_clock(
    started: Callable[..., StoreClock], eventually: Eventually
) -> None:
    brokers = Brokers(0, 0, 0)
    clock = started(brokers)
    clock.now()
    brokers.ahead = dict.fromkeys(range(3), 300_000)
    eventually(lambda: ahead(clock) == around(300_000))
    brokers.ahead = dict.fromkeys(range(3), 0)
    eventually(lambda: clock.held_ms > 290_000)
    still = clock.now()
    sent = len(brokers.sent)
    eventually(lambda: len(brokers.sent) > sent + 9)
    assert clock.now() == still


def test_the_first_reading_waits_for_the_broker_that_may_be_behind(
    started: Callable[..., StoreClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_clock, "ALL_MS", 60_000)
    brokers = Brokers(0, 0, -900)
    brokers.silent = {2}
    threading.Timer(0.1, brokers.silent.clear).start()
    assert ahead(started(brokers)) == around(-900)


def test_a_majority_is_enough_if_the_others_stay_silent(started: Callable[..., StoreClock]) -> None:
    brokers = Brokers(0, 0, 0)
    brokers.silent = {1}
    assert ahead(started(brokers)) == around(0)


def test_h23_one_of_three_alone_is_no_clock(
    started: Callable[..., StoreClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_clock, "FIRST_MS", 400)
    brokers = Brokers(HOUR_MS, 0, 0)
    brokers.silent = {1, 2}
    with pytest.raises(StoreUnreachable, match="clock probe"):
        started(brokers).now()


def test_without_a_broker_the_first_reading_says_so_and_the_next_one_tries_again(
    started: Callable[..., StoreClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(0)
    brokers.problem = StoreUnreachable("no broker")
    clock = started(brokers)
    with monkeypatch.context() as patch:
        patch.setattr(store_clock, "FIRST_MS", 400)
        with pytest.raises(StoreUnreachable, match="no broker"):
            clock.now()
    brokers.problem = None
    assert ahead(clock) == around(0)


def test_what_waiting_cannot_mend_is_said_at_once(started: Callable[..., StoreClock]) -> None:
    brokers = Brokers(0)
    brokers.problem = NotFound("topic t.fleet does not exist")
    with pytest.raises(NotFound, match=r"t\.fleet"):
        started(brokers).now()


def test_a_store_that_falls_silent_stops_no_clock(
    started: Callable[..., StoreClock], eventually: Eventually
) -> None:
    brokers = Brokers(0)
    clock = started(brokers)
    clock.now()
    brokers.problem = StoreUnreachable("no broker")
    asked = brokers.asked
    eventually(lambda: brokers.asked > asked + 2)
    assert ahead(clock) == around(0)


def test_probing_rests_when_nobody_asks_and_the_next_reading_waits_for_a_new_probe(
    started: Callable[..., StoreClock], monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(store_clock, "IDLE_MS", 50)
    brokers = Brokers(0)
    clock = started(brokers)
    clock.now()
    eventually(lambda: not clock._usable)
    sent = len(brokers.sent)
    brokers.ahead[0] = 1_900
    monkeypatch.setattr(store_clock, "IDLE_MS", 60_000)  # or it rests again before it has probed
    monkeypatch.setattr(store_clock, "AWAKE_MS", 30_000)
    assert ahead(clock) == around(1_900)
    assert len(brokers.sent) > sent


def test_a_reading_after_a_rest_goes_on_with_what_is_known_if_no_probe_comes_back(
    started: Callable[..., StoreClock], monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(store_clock, "IDLE_MS", 50)
    monkeypatch.setattr(store_clock, "AWAKE_MS", 20)
    brokers = Brokers(0)
    clock = started(brokers)
    clock.now()
    eventually(lambda: not clock._usable)
    brokers.silent = {0}
    assert ahead(clock) == around(0)


def test_closing_ends_the_thread_and_the_prober_and_the_time_can_still_be_asked_for() -> None:
    brokers = Brokers(0)
    clock = StoreClock(brokers)
    clock.now()
    clock.close()
    assert brokers.closed
    assert not clock._thread.is_alive()
    assert ahead(clock) == around(0)


def test_a_clock_that_nobody_holds_any_more_ends_its_thread(eventually: Eventually) -> None:
    """A client whose first contact fails drops what it was made of, unclosed."""
    brokers = Brokers(0)
    clock = StoreClock(brokers)
    clock.now()
    thread = clock._thread
    del clock
    eventually(lambda: brokers.closed)
    thread.join(5)
    assert not thread.is_alive()


def test_many_threads_never_see_the_time_go_backwards(started: Callable[..., StoreClock]) -> None:
    brokers = Brokers(0, 0, 0)
    clock = started(brokers)
    back: list[int] = []

    def look() -> None:
        last = 0
        for n in range(3_000):
            brokers.ahead[n % 3] = -(n % 7)
            now = clock.now()
            if now < last:
                back.append(last - now)
            last = now

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert back == []
