"""Becomes a script within its limits: `python -I -S launch.py PARENT_PID CPU_S MEMORY_BYTES FILES PROGRAM ARG…`.

A file of its own, run in the child, because the alternative, `preexec_fn`, runs Python between fork and exec, which
is unsafe in a process with threads. Limits and the wish to die with the worker outlive execve(2); so does the ban on
gaining rights by a set-user-id program.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CANNOT_RUN = 126


def main() -> None:
    parent, cpu, memory, files = map(int, sys.argv[1:5])
    command = sys.argv[5:]
    os.umask(0o077)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, cpu, grace=2)  # SIGXCPU first, which says what happened
    _limit(resource.RLIMIT_NOFILE, files)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            sys.exit(CANNOT_RUN)
    _limit(resource.RLIMIT_AS, memory)  # last: this interpreter may need more than the script may have
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        print(f"dueline: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(CANNOT_RUN)


def _limit(what: int, wanted: int, grace: int = 0) -> None:
    """Never above what the worker itself may have."""
    most = resource.getrlimit(what)[1]
    bounds = (wanted, wanted + grace)
    soft, hard = bounds if most == resource.RLIM_INFINITY else (min(bound, most) for bound in bounds)
    resource.setrlimit(what, (soft, hard))


if __name__ == "__main__":
    main()
