"""The class-data-sharing archive that halves the broker's start (JEP 310): made once, beside the jars.

The first broker of a cache lists the classes it loads; an idle-priority JVM then packs them while that
broker works, and the archive is taken into use when the broker stops. Without one a start is slower, never
wrong: the JVM checks the archive against its own build and the jars, and ignores one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.dev.process import spawn

ARCHIVES_KEPT = 3
"""One per JVM location (virtual environment), 65 MB each."""
ABANDONED_S = 3600
"""Age at which an unfinished archive is a crashed process's."""


class ClassArchive:
    """The archive for one JVM and one class path, in the directory of the jars."""

    def __init__(self, home: Path, java: Path, class_path: Sequence[Path], flags: Sequence[str]) -> None:
        self._java = java
        self._class_path = os.pathsep.join(map(str, class_path))
        self._flags = list(flags)
        built = (java.parent.parent / "lib" / "modules").stat().st_mtime_ns
        identity = hashlib.sha256(f"{java}:{built}:{self._class_path}:{flags}".encode()).hexdigest()
        self._path = home / f"{identity[:16]}.jsa"
        unfinished = secrets.token_hex(4)
        self._scratch = self._path.with_suffix(f".{unfinished}.new")
        self._list = self._path.with_suffix(f".{unfinished}.classes")
        self._writable = os.access(home, os.W_OK)
        self._packer: subprocess.Popen[bytes] | None = None

    def use_flags(self) -> list[str]:
        """JVM flags that use the archive, none if there is none yet."""
        return [f"-XX:SharedArchiveFile={self._path}", "-Xshare:auto"] if self._path.exists() else []

    def run_flags(self) -> list[str]:
        """JVM flags of the broker: use the archive, or list the classes for making it."""
        if self._path.exists() or not self._writable:
            return self.use_flags()
        return [f"-XX:DumpLoadedClassList={self._list}"]

    def pack(self) -> None:
        """Start packing, if the broker that is now ready was started to list its classes."""
        if self._path.exists() or not self._list.exists():
            return
        dump = [
            *(
                "-Xshare:dump",
                f"-XX:SharedClassListFile={self._list}",
                f"-XX:SharedArchiveFile={self._scratch}",
            ),
            *("-cp", self._class_path),
        ]
        self._packer = spawn(["nice", "-n", "19", str(self._java), *self._flags, *dump])

    def finish(self) -> None:
        """Take a finished archive into use; an unfinished one is dropped, the next broker starts over."""
        if self._packer is not None:
            if self._packer.poll() is None:
                self._packer.kill()
            if self._packer.wait() == 0:
                self._scratch.replace(self._path)
                self._forget_old()
        for leftover in (self._scratch, self._list):
            leftover.unlink(missing_ok=True)
        self._packer = None

    def _forget_old(self) -> None:
        archives = sorted(self._path.parent.glob("*.jsa"), key=lambda p: p.stat().st_mtime, reverse=True)
        for old in archives[ARCHIVES_KEPT:]:
            old.unlink(missing_ok=True)
        for crashed in (*self._path.parent.glob("*.new"), *self._path.parent.glob("*.classes")):
            if time.time() - crashed.stat().st_mtime > ABANDONED_S:
                crashed.unlink(missing_ok=True)
