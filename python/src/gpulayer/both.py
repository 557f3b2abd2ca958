"""One body, two forms: `job.cancel()` waits, `await job.cancel.aio()` is for asyncio. Iterators need no second name:
`for line in job.logs()` and `async for line in job.logs()`."""

from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Coroutine,
    Generic,
    Iterator,
    List,
    Optional,
    TypeVar,
    Union,
    overload,
)

from . import background

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Self

    P = ParamSpec("P")
else:
    P = TypeVar("P")


class Bound(Generic[P, R]):
    """A method of one object in both forms."""

    def __init__(self, body: Callable[..., Coroutine[Any, Any, R]], instance: object) -> None:
        self._body = body
        self._instance = instance
        functools.update_wrapper(self, body)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(self._body(self._instance, *args, **kwargs))

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, awaited; on any asyncio loop."""
        return await background.join(self._body(self._instance, *args, **kwargs))

    def __repr__(self) -> str:
        return f"<{self._body.__qualname__} of {self._instance!r}>"


class both(Generic[S, P, R]):
    """Makes an `async` method callable in both forms."""

    def __init__(self, body: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self._body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: Optional[type] = None) -> Bound[P, R]: ...
    def __get__(self, instance: Optional[S], owner: Optional[type] = None) -> Union[Self, Bound[P, R]]:
        if instance is None:
            return self
        return Bound(self._body, instance)


class Stream(Generic[T]):
    """What comes one after another, for `for` and for `async for`. Nothing is asked before the first is wanted.

    A stream that is left early lets go of its connection when it is closed or collected; `with` does it at once.
    """

    def __init__(self, batches: Callable[[], AsyncIterator[List[T]]]) -> None:
        # In batches, since each crossing from thread to thread costs more than a line.
        self._open = batches
        self._batches: Optional[AsyncIterator[List[T]]] = None
        self._ready: Iterator[T] = iter(())
        self._over = False

    async def _next_batch(self) -> Optional[List[T]]:
        if self._batches is None:
            self._batches = self._open()
        try:
            return await self._batches.__anext__()
        except StopAsyncIteration:
            return None

    async def _close(self) -> None:
        batches, self._batches = self._batches, None
        close = getattr(batches, "aclose", None)
        if close is not None:
            await close()

    def _take(self, batch: Optional[List[T]]) -> None:
        self._over = batch is None
        self._ready = iter(batch or ())

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        while not self._over:
            for item in self._ready:
                return item
            try:
                self._take(background.run(self._next_batch()))
            except BaseException:
                self._over = True
                raise
        raise StopIteration

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        while not self._over:
            for item in self._ready:
                return item
            try:
                self._take(await background.join(self._next_batch()))
            except BaseException:
                self._over = True
                raise
        raise StopAsyncIteration

    def close(self) -> None:
        """Lets go of the connection."""
        self._over = True
        if self._batches is not None:
            background.run(self._close())

    async def aclose(self) -> None:
        """The same, awaited."""
        self._over = True
        if self._batches is not None:
            await background.join(self._close())

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
