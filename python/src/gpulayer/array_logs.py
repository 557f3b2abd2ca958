"""The log of an array: that of its jobs, one after another."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from . import background
from .records import LogLine
from .stream import Batches

if TYPE_CHECKING:
    from .job_handle import Job


class ArrayLines:
    """The `Batches` of it. `make`: those of one job. `if_left`: what comes after it if its reader leaves."""

    def __init__(
        self, array: Job, make: Callable[[Job], Batches[LogLine]], if_left: Optional[background.Aftermath]
    ) -> None:
        self._array, self._make, self._if_left = array, make, if_left
        self._left: Optional[deque[Job]] = None
        self._current: Optional[Batches[LogLine]] = None

    async def next(self) -> Optional[Sequence[LogLine]]:
        """Lines that have come; `None` after the last of the last job."""
        if self._if_left is not None:
            background.if_left(self._if_left)
        if self._left is None:
            self._left = deque(await self._array.children.aio())
        while self._current is not None or self._left:
            if self._current is None:
                self._current = self._make(self._left.popleft())
            batch = await self._current.next()
            if batch is not None:
                return batch
            await self.close()
        return None

    async def close(self) -> None:
        """Lets go of the connection."""
        current, self._current = self._current, None
        if current is not None:
            await current.close()

    def close_soon(self) -> None:
        """The same from any thread, without waiting."""
        if self._current is not None:
            self._current.close_soon()
