"""A map: one function called for many arguments, as one array job that goes on without its client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generator,
    Generic,
    Literal,
    Mapping,
    Optional,
    Sequence,
    TypeVar,
    Union,
    cast,
    overload,
)

from . import background, interrupts, routes
from .both import both
from .errors import ConfigurationError, GPUlayerError, InvalidSpecError
from .function_job import calls_at, calls_of
from .job_handle import Job, Jobs
from .map_feed import MapFeed
from .quantities import Span
from .results import Outcome
from .routes import Route
from .stream import Batches, Stream

if TYPE_CHECKING:
    from .client import Client

R = TypeVar("R")
Indexed = tuple[int, Outcome]
_SETTLES_WITHIN_S = 2.0


class Map(Job, Generic[R]):
    """A function's calls for many arguments. All of `Job`; iterating gives the values, for `for` and `async for`:

        for value in f.map(range(100)): ...

    It is a job of its own on the server: `gl.attach(map.id)` has its values from any process, also after the client,
    the server or a worker was killed in the middle.

    Iterating over a map that was called for here is that call itself: Ctrl-C, or cancelling the task, cancels the map.
    Whoever asks by `result`, `results`, `as_completed` or `wait`, or has it from `attach`, leaves it running.

    One that was called for here and is left while calls are to come goes on, and says so when nobody has it any more.
    """

    noun = "map"
    #: What is to be said when nobody has it any more. Made before: then it comes in the middle of anything.
    _goes_on: Optional[str] = None
    #: Where it is to be said. A child that was forked has a copy of a map that is not its own.
    _process: Optional[int] = None

    def __init__(
        self,
        client: Client,
        raw: Mapping[str, Any],
        ordered: bool = True,
        return_exceptions: bool = False,
    ) -> None:
        super().__init__(client, raw)
        #: Whether iterating gives the values in the order of the arguments, or else as they come.
        self.ordered = ordered
        #: Whether iterating gives exceptions as values, or else raises them.
        self.return_exceptions = return_exceptions
        #: Whether it was called for by this object, and not found.
        self.is_ours = False
        #: Whether who asks for values hears that no worker could ever take it, or else waits for one that can.
        self.refuses_impossible = False

    def __len__(self) -> int:
        """How many calls it makes; of a retry of what failed how many of them again."""
        total, each = calls_of(self.record.labels, self.jobs)
        indices = (self.record.spec.get("array") or {}).get("indices")
        if each == 1 or indices is None:
            return total
        return sum(calls_at(index, total, each) for index in indices)

    @property
    def jobs(self) -> int:
        """How many jobs make its calls."""
        return len(self.indices)

    @property
    def indices(self) -> Sequence[int]:
        """Those of its jobs, in their order."""
        array = self.record.spec.get("array") or {}
        if array.get("indices") is not None:
            return sorted(array["indices"])
        count = len(array["items"]) if array.get("items") is not None else int(array.get("count") or 0)
        start = int(array.get("start") or 0)
        return range(start, start + count)

    @overload
    def results(
        self,
        *,
        ordered: Optional[bool] = None,
        return_exceptions: Literal[False, None] = None,
        timeout: Optional[Span] = None,
        progress: Optional[bool] = None,
    ) -> Values[R]: ...
    @overload
    def results(
        self,
        *,
        ordered: Optional[bool] = None,
        return_exceptions: bool,
        timeout: Optional[Span] = None,
        progress: Optional[bool] = None,
    ) -> Values[Union[R, Exception]]: ...
    def results(
        self,
        *,
        ordered: Optional[bool] = None,
        return_exceptions: Optional[bool] = None,
        timeout: Optional[Span] = None,
        progress: Optional[bool] = None,
    ) -> Values[Any]:
        """Its values, in the order of the arguments or as they come. A call that raised raises here when its turn comes,
        and the next step goes on with the one after it; with `return_exceptions` it gives the exception. `timeout` as
        of `wait`, for all of them: `WaitTimeoutError`, and the map goes on. `progress`: a line that says how many are
        there, by default on a terminal."""
        return self._values(ordered, return_exceptions, timeout, progress)

    def _values(
        self,
        ordered: Optional[bool],
        return_exceptions: Optional[bool],
        timeout: Optional[Span],
        progress: Optional[bool],
        at_once: bool = False,
    ) -> Values[R]:
        in_order = self.ordered if ordered is None else ordered
        kept = self.return_exceptions if return_exceptions is None else return_exceptions
        feed = Stream(lambda: MapFeed(self, in_order, timeout, progress, at_once=at_once))
        return Values(feed, kept, interrupts.GoesOn(self), self)

    @overload
    def as_completed(
        self, *, return_exceptions: Literal[False, None] = None, timeout: Optional[Span] = None
    ) -> Completed[R]: ...
    @overload
    def as_completed(
        self, *, return_exceptions: bool, timeout: Optional[Span] = None
    ) -> Completed[Union[R, Exception]]: ...
    def as_completed(
        self, *, return_exceptions: Optional[bool] = None, timeout: Optional[Span] = None
    ) -> Completed[Any]:
        """Pairs of an argument's place and its value, as they come."""
        kept = self.return_exceptions if return_exceptions is None else return_exceptions
        feed = Stream(lambda: MapFeed(self, False, timeout))
        return Completed(feed, kept, interrupts.GoesOn(self), self)

    def __iter__(self) -> Values[R]:
        return self._iterated(None)

    def __aiter__(self) -> Values[R]:
        return self._iterated(False)

    def _iterated(self, progress: Optional[bool]) -> Values[R]:
        after = interrupts.Ends(self) if self.is_ours else interrupts.GoesOn(self)
        quiet, ours = interrupts.Quiet(after), self.is_ours
        feed = Stream(lambda: MapFeed(self, self.ordered, None, progress, is_the_call=ours, after=quiet))
        return Values(feed, self.return_exceptions, after, self)

    @property
    def result(self) -> _Result[R]:  # type: ignore[override]
        """`result()`: waits for all, and gives the list of the values; raises what the first call in order raised that
        did, unless `return_exceptions`. Values that are large are better iterated over."""
        return _Result(self)

    def __await__(self) -> Generator[Any, None, list[R]]:  # type: ignore[override]
        return self.result.aio(progress=False).__await__()

    @both
    async def retry(self, *, failed: bool = False, key: Optional[str] = None) -> Map[R]:  # type: ignore[override]
        """A new map that calls again, of one that has ended. `failed`: only the jobs that did not succeed. A call that
        raised fails its job if it is the only one in it; where several share a job (`chunksize`) it does not."""
        try:
            again = cast("Map[R]", await self._retried(failed, key))
        except InvalidSpecError as refused:
            each = calls_of(self.record.labels, self.jobs)[1]
            if each == 1 or [fault.pointer for fault in refused.errors] != ["/failed"]:
                raise
            raise ConfigurationError(
                f"all jobs of map {self} succeeded, so none failed that could be repeated: up to {each} calls share a job, "
                "and those that raised did so within jobs that succeeded. retry() repeats all calls; else map the "
                "arguments once more whose values are exceptions, which result(return_exceptions=True) gives"
            ) from None
        again.ordered, again.return_exceptions = self.ordered, self.return_exceptions
        return again

    def expect(self, more: bool) -> None:
        """Whether values are still to come, for somebody here who has asked for them."""
        if not (more and self.is_ours):
            self._goes_on = None
        elif self._goes_on is None:
            self._goes_on, self._process = interrupts.goes_on(self), os.getpid()
            _expected.add(self)

    def leave(self) -> None:
        """Nobody asks for its values any more: says once that it goes on, if it does as far as is known here."""
        text, self._goes_on = self._goes_on, None
        if text is None or self.ended or self.record.cancel_requested_at is not None or self._process != os.getpid():
            return
        interrupts.say(text, after_ctrl_c=False)

    def __del__(self) -> None:
        self.leave()

    async def settled(self) -> None:
        """Has its record as it stands when all of its jobs have ended. On the background loop."""
        if not self.ended:
            with contextlib.suppress(GPUlayerError):
                # Its own end comes with that of the last one.
                self._take(await self._call(routes.JOB, {"wait_s": _SETTLES_WITHIN_S}))

    def rows(self) -> list[tuple[str, str]]:
        """As of any job, and how its jobs stand."""
        stand = {name: count for name, count in (self.record.progress or {}).items() if count and name != "total"}
        jobs = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in stand.items())
        return [*super().rows(), ("calls", str(len(self))), ("jobs", jobs)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.raw, self.ordered, self.return_exceptions)

    def __repr__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"<Map {self.id}{name} of {len(self)} calls, {self.state}>"


