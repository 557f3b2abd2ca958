"""What a remote generator yields, one value after another, in the order in which it yields them. Long values come one by
one, when their turn is; each value is read by whoever asked for it, as reading may run the user's code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import weakref
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Generic, Mapping, Optional, Sequence, TypeVar

from . import background, interrupts, routes
from .errors import DaemonError, GPUlayerError, RemoteError
from .event_stream import Follower
from .quantities import shown_span
from .results import Fetched, Outcome, brought
from .stream import Stream
from .terminal import Line

if TYPE_CHECKING:
    from .function_call import Submission
    from .function_job import FunctionJob

Y = TypeVar("Y")


class Yields(Generic[Y]):
    """The values of one job, from the first on, for `for` and `async for`; over cuts and restarts of the server, none lost
    and none twice. It ends as the function ends: with its exception, or with what it returned (`StopIteration.value`, so
    that `yield from` gives it). Leaving it leaves the job alone."""

    def __init__(
        self,
        job: FunctionJob[Any],
        after: int = 0,
        progress: Optional[bool] = None,
        aftermath: Optional[background.Aftermath] = None,
        operation: Optional[background.Operation] = None,
    ) -> None:
        #: The job whose values these are.
        self.job = job
        after_all = aftermath or interrupts.GoesOn(job)
        self._aftermath = after_all
        self._operation = whole = operation or background.Operation()
        function = (job.record.spec.get("workload") or {}).get("function") or {}
        self._serializer = str(function.get("serializer", "cloudpickle"))
        self._items: Stream[Mapping[str, Any]] = Stream(lambda: _Items(job, after, progress, after_all), whole)
        self._n = after
        self._over = False

    def __iter__(self) -> Yields[Y]:
        return self

    def __next__(self) -> Y:
        __tracebackhide__ = True
        if self._over:
            raise StopIteration
        # Whatever fails but the reading: what comes after it would not be all.
        self._over = True
        for item in self._items:
            found = background.run(self._fetched(item), self._operation)
            self._over = False
            return self._read(found)
        raise StopIteration(self._end(background.run(self._outcome(), self._operation)))

    def __aiter__(self) -> Yields[Y]:
        return self

    async def __anext__(self) -> Y:
        if self._over:
            raise StopAsyncIteration
        self._over = True
        async for item in self._items:
            found = await background.join(self._fetched(item), self._operation)
            self._over = False
            return self._read(found)
        self._end(await background.join(self._outcome(), self._operation))
        raise StopAsyncIteration

    async def _outcome(self) -> Outcome:
        background.if_left(self._aftermath)
        return await self.job.outcome(progress=False)

    def _end(self, outcome: Outcome) -> Any:
        # It raises what the function raised. A job whose function neither returned nor raised has raised already.
        returned = outcome()
        return returned if self.job.has_result else None

    async def _fetched(self, item: Mapping[str, Any]) -> Fetched:
        background.if_left(self._aftermath)
        before, self._n = self._n, int(item["n"])
        if self._n != before + 1:
            lost = f"value {before + 1} is" if self._n == before + 2 else f"values {before + 1} to {self._n - 1} are"
            raise RemoteError(f"{lost} lost: the server has not what job {self.job} yielded there", stage="return")
        if item.get("artifact") is not None:
            file = await brought(self.job.client.session, str(item["artifact"]))
            return Fetched(self._serializer, False, file=file)
        if item.get("text") is None:
            raise RemoteError(f"value {self._n} of job {self.job} is lost: its bytes never came", stage="return")
        text = str(item["text"])
        return Fetched(self._serializer, False, json.loads(text) if self._serializer == "json" else text)

    def _read(self, found: Fetched) -> Y:
        value: Y = found.read()
        return value

    def close(self) -> None:
        """Ends the iteration. The job goes on."""
        self._over = True
        self._items.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        self._over = True
        await self._items.aclose()

    def __enter__(self) -> Yields[Y]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Yields[Y]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Items:
    """A job's values as the server tells of them. Until the first one is there, a line says how the job stands."""

    def __init__(
        self, job: FunctionJob[Any], after: int, progress: Optional[bool], aftermath: background.Aftermath
    ) -> None:
        session, names = job.client.session, {"job_id": job.id}
        self._job, self._progress, self._aftermath = job, progress, aftermath
        self._follower: Follower[Mapping[str, Any]] = Follower(
            session, routes.YIELDED, names, {}, after, "yielded", dict
        )

    async def next(self) -> Optional[Sequence[Mapping[str, Any]]]:
        """What has come meanwhile; `None` after the last."""
        background.if_left(self._aftermath)
        line, began = Line(self._progress), time.monotonic()
        # Once, since what the program itself prints comes in between from then on.
        self._progress = False
        if not line.on:
            return await self._follower.next()
        reading = asyncio.ensure_future(self._follower.next())
        try:
            while not (await asyncio.wait({reading}, timeout=line.again_s))[0]:
                with contextlib.suppress(GPUlayerError):
                    await self._job.refreshed()
                span = shown_span(time.monotonic() - began)
                line.show(f"{self._job} {span}  {self._job._standing()}")
            return await reading
        finally:
            line.clear()
            reading.cancel()

    async def close(self) -> None:
        """Lets go of the connection."""
        await self._follower.close()

    def close_soon(self) -> None:
        """The same from any thread, without waiting."""
        self._follower.close_soon()


