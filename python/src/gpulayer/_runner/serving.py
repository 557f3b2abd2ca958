"""Of the runner: a process that serves several tasks, one after another."""

import _signal  # type: ignore[import-not-found]
import os
import sys

from .main import main
from .modules import PythonsOwn
from .process import CALLS, flush
from .reading import read_json
from .stops import heed_no_stops, may_stay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def serve() -> int:
    """Calls for one task after another, until something is in the way of the next one. Its shim stops this process
    between them, and ends it when nothing more comes."""
    from _socket import socket

    link = socket(fileno=CALLS)
    os.set_inheritable(CALLS, False)
    process, end = os.getpid(), os.fstat(CALLS)
    signals = _Signals()
    while True:
        status = main(os.environ["GPULAYER_FUNCTION"])
        if os.getpid() != process or not may_stay() or not _dies_with_parent():
            return status
        try:
            # The call may have closed it, and opened something else in its place.
            if not os.path.samestat(end, os.fstat(CALLS)):
                return status
            if not signals.restore():
                return status
            _let_go()
            link.send(b'{"status": %d}' % status)
        except OSError:
            return status
        if not _take_on(link):
            return status


class _Signals:
    """What this process began with: a call that has changed it would take the stop away from the next one."""

    def __init__(self) -> None:
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        self._actions = [(number, _signal.getsignal(number)) for number in (_signal.SIGTERM, _signal.SIGINT)]

    def restore(self) -> bool:
        """After the timers are off. `False`: one that the call has held back would come now."""
        for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        if _signal.sigpending():
            return False
        for number, action in self._actions:
            _signal.signal(number, action)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)
        return True


_c: "Any" = None


def _dies_with_parent() -> bool:
    """Sees to it that this process ends with its shim, also while it is stopped."""
    global _c
    parent = os.getppid()
    try:
        if _c is None:
            with PythonsOwn():
                from ctypes import CDLL

            _c = CDLL(None)
        # PR_SET_PDEATHSIG, SIGKILL. Each time: a change of the user forgets it.
        if _c.prctl(1, 9, 0, 0, 0) != 0:
            return False
    except Exception:
        return False
    return os.getppid() == parent


def _let_go() -> None:
    """Of all that is the task's."""
    inside = sys.modules.get("gpulayer.inside")
    if inside is not None:
        inside.task_ends()
    faulthandler, threading = (sys.modules.get(name) for name in ("faulthandler", "threading"))
    if faulthandler is not None:
        faulthandler.cancel_dump_traceback_later()
    for traced in (sys, threading):
        if traced is not None:
            traced.settrace(None)
            traced.setprofile(None)
    heed_no_stops()
    flush()
    _c.fflush(None)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    # It is one of them if the call had closed that.
    if nothing > 2:
        os.close(nothing)
    os.chdir("/")


def _take_on(link: "Any") -> bool:
    """Waits for the next task; `False` = there is none."""
    from _socket import CMSG_SPACE

    said, sent, _, _ = link.recvmsg(1 << 20, CMSG_SPACE(8))
    if not said or not sent:
        return False
    streams = sent[0][2]
    for number in (1, 2):
        stream = int.from_bytes(streams[4 * number - 4 : 4 * number], sys.byteorder)
        os.dup2(stream, number)
        os.close(stream)
    for name in [name for name in os.environb if name.startswith(b"GPULAYER_")]:
        del os.environb[name]
    for name, value in read_json(said.decode("utf-8"))["env"]:
        os.environb[_bytes(name)] = _bytes(value)
    os.chdir(os.environ["GPULAYER_WORKSPACE"])
    # What was found in the folder of the last task, and was not.
    sys.path_importer_cache.clear()
    tempfile: "Any" = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None
    return True


def _bytes(text: "Any") -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else bytes(text)
