"""For programs inside a job: who they are, whether to stop, how far they are, and what their next attempt begins with.

The standard library alone. Outside of a job all of it works too, so that the same program runs by hand: `job` is false,
nothing asks to stop, nobody is told, and `checkpoint_dir` is a folder here.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional, Union

from . import progress_file

Number = Union[int, float]

#: Words that follow each other faster are written together: nobody reads them more than once a second.
_PAUSE_S = 0.05
#: Where checkpoints lie when there is no job.
_AT_HOME = Path(".gpulayer", "checkpoint")


class JobContext:
    """The job that this process is part of. False outside of one."""

    def __bool__(self) -> bool:
        return "GPULAYER_JOB_ID" in os.environ

    @property
    def id(self) -> Optional[str]:
        """`job_…`."""
        return os.environ.get("GPULAYER_JOB_ID")

    @property
    def task_id(self) -> Optional[str]:
        """`task_…`: each attempt has another one, and each rank."""
        return os.environ.get("GPULAYER_TASK_ID")

    @property
    def attempt(self) -> int:
        """From 1."""
        return int(os.environ.get("GPULAYER_ATTEMPT", "1"))

    @property
    def index(self) -> Optional[int]:
        """Of an array's child: its index."""
        index = os.environ.get("GPULAYER_ARRAY_INDEX")
        return None if index is None else int(index)

    @property
    def item(self) -> Optional[str]:
        """Of an array's child: its item; JSON when it is no text."""
        return os.environ.get("GPULAYER_ARRAY_ITEM")

    @property
    def rank(self) -> int:
        """Of a gang: which of its nodes this is, from 0."""
        return int(os.environ.get("GPULAYER_RANK", "0"))

    @property
    def nodes(self) -> int:
        """Of a gang: how many nodes it has."""
        return int(os.environ.get("GPULAYER_NODES", "1"))

    @property
    def workspace(self) -> Path:
        """The folder that its outputs are looked for in."""
        return Path(os.environ.get("GPULAYER_WORKSPACE", "."))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The uuids of the GPUs it was granted."""
        return tuple(uuid for uuid in os.environ.get("GPULAYER_GPU_UUIDS", "").split(",") if uuid)

    def __repr__(self) -> str:
        return f"<JobContext {self.id} attempt {self.attempt}>" if self else "<JobContext of no job>"


job = JobContext()

#: Whether this process asks by itself: then the runner of functions interrupts nothing when the job is to stop.
asks_whether_to_stop = False


def should_stop() -> bool:
    """Whether somebody wants the job to stop (a cancel, a time limit, a drain, a job of a higher priority): save and
    return. The signal has come as well; its grace runs.

    A remote function that has asked once is not interrupted by the signal. One that never asks is: its `finally` runs."""
    global asks_whether_to_stop
    asks_whether_to_stop = True
    path = os.environ.get("GPULAYER_STOP_FILE")
    return path is not None and os.path.exists(path)


class _Word:
    """What is said here, until it is in the file that the worker reads."""

    def __init__(self) -> None:
        # Handlers of signals say things too, in the middle of what is said here.
        self._lock = threading.RLock()
        self._is_writing = False
        #: What is not written yet.
        self._news: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        #: What the file said when it was written last.
        self._said: dict[str, Any] = {}
        self._written_at = -math.inf
        self._later: Optional[threading.Timer] = None

    def say(self, **news: Any) -> None:
        with self._lock:
            self._news.update(news)
            left_s = self._written_at + _PAUSE_S - time.monotonic()
            if left_s <= 0:
                self._write()
            elif self._later is None:
                # Else what is said last is not heard before the next word, which may take an epoch to come.
                self._later = threading.Timer(left_s, self.finish)
                self._later.daemon = True
                self._later.start()

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._write()

    def begin_anew(self) -> None:
        """In the child of a fork, which has neither the thread nor whoever held the lock. What was not written yet is
        the parent's to write: said once more, and later, it would go back."""
        self._lock = threading.RLock()
        self._is_writing = False
        self._later = None
        self._news, self._counts = {}, {}

    def end(self) -> None:
        """Of a process that goes on to serve another task, which has said nothing yet."""
        self.finish()
        with self._lock:
            self._news, self._counts, self._said = {}, {}, {}
            self._written_at = -math.inf

    def finish(self) -> None:
        with self._lock:
            self._later = None
            if self._news or self._counts:
                self._write()

    def _write(self) -> None:
        # What a handler of a signal says meanwhile goes along after it.
        while not self._is_writing:
            self._is_writing = True
            try:
                is_written = self._write_once()
            finally:
                self._is_writing = False
            if not is_written or not (self._news or self._counts):
                return

    def _write_once(self) -> bool:
        self._written_at = time.monotonic()
        path = os.environ.get("GPULAYER_PROGRESS_FILE")
        news, counts = self._news, self._counts
        self._news, self._counts = {}, {}
        try:
            if path is not None:
                self._said = progress_file.add(path, news, counts, self._said)
            return True
        except BaseException as fault:
            self._news = {**news, **self._news}
            for name, more in counts.items():
                self._counts[name] = self._counts.get(name, 0) + more
            # A full disk must not end a training run because of how far it is: it is said with the next word.
            if isinstance(fault, OSError):
                return False
            raise


