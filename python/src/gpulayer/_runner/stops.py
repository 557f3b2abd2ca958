"""Of the runner: what it does when the task is to stop, and whether its process may go on to the next."""

import _signal  # type: ignore[import-not-found]
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The exit status of a call that was stopped: a shell's, of what SIGTERM ended.
STOPPED_STATUS = 128 + 15


class Stopped(SystemExit):
    """The job is to stop: raised where its function is, so that `finally` and `with` do their work. A `SystemExit`, as any
    other of what is raised in a task or a callback of asyncio is kept there, and its loop goes on."""


_was_stopped = False
#: Whether the signal came, also to a function that asks for it.
_stop_came = False
_forks_are_told = False
#: Whether the process may serve another task.
_may_stay = True


def heed_stops() -> None:
    """From now on SIGTERM raises, unless somebody has decided otherwise. In children it does what it always does."""
    global _forks_are_told
    try:
        if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGTERM, _stop)
    except ValueError:
        # Only the main thread may.
        return
    if not _forks_are_told:
        _forks_are_told = True
        os.register_at_fork(before=_fork_begins, after_in_parent=_fork_ends, after_in_child=_child_begins)


# The signal masks of threads that fork. A child that had the signal before its usual action is back would never hear it.
_masks: "dict[int, Any]" = {}


def _fork_begins() -> None:
    _masks[get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))


def _fork_ends() -> None:
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _masks.pop(get_ident(), ()))


def _child_begins() -> None:
    heed_no_stops()
    _fork_ends()


def heed_no_stops() -> None:
    if _signal.getsignal(_signal.SIGTERM) is _stop:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)


def _stop(_number: int, frame: "Any") -> None:
    global _may_stay, _stop_came, _was_stopped
    _may_stay, _stop_came = False, True
    # Who asks hears of it, and ends in its own time. What cleans up already is not disturbed.
    if _was_stopped or asks():
        return
    _was_stopped = True
    destroyer = _destroyer(frame)
    if destroyer is None or sys.gettrace() is not None:
        raise Stopped(STOPPED_STATUS)
    sys.settrace(_traces_nothing)
    destroyer.f_trace = _stop_there


def _destroyer(frame: "Any") -> "Any":
    """Of what a `__del__` raises Python says that it ignores it: whose doing it is that something is destroyed."""
    found = None
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            found = frame.f_back
        frame = frame.f_back
    return found


def _traces_nothing(_frame: "Any", _event: str, _given: "Any") -> None:
    """As without it; only with one are frames asked for theirs."""


def _stop_there(frame: "Any", _event: str, _given: "Any") -> None:
    sys.settrace(None)
    frame.f_trace = None
    raise Stopped(STOPPED_STATUS)


def call_begins() -> None:
    """Of several calls: after a stop none begins."""
    global _was_stopped
    if _stop_came:
        _was_stopped = True
        raise Stopped(STOPPED_STATUS)


def ends_task(fault: BaseException) -> bool:
    """Whether what a call raised ends the task, as a stop does. Of what is no plain exception the process has to end."""
    global _may_stay
    if not isinstance(fault, Exception) or isinstance(fault, MemoryError):
        _may_stay = False
    return _was_stopped and not isinstance(fault, Exception)


def asks() -> bool:
    inside = sys.modules.get("gpulayer.inside")
    return inside is not None and bool(inside.asks_whether_to_stop)


def call_ends() -> None:
    # The signal comes behind the word: who asks may be through before it.
    if not asks():
        heed_no_stops()


def other_threads(threading: "Any") -> "list[Any]":
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]


def may_stay() -> bool:
    """Whether the call left nothing that an ending process would wait for, and did not end the process."""
    threading = sys.modules.get("threading")
    return _may_stay and (threading is None or all(thread.daemon for thread in other_threads(threading)))
