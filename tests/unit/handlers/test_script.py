"""`script`: listed programs, run within limits, ended with all they started."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asked import T0, Keeping, context

from pipeline.core.handler import Dead, InvalidPayload, Retry, Stopped, encode_result
from pipeline.handlers import process
from pipeline.handlers.process import Limits
from pipeline.handlers.script import ScriptFailed, ScriptHandler

LIMITS = Limits(cpu_s=60, memory=1 << 32, files=64)
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A program in `allowed/` that this Python runs; its path."""

    def make(body: str, name: str = "program", directory: str = "allowed", mode: int = 0o700) -> str:
        path = tmp_path / directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable} -IS\n{body}")
        path.chmod(mode)
        return str(path)

    return make


def run(payload: object, allow: str, **options: Any) -> dict[str, Any]:
    side = options.pop("side", None) or Keeping()
    values = {"allow": (allow,), "variables": (), "limits": LIMITS, **options}
    return ScriptHandler(**values).run(context(side=side), payload)


# -- what it is given ----------------------------------------------------------------------------------------

SHOW = """
import json, os, resource, sys
print(json.dumps({
    "argv": sys.argv[1:], "stdin": sys.stdin.read(), "env": dict(os.environ), "cwd": os.getcwd(),
    "mode": oct(os.stat(".").st_mode & 0o777), "group": os.getpgrp() == os.getsid(0) == os.getpid(),
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0], "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
    "open": sorted(os.listdir("/proc/self/fd"))[:4], "privs": "NoNewPrivs:\\t1" in open("/proc/self/status").read(),
}))
"""


def test_a_program_gets_its_input_the_ids_and_nothing_else(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://x")
    monkeypatch.setenv("DUELINE_SECRET_API", "never")
    program = write(SHOW)
    payload = {
        "command": program, "args": ["-a", "$(id); `id` | *"], "input": {"ü": [1]}, "env": {"REGION": "eu"},
    }  # fmt: skip
    answer = run(payload, program, variables=("DATABASE_URL", "REGION", "NOT_SET"))
    seen = json.loads(answer["output"])
    assert answer["exit"] == 0
    assert seen["argv"] == payload["args"]
    assert seen["stdin"] == '{"ü":[1]}'
    assert {name: value for name, value in seen["env"].items() if name not in ("HOME", "TMPDIR", "LC_CTYPE")} == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
        "DATABASE_URL": "postgres://x", "REGION": "eu", "DUELINE_JOB_ID": "j0", "DUELINE_OCCURRENCE_ID": "j0",
        "DUELINE_RUN": "2", "DUELINE_ATTEMPT": "3", "DUELINE_TOKEN": str(2**62 + 1),
        "DUELINE_IDEMPOTENCY_KEY": "invoice-55", "DUELINE_NOMINAL_AT": "2027-01-15T08:00:00.000Z",
    }  # fmt: skip
    assert seen["env"]["HOME"] == seen["cwd"]
    assert (seen["mode"], seen["group"], seen["privs"]) == ("0o700", True, True)
    assert (seen["core"], seen["cpu"], seen["files"], seen["memory"]) == (0, 60, 64, 1 << 32)
    assert not os.path.exists(seen["cwd"])


def test_a_program_may_read_text_as_it_is(write: Write) -> None:
    program = write("import sys; sys.stdout.write(sys.stdin.read())")
    assert run({"command": program, "stdin": "Joe,\nrent\n"}, program)["output"] == "Joe,\nrent\n"
    with pytest.raises(InvalidPayload, match="stdin: give input or stdin, not both"):
        run({"command": program, "stdin": "", "input": 1}, program)


def test_a_program_is_told_when_its_schedule_last_succeeded(write: Write) -> None:
    program = write("import os; print(os.environ['DUELINE_LAST_SUCCESS_AT'])")
    handler = ScriptHandler(allow=(str(program),), variables=(), limits=LIMITS)
    answer = handler.run(context(last_success_at=T0), {"command": str(program)})
    assert answer["output"] == "2027-01-15T08:00:00.000Z\n"


def test_a_program_that_reads_nothing_is_not_held_up_by_a_large_input(write: Write) -> None:
    program = write("print('done')")
    assert run({"command": program, "input": "x" * 1_000_000}, program)["output"] == "done\n"


