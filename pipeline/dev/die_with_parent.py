"""Runs a command that dies when its parent does: `python -I -S die_with_parent.py PARENT_PID COMMAND…`.

A script of its own because the alternative, `preexec_fn`, runs Python between fork and exec, which is unsafe
(and warned about) in a process with threads, and every Kafka client has threads. prctl(2): the kernel sends
the signal when the *thread* that started the child ends, and keeps the setting across execve. Other systems
than Linux have no such call: there a parent that is killed leaves its children.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
