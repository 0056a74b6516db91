"""The command group: lazy commands, `--json` anywhere, and errors as one line and an exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest

import pipeline
from pipeline import cli
from pipeline.cli import output
from pipeline.config import load_settings
from pipeline.core.errors import (
    DuelineError,
    InvalidInput,
    NotFound,
    Refused,
    StoreUnreachable,
)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    """`dueline probe answer|fail|many`."""

    @click.group("probe")
    def probe() -> None: ...

    @probe.command()
    @click.option("--payload")
    @click.argument("words", nargs=-1)
    def answer(payload: str | None, words: tuple[str, ...]) -> None:
        output.emit({"payload": payload, "words": list(words)}, lambda data: f"payload {data['payload']}")

    @probe.command()
    def many() -> None:
        output.emit(iter([{"n": 1}, {"n": 2}]), lambda item: f"n {item['n']}")

    @probe.command()
    def bare() -> int:
        return 1

    module = type(sys)("pipeline.cli.probe")
    module.probe = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pipeline.cli.probe", module)
    monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "probe": cli.Place("probe", "probe", "Probe.")})
    return probe


def test_help_lists_every_command_with_its_line(dueline: Any) -> None:
    ran = dueline("--help")
    assert ran.code == 0
    for name, place in cli.COMMANDS.items():
        assert f"\n  {name} " in ran.out
        assert place.help in ran.out


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from pipeline.cli import main; main(['--help']);"
        "bad = {'confluent_kafka', 'fastavro', 'rocksdict', 'rich', 'pipeline.config'} & sys.modules.keys();"
        "sys.exit(str(bad) if bad else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_where_the_map_says(name: str) -> None:
    place = cli.COMMANDS[name]
    command = getattr(import_module(f"pipeline.cli.{place.module}"), place.attribute)
    assert isinstance(command, click.Command)
    assert command.name == name


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "probe", "answer", "--payload", "x"),
        ("probe", "--json", "answer", "--payload", "x"),
        ("probe", "answer", "--json", "--payload", "x"),
        ("probe", "answer", "--payload", "x", "--json"),
    ],
)
@pytest.mark.usefixtures("probe")
def test_json_is_accepted_anywhere(dueline: Any, words: tuple[str, ...]) -> None:
    assert dueline(*words).out == '{"payload":"x","words":[]}\n'


@pytest.mark.usefixtures("probe")
def test_json_is_not_taken_from_a_value(dueline: Any) -> None:
    assert dueline("probe", "answer", "--payload", "--json").out == "payload --json\n"
    assert dueline("probe", "answer", "--json", "--", "--json").out == '{"payload":null,"words":["--json"]}\n'


@pytest.mark.usefixtures("probe")
def test_an_iterator_is_one_item_a_line(dueline: Any) -> None:
    assert dueline("probe", "many").out == "n 1\nn 2\n"
    assert dueline("probe", "many", "--json").out == '{"n":1}\n{"n":2}\n'


@pytest.mark.usefixtures("probe")
def test_a_command_may_return_its_exit_code(dueline: Any) -> None:
    assert dueline("probe", "bare") == (1, "", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("at", "naive"), 2),
        (NotFound("gone"), 3),
        (Refused("no"), 4),
        (StoreUnreachable("nobody\nthere"), 5),
        (DuelineError("odd"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_expected_error_is_one_line_and_its_code(
    dueline: Any, probe: click.Group, error: BaseException, code: int
) -> None:
    @probe.command()
    def fail() -> None:
        raise error

    ran = dueline("probe", "fail")
    assert ran.code == code
    expected = f"dueline: {' '.join(str(error).split())}\n" if isinstance(error, DuelineError) else ""
    assert ran.err.lstrip("\n") == expected


def test_a_full_disk_is_one_line_and_what_nobody_expects_is_not(dueline: Any, probe: click.Group) -> None:
    problems = ["IO error: No space left on device: While appending to file: /state/index/000004.log", "else"]

    @probe.command()
    def fail() -> None:
        raise Exception(problems[0])

    ran = dueline("probe", "fail")
    assert (ran.code, ran.err) == (
        1,
        f"dueline: the state directory failed, and this process with it: {problems.pop(0)}\n",
    )
    with pytest.raises(Exception, match="else"):
        dueline("probe", "fail")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("frob",), "frob"),
        (("--nope",), "--nope"),
        (("probe", "answer", "--nope"), "--nope"),
        (("probe", "answer", "--payload"), "--payload"),
    ],
)
@pytest.mark.usefixtures("probe")
def test_a_usage_error_is_one_line_naming_the_option(dueline: Any, words: tuple[str, ...], told: str) -> None:
    ran = dueline(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dueline: ")
    assert ran.err.count("\n") == 1
    assert told in ran.err


@pytest.fixture
def dev_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a running development store, as far as anybody can tell without Kafka."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "dev.json").write_text(json.dumps({"bootstrap": bootstrap, "pid": os.getpid()}))
        monkeypatch.setenv("DUELINE_STATE_DIR", str(tmp_path))
        pipeline._tell.cache_clear()
        yield bootstrap
        pipeline._tell.cache_clear()


def test_the_development_store_is_told_once(dev_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        pipeline.connect(load_settings(kafka={"log_level": "0"})).appender.close()
        pipeline.tell_dev_store(load_settings())
    assert capsys.readouterr() == ("", f"dueline: store: the development store at {dev_store}\n")


def test_a_store_that_was_named_is_not_told(dev_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.tell_dev_store(load_settings(bootstrap_servers=dev_store))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [("dispatcher",), ("worker", "--app", "pipeline.dev.handlers:app")])
def test_dispatcher_and_worker_tell_the_development_store(
    dueline: Any, dev_store: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for name in ("run_dispatcher", "run_worker"):
        monkeypatch.setattr(f"pipeline.service.{name}", lambda *_, **__: True)
    assert dueline(*words) == (0, "", f"dueline: store: the development store at {dev_store}\n")


def test_no_command_shows_the_help_and_fails(dueline: Any) -> None:
    ran = dueline()
    assert ran.code == 2
    assert "Commands:" in ran.err


def test_the_version_is_the_distributions(dueline: Any) -> None:
    assert version("dueline") == pipeline.__version__
    assert dueline("--version").out == f"dueline, version {pipeline.__version__}\n"


@pytest.mark.parametrize("write", ["cli.click.echo('x')", "sys.stdout.write('x')"])
def test_a_closed_pipe_is_quiet(write: str) -> None:
    """Whether it is noticed while writing or only when the rest is flushed."""
    script = (
        "import sys; from pipeline import cli;"
        f"cli.dueline.invoke = lambda ctx: {write} and None;"
        "sys.exit(cli.main(['job']))"
    )
    reads, writes = os.pipe()
    os.close(reads)
    ran = subprocess.run(
        [sys.executable, "-c", script], stdout=writes, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writes)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_tables_align_without_a_terminal_and_are_rich_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", None), ("bbb", 2)]
    assert output.table(("name", "n"), rows) == "NAME  N\na\nbbb   2"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rich = output.table(("name", "n"), [("[red]a[/red]", 1)])
    assert "NAME" in rich
    assert "[red]a[/red]" in rich


def test_an_empty_text_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def nothing() -> Iterator[dict[str, int]]:
        yield {"n": 1}

    output.emit(nothing(), lambda item: "")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("redirect", "said"),
    [(">/dev/full", "cannot write to stdout: No space left on device"), (">&-", "stdout is closed")],
)
def test_an_output_that_cannot_be_written_is_one_line(redirect: str, said: str) -> None:
    ran = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$0" -c "import sys; from pipeline.cli import main; sys.exit(main())" --help {redirect}',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert said in ran.stderr
