"""A job that is a call of a function: its result is what the function returned, or raised."""

from __future__ import annotations

import re
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Generator,
    Generic,
    Iterator,
    Mapping,
    Optional,
    TypeVar,
    overload,
)

from .both import finished
from .errors import RemoteError
from .job_handle import Job
from .quantities import Span
from .results import Outcome, fetched, outcome, outcomes
from .yields import Yields

if TYPE_CHECKING:
    from .client import Client

R = TypeVar("R", covariant=True)
Y = TypeVar("Y")
#: How labels begin that this package gives functions.
OWN_LABELS = "gpulayer."
#: Marks an array whose children make several calls each: how many in all, and how many each.
CALLS_LABEL = "gpulayer.calls"
_CALLS = re.compile(r"([1-9][0-9]{0,9})/([1-9][0-9]{0,9})")
#: So many characters of a message stand in one line.
_SHOWN = 200


class FunctionJob(Job, Generic[R]):
    """A call of a function. All of `Job`; `result()` and `await` give the function's value."""

    @finished
    async def result(  # type: ignore[override]
        self, timeout: Optional[Span] = None, *, even_if_failed: bool = False, progress: Optional[bool] = None
    ) -> Callable[[], R]:
        """Waits, and gives what the function returned; raises what it raised, as itself, with where it was raised as
        its cause. Of a map's job that makes several calls (`chunksize`) it is the list of their values, or else what the
        first of them raised that did. A job that ended otherwise is a `JobFailedError`, with `even_if_failed` only when the function had not
        returned before. `timeout` as of `wait`: `WaitTimeoutError`, and the job goes on."""
        return await self.outcome(timeout, progress, even_if_failed)

    def __await__(self) -> Generator[Any, None, R]:  # type: ignore[override]
        return self.result.aio(progress=False).__await__()

    @overload
    def stream(self: FunctionJob[Iterator[Y]], after: int = 0, *, progress: Optional[bool] = None) -> Yields[Y]: ...
    @overload
    def stream(
        self: FunctionJob[AsyncIterator[Y]], after: int = 0, *, progress: Optional[bool] = None
    ) -> Yields[Y]: ...
    def stream(self, after: int = 0, *, progress: Optional[bool] = None) -> Yields[Any]:
        """What the function, a generator, yields, from the first value on and as it comes, for `for` and `async for`. It
        ends as the function does: what that raised is raised here, after the values before it. Leaving it early leaves
        the job alone, and another one begins at the first value again. `after`: that many are left out. `progress`: a line
        that says how it stands until the first value is there, by default on a terminal."""
        return Yields(self, after, progress)

    async def outcome(
        self, timeout: Optional[Span] = None, progress: Optional[bool] = None, even_if_failed: bool = False
    ) -> Outcome:
        """The body of `result`, on the background loop."""
        await self._wait(timeout, progress)
        if self.has_result or (even_if_failed and self.had_returned):
            total, each = calls_of(self.record.labels, 1) if self.record.parent else (1, 1)
            if each > 1:
                several = await self.each_outcome(calls_at(self.record.array_index or 0, total, each))
                return lambda: [take() for take in several]
            return outcome(await fetched(self.client.session, self), self)
        if self.succeeded:
            # Says what is wrong with it.
            await fetched(self.client.session, self)
        end = await self._result(timeout, progress)
        return lambda: end

    async def each_outcome(self, calls: int) -> list[Outcome]:
        """What came of each of so many calls, of one that makes several."""
        found = await outcomes(await fetched(self.client.session, self), self, calls) if self.has_outcomes else []
        return found + [self.without_outcome] * (calls - len(found))

    def without_outcome(self) -> Any:
        """Of a call of which it left none, having ended."""
        __tracebackhide__ = True
        if self.succeeded:
            raise RemoteError(f"job {self} succeeded, and what it left tells nothing of this call", stage="return")
        raise self.failure(())

    @property
    def has_result(self) -> bool:
        """Whether the function returned or raised; else the job ended in another way, or has not yet."""
        return self.has_raised or (self.succeeded and isinstance(self.record.result, Mapping))

    @property
    def has_outcomes(self) -> bool:
        """Whether there is what came of several calls, however it ended; in the middle of them, of those before."""
        return self.ended and isinstance(self.record.result, Mapping)

    @property
    def had_returned(self) -> bool:
        """Whether it failed after its function had returned: at the end of its process, or by its outputs."""
        result = self.record.result
        return self.ended and not self.has_result and isinstance(result, Mapping) and not result.get("partial", False)

    @property
    def has_raised(self) -> bool:
        """Whether it ended with an exception of the function, or of its call."""
        result = self.record.result
        return self.ended and isinstance(result, Mapping) and bool(result.get("raised", False))

    @property
    def why(self) -> str:
        """As of any job. Of what was raised it names the exception, whatever the last line of its traceback is."""
        why, raised = super().why, self._raised()
        is_plain = self.end is not None and self.end.reason == "exit_nonzero"
        if raised is None or not is_plain or raised.partition(":")[0] in why:
            return why
        first = next(iter(raised.splitlines()))
        return f"exited with status {self.exit_code}: {first[:_SHOWN]}{'…' if len(first) > _SHOWN else ''}"

    def _raised(self) -> Optional[str]:
        told = self.record.result.get("inline") if self.has_raised else None
        return f"{told.get('type')}: {told.get('message')}" if isinstance(told, Mapping) else None

    def rows(self) -> list[tuple[str, str]]:
        """As of any job, and what was raised."""
        raised = self._raised()
        return super().rows() + ([("raised", raised)] if raised is not None else [])


def calls_of(labels: Mapping[str, str], children: int) -> tuple[int, int]:
    """How many calls a map makes in all, and how many each of its jobs. A retry of what failed has fewer children."""
    found = _CALLS.fullmatch(labels.get(CALLS_LABEL, ""))
    if found is not None:
        total, each = int(found[1]), int(found[2])
        # Anyone may have written it.
        if each > 1 and children <= -(-total // each):
            return total, each
    return children, 1


def calls_at(index: int, total: int, each: int) -> int:
    """How many calls the job at an index makes: the last one what is left."""
    return max(min(each, total - index * each), 1)


def job_of(client: Client, raw: Mapping[str, Any]) -> Job:
    """The handle for a record, by what it is: a command's, a function's, a map of a function."""
    spec = raw.get("spec") or {}
    if "function" not in (spec.get("workload") or {}):
        return Job(client, raw)
    if spec.get("array"):
        from .maps import Map

        return Map(client, raw)
    return FunctionJob(client, raw)