class _Run:
    """The job of a run, as far as there is one, for who ends the run when its iterator is gone already."""

    def __init__(self, submission: Submission) -> None:
        self.process = os.getpid()
        self.job: Optional[FunctionJob[Any]] = None
        self.over = False
        #: What it is a run of.
        self.name = submission.name
        self._place = submission.place
        #: Whether the caller has a key for it: whoever comes with that has the job, which goes on.
        self.is_kept = submission.is_keyed
        self._submission: Optional[Submission] = submission

    @property
    def is_open(self) -> bool:
        """Whether there is something to leave. A child that was forked has a copy of a run that is not its own."""
        return not self.over and self.process == os.getpid() and not background.current().is_over

    async def begin(self) -> None:
        """Submits the job, once. On the background loop. Who is interrupted in the middle has left it."""
        submission, self._submission = self._submission, None
        if submission is not None:
            # Somebody waits for its values: what no worker could ever take is refused.
            self.job = await submission.submit(refuse_impossible=True)

    def lost(self) -> None:
        """Nobody can ask for a value any more. As a coroutine that is never awaited, a run that never began is a mistake."""
        never_began = self.is_open and self._submission is not None
        # A finalizer may come on the caller's own loop, or with any lock held.
        _leave_soon(self)
        if never_began:
            self._place.say(f"{self.name}.run(…) was never iterated over, so it did not begin: it is a generator")

    async def leave(self) -> None:
        """Cancels the job, if the run is not over. On the background loop."""
        if self.over:
            return
        self.over = True
        if self._submission is not None:
            self._submission.drop()
        if self.job is not None and not self.job.ended and not self.is_kept:
            await interrupts.Ends(self.job).cancelled()


class _Ends(interrupts.Ends):
    """The `background.Aftermath` of waiting for a run's values: whatever it ends with, the run cancels its job. Of Ctrl-C
    there is more to say."""

    def left(self) -> None:
        """Nothing."""

    async def cancelled(self) -> None:
        """Nothing."""


#: What is to be left at the end of the process, and what is being left by nobody who waits for that.
_runs: weakref.WeakSet[_Run] = weakref.WeakSet()
_leaving: set[Future[None]] = set()


def _leave(run: _Run) -> None:
    """From any thread."""
    if not run.is_open:
        return
    if background.current().is_current():
        _leave_soon(run)
    else:
        background.run(run.leave())


