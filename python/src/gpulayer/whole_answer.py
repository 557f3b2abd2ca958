"""An overall patience for an answer. Each wait for a next piece has its own limit, which a server that sends a byte now
and then never reaches."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Callable, Optional

import httpx

#: Beyond the time in which an answer has to begin: to come whole.
WHOLE_S = 45.0
#: What comes at least so fast, in bytes a second, is waited for: a large answer over a slow line.
_LEAST_BYTES_S = 1000.0


class Whole:
    """Within it an answer comes whole, or else `late` makes the error that is raised, of the seconds that were waited.
    In a task."""

    def __init__(self, within_s: float, late: Callable[[float], Exception]) -> None:
        self._within_s = within_s
        self._late = late
        #: As soon as it has begun.
        self.answer: Optional[httpx.Response] = None
        self._is_late = False

    def __enter__(self) -> Whole:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._loop, self._task = loop, task
        if sys.version_info >= (3, 11):
            self._cancelled_before = task.cancelling()
        self._began = loop.time()
        self._timer = loop.call_later(self._within_s, self._look)
        return self

    def _look(self) -> None:
        came_bytes = 0 if self.answer is None else self.answer.num_bytes_downloaded
        left_s = self._began + self._within_s + came_bytes / _LEAST_BYTES_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._is_late = True
            self._task.cancel()

    def __exit__(
        self, kind: Optional[type[BaseException]], fault: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._timer.cancel()
        if not self._is_late or not isinstance(fault, asyncio.CancelledError):
            return
        if sys.version_info >= (3, 11) and self._task.uncancel() > self._cancelled_before:
            # Somebody else wants it to end as well.
            return
        raise self._late(self._loop.time() - self._began) from None
