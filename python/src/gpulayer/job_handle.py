"""One job on a server: how it stands, its log, its files, its end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generator, Mapping, Optional, TypeVar, Union

from . import background, routes, tables
from .array_logs import ArrayLines
from .both import both
from .errors import ConfigurationError, ConflictError, JobCancelledError, JobFailedError, JobTimedOutError, RefusedError, WaitTimeoutError, refusal
from .event_stream import Follower, Pages
from .interrupts import GoesOn
from .outputs import Outputs, bring
from .quantities import Span, patience_s, shown_size, shown_span
from .records import End, Event, Explanation, JobRecord, LogLine, PastExplanation, PastPlacement, Task
from .routes import Route
from .stream import Batches, Stream
from .terminal import Line
from .wire import read, read_all

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")

#: How long one long poll is asked to park: short enough that whatever is in between does not cut it.
_POLL_S = 30.0
_PAGE = 500
#: So many jobs are shown in a notebook.
_SHOWN = 100
#: How much of a failed job's log its error shows, in lines.
_TAIL = 10
_UNKNOWN = End(reason="unknown", owner="platform")


class Job:
    """A job. Its fields (`state`, `end`, `outputs`, …) are as they stood when it was last asked for; `refresh`, `wait`
    and everything that changes the job renew them. `await job` is `job.result()` for asyncio."""

    #: What it is called in messages.
    noun = "job"

    def __init__(self, client: Client, raw: Mapping[str, Any]) -> None:
        self.client = client
        self._take(raw)

    def _take(self, raw: Mapping[str, Any]) -> JobRecord:
        #: The answer's JSON, also what this version has no field for.
        self.raw = raw
        self.record = read(JobRecord, raw)
        return self.record

    # How it stands.

    @property
    def id(self) -> str:
        """`job_…`."""
        return self.record.id

    @property
    def name(self) -> Optional[str]:
        """As it was named."""
        return self.record.name

    @property
    def state(self) -> str:
        """`queued`, `scheduled`, `running`, or for ever `succeeded`, `failed`, `cancelled`, `timed_out`."""
        return self.record.state

    @property
    def ended(self) -> bool:
        """Whether it will not move any more."""
        return self.record.ended

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.record.state == "succeeded"

    @property
    def had_returned(self) -> bool:
        """Whether it failed after its function had returned."""
        return False

    @property
    def end(self) -> Optional[End]:
        """How and why it ended; `None` while it has not."""
        return self.record.end

    @property
    def exit_code(self) -> Optional[int]:
        """Of its program, when it exited by itself."""
        return self.record.end.exit_code if self.record.end else None

    @property
    def outputs(self) -> Outputs:
        """Its collected files; `.download(to)` brings them. An array has none itself: it brings those of its jobs, each
        into a folder of its index."""
        return Outputs(self, self.record.outputs)

    @property
    def why(self) -> str:
        """In one sentence, why it stands as it does: what it waits for, where it runs, how it ended."""
        record, end = self.record, self.record.end
        state = record.state.replace("_", " ")
        if end is not None:
            is_plain = self.succeeded or end.reason == record.state
            return end.detail or (end.reason if is_plain else f"{state}: {end.reason}")
        if record.queue_reason:
            return record.queue_reason
        if record.state == "queued" and record.warnings:
            # Nobody has looked at it again since it was submitted.
            return record.warnings[0].detail
        if record.cancel_requested_at is not None:
            return f"is being cancelled{self._on_worker()}"
        if record.unreachable_since is not None:
            worker = f"…{(record.worker or '')[-6:]}"
            return f"its worker {worker} does not answer since {record.unreachable_since:%H:%M:%S} UTC"
        return record.state + self._on_worker()

    def _on_worker(self) -> str:
        """As tables show it: an id takes half of a line, and the record has it whole."""
        return f" on …{self.record.worker[-6:]}" if self.record.worker else ""

    @both
    async def refresh(self) -> Job:
        """Asks how it stands now; itself."""
        await self.refreshed()
        return self

    async def refreshed(self) -> JobRecord:
        """The body of `refresh`, on the background loop."""
        return self._take(await self._call(routes.JOB))

    # Its end.

    @both
    async def wait(self, timeout: Optional[Span] = None, *, progress: Optional[bool] = None) -> Job:
        """Returns itself when it has ended, however. `timeout`, in seconds, as `"10m"` or a `timedelta`: `WaitTimeoutError`, and the job goes on;
        so it does after Ctrl-C, which says how to come back to it. Restarts of the server are waited out. `progress`: a line that says how it stands, by
        default on a terminal."""
        await self._wait(timeout, progress)
        return self

    @both
    async def result(self, timeout: Optional[Span] = None, *, progress: Optional[bool] = None) -> End:
        """Waits, and gives the end of a job that succeeded. Of any other a `JobFailedError` with the reason and the
        end of its log; `JobCancelledError` and `JobTimedOutError` are such."""
        return await self._result(timeout, progress)

    def __await__(self) -> Generator[Any, None, End]:
        return background.join(self._result(None, False)).__await__()

    async def _wait(self, timeout: Optional[Span], progress: Optional[bool]) -> None:
        patient_s = patience_s(timeout)
        if not self.ended:
            background.if_left(GoesOn(self))
        began = time.monotonic()
        line = Line(progress)
        patience = self.client.session.patience(following=True)
        try:
            while not self.ended:
                left = None if patient_s is None else patient_s - (time.monotonic() - began)
                if left is not None and left <= 0:
                    raise WaitTimeoutError(f"job {self} has not ended within {patient_s:g} s: {self.why}")
                line.show(f"{self} {shown_span(time.monotonic() - began)}  {self._standing()}", self._share())
                poll_s = line.again_s if line.on else _POLL_S
                wait_s = round(min(poll_s, _POLL_S if left is None else left), 3)
                self._take(await self._call(routes.JOB, {"wait_s": wait_s}, patience=patience))
                patience.renew()
        finally:
            line.clear()

    def _standing(self) -> str:
        """How it stands, in one line: as `why`, and what its program last said of itself."""
        why = self.why.removesuffix(self._on_worker())
        why = why if why.startswith(self.state) else f"{self.state}: {why}"
        told = self.record.progress
        metrics = told.get("metrics") if isinstance(told, Mapping) else None
        words = [f"{name}={value}" for name, value in metrics.items()] if isinstance(metrics, Mapping) else []
        return "  ".join([why, *words[:4]])

    def _share(self) -> Optional[float]:
        """How much its program says is done; `None` if it does not say."""
        told = self.record.progress
        done, total = (told.get("done"), told.get("total")) if isinstance(told, Mapping) else (None, None)
        if isinstance(done, (int, float)) and isinstance(total, (int, float)) and total > 0:
            return min(max(done / total, 0.0), 1.0)
        return None

    async def _result(self, timeout: Optional[Span], progress: Optional[bool]) -> End:
        await self._wait(timeout, progress)
        if self.succeeded:
            return self.record.end or _UNKNOWN
        raise self.failure(await self._tail())

    def failure(self, tail: tuple[str, ...]) -> JobFailedError:
        """The error for a job that ended and did not succeed, with the last lines of its log."""
        kind = {"cancelled": JobCancelledError, "timed_out": JobTimedOutError}.get(self.state, JobFailedError)
        return kind(self, self.record.end or _UNKNOWN, tail)

    def untried(self) -> Optional[str]:
        """Of one that failed with attempts left: that they were not for such an end, and how they are."""
        retry, end = self.record.spec.get("retry") or {}, self.record.end
        left = int(retry.get("max_attempts") or 1) - self.record.attempt
        causes = [str(each) for each in retry.get("retry_on") or ()]
        if left < 1 or end is None or self.state != "failed" or {"any", end.owner, end.reason}.intersection(causes):
            return None
        more = "1 more attempt was" if left == 1 else f"{left} more attempts were"
        return f'{more} allowed, for {", ".join(causes)} only: retry_on=["{end.reason}"] is for this end'

    async def _tail(self) -> tuple[str, ...]:
        try:
            answer = await self._call(routes.LOGS, {"tail": _TAIL})
        except RefusedError:
            # The end itself matters more than the lines before it.
            return ()
        return tuple(line.text for line in read_all(LogLine, answer["items"]))

    # What it says.

    def logs(
        self,
        follow: bool = False,
        *,
        after: int = 0,
        tail: Optional[int] = None,
        stream: Optional[str] = None,
        task: Optional[str] = None,
    ) -> Stream[LogLine]:
        """Its log, line by line, for `for` and `async for`. `follow`: until the job has ended, over cuts and restarts
        of the server, no line lost or doubled. `after` is exclusive; `tail`: only so many of the last lines.

        Of an array or a map the logs of its jobs, one after another in the order of their indices; `tail` of each."""
        query = {"tail": tail, "stream": stream, "task": task}

        def lines(job: Job) -> Batches[LogLine]:
            return job._batches(routes.LOGS, "log", lambda wire: read(LogLine, wire), query, follow, after)

        if not self.record.spec.get("array") or self.record.parent:
            return Stream(lambda: lines(self))
        if after:
            raise ConfigurationError(f"after={after}: each job of {self} counts its own lines; children() has them")
        return Stream(lambda: ArrayLines(self, lines, GoesOn(self) if follow and not self.ended else None))

    def events(self, follow: bool = False, *, after: int = 0) -> Stream[Event]:
        """What happened to it, in order, for `for` and `async for`."""
        return Stream(lambda: self._batches(routes.EVENTS, "event", lambda wire: read(Event, wire), {}, follow, after))

    def _batches(
        self,
        route: Route,
        kind: str,
        convert: Callable[[Mapping[str, Any]], T],
        query: Mapping[str, object],
        following: bool,
        after: int,
    ) -> Batches[T]:
        given = {name: value for name, value in query.items() if value is not None}
        names = {"job_id": self.id}

        if following:
            if_left = None if self.ended else GoesOn(self)
            return Follower(self.client.session, route, names, given, after, kind, convert, if_left)
        # The last lines are one answer; else it is page after page.
        whole = "tail" in given

        async def page(after: int) -> Mapping[str, Any]:
            asked = given if whole else {**given, "after": after, "limit": _PAGE}
            answer: Mapping[str, Any] = await self._call(route, asked)
            return answer

        return Pages(page, after, convert, whole)

    @both
    async def tasks(self) -> tuple[Task, ...]:
        """Its placements, newest first."""
        return read_all(Task, (await self._call(routes.TASKS))["items"])

    @both
    async def explain(self) -> Union[Explanation, PastExplanation]:
        """Why it waits, worker by worker; of a job that does not wait any more what it had waited for, and where it runs or
        ran."""
        try:
            answer = await self._call(routes.EXPLAIN_JOB)
        except ConflictError as refused:
            if refused.code != "not_waiting":
                raise
            return await self._placed()
        return read(Explanation, answer) if "verdict" in answer else read(PastExplanation, answer)

    async def _placed(self) -> PastExplanation:
        """What there is to say of one that runs."""
        record, tasks = await self.refreshed(), read_all(Task, (await self._call(routes.TASKS))["items"])
        since = f" since {record.started_at:%H:%M:%S} UTC" if record.started_at and not record.ended else ""
        stand = record.progress if record.spec.get("array") and isinstance(record.progress, Mapping) else {}
        children = ", ".join(f"{count} {name}" for name, count in stand.items() if count and name != "total")
        summary = f"it does not wait: it is {record.state.replace('_', ' ')}{since}"
        return PastExplanation(
            state=record.state,
            summary=f"{summary} · of its jobs {children}: children() has each" if children else summary,
            queued_at=record.submitted_at,
            waited_s=((record.scheduled_at or record.submitted_at) - record.submitted_at).total_seconds(),
            attempts=record.attempt,
            preemptions=0,
            placed=len(tasks),
            placements=tuple(
                PastPlacement(
                    task_id=task.id,
                    attempt=task.attempt,
                    worker=task.worker,
                    placed_at=task.assigned_at,
                    started_at=task.started_at,
                    ended_at=task.ended_at,
                    gpus=task.gpus,
                    reason=task.end.reason if task.end else None,
                    rank=task.rank,
                )
                for task in reversed(tasks)
            ),
        )

    # What one does with it.

    @both
    async def cancel(self, *, now: bool = False, key: Optional[str] = None) -> Job:
        """Stops it, with its grace; `now`: without. Returns itself when the order is on disk; `wait` for the end."""
        self._take(await self._call(routes.CANCEL, body={"now": now}, key=key))
        return self

    @both
    async def retry(self, *, failed: bool = False, key: Optional[str] = None) -> Job:
        """A new job with the same spec, of one that has ended. `failed`: of an array only what did not succeed."""
        return await self._retried(failed, key)

    async def _retried(self, failed: bool, key: Optional[str]) -> Job:
        body = {"failed": True} if failed else {}
        try:
            return await self.client.made(routes.RETRY, body, key, names={"job_id": self.id})
        except ConflictError as refused:
            if refused.code != "job_not_ended":
                raise
            stand = self.record.state if self.ended else (await self.refreshed()).state
            detail = f"{self.noun} {self} is {stand}, and can be repeated after its end: wait() first, or cancel() and wait()"
            raise refusal({**refused.problem, "detail": detail}) from None

    @both
    async def fetch(
        self,
        to: Union[str, "os.PathLike[str]"] = ".",
        *,
        undeclared: bool = False,
        force: bool = False,
        progress: Optional[bool] = None,
    ) -> list[Path]:
        """Brings its outputs into a folder, as `outputs.download`; with `undeclared` the files that nobody declared,
        while its worker keeps them."""
        return await bring(self, to, force=force, undeclared=undeclared, progress=progress)

    @both
    async def children(self) -> list[Job]:
        """Of an array: its jobs, in the order of their indices."""
        found = await self.client.listed(parent=self.id)
        return Jobs(sorted(found, key=lambda job: job.record.array_index or 0))

    @both
    async def purge(self, *, key: Optional[str] = None) -> None:
        """Removes an ended job, its log, and artifacts that nothing else names."""
        await self._call(routes.PURGE, key=key)

    async def _call(self, route: Route, query: Mapping[str, object] = {}, **more: Any) -> Any:
        return await self.client.session.call(route, {"job_id": self.id}, query, **more)

    # For people.

    def __str__(self) -> str:
        tail = f"…{self.id[-6:]}"
        return f"{tail} ({self.name})" if self.name else tail

    def __repr__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.state}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        return self.id == other.id and self.client is other.client

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.raw)

    def _repr_html_(self) -> str:
        return tables.named(self.rows())

    def rows(self) -> list[tuple[str, str]]:
        """What a notebook shows of it: names and texts."""
        end = self.end
        rows = [(self.noun, f"{self.name or ''} {self.id}"), ("state", self.state)]
        if self.why != self.state:
            rows.append(("why", self.why))
        if self.record.worker:
            rows.append(("worker", self.record.worker))
        if end is not None and end.duration_s is not None:
            rows.append(("took", shown_span(end.duration_s)))
        if end is not None and end.peak_memory_bytes is not None:
            rows.append(("peak memory", shown_size(end.peak_memory_bytes)))
        rows += [("output", f"{file.path} ({shown_size(file.size_bytes)})") for file in self.record.outputs[:20]]
        rows += [("warning", f"{warning.pointer} {warning.detail}") for warning in self.record.warnings[:20]]
        return rows


class Jobs(list[Job]):
    """Some jobs. A list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (job.id, job.name or "", job.state, f"{job.record.submitted_at:%Y-%m-%d %H:%M:%S} UTC", job.why)
            for job in self[:_SHOWN]
        ]
        more = [(f"and {len(self) - _SHOWN} more", "", "", "", "")] if len(self) > _SHOWN else []
        return tables.listed(("job", "name", "state", "submitted", "why"), rows + more)
