"""The class archive's life around a broker's, with a script in the JVM's place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.dev.archive import ARCHIVES_KEPT, ClassArchive

PACKS = """#!/bin/sh
for a; do case $a in -XX:SharedArchiveFile=*) echo packed > "${a#*=}";; esac; done
"""
FAILS = PACKS + "exit 1\n"
NEVER_ENDS = PACKS + "exec sleep 600\n"


def archive(tmp_path: Path, java: str) -> ClassArchive:
    """An archive whose broker has listed its classes."""
    (tmp_path / "jvm" / "bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "jvm" / "lib").mkdir(exist_ok=True)
    (tmp_path / "jvm" / "lib" / "modules").touch()
    os.utime(tmp_path / "jvm" / "lib" / "modules", ns=(0, 0))
    script = tmp_path / "jvm" / "bin" / "java"
    script.write_text(java)
    script.chmod(0o700)
    (tmp_path / "jars").mkdir(exist_ok=True)
    made = ClassArchive(tmp_path / "jars", script, [tmp_path / "a.jar"], ["-Xmx512m"])
    for flag in made.run_flags():
        if found := re.fullmatch("-XX:DumpLoadedClassList=(.*)", flag):
            Path(found[1]).write_text("java/lang/Object")
    return made


def test_packed_beside_the_first_broker_and_used_by_the_next(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    first = archive(tmp_path, PACKS)
    assert first.use_flags() == []
    first.pack()
    eventually(lambda: first._packer is not None and first._packer.poll() is not None)
    first.finish()
    (packed,) = (tmp_path / "jars").iterdir()  # and no scratch files
    second = archive(tmp_path, PACKS)
    assert second.run_flags() == second.use_flags() == [f"-XX:SharedArchiveFile={packed}", "-Xshare:auto"]


@pytest.mark.parametrize("java", [FAILS, NEVER_ENDS])
def test_an_unfinished_archive_is_dropped(tmp_path: Path, java: str, eventually: Callable[..., None]) -> None:
    made = archive(tmp_path, java)
    made.pack()
    eventually(lambda: list((tmp_path / "jars").glob("*.new")))
    made.finish()
    assert list((tmp_path / "jars").iterdir()) == []
    assert made.use_flags() == []


def test_archives_of_forgotten_environments_go(tmp_path: Path, eventually: Callable[..., None]) -> None:
    made = archive(tmp_path, PACKS)
    jars = tmp_path / "jars"
    for age in range(ARCHIVES_KEPT):
        (jars / f"{age}.jsa").touch()
        os.utime(jars / f"{age}.jsa", (1_000 - age, 1_000 - age))
    (jars / "crashed.new").touch()
    os.utime(jars / "crashed.new", (0, 0))
    (jars / "busy.classes").touch()
    made.pack()
    eventually(lambda: made._packer is not None and made._packer.poll() is not None)
    made.finish()
    left = {path.name for path in jars.iterdir()}
    assert {"0.jsa", "1.jsa", "busy.classes"} < left
    assert "crashed.new" not in left
    assert len(left) == ARCHIVES_KEPT + 1
