"""Of the runner: several calls of one task, each with an outcome of its own."""

import os

from .leaving import Kept, dump
from .modules import PythonsOwn
from .stops import call_begins, ends_task
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What came of the calls that are through, while others are to come; the worker knows this name too.
PART = "outcomes"
#: How such a file begins. No pickle begins like it.
MARK = b"gpulayer outcomes 1\n"
#: Kinds of outcomes: the pickle of a value, the JSON of what was raised.
_VALUE, _RAISED = b"v", b"r"
_CHECKPOINT_DIR = "GPULAYER_CHECKPOINT_DIR"


def write(work: Work, path: str) -> None:
    """Calls, and writes one outcome after another: its kind, its length (8 bytes, little-endian), its bytes. What ends the
    process in the middle of a call takes nothing of those before."""
    folder = _Checkpoints(len(work.calls))
    kept = Kept(path)
    try:
        # A child that a call forks has nothing of it to write.
        with kept.at_end() as file:
            file.write(MARK)
        for number, call in enumerate(work.calls):
            call_begins()
            folder.enter(number)
            kind, data = _outcome(work, call)
            folder.leave()
            with kept.at_end() as file:
                file.write(kind + len(data).to_bytes(8, "little"))
                file.write(data)
    finally:
        kept.close()


def _outcome(work: Work, call: "Any") -> "tuple[bytes, Any]":
    from io import BytesIO

    data = BytesIO()
    try:
        dump(work.call(call), data)
        return _VALUE, data.getbuffer()
    except BaseException as fault:
        if ends_task(fault):
            raise
        from .faults import told

        with PythonsOwn():
            import json

        return _RAISED, json.dumps(told(work, fault)).encode("ascii")


class _Checkpoints:
    """A folder for the checkpoint of each call: one that found that of another would take it for its own."""

    def __init__(self, calls: int) -> None:
        self._of_task = os.environ.get(_CHECKPOINT_DIR) if calls > 1 else None

    def enter(self, number: int) -> None:
        if self._of_task is not None:
            path = os.environ[_CHECKPOINT_DIR] = os.path.join(self._of_task, f"call-{number}")
            try:
                os.mkdir(path, 0o700)
            except OSError:
                # It is there since an attempt before, or the call will hear what is wrong.
                pass

    def leave(self) -> None:
        if self._of_task is not None:
            try:
                # What was not used is not kept.
                os.rmdir(os.environ.get(_CHECKPOINT_DIR, ""))
            except OSError:
                pass
            os.environ[_CHECKPOINT_DIR] = self._of_task
