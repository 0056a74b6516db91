"""The end of a process in which handlers have run: what they left behind does not keep it."""

from __future__ import annotations

import os
import threading
import time

from pipeline.service.log import LogEvents

PATIENCE_S = 5.0
"""For what handlers have left to end: threads that are no daemons, pools, what they had registered for the exit."""


def end_soon(events: LogEvents, seconds: float = PATIENCE_S) -> None:
    """Called once the work of this process is done. The interpreter waits for what is left for ever; we do for so long,
    and then the process ends well all the same."""

    def end() -> None:
        time.sleep(seconds)
        events.on("left_behind", threads=left())
        os._exit(0)

    threading.Thread(target=end, name="end", daemon=True).start()


def left() -> list[str]:
    """Names of the threads that the interpreter waits for."""
    main = threading.main_thread()
    return [each.name for each in threading.enumerate() if not each.daemon and each is not main]
