"""Of the runner: the process that it is."""

import os
import sys

#: Where a process that may serve several tasks hears of the next.
CALLS = 3
_started_as: "list[str]" = []


def remember_start() -> None:
    """How this process was started, while that is still known."""
    _started_as[:] = sys.argv


def begin_anew() -> None:
    """With the same task, and nothing of what was imported."""
    flush()
    os.set_inheritable(CALLS, True)
    os.execv(sys.executable, [sys.executable, *_started_as])


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # Nobody reads it any more; what was computed counts.
            pass