# -- which programs ------------------------------------------------------------------------------------------


def test_a_name_is_looked_up_in_what_is_listed(write: Write, tmp_path: Path) -> None:
    program = write("print('here')", name="report.py")
    assert run({"command": "report.py"}, program)["output"] == "here\n"
    assert run({"command": "report.py"}, f"{tmp_path}/allowed/")["output"] == "here\n"
    with pytest.raises(Dead, match=r"'other\.py' is not allowed by DUELINE_SCRIPT_ALLOW"):
        run({"command": "other.py"}, f"{tmp_path}/allowed/")


@pytest.mark.parametrize(
    "command", ["{dir}/elsewhere/program", "/bin/sh", "{dir}/allowed/../elsewhere/program", "{dir}"]
)
def test_what_is_not_listed_is_not_run(write: Write, tmp_path: Path, command: str) -> None:
    write("", directory="elsewhere")
    write("")
    with pytest.raises(Dead, match="is not allowed by DUELINE_SCRIPT_ALLOW"):
        run({"command": command.format(dir=tmp_path)}, f"{tmp_path}/allowed/")


def test_a_link_counts_as_what_it_leads_to(write: Write, tmp_path: Path) -> None:
    outside = write("", directory="elsewhere")
    inside = write("print('in')")
    (tmp_path / "allowed" / "out").symlink_to(outside)
    (tmp_path / "link").symlink_to(inside)
    (tmp_path / "linked").symlink_to(tmp_path / "allowed")
    with pytest.raises(Dead, match="is not allowed"):
        run({"command": "out"}, f"{tmp_path}/allowed/")
    assert run({"command": str(tmp_path / "link")}, f"{tmp_path}/linked/")["output"] == "in\n"


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_program_that_others_may_write_is_not_run(write: Write, mode: int) -> None:
    program = write("", mode=mode)
    with pytest.raises(Dead, match="may be written by group or others"):
        run({"command": program}, program)


def test_without_a_list_nothing_is_run(write: Write) -> None:
    with pytest.raises(Dead, match="DUELINE_SCRIPT_ALLOW is not set on this worker"):
        ScriptHandler(allow=(), variables=(), limits=LIMITS).run(context(), {"command": write("")})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([], "payload: "),
        ({}, "command: it is missing"),
        ({"command": ["ls"]}, "command: it must be text"),
        ({"command": "a/b"}, "command: it must be a name or an absolute path"),
        ({"command": "x\0y"}, "command: it holds a NUL"),
        ({"command": "{program}", "args": "x"}, "args: it must be a list"),
        ({"command": "{program}", "args": ["a", 1]}, r"args\[1\]: it must be text"),
        ({"command": "{program}", "args": ["a\0b"]}, r"args\[0\]: it holds a NUL"),
        ({"command": "{program}", "args": ["x" * 100_000]}, "args: more than 100000 bytes"),
        ({"command": "{program}", "env": {"LD_PRELOAD": "x"}}, "env.LD_PRELOAD: it is not listed"),
        ({"command": "{program}", "env": {"HOME": "x"}}, "env.HOME: it is not listed"),
        ({"command": "{program}", "env": {"OURS": "x"}}, "env.OURS: the worker has a value"),
        ({"command": "{program}", "standard_input": "x"}, "'standard_input': unknown field"),
    ],
)
def test_a_payload_that_cannot_be_run_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch, payload: Any, problem: str
) -> None:
    monkeypatch.setenv("OURS", "1")
    program = write("")
    if isinstance(payload, dict) and payload.get("command") == "{program}":
        payload = {**payload, "command": program}
    with pytest.raises(InvalidPayload, match="^" + problem):
        run(payload, program, variables=("OURS",))


def test_what_is_no_program_says_so(write: Write, tmp_path: Path) -> None:
    program = write("", mode=0o600)
    with pytest.raises(ScriptFailed, match=r"ended with 126: dueline: .* cannot be run: Permission denied"):
        run({"command": program}, program)
    with pytest.raises(Dead, match="is no file"):
        run({"command": str(tmp_path)}, str(tmp_path))
    with pytest.raises(Dead, match="cannot be run: No such file"):
        run({"command": f"{tmp_path}/gone"}, f"{tmp_path}/gone")


