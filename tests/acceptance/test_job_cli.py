"""`dueline job` and `dueline status` as a user runs them: subprocesses against the real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
Shell = Callable[..., subprocess.CompletedProcess[str]]


def shell_of(bootstrap: str, prefix: str, state_dir: Path, **more: str) -> Shell:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DUELINE_")},
        "DUELINE_BOOTSTRAP_SERVERS": bootstrap,
        "DUELINE_PREFIX": prefix,
        "DUELINE_STATE_DIR": str(state_dir),
        **more,
    }

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline", *words],
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def shell(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """`dueline …` in a namespace that has its topics."""
    run = shell_of(broker, f"t{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("state"))
    assert run("topics", "create").returncode == 0
    return run


def answers(ran: subprocess.CompletedProcess[str], schema: str) -> list[dict[str, Any]]:
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{schema}.json").read_text()))
    for answer in found:
        validator.validate(answer)
    return found


def test_create_get_list_status(shell: Shell) -> None:
    ran = shell("--json", "job", "create", "email.send", "--payload", '{"to": "a@b"}', "--in", "1h")
    (job,) = answers(ran, "job_create")
    assert "no live worker knows the handler 'email.send'" in ran.stderr
    (view,) = answers(shell("job", "get", job["id"], "--json"), "job_get")
    assert (view["status"], view["due_at"]) == ("pending", job["due_at"])
    listed = answers(shell("job", "--json", "list", "--handler", "email.send"), "job_list")
    assert [each["id"] for each in listed] == [job["id"]]
    (status,) = answers(shell("status", "--json"), "status")
    assert status["pending"] >= 1


def test_a_file_of_jobs_from_stdin(shell: Shell) -> None:
    line = json.dumps({"handler": "bulk", "in": "1h"}) + "\n"
    ran = shell("job", "create", "--file", "-", "--json", stdin=line * 2_500)
    assert answers(ran, "job_create_file") == [{"accepted": 2_500}]
    assert len(answers(shell("job", "list", "--handler", "bulk", "--json"), "job_list")) == 2_500


def test_bad_input_has_one_line_and_stores_nothing(shell: Shell) -> None:
    for words, told in (
        (("bad", "--at", "2030-01-01T00:00:00"), "--at"),
        (("bad", "--now", "--key", ""), "--key"),
        (("bad", "--now", "--payload", "{"), "--payload"),
        (("bad", "--now", "--nonsense"), "--nonsense"),
    ):
        ran = shell("job", "create", *words)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        assert told in ran.stderr
    listed = shell("job", "list", "--handler", "bad")
    assert (listed.stdout, listed.stderr) == ("", "dueline: no job matches\n")


def test_an_unknown_job_is_exit_code_3(shell: Shell) -> None:
    ran = shell("job", "get", "j" + "0" * 26)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (3, "", 1)


@pytest.mark.parametrize("words", [("job", "create", "h", "--now"), ("job", "list"), ("status",)])
def test_an_unreachable_store_is_exit_code_5_within_10_seconds(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    patience = {} if words[0] == "status" else {"DUELINE_STORE_TIMEOUT_MS": "1000"}  # one waits as users do
    started = time.monotonic()
    ran = shell_of("127.0.0.1:1", "nobody", tmp_path, **patience)(*words)
    assert time.monotonic() - started < 25  # half of it for a machine that is busy
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (5, "", 1)


def test_no_store_at_all_says_what_to_start(tmp_path: Path) -> None:
    ran = shell_of("", "nobody", tmp_path)("job", "create", "h", "--now")
    assert (ran.returncode, ran.stderr) == (
        5,
        "dueline: no store: start `dueline dev` or set DUELINE_BOOTSTRAP_SERVERS\n",
    )
