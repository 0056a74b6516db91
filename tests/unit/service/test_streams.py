"""No handler can take standard output and error from the others, from us, or from the end of the process."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.service.log import LogEvents, OwnHandler
from pipeline.service.loop import Watchdog
from pipeline.service.streams import lasting_streams

Harm = Callable[[str], None]


def close(name: str) -> None:
    getattr(sys, name).close()


def close_beneath(name: str) -> None:
    getattr(sys, name).buffer.close()


def detach(name: str) -> None:
    getattr(sys, name).detach()


def junk(name: str) -> None:
    setattr(sys, name, object())


def nothing(name: str) -> None:
    setattr(sys, name, None)


def delete(name: str) -> None:
    delattr(sys, name)


def closed_file(name: str) -> None:
    stream = io.StringIO()
    stream.close()
    setattr(sys, name, stream)


def descriptor(name: str) -> None:
    os.close(getattr(sys, name).fileno())


HARMS = (close, close_beneath, detach, junk, nothing, delete, closed_file, descriptor)


@contextmanager
def files(home: Path) -> Iterator[dict[str, Path]]:
    """Inside, this process's output and errors go there. No fixture: pytest puts its own in place before the test."""
    before = sys.stdout, sys.stderr
    paths = {name: home / name for name in ("stdout", "stderr")}
    with paths["stdout"].open("w", buffering=1) as out, paths["stderr"].open("w", buffering=1) as err:
        sys.stdout, sys.stderr = out, err
        try:
            yield paths
        finally:
            sys.stdout, sys.stderr = before


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_what_a_handler_does_to_a_stream_is_mended(harm: Harm, name: str, tmp_path: Path) -> None:
    with files(tmp_path) as found:
        with lasting_streams() as mend:
            print("before", file=getattr(sys, name))
            harm(name)
            mend()
            print("after", file=getattr(sys, name))
        print("the answer", file=getattr(sys, name))
        getattr(sys, name).flush()
    assert found[name].read_text() == "before\nafter\nthe answer\n"


def test_closing_harms_nobody_for_a_moment(tmp_path: Path) -> None:
    with files(tmp_path) as found, lasting_streams():
        sys.stdout.close()
        print("at once")
        sys.stdout.close()
    assert found["stdout"].read_text() == "at once\n"


def test_a_stream_that_takes_text_is_left_to_its_handler_and_put_back_at_the_end(tmp_path: Path) -> None:
    with files(tmp_path) as found:
        with lasting_streams() as mend:
            sys.stdout = captured = io.StringIO()
            mend()
            print("captured")
        print("the answer")
    assert captured.getvalue() == "captured\n"
    assert found["stdout"].read_text() == "the answer\n"


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_our_own_lines_do_not_depend_on_it(harm: Harm, tmp_path: Path) -> None:
    with files(tmp_path) as found, lasting_streams():
        harm("stderr")
        LogEvents("worker", 0).on("assigned", partitions=[1])
        record = logging.LogRecord("pipeline.x", logging.WARNING, "", 0, "producer replaced", None, None)
        assert isinstance(logging.lastResort, OwnHandler)
        logging.lastResort.handle(record)
    first, second = found["stderr"].read_text().splitlines()
    assert '"action": "assigned"' in first
    assert second == "producer replaced"


def test_the_watchdog_does_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`redirect_stderr` in a handler is no crime."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    watchdog = Watchdog()
    watchdog.feed()
    watchdog.stop()


def test_streams_without_a_descriptor_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: Any = io.StringIO()
    monkeypatch.setattr(sys, "stdout", captured)
    monkeypatch.setattr(sys, "stderr", None)
    with lasting_streams() as mend:
        mend()
        assert sys.stdout is captured
        assert sys.stderr is None


END = """
import os, sys
from pipeline.service.streams import lasting_streams
with lasting_streams():
    {harm}
print("the answer")
"""


@pytest.mark.parametrize(
    "harm",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = object()",
        "os.close(1); os.close(2)",
    ],
)
def test_the_process_ends_well(harm: str) -> None:
    """The interpreter flushes both at its end, and makes the exit code 120 if that fails."""
    ran = subprocess.run(
        [sys.executable, "-c", END.format(harm=harm)], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the answer\n", "")