# -- how it ends ---------------------------------------------------------------------------------------------


def test_75_is_try_again_and_others_are_failures_with_the_end_of_the_output(write: Write) -> None:
    program = write(
        "import sys; print('x' * 5000, flush=True); print('the reason', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    )
    side = Keeping()
    with pytest.raises(Retry, match=r"(?s)program ended with 75: .*the reason$") as again:
        run({"command": program, "args": ["75"]}, program)
    assert again.value.after_ms is None
    with pytest.raises(ScriptFailed, match=r"(?s)program ended with 3: .*the reason$") as failed:
        run({"command": program, "args": ["3"]}, program, side=side)
    assert len(str(failed.value)) < 2_000
    assert side.lines[-1] == "the reason"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("b = bytearray(1 << 30)", "(?s)ended with 1: .*MemoryError"),
        ("while True: pass", "was killed by SIGXCPU"),
        ("f = [open('/dev/null') for _ in range(100)]", "(?s)ended with 1: .*Too many open files"),
    ],
)
def test_a_program_beyond_its_limits_is_a_failure(write: Write, body: str, problem: str) -> None:
    program = write(body)
    with pytest.raises(ScriptFailed, match=problem):
        run({"command": program}, program, limits=Limits(cpu_s=1, memory=300 << 20, files=32))


def test_of_an_endless_output_the_end_is_kept_and_binary_fits_into_the_result(write: Write) -> None:
    program = write("import sys; sys.stdout.buffer.write(b'\\0\\xff' * 500_000 + b'end')")
    answer = run({"command": program}, program)
    assert answer["output"].endswith("end")
    assert 1_000 < len(answer["output"]) < 64 * 1024
    assert b"result_dropped" not in (encode_result(answer) or b"")
    program = write("print('x' * 100_000)")
    assert len(run({"command": program}, program)["output"]) == process.OUTPUT_KEPT


CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(os.getpid(), child, flush=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child}")
"""


def test_what_a_program_leaves_behind_is_killed_and_not_waited_for(
    write: Write, tmp_path: Path, ended: Callable[[int], bool], eventually: Callable[..., None]
) -> None:
    program = write(CHILD)
    began = time.monotonic()
    answer = run({"command": program, "args": [str(tmp_path / "pids")]}, program)
    assert time.monotonic() - began < 30
    child = int(answer["output"].split()[1])
    eventually(lambda: ended(child))


@pytest.mark.parametrize("patient", [True, False])
def test_a_run_that_should_end_is_killed_with_all_it_started(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: Callable[[int], bool],
    eventually: Callable[..., None],
    patient: bool,
) -> None:
    """With SIGTERM, or SIGKILL if that is ignored; no zombie is left."""
    monkeypatch.setattr(process, "GRACE_S", 60.0 if patient else 0.2)
    body = CHILD.replace("SIG_IGN", "SIG_DFL") if patient else CHILD
    program, pids, side = write(body + "\ntime.sleep(60)"), tmp_path / "pids", Keeping()
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            run({"command": program, "args": [str(pids)]}, program, side=side)
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, timeout=20)
    side.end = True
    thread.join(30)
    assert not thread.is_alive()
    assert len(raised) == 1
    parent, child = map(int, pids.read_text().split())
    eventually(lambda: ended(child))
    with pytest.raises(ProcessLookupError):
        os.kill(parent, 0)  # a zombie would still be there


WORKER = """
import sys
from pipeline.handlers.process import Limits, run_program
run_program(sys.argv[1:], environment={}, stdin=b"", limits=Limits(cpu_s=60, memory=1 << 32, files=64), stop=bool)
"""


def test_a_program_dies_with_its_worker(
    write: Write, tmp_path: Path, ended: Callable[[int], bool], eventually: Callable[..., None]
) -> None:
    """Else it would go on beside the next attempt of its run."""
    program, pids = (
        write("import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} .'); time.sleep(60)"),
        tmp_path / "pids",
    )
    worker = subprocess.Popen([sys.executable, "-c", WORKER, program, str(pids)])
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, timeout=20)
    worker.kill()
    worker.wait()
    eventually(lambda: ended(int(pids.read_text().split()[0])))


def test_the_launcher_is_part_of_the_package() -> None:
    assert stat.S_ISREG(process.LAUNCHER.stat().st_mode)