_word = _Word()


def task_ends() -> None:
    """For the runner of functions: what is said from now on is of another task."""
    global asks_whether_to_stop
    asks_whether_to_stop = False
    _left_out.clear()
    _word.end()


atexit.register(_word.finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_word.begin_anew)


def progress(done: Number, total: Optional[Number] = None) -> None:
    """Says how much is done, of how much, in units of one's own: shown by `gpulayer ps` and by `Job.wait`."""
    _word.say(done=_finite("done", done), total=None if total is None else _finite("total", total))


def metrics(step: Optional[int] = None, **values: Any) -> None:
    """Says how it goes, such as `metrics(step, loss=0.31)`: a line in the log, and the newest ones stand with the job.
    Numbers, or what `float` takes (a tensor of one number), or text. What is none of them is left out with a
    `GPUlayerWarning`, once for each name: a report must not end what it is about."""
    told: dict[str, Union[int, float, str]] = {}
    for name, value in values.items():
        try:
            told[_text(name)] = _metric(value)
        except OverflowError:
            _leave_out(name, f"{_text(name)}, which is larger than any float ({sys.float_info.max:.2g})")
        except Exception:
            _leave_out(name, f"{_text(name)}, which is a {type(value).__name__} and no number")
    at: Optional[int] = None
    try:
        at = None if step is None else int(step)
    except Exception:
        _leave_out("step", f"step, which is a {type(step).__name__} and no number")
    if at is not None and not 0 <= at <= _LAST_STEP:
        why = "below 0, where steps begin" if at < 0 else f"above {_LAST_STEP}"
        _leave_out("step", f"step, which is {why}")
        at = None
    words = [f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in told.items()]
    print(*([] if at is None else [f"step {at}"]), *words, flush=True)
    fitting = progress_file.fitting(told)
    if len(fitting) < len(told):
        _leave_out(
            None,
            f"{len(told) - len(fitting)} of {len(told)} metrics beside the job's progress, where "
            f"{progress_file.MOST_METRICS_BYTES >> 10} KiB of them fit; its log has them all",
        )
    _word.say(metrics=fitting, **({} if at is None else {"step": at}))


#: What the worker takes.
_LAST_STEP = (1 << 64) - 1
#: Names of metrics, and `None` for the many that found no room.
_left_out: set[Optional[str]] = set()


def _leave_out(name: Optional[str], what: str) -> None:
    if name in _left_out:
        return
    _left_out.add(name)
    import warnings

    from .errors import GPUlayerWarning

    warnings.warn(f"gpulayer.metrics leaves out {what}", GPUlayerWarning, stacklevel=3)


def _text(given: str) -> str:
    """Without halves of characters, which Python has for bytes of a name that are no UTF-8: nobody reads those."""
    return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in given)


def _finite(name: str, value: Any) -> Number:
    if isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: progress is a number")
    try:
        number = _number(value)
        is_finite = math.isfinite(number)
    except OverflowError:
        raise ValueError(f"{name} is larger than any float: progress is a number that can be reached") from None
    if not is_finite:
        raise ValueError(f"{name} is {value}: progress is a number that can be reached")
    if number < 0:
        raise ValueError(f"{name} is {value}: progress begins at 0")
    return number


def _metric(value: Any) -> Union[int, float, str]:
    if isinstance(value, (bool, str)):
        return _text(str(value))
    number = _number(value)
    # JSON has no such numbers, and they are what one wants to see.
    return number if math.isfinite(number) else str(number)


def _number(value: Any) -> Number:
    """What Python and JSON have for it."""
    if isinstance(value, int):
        return int(value)
    try:
        # Integers of numpy and torch.
        return operator.index(value)
    except TypeError:
        return float(value)


def checkpoint_saved() -> None:
    """Says that what is in `checkpoint_dir` is whole: it is sent to the server within some seconds, and the next attempt
    of the job finds it in its own. Until the next call nothing half written is ever kept. Give what is written meanwhile
    another name, or write it beside and rename it."""
    _word.count("checkpoint")


def _checkpoint_dir() -> Path:
    folder = Path(os.environ.get("GPULAYER_CHECKPOINT_DIR", _AT_HOME))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


#: The folder that the next attempt of the job finds as this one leaves it, after `checkpoint_saved`, or if that is never
#: called, at an end that is no success.
checkpoint_dir: Path


def __getattr__(name: str) -> Any:
    if name == "checkpoint_dir":
        return _checkpoint_dir()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