#: Maps that values are expected of. Who still has one at the end of the program hears of it then.
_expected: weakref.WeakSet[Map[Any]] = weakref.WeakSet()


def _leave_all() -> None:
    for map in list(_expected):
        map.leave()


background.before_end(_leave_all)


class EmptyMap(Map[Any]):
    """The map over nothing, which is no job: it has succeeded, its id is empty, and no server is asked about it."""

    @classmethod
    def of(cls, client: Client) -> EmptyMap:
        """A fresh one."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        none = {"id": "", "project": "", "submitted_by": "", "state": "succeeded", "attempt": 1, "submitted_at": now}
        return cls(client, {**none, "spec": {}})

    async def _call(self, route: Route, query: Mapping[str, object] = {}, **more: Any) -> Any:
        if route == routes.EXPLAIN_JOB:
            counts = dict.fromkeys(("waited_s", "attempts", "preemptions", "placed"), 0)
            told = {"state": self.state, "summary": "it makes no calls, so there is no job"}
            return {**told, **counts, "queued_at": self.raw["submitted_at"]}
        is_list = route in (routes.LOGS, routes.EVENTS, routes.TASKS)
        return {"items": [], "next_after": 0} if is_list else self.raw

    def _batches(
        self,
        route: Route,
        kind: str,
        convert: Callable[[Mapping[str, Any]], Any],
        query: Mapping[str, object],
        following: bool,
        after: int,
    ) -> Batches[Any]:
        return super()._batches(route, kind, convert, query, False, after)

    async def _retried(self, failed: bool, key: Optional[str]) -> Job:
        return self

    @both
    async def children(self) -> list[Job]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None."""
        return Jobs()

    def __str__(self) -> str:
        return "of nothing"

    def __repr__(self) -> str:
        return "<Map of nothing>"


