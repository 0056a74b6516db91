"""What handlers log is shown as the events are: one JSON object a line, with the ids of the attempt."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from pipeline.service.log import JOB_LOGGER, JobLines

SCRIPT = """
import logging, sys
from pipeline.service.log import show_job_lines
if sys.argv[1:]:
    logging.basicConfig(format="own %(message)s")
show_job_lines()
logging.getLogger("dueline.job.mail").info("sent")
"""


def test_a_line_has_its_ids_and_its_trace() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord(
            f"{JOB_LOGGER}.mail", logging.INFO, "f", 1, "sent %d", (3,), sys.exc_info()
        )
    record.job, record.run, record.attempt = "j1", 1, 2
    line = json.loads(JobLines().format(record))
    assert (line["action"], line["handler"], line["message"]) == ("handler.log", "mail", "sent 3")
    assert (line["job"], line["run"], line["attempt"], line["level"]) == ("j1", 1, 2, "INFO")
    assert "ValueError: no" in line["trace"]


def shown(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return done.stderr


def test_an_application_with_logging_of_its_own_keeps_it() -> None:
    assert json.loads(shown())["message"] == "sent"
    assert shown("own") == "own sent\n"
