"""What comes one after another, in both forms under one name: `for line in job.logs()` and `async for line in
job.logs()`."""

from __future__ import annotations

import weakref
from typing import Callable, Generic, Iterator, Optional, Protocol, Sequence, TypeVar

from . import background

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Batches(Protocol[T_co]):
    """Where a stream comes from. On the background loop. In batches, since each crossing from thread to thread costs
    more than a line."""

    async def next(self) -> Optional[Sequence[T_co]]:
        """What has come meanwhile; `None` at the end."""

    async def close(self) -> None:
        """Lets go of the connection."""

    def close_soon(self) -> None:
        """The same from any thread, without waiting."""


class Stream(Generic[T]):
    """Items one after another, for `for` and for `async for`. Nothing is asked before the first is wanted.

    All of it is one operation, which begins with the first. One that is left early lets go of its connection when it is
    closed or collected; `with` does it at once.
    """

    def __init__(self, make: Callable[[], Batches[T]], operation: Optional[background.Operation] = None) -> None:
        # Kept: it refers to whom this comes from, and a client that nobody refers to is closed.
        self._make = make
        self._batches = make()
        self._operation = operation or background.Operation()
        self._ready: Iterator[T] = iter(())
        self._over = False
        self._finalizer = weakref.finalize(self, self._batches.close_soon)
        self._finalizer.atexit = False

    def _take(self, batch: Optional[Sequence[T]]) -> None:
        self._over = batch is None
        self._ready = iter(batch or ())

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        __tracebackhide__ = True
        while not self._over:
            for item in self._ready:
                return item
            try:
                self._take(background.run(self._batches.next(), self._operation))
            except BaseException:
                self.close()
                raise
        raise StopIteration

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        while not self._over:
            for item in self._ready:
                return item
            try:
                self._take(await background.join(self._batches.next(), self._operation))
            except BaseException:
                self._over = True
                self._batches.close_soon()
                raise
        raise StopAsyncIteration

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, read by `for`>"

    def close(self) -> None:
        """Lets go of the connection."""
        self._over = True
        # At the end of the process all connections are closed before those who ask for it late.
        if not background.current().is_over:
            background.run(self._batches.close())

    async def aclose(self) -> None:
        """The same, awaited."""
        self._over = True
        await background.join(self._batches.close())

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
