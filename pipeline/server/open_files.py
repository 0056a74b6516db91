"""How many connections a process may have open: each is a file to the system, which has a limit of its own."""

from __future__ import annotations

import resource

OWN_FILES = 1_000
"""What a server has open itself: its read model, and connections to brokers."""
ENOUGH = 65_536


def room_for(connections: int) -> int:
    """As many as are wanted, or as the system allows once its soft limit is raised as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return connections if soft == resource.RLIM_INFINITY else possible(connections, soft)


def possible(connections: int, files: int) -> int:
    """Of so many open files. Where there are few, half of them."""
    return min(connections, max(files - OWN_FILES, files // 2))
