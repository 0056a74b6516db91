"""The supervisor with stand-in children: restarts, order of stopping, and nothing left behind.

A test acts when it sees an event or a line, in the supervisor's own thread, so it waits for nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dev import supervisor
from pipeline.dev.supervisor import REFUSED, Role, Supervisor, backoff, command

READY = """print('{"action": "running"}', flush=True)"""
WAIT = "import time; time.sleep(600)"
POLITE = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {READY}; {WAIT}"
DEAF = f"""import signal
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
{READY}
while True: {WAIT}"""


class Script:
    """A Printer that records, and calls `then` after each event and line, and with "all ready"."""

    def __init__(self, then: Callable[[Script, str], None]) -> None:
        self.events: list[str] = []
        self.lines: list[tuple[str, str]] = []
        self.pids: list[int] = []
        self._then = then

    def event(self, role: str, text: str) -> None:
        if "(pid " in text:
            self.pids.append(int(text.rpartition(" ")[2].rstrip(")")))
            text = text.partition(" (pid")[0]
        self.events.append(f"{role} {text}")
        self._then(self, self.events[-1])

    def line(self, role: str, text: str) -> None:
        self.lines.append((role, text))
        self._then(self, text)

    def all_ready(self) -> None:
        self.events.append("all ready")
        self._then(self, "all ready")


def role(name: str, code: str, stop_timeout_s: float = 40.0) -> Role:
    argv = [sys.executable, "-c", code]
    return command(name, argv, env=dict(os.environ), stop_timeout_s=stop_timeout_s)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def when(count: int, event: str, act: Callable[[Script], None]) -> Callable[[Script, str], None]:
    """Act at the `count`-th time something ends with `event`."""
    seen = 0

    def then(script: Script, text: str) -> None:
        nonlocal seen
        if text.endswith(event):
            seen += 1
            if seen == count:
                act(script)

    return then


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_all_in_the_opposite_order(number: int, ended: Callable[[int], bool]) -> None:
    script = Script(when(2, "ready", lambda _: os.kill(os.getpid(), number)))
    before = signal.getsignal(number)
    assert Supervisor([role("first", POLITE), role("second", POLITE)], script).run() == 0
    assert script.events[:2] == ["first started", "second started"]
    assert script.events[-2:] == ["second stopped", "first stopped"]
    assert all(ended(pid) for pid in script.pids)
    assert signal.getsignal(number) is before


def test_a_killed_child_is_restarted(monkeypatch: pytest.MonkeyPatch, ended: Callable[[int], bool]) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)

    def then(script: Script, text: str) -> None:
        match script.events.count("victim ready"), text:
            case 1, "victim ready":
                os.kill(script.pids[0], signal.SIGKILL)
            case 2, "victim ready":
                interrupt()

    script = Script(then)
    assert Supervisor([role("victim", POLITE)], script).run() == 0
    assert script.events == [
        "victim started",
        "victim ready",
        "all ready",
        "victim died (SIGKILL), restarting in 0.0 s",
        "victim restarted",
        "victim ready",
        "victim stopped",
    ]
    assert all(ended(pid) for pid in script.pids)


def test_a_child_that_always_fails_is_tried_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.05)
    script = Script(when(3, "s", lambda _: interrupt()))
    assert Supervisor([role("failing", "import sys; sys.exit(1)")], script).run() == 0
    deaths = [event for event in script.events if "died" in event]
    assert deaths == [f"failing died (code 1), restarting in {delay} s" for delay in ("0.1", "0.1", "0.2")]


def test_a_child_that_refuses_ends_everything_with_its_code_even_once_it_was_ready(
    ended: Callable[[int], bool],
) -> None:
    script = Script(lambda *_: None)
    bad = replace(role("bad", f"import sys; {READY}; sys.exit(4)"), last_codes=frozenset({REFUSED}))
    assert Supervisor([role("good", POLITE), bad], script).run() == REFUSED == 4
    assert "bad refused to go on (code 4), stopping" in script.events
    assert all(ended(pid) for pid in script.pids)


def test_together_all_are_asked_to_stop_before_any_has_ended_and_each_once(tmp_path: Path) -> None:
    counted = (
        "import os, signal, time; asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n" + READY + "\n"
        "while not asked: time.sleep(0.01)\n"
        f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w').close()\n"
        f"while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "print('times', len(asked), flush=True)\n"
    )
    script = Script(when(2, "ready", lambda _: interrupt()))
    roles = [role(name, counted, stop_timeout_s=20.0) for name in ("first", "second")]
    assert Supervisor(roles, script, together=True).run() == 0
    said = [line for _, line in script.lines if not line.startswith("{")]
    assert said == ["times 1", "times 1"], "the first one waits until the other has been asked"


def test_a_child_that_was_told_nonsense_ends_everything(ended: Callable[[int], bool]) -> None:
    script = Script(lambda *_: None)
    roles = [role("good", POLITE), role("bad", "import sys; print('app: no such module'); sys.exit(2)")]
    assert Supervisor(roles, script).run() == 2
    assert "bad refused its command line (code 2), stopping" in script.events
    assert ("bad", "app: no such module") in script.lines
    assert all(ended(pid) for pid in script.pids)


def test_all_are_ready_once_each_that_says_so_has() -> None:
    silent = Role(name="broker", start=role("broker", POLITE).start, ready=None)
    script = Script(when(1, "all ready", lambda _: interrupt()))
    assert Supervisor([silent, role("a", POLITE), role("b", POLITE)], script).run() == 0
    ready = [event for event in script.events if event.endswith("ready")]
    assert (sorted(ready[:2]), ready[2:]) == (["a ready", "b ready"], ["all ready"])


def test_output_is_passed_on_with_its_role() -> None:
    code = "import sys; print('a\\nb', flush=True); sys.stderr.buffer.write(b'\\xff last'); sys.exit(2)"
    script = Script(lambda *_: None)
    Supervisor([role("talker", code)], script).run()
    assert sorted(script.lines) == [
        ("talker", "a"),
        ("talker", "b"),
        ("talker", "\N{REPLACEMENT CHARACTER} last"),
    ]


def test_a_deaf_child_is_killed_at_its_deadline() -> None:
    script = Script(when(1, "ready", lambda _: interrupt()))
    assert Supervisor([role("deaf", DEAF, stop_timeout_s=0.2)], script).run() == 0
    assert script.events[-1] == "deaf killed"


def test_a_child_that_stops_badly_is_told() -> None:
    code = f"import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(7)); {READY}; {WAIT}"
    script = Script(when(1, "ready", lambda _: interrupt()))
    assert Supervisor([role("bad", code)], script).run() == 0
    assert script.events[-1] == "bad stopped (code 7)"


def test_the_same_signal_from_two_senders_is_one() -> None:
    def twice(_: Script) -> None:
        interrupt()
        interrupt()

    script = Script(when(1, "ready", twice))
    assert Supervisor([role("polite", POLITE)], script).run() == 0
    assert script.events[-1] == "polite stopped"


def test_a_second_signal_kills_at_once(monkeypatch: pytest.MonkeyPatch, ended: Callable[[int], bool]) -> None:
    monkeypatch.setattr(supervisor, "REPEAT_S", 0.0)

    def then(script: Script, text: str) -> None:
        if text in ("deaf ready", "no"):
            interrupt()

    script = Script(then)
    # The deadline is beyond the test's own: only the second signal can end it.
    assert Supervisor([role("other", POLITE), role("deaf", DEAF, stop_timeout_s=600)], script).run() == 0
    assert "deaf killed" in script.events
    assert script.events[-1].startswith("other ")
    assert all(ended(pid) for pid in script.pids)


def test_what_a_dead_child_started_dies_too(
    eventually: Callable[..., None], ended: Callable[[int], bool]
) -> None:
    code = f"import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); {POLITE}"

    def then(script: Script, text: str) -> None:
        if text == "parent ready":
            os.kill(script.pids[-1], signal.SIGKILL)
        elif "died" in text:
            interrupt()

    script = Script(then)
    Supervisor([role("parent", code)], script).run()
    grandchildren = [int(text) for _, text in script.lines if text.isdigit()]
    assert grandchildren
    eventually(lambda: all(ended(pid) for pid in grandchildren))


def test_a_process_that_runs_already_is_taken_over() -> None:
    running = subprocess.Popen([sys.executable, "-c", WAIT])
    script = Script(when(1, "started", lambda _: interrupt()))

    def never() -> subprocess.Popen[bytes]:
        raise AssertionError("it runs already")

    Supervisor([Role(name="broker", start=never, running=running)], script).run()
    assert script.pids == [running.pid]
    assert script.events[-1] == "broker stopped"


def test_an_error_leaves_nothing_running(ended: Callable[[int], bool]) -> None:
    def fail(_: Script) -> None:
        raise OSError("terminal gone")

    script = Script(when(2, "ready", fail))
    with pytest.raises(OSError, match="terminal gone"):
        Supervisor([role("a", POLITE), role("b", POLITE)], script).run()
    assert len(script.pids) == 2
    assert all(ended(pid) for pid in script.pids)


def test_kill_9_of_the_supervisor_leaves_nothing(
    tmp_path: Path, eventually: Callable[..., None], ended: Callable[[int], bool]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from pipeline.dev.supervisor import Supervisor, command\n"
        "class Print:\n"
        "    def event(self, role, text): print(text, flush=True)\n"
        "    def line(self, role, text): pass\n"
        "    def all_ready(self): pass\n"
        f"child = command('child', [sys.executable, '-c', {DEAF!r}], env={{}})\n"
        "Supervisor([child, child], Print()).run()\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.kill()
    pids = [int(line.rpartition(" ")[2].rstrip(")\n")) for line in lines if line.startswith("started")]
    assert len(pids) == 2
    eventually(lambda: all(ended(pid) for pid in pids))


@given(st.integers(0, 1000))
def test_backoff_grows_and_is_bounded(deaths: int) -> None:
    assert 0 <= backoff(deaths) <= backoff(deaths + 1) <= supervisor.LONGEST_DELAY_S


def test_exit_code_2_of_a_child_that_was_ready_is_a_death_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.0)
    seen = tmp_path / "seen"
    code = f"""import pathlib, sys, time
seen = pathlib.Path({str(seen)!r})
starts = seen.read_text() if seen.exists() else ""
seen.write_text(starts + "x")
if len(starts) == 0: {READY}; sys.exit(2)
if len(starts) == 1: sys.exit(2)
{READY}; time.sleep(600)"""
    script = Script(when(2, "child ready", lambda _: interrupt()))
    assert Supervisor([role("child", code)], script).run() == 0
    assert [event for event in script.events if event.startswith("child died (")] == [
        "child died (code 2), restarting in 0.0 s"
    ] * 2
