"""Events that cannot be written are lost; the process goes on (a full disk, `worker | tee` whose tee died)."""

from __future__ import annotations

import io
import sys

import pytest

from pipeline.service.log import LogEvents


class Full(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Full(), closed(), None], ids=["full", "closed", "none"])
def test_an_event_that_cannot_be_written_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    LogEvents("worker", 0).on("assigned", partitions=[1])
