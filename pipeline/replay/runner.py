"""Which process carries a replay out, and whether it is there at all."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A process, for one time at which it takes a replay up: `nonce` is never the same twice.

    `place` is its machine since that was started, and the namespace of its process id; empty where nobody can tell.
    """

    host: str
    pid: int
    place: str
    nonce: str

    @classmethod
    def here(cls) -> Self:
        """This process, from now on."""
        return cls(host=socket.gethostname(), pid=os.getpid(), place=_place(), nonce=uuid.uuid4().hex)

    @classmethod
    def of(cls, text: str) -> Self:
        """From its `text`; ValueError."""
        host, pid, place, nonce = text.split(" ")
        return cls(host=host, pid=int(pid), place=place, nonce=nonce)

    @property
    def text(self) -> str:
        return f"{self.host} {self.pid} {self.place} {self.nonce}"

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid})"

    def gone(self) -> bool:
        """Whether it certainly is not there any more: of a process elsewhere nobody here can say."""
        if not self.place or (self.host, self.place) != (socket.gethostname(), _place()) or self.pid < 1:
            return False
        with suppress(PermissionError):  # somebody else's, but there
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
        return False


def _place() -> str:
    """Linux only: elsewhere a process counts as gone by its silence alone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
