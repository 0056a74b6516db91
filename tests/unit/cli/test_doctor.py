"""`dueline doctor` over facts that stand for a store."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Any

import pytest
from unit.doctor.healthy import HEALTHY, JOBS, spoilt

from pipeline.adapters import kafka_checkup
from pipeline.cli import doctor as module
from pipeline.core.errors import StoreUnreachable
from pipeline.core.queues import Pause, QueueChange, QueueState
from pipeline.doctor import CHECKS, Facts


class FakeCheckup:
    """Answers with these facts, and with later ones when it is asked again."""

    looks: list[Facts | Exception]

    def __init__(self, settings: object) -> None:
        self.left = iter(self.looks)

    def __enter__(self) -> FakeCheckup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def facts(self) -> Facts:
        look = next(self.left)
        if isinstance(look, Exception):
            raise look
        return look

    def again(self, facts: Facts) -> Facts:
        return self.facts()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Facts | Exception]:
    """What the store looks like, one look after the other."""
    FakeCheckup.looks = []
    monkeypatch.setattr(kafka_checkup, "Checkup", FakeCheckup)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    return FakeCheckup.looks


@pytest.fixture(autouse=True)
def store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", "k:9092")


def test_a_healthy_store_has_notes_at_most(dueline: Any, looks: list[Any]) -> None:
    looks.append(HEALTHY)
    ran = dueline("doctor", "--json")
    view = ran.json("doctor")
    assert (ran.code, view["ok"], view["errors"], view["warnings"], view["notes"]) == (0, True, 0, 0, 1)
    assert (view["prefix"], view["at"]) == ("shop", "2027-01-15T08:00:00.000Z")
    assert view["checks"] == list(CHECKS)
    text = dueline("doctor").out
    assert text.startswith("note  disk: brokers' disks: not checked")
    assert text.splitlines()[-1] == "shop: 0 errors, 0 warnings, 1 note; 19 checks"


def test_a_warning_leaves_0_and_an_error_1(dueline: Any, looks: list[Any]) -> None:
    looks.append(spoilt(brokers=frozenset((1,)), layout=HEALTHY.layout, topics={}, copies={}))
    ran = dueline("doctor", "--json")
    assert (ran.code, ran.json("doctor")["ok"]) == (1, False)
    looks[:] = [spoilt(broker_settings={1: {"offsets.retention.minutes": "60"}})]
    ran = dueline("doctor", "--json")
    assert (ran.code, ran.json("doctor")["warnings"]) == (0, 1)


def test_what_may_pass_is_looked_at_again(dueline: Any, looks: list[Any]) -> None:
    looks += [spoilt(fleet=HEALTHY.fleet[1:], members={}), HEALTHY]
    ran = dueline("doctor", "--json")
    assert (ran.code, ran.json("doctor")["errors"]) == (0, 0)
    assert "looking again in 0 s at what may pass" in ran.err
    looks[:] = [spoilt(committed={}), spoilt(fleet=HEALTHY.fleet[1:], members={})]
    assert dueline("doctor").code == 0, "nothing was found twice"
    looks[:] = [spoilt(fleet=HEALTHY.fleet[1:], members={})] * 2
    ran = dueline("doctor", "--json")
    (found,) = [each for each in ran.json("doctor")["findings"] if each["severity"] == "error"]
    assert ran.code == 1
    assert found == {
        "check": "owners",
        "severity": "error",
        "subject": JOBS,
        "problem": "all 4 partitions have no owner: nothing fires there",
        "promise": None,
        "endangers": "jobs fire, and their handlers start, on time",
        "remedy": "dueline dispatcher",
    }


def test_a_finding_for_a_person_names_the_promise_and_the_command(dueline: Any, looks: list[Any]) -> None:
    looks.append(spoilt(topics={name: topic for name, topic in HEALTHY.topics.items() if name != JOBS}))
    lines = dueline("doctor").out.splitlines()
    assert lines[:3] == [
        f"error  settings: {JOBS}: topic is missing, planned to exist",
        "    endangers  promise 1: no acknowledged job is lost, none fires early",
        "    mend       dueline topics upgrade",
    ]


def test_what_somebody_wrote_does_not_move_the_terminal(dueline: Any, looks: list[Any]) -> None:
    """A reason is one line when a queue is paused by us, but anybody may append a record."""
    hostile = Pause(by="ann@h1", at=HEALTHY.now, reason="x\x1b[31m\nerror  forged: line")
    state = QueueState(
        queue="default", changed=QueueChange.PAUSED, by="ann@h1", at=HEALTHY.now, pause=hostile
    )
    looks.append(spoilt(queues={"default": state}))
    told = dueline("doctor").out
    assert "x·[31m·error  forged: line" in told
    assert "\x1b" not in told
    assert not any(line.startswith("error") for line in told.splitlines())


def test_without_a_clock_there_is_no_instant(dueline: Any, looks: list[Any]) -> None:
    looks += [
        replace(HEALTHY, now=0, missing={"now": "no probe came back", "clocks": "no probe came back"})
    ] * 2
    view = dueline("doctor", "--json").json("doctor")
    assert view["at"] is None
    assert {each["problem"] for each in view["findings"] if each["severity"] == "warning"} == {
        "not checked: no probe came back"
    }


def test_an_unreachable_store_is_exit_code_5(dueline: Any, looks: list[Any]) -> None:
    looks.append(StoreUnreachable("cannot reach Kafka at k:9092: describing the cluster: timed out"))
    ran = dueline("doctor")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "dueline: cannot reach Kafka at k:9092: describing the cluster: timed out\n"


def test_no_store_at_all_is_exit_code_5(dueline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUELINE_BOOTSTRAP_SERVERS")
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    assert dueline("doctor").code == 5
