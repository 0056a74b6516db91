"""`dueline worker --reload`: what is watched, and what a change comes to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import reload
from pipeline.cli.reload import Reloader, Snapshot, roots, snapshot, syntax_problem

# -- what is watched -----------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return project


def file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_python_files_are_watched_wherever_they_are_but_in_foreign_directories(here: Path) -> None:
    wanted = {file(here / "jobs.py"), file(here / "billing" / "deep" / "mail.py")}
    for foreign in ("__pycache__/a.py", ".git/a.py", "node_modules/x/a.py", "env/lib/a.py", "notes.txt"):
        file(here / foreign)
    file(here / "env" / "pyvenv.cfg")
    assert snapshot([here]).keys() == wanted


def test_a_snapshot_tells_a_change_a_new_file_and_one_that_is_gone(here: Path) -> None:
    jobs = file(here / "jobs.py")
    before = snapshot([here])
    os.utime(jobs, ns=(1, 1))
    assert snapshot([here]) != before
    jobs.unlink()
    assert snapshot([here]) == {}


def test_a_link_to_a_directory_that_contains_it_is_not_followed(here: Path) -> None:
    jobs = file(here / "jobs.py")
    (here / "loop").symlink_to(here)
    assert snapshot([here]).keys() == {jobs}


def test_a_directory_that_is_gone_has_no_files(here: Path) -> None:
    assert snapshot([here / "nowhere"]) == {}


def test_the_package_of_the_application_is_watched_beside_the_current_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = here.parent / "elsewhere"
    file(elsewhere / "reload_pack" / "__init__.py", "raise SystemExit('imported')")
    single = file(elsewhere / "reload_single.py", "raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(elsewhere))
    assert roots("reload_pack.jobs:app") == [here, elsewhere / "reload_pack"]
    assert roots("reload_single:app") == [here, single]
    assert snapshot([single]).keys() == {single}


def test_a_package_below_the_current_directory_is_watched_once(here: Path) -> None:
    file(here / "reload_inner" / "__init__.py")
    assert roots("reload_inner.jobs:app") == [here]


@pytest.mark.parametrize("target", [None, "nowhere:app", ":app", "a b:app"])
def test_without_a_package_the_current_directory_is_watched(here: Path, target: str | None) -> None:
    assert roots(target) == [here]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("x = 1", None), ("\ndef (", "jobs.py:2: invalid syntax"), ("x = 1\0", "jobs.py")],
)
def test_code_that_does_not_parse_is_named_with_its_line(here: Path, text: str, problem: str | None) -> None:
    found = syntax_problem([file(here / "jobs.py", text)])
    assert (found is None) if problem is None else str(found).startswith(problem)


def test_a_file_that_is_gone_is_no_syntax_problem(here: Path) -> None:
    assert syntax_problem([here / "gone.py"]) is None


# -- what a change comes to ----------------------------------------------------------------------------------


class FakeChild:
    def __init__(self, pid: int, log: list[str], *, stubborn: bool) -> None:
        self.pid, self._log, self._stubborn = pid, log, stubborn
        self.returncode: int | None = None
        log.append(f"start {pid}")

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self._log.append(f"terminate {self.pid}")
        if not self._stubborn:
            self.returncode = 0

    def kill(self) -> None:
        if self.returncode is None:
            self._log.append(f"kill {self.pid}")
            self.returncode = -9

    def wait(self) -> int:
        assert self.returncode is not None
        return self.returncode


class Script:
    """A reloader whose looks, children and time are the test's: every look happens one look later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stubborn: bool = False) -> None:
        self.log: list[str] = []
        self.children: list[FakeChild] = []
        self.files: dict[Path, int] = {}
        self.then: list[Callable[[], None]] = []
        self._stubborn = stubborn
        self._now = 1_000.0
        monkeypatch.setattr(reload.time, "monotonic", lambda: self._now)

    def run(self) -> int:
        return Reloader(self._start, self._look, 30.0, self._sleep).run()

    def _start(self) -> FakeChild:
        self.children.append(FakeChild(len(self.children) + 1, self.log, stubborn=self._stubborn))
        return self.children[-1]

    def _look(self) -> Snapshot:
        return dict(self.files)

    def _sleep(self, seconds: float) -> None:
        self._now += 1.1
        if self.then:
            self.then.pop(0)()
        else:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, here: Path) -> Script:
    made = Script(monkeypatch)
    made.files = {here / "jobs.py": 1}
    return made


def test_a_change_starts_the_child_again(
    script: Script, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = file(here / "jobs.py", "x = 1")
    script.then = [lambda: None, lambda: script.files.update({jobs: 2})]
    assert script.run() == 0
    assert script.log == ["start 1", "terminate 1", "start 2", "terminate 2"]
    assert capsys.readouterr().err == "dueline: jobs.py changed: starting again\n"


def test_code_that_does_not_parse_leaves_the_old_worker_running(
    script: Script, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = file(here / "jobs.py", "def (")

    def repair() -> None:
        jobs.write_text("x = 1")
        script.files[jobs] = 3

    script.then = [
        lambda: script.files.update({jobs: 2}),
        lambda: None,
        repair,
    ]
    script.run()
    assert script.log == ["start 1", "terminate 1", "start 2", "terminate 2"]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == ("dueline: jobs.py:1: invalid syntax; waiting for the next change with the old code")
    assert len(said) == 2, "said once, not once a look"


def test_a_child_that_ends_waits_for_the_next_change(
    script: Script, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = file(here / "jobs.py", "x = 1")
    script.then = [
        lambda: setattr(script.children[0], "returncode", 2),
        lambda: None,
        lambda: script.files.update({jobs: 2}),
    ]
    assert script.run() == 0
    assert script.log == ["start 1", "start 2", "terminate 2"]
    assert "the worker ended (code 2); waiting for a change of the code" in capsys.readouterr().err


@pytest.mark.parametrize("code", [4, 5])
def test_what_no_change_of_the_code_can_help_is_the_exit_code(script: Script, code: int) -> None:
    script.then = [lambda: setattr(script.children[0], "returncode", code)]
    assert script.run() == code
    assert script.log == ["start 1"]


def test_a_child_that_does_not_drain_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, stubborn=True)
    script.then = [lambda: os.kill(os.getpid(), signal.SIGTERM), *[lambda: None] * 40]
    script.run()
    assert script.log == ["start 1", "terminate 1", "kill 1"]
    assert 10 < len(script.then) < 15, "30 s after it was asked"


def test_a_second_signal_kills_at_once_and_handlers_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, stubborn=True)
    before = signal.getsignal(signal.SIGINT)
    script.then = [lambda: os.kill(os.getpid(), signal.SIGINT)] * 2 + [lambda: None] * 40
    script.run()
    assert script.log == ["start 1", "terminate 1", "kill 1"]
    assert len(script.then) == 40
    assert signal.getsignal(signal.SIGINT) is before
