"""Which passing of which step a kill point strikes, and what a test build is asked for wrongly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.dev import killpoints
from pipeline.dev.killpoints import CONTROLS, IN_TAKEOVER, OPEN, STEPS, KillPoint, build
from pipeline.service.build import Build

TAKEOVER = ["polled", "ingested", "takeover_chosen", *STEPS[6:11], "takeover_committed"]
IDLE = ["polled", "ingested"]
FIRING = ["polled", "ingested", *STEPS[4:]]


class Struck(Exception):
    pass


def passings(point: str, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> int | None:
    """How many of `steps` are passed before the point strikes; None if it never does."""

    def strike(_: KillPoint) -> None:
        raise Struck

    monkeypatch.setattr(KillPoint, "strike", strike)
    checkpoint = KillPoint.parse(point)
    for count, step in enumerate(steps):
        try:
            checkpoint(step)
        except Struck:
            return count
    return None


def test_there_are_twelve_steps() -> None:
    assert len(set(STEPS)) == 12
    assert set(OPEN) == {"begun", "produced", "flushed", "offsets_sent"}


@pytest.mark.parametrize("step", STEPS[6:])
def test_a_takeovers_transaction_does_not_count(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*TAKEOVER, *TAKEOVER, *IDLE, *FIRING]
    struck = passings(f"{step}:kill", steps, monkeypatch)
    assert struck == 2 * len(TAKEOVER) + len(IDLE) + FIRING.index(step)


def test_a_takeovers_transaction_between_two_that_fire_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [*FIRING, *TAKEOVER, *FIRING]
    assert passings("begun:stop:2", steps, monkeypatch) == len(FIRING) + len(TAKEOVER) + FIRING.index("begun")


@pytest.mark.parametrize("step", IN_TAKEOVER)
def test_a_takeovers_transaction_has_steps_of_its_own(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = step.removeprefix("takeover.")
    assert passings(f"{step}:kill", [*IDLE, *TAKEOVER], monkeypatch) == 2 + TAKEOVER.index(plain)
    again = passings(f"{step}:kill:2", [*TAKEOVER, *IDLE, *FIRING, *TAKEOVER], monkeypatch)
    assert again == len(TAKEOVER) + 2 + len(FIRING) + TAKEOVER.index(plain)


def test_a_refused_takeover_is_over_with_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = TAKEOVER[: TAKEOVER.index("flushed") + 1]
    assert passings("flushed:kill", [*refused, *FIRING], monkeypatch) == len(refused) + FIRING.index(
        "flushed"
    )


def test_polls_count_from_the_first_choice_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passings("polled:kill:1", [*IDLE, *TAKEOVER, *IDLE], monkeypatch) is None
    assert passings("polled:kill:2", [*IDLE, *FIRING, *IDLE, *IDLE], monkeypatch) == 2 + len(FIRING) + 2


def test_a_takeover_counts_always(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passings("takeover_committed:stop:1", TAKEOVER, monkeypatch) == len(TAKEOVER) - 1
    assert passings("takeover_chosen:stop:2", TAKEOVER, monkeypatch) is None


def test_it_strikes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[int] = []
    monkeypatch.setattr(KillPoint, "strike", lambda self: struck.append(1))
    checkpoint = KillPoint.parse("applied:stop")
    for step in FIRING * 5:
        checkpoint(step)
    assert struck == [1]


@pytest.mark.parametrize(
    "text",
    [
        "flushed",
        "flushed:freeze",
        "flushed:kill:0",
        "flushed:kill:x",
        "flushed:kill:1:2",
        "takeover.applied:kill",
        "after_flush:kill",
        ":kill:1",
    ],
)
def test_a_malformed_kill_point_names_the_variable(text: str) -> None:
    with pytest.raises(InvalidInput, match="DUELINE_KILL_POINT"):
        build({"DUELINE_KILL_POINT": text})


def test_an_unknown_control_names_the_variable() -> None:
    with pytest.raises(InvalidInput, match="DUELINE_NEGATIVE_CONTROL"):
        build({"DUELINE_NEGATIVE_CONTROL": "no_flush"})


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_replaces_a_part_and_keeps_the_kill_point(control: str) -> None:
    built = build({"DUELINE_NEGATIVE_CONTROL": control, "DUELINE_KILL_POINT": "begun:stop"})
    assert isinstance(built.checkpoint, KillPoint)
    assert {built.dispatcher, built.log, built.producer} != {
        Build().dispatcher,
        Build().log,
        Build().producer,
    }


def test_nothing_asked_for_is_the_product() -> None:
    assert build({}) == Build()


SCRIPT = (
    "from pipeline.dev.killpoints import KillPoint\nKillPoint.parse('takeover_chosen:{}')('takeover_chosen')"
)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_kill_ends_the_process_at_that_very_instruction() -> None:
    script = SCRIPT.format("kill") + "\nprint('after', flush=True)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_stop_freezes_the_process_until_it_is_continued(eventually: Callable[..., None]) -> None:
    script = SCRIPT.format("stop") + "\nprint('after', flush=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        eventually(lambda: state(process.pid) == "T", timeout=30)
        assert process.stdout.read() is None
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
        assert process.stdout.read() == b"after\n"


def test_every_fault_has_its_reason_written_down() -> None:
    for built in CONTROLS.values():
        for part in (built.dispatcher, built.log, built.producer):
            if part.__module__ == killpoints.__name__:
                assert part.__doc__
