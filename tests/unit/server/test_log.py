"""The log of a server: one JSON object a line, whatever libraries and clients say."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from pipeline.server import log
from pipeline.server.log import Lines, told
from pipeline.service.log import LogEvents

FORGED = 'no\n{"at": "2030-01-01T00:00:00Z", "role": "server", "action": "started"}\r\x1b[2J\ud800'


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    written = capsys.readouterr()
    assert written.out == ""
    return [json.loads(line) for line in written.err.splitlines()]


def logged_by_anybody() -> None:
    for name in ("nicegui", "uvicorn.error", "engineio.server", "socketio.server", "somebody"):
        logging.getLogger(name).error(FORGED)


def failed_in_a_task() -> None:
    async def fail() -> None:
        raise KeyError(FORGED)

    async def nobody_looks() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])
        del task

    asyncio.run(nobody_looks())


def failed_in_a_thread() -> None:
    def fail() -> None:
        raise ValueError(FORGED)

    thread = threading.Thread(target=fail, name="t")
    thread.start()
    thread.join()


def failed_where_nobody_can_catch_it() -> None:
    class Falls:
        def __del__(self) -> None:
            raise ValueError(FORGED)

    Falls()


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (logged_by_anybody, 5),
        (failed_in_a_task, 1),
        (failed_in_a_thread, 1),
        (failed_where_nobody_can_catch_it, 1),
    ],
)
def test_whatever_is_said_is_one_object_a_line(
    capsys: pytest.CaptureFixture[str], said: Any, count: int
) -> None:
    for name in log.OWN_HANDLERS:
        logging.getLogger(name).addHandler(logging.StreamHandler())
    with told(LogEvents("server")):
        said()
    found = lines(capsys)
    assert len(found) == count
    assert {each["action"] for each in found} == {"log"}
    assert {each["role"] for each in found} == {"server"}
    assert all("no" in each["message"] + each.get("trace", "") for each in found)


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))


def test_of_what_one_place_says_again_and_again_only_the_number_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "SAME", 2)
    events, clock = Told(), [0.0]
    logger = logging.Logger("somebody")
    logger.addHandler(Lines(events, lambda: clock[0]))

    def say(times: int) -> None:
        for _ in range(times):
            logger.error(FORGED)

    say(5)
    logger.error("another place")
    assert [fields["message"] for _, fields in events.lines] == [FORGED, FORGED, "another place"]
    clock[0] = log.SAME_S
    say(2)
    assert [fields.get("left_out") for _, fields in events.lines[3:]] == [3, None]
    clock[0] *= 2
    say(1)
    assert "left_out" not in events.lines[-1][1]


def test_our_own_modules_name_what_happened() -> None:
    events = Told()
    logger = logging.Logger("pipeline.somewhere")
    logger.addHandler(Lines(events))
    logger.warning("x" * 5_000, extra={"action": "somewhere.failed"})
    ((action, fields),) = events.lines
    assert (action, fields["level"], fields["logger"]) == (
        "somewhere.failed",
        "warning",
        "pipeline.somewhere",
    )
    assert len(fields["message"]) == log.MESSAGE


def test_a_mistake_in_a_line_does_not_cost_the_line() -> None:
    events = Told()
    logger = logging.Logger("somebody")
    logger.addHandler(Lines(events))
    logger.error("%d jobs", "many")
    assert events.lines[0][1]["message"] == "%d jobs"