class _Result(Generic[R]):
    """`map.result()` and `map.result.aio()`."""

    def __init__(self, map: Map[R]) -> None:
        self._map = map

    @overload
    def __call__(
        self,
        timeout: Optional[Span] = None,
        *,
        return_exceptions: Literal[False, None] = None,
        progress: Optional[bool] = None,
    ) -> list[R]: ...
    @overload
    def __call__(
        self, timeout: Optional[Span] = None, *, return_exceptions: bool, progress: Optional[bool] = None
    ) -> list[Union[R, Exception]]: ...
    def __call__(
        self,
        timeout: Optional[Span] = None,
        *,
        return_exceptions: Optional[bool] = None,
        progress: Optional[bool] = None,
    ) -> list[Any]:
        __tracebackhide__ = True
        with self._map._values(True, return_exceptions, timeout, progress, at_once=True) as values:
            return list(values)

    @overload
    async def aio(
        self,
        timeout: Optional[Span] = None,
        *,
        return_exceptions: Literal[False, None] = None,
        progress: Optional[bool] = None,
    ) -> list[R]: ...
    @overload
    async def aio(
        self, timeout: Optional[Span] = None, *, return_exceptions: bool, progress: Optional[bool] = None
    ) -> list[Union[R, Exception]]: ...
    async def aio(
        self,
        timeout: Optional[Span] = None,
        *,
        return_exceptions: Optional[bool] = None,
        progress: Optional[bool] = None,
    ) -> list[Any]:
        """The same, awaited; on any asyncio loop."""
        async with self._map._values(True, return_exceptions, timeout, progress, at_once=True) as values:
            return [value async for value in values]


class _Taking(Generic[R]):
    """Takes outcomes from a map's feed one by one, and reads each in the thread of whoever asks."""

    def __init__(
        self, feed: Stream[Indexed], return_exceptions: bool, after: background.Aftermath, map: Map[Any]
    ) -> None:
        self._feed = feed
        self._kept = return_exceptions
        self._after = after
        self._map = map

    def _step(self) -> tuple[int, R]:
        __tracebackhide__ = True
        try:
            place, outcome = next(self._feed)
            return place, self._read(outcome)
        except KeyboardInterrupt:
            self.close()
            self._after.interrupted()
            self._map.expect(False)
            raise

    async def _astep(self) -> tuple[int, R]:
        try:
            place, outcome = await self._feed.__anext__()
        except asyncio.CancelledError:
            await background.join(self._after.cancelled())
            # A task is cancelled without a word.
            self._map.expect(False)
            raise
        return place, self._read(outcome)

    def _read(self, outcome: Callable[[], Any]) -> R:
        __tracebackhide__ = True
        if not self._kept:
            return cast(R, outcome())
        try:
            return cast(R, outcome())
        except Exception as failure:
            # As a value it has no use for the frames here, whose objects it would keep.
            return cast(R, failure.with_traceback(None))

    def close(self) -> None:
        """Ends the iteration. The map goes on."""
        self._feed.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        await self._feed.aclose()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Values(_Taking[R]):
    """A map's values one after another, for `for` and `async for`."""

    def __iter__(self) -> Values[R]:
        return self

    def __next__(self) -> R:
        __tracebackhide__ = True
        return self._step()[1]

    def __aiter__(self) -> Values[R]:
        return self

    async def __anext__(self) -> R:
        return (await self._astep())[1]

    def __enter__(self) -> Values[R]:
        return self

    async def __aenter__(self) -> Values[R]:
        return self


class Completed(_Taking[R]):
    """Pairs `(place, value)` as they come, for `for` and `async for`."""

    def __iter__(self) -> Completed[R]:
        return self

    def __next__(self) -> tuple[int, R]:
        __tracebackhide__ = True
        return self._step()

    def __aiter__(self) -> Completed[R]:
        return self

    async def __anext__(self) -> tuple[int, R]:
        return await self._astep()

    def __enter__(self) -> Completed[R]:
        return self

    async def __aenter__(self) -> Completed[R]:
        return self
