"""`--reload`: a parent that starts the worker again whenever the code changes. For development."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Protocol

from pipeline.cli.output import note
from pipeline.cli.several import child_argv
from pipeline.dev.process import describe_exit, spawn, sweep
from pipeline.dev.supervisor import REPEAT_S
from pipeline.service.apps import add_current_directory

LOOK_S = 1.0
TICK_S = 0.1
FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Directories that hold no code of the user's; so do hidden ones and virtual environments."""
HOPELESS = frozenset({4, 5})
"""Exit codes that no change of the code can help: refused, no store (DESIGN §9)."""

Snapshot = Mapping[Path, int]
"""Files of Python code with their modification times in ns."""


class Child(Protocol):
    """The part of subprocess.Popen that is used."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


def run_reloading(arguments: Sequence[str], target: str | None, stop_timeout_s: float) -> int:
    """Run `dueline ARGUMENTS` until SIGTERM or SIGINT, and again after each change of a `.py` file under the current
    directory or the top-level package of `target`. The exit code."""
    start = partial(spawn, child_argv(arguments), env=os.environ, stdout=1, stderr=2)
    return Reloader(start, partial(snapshot, roots(target)), stop_timeout_s).run()


class Reloader:
    """One child, kept in step with the code. Use from the main thread."""

    def __init__(
        self,
        start: Callable[[], Child],
        look: Callable[[], Snapshot],
        stop_timeout_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`stop_timeout_s` is the child's time after SIGTERM."""
        self._start = start
        self._look = look
        self._stop_timeout_s = stop_timeout_s
        self._sleep = sleep
        self._seen: Snapshot = {}
        self._child: Child | None = None
        self._stop_requests = 0
        self._asked_at = -REPEAT_S

    def run(self) -> int:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            return self._run()
        finally:
            self._stop_child()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        self._seen, self._child = self._look(), self._start()
        look_at = time.monotonic() + LOOK_S
        while not self._stop_requests:
            self._sleep(TICK_S)
            if (code := self._ended()) in HOPELESS:
                return code
            if time.monotonic() >= look_at:
                self._reload_if_changed()
                look_at = time.monotonic() + LOOK_S
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._asked_at >= REPEAT_S:  # a terminal and `timeout` may send it twice
            self._stop_requests += 1
            self._asked_at = now

    def _ended(self) -> int | None:
        """The exit code of a child that has just ended by itself; None while it runs, and ever after."""
        if self._child is None or (code := self._child.poll()) is None:
            return None
        self._child = None
        if not self._stop_requests and code not in HOPELESS:
            note(f"the worker ended ({describe_exit(code)}); waiting for a change of the code")
        return code

    def _reload_if_changed(self) -> None:
        seen = self._look()
        changed = [path for path in {*seen, *self._seen} if seen.get(path) != self._seen.get(path)]
        if not changed:
            return
        self._seen = seen
        if (problem := syntax_problem(changed)) is not None:
            note(f"{problem}; waiting for the next change" + (" with the old code" if self._child else ""))
            return
        note(f"{shown(min(changed))} changed: starting again")
        self._stop_child()
        if not self._stop_requests:
            self._child = self._start()

    def _stop_child(self) -> None:
        """SIGTERM lets it drain; SIGKILL at its deadline, or at our second stop signal."""
        child, self._child = self._child, None
        if child is None:
            return
        deadline = time.monotonic() + self._stop_timeout_s
        child.terminate()
        while child.poll() is None and self._stop_requests < 2 and time.monotonic() < deadline:
            self._sleep(TICK_S)
        child.kill()
        child.wait()
        if isinstance(child, subprocess.Popen):
            sweep(child)


# -- the code ------------------------------------------------------------------------------------------------


def roots(target: str | None) -> list[Path]:
    """What is watched: the current directory, and where the top-level package or module of `target` is if that is
    elsewhere. Imports nothing of the user's."""
    here = Path.cwd()
    found = [here]
    if target is not None:
        add_current_directory()
        found += _places_of(target.partition(":")[0].partition(".")[0])
    return [path for path in dict.fromkeys(found) if path == here or here not in path.parents]


def _places_of(module: str) -> Iterator[Path]:
    try:
        spec = find_spec(module) if module else None
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.submodule_search_locations:
        yield from (Path(place).resolve() for place in spec.submodule_search_locations)
    elif spec.origin is not None:
        yield Path(spec.origin).resolve()


def snapshot(places: Iterable[Path]) -> Snapshot:
    """The files of Python code under `places` as they are now. What vanishes meanwhile is left out."""
    found: dict[Path, int] = {}
    waiting = list(places)
    while waiting:
        place = waiting.pop()
        if place.is_file():
            found[place] = place.stat().st_mtime_ns
            continue
        for entry in _entries(place):
            if _is_ours(entry):
                waiting.append(Path(entry.path))
            elif entry.name.endswith(".py") and (changed_at := _changed_at(entry)) is not None:
                found[Path(entry.path)] = changed_at
    return found


def _entries(directory: Path) -> Collection[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError:
        return ()
    return () if any(entry.name == "pyvenv.cfg" for entry in found) else found


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether it is a directory that may hold code of the user's."""
    if entry.name.startswith(".") or entry.name in FOREIGN:
        return False
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _changed_at(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat().st_mtime_ns
    except OSError:
        return None


def syntax_problem(paths: Iterable[Path]) -> str | None:
    """What makes one of them no Python code, with its line; None if nothing does."""
    for path in sorted(paths):
        try:
            ast.parse(path.read_bytes(), str(path))
        except SyntaxError as error:
            return f"{shown(path)}:{error.lineno}: {error.msg}"
        except ValueError as error:
            return f"{shown(path)}: {error}"
        except OSError:
            continue  # gone: whoever needs it will say so
    return None


def shown(path: Path) -> str:
    """As seen from where the user stands."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