def _leave_soon(run: _Run) -> None:
    if run.is_open:
        leaving = background.soon(run.leave())
        _leaving.add(leaving)
        leaving.add_done_callback(_leaving.discard)


def _leave_all() -> None:
    for run in list(_runs):
        _leave_soon(run)
    wait(list(_leaving))


background.before_end(_leave_all)


class RunYields(Generic[Y]):
    """A run of a generator: its values, for `for` and `async for`. It begins with the first that is asked for. Who leaves
    it before its end, by `break`, an exception or Ctrl-C, or by `close`, cancels the job. The order is on disk when `close`
    returns; of a run that nobody refers to any more soon after, and when the program ends. A job with a `key` of the caller's
    goes on."""

    def __init__(self, submission: Submission) -> None:
        self._values: Optional[Yields[Y]] = None
        self._run = _Run(submission)
        self._operation = background.Operation()
        _runs.add(self._run)
        weakref.finalize(self, self._run.lost).atexit = False

    @property
    def job(self) -> Optional[FunctionJob[Any]]:
        """Its job; `None` before it has begun."""
        return self._run.job

    async def begin(self) -> None:
        """Submits the job, if that was not done."""
        await background.join(self._run.begin(), self._operation)

    def _begun(self) -> Optional[Yields[Y]]:
        if self._values is None and self._run.job is not None:
            kept = interrupts.GoesOn if self._run.is_kept else _Ends
            self._values = Yields(self._run.job, aftermath=kept(self._run.job), operation=self._operation)
        return self._values

    def __iter__(self) -> RunYields[Y]:
        return self

    def __next__(self) -> Y:
        __tracebackhide__ = True
        try:
            if self._run.over:
                raise StopIteration
            if self._run.job is None:
                background.run(self._run.begin(), self._operation)
            values = self._begun()
            assert values is not None
            return next(values)
        except StopIteration:
            self._run.over = True
            raise
        except KeyboardInterrupt:
            self._interrupted()
            raise
        except BaseException as failed:
            if isinstance(failed, DaemonError):
                self._stays(failed)
            self.close()
            raise

    def _stays(self, lost: DaemonError) -> None:
        """Leaves the job to the daemon, which an order to cancel it would start again."""
        if self._run.job is not None and not self._run.job.ended:
            self._run.over = True
            interrupts.named(lost, self._run.job)

    def _interrupted(self) -> None:
        """Also between two waits, after which nothing has come yet."""
        job = self._run.job
        if job is not None and not job.ended and job.record.cancel_requested_at is None and not self._run.is_kept:
            interrupts.Ends(job).interrupted()
            self._run.over = True
        self.close()

    def __aiter__(self) -> RunYields[Y]:
        return self

    async def __anext__(self) -> Y:
        try:
            if self._run.over:
                raise StopAsyncIteration
            if self._run.job is None:
                await self.begin()
            values = self._begun()
            assert values is not None
            return await values.__anext__()
        except StopAsyncIteration:
            self._run.over = True
            raise
        except BaseException as failed:
            if isinstance(failed, DaemonError):
                self._stays(failed)
            # Also of a task that was cancelled, which may wait for this.
            await asyncio.shield(self.aclose())
            raise

    def __repr__(self) -> str:
        job, run = self._run.job, self._run
        if job is not None:
            return f"<RunYields of {run.name}, {'over' if run.over else 'begun'}, job {job}>"
        stand = "over" if run.over else "not begun: iterating over it does"
        return f"<RunYields of {run.name}, {stand}>"

    def close(self) -> None:
        """Leaves it: cancels the job if it has not ended."""
        if self._values is not None:
            self._values.close()
        _leave(self._run)

    async def aclose(self) -> None:
        """The same, awaited."""
        if self._values is not None:
            await self._values.aclose()
        await background.join(self._run.leave())

    def __enter__(self) -> RunYields[Y]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RunYields[Y]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
