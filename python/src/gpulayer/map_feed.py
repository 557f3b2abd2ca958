"""Brings the outcomes of a map while it runs: the children once by pages, then those that end as the server's feed tells
of them, many with one call. Never a call for each child, except for a value that is an artifact of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from . import background, interrupts, routes
from .artifacts import DamagedError
from .errors import (
    ConnectionFailedError,
    DaemonError,
    GPUlayerError,
    NotFoundError,
    NoWorkerFitsError,
    RefusedError,
    UnexpectedAnswerError,
    WaitTimeoutError,
    refusal,
)
from .event_stream import Follower
from .function_job import FunctionJob, calls_at, calls_of
from .line import Line as Connections
from .quantities import Span, patience_s, shown_span
from .records import Explanation
from .results import Outcome
from .terminal import Line

if TYPE_CHECKING:
    from .maps import Map

_PAGE = 500
#: Children that stand this near to each other are asked for together, those in between too.
_NEAR = 8
#: While more than so many have not ended, those that end within a moment are told together.
_MANY, _GATHER_S = 16, 0.01
#: A feed that says nothing for so long is not believed alone.
_LOOK_AGAIN_S = 30.0
#: How often the line asks how the map stands.
_ASK_AGAIN_S = 1.0
#: So many values that are artifacts are brought at once, and together no more than so large, one aside.
_AT_ONCE, _AT_ONCE_BYTES = 8, 64 << 20

Indexed = tuple[int, Outcome]
#: Its index; without the job if that was removed.
Child = tuple[int, Optional[FunctionJob[Any]]]
#: What waits on the loop of the process that this one was forked from: kept, so that no collection here complains of it.
_left_behind: list[object] = []


class MapFeed:
    """The `Batches` of a map: places of arguments with their outcomes. `is_the_call`: nobody else has the map, which is
    not left behind if no worker could ever take it. `at_once`: all are taken before anything is done with them. `after`: comes after waiting for them that is broken off."""

    def __init__(
        self,
        map: Map[Any],
        ordered: bool,
        timeout: Optional[Span],
        progress: Optional[bool] = None,
        *,
        is_the_call: bool = False,
        at_once: bool = False,
        after: Optional[background.Aftermath] = None,
    ) -> None:
        self._map = map
        self._session = map.client.session
        self._ordered = ordered
        self._timeout = patience_s(timeout)
        self._deadline: Optional[float] = None
        self._is_the_call = is_the_call
        self._at_once = at_once
        self._after = after
        self._line = Line(progress)
        self._began = self._heard = time.monotonic()
        self._asked = float("-inf")
        self._calls_done = 0
        self._events: Optional[Follower[Mapping[str, Any]]] = None
        self._reading: Optional[asyncio.Future[Optional[list[Mapping[str, Any]]]]] = None
        self._line_to: Optional[Connections] = None
        self._background = background.current()
        #: The indices of the children in their order, and the ids of those that are there.
        self._indices: Sequence[int] = ()
        self._ids: dict[int, str] = {}
        self._place: dict[str, int] = {}
        #: Places that have not ended, as far as is known here.
        self._open: set[int] = set()
        #: Those that ended, or were removed, and were not handed out, by place, and their places as they came.
        self._ended: dict[int, Child] = {}
        self._order: deque[int] = deque()
        self._next = 0

    async def next(self) -> Optional[list[Indexed]]:
        """Outcomes that have come; `None` after the last."""
        if not self._map.id:
            return None
        if self._after is not None:
            background.if_left(self._after)
        try:
            return await self._next_outcomes()
        except (ConnectionFailedError, DaemonError) as lost:
            # Who iterates over the call of a map has nothing else of it.
            self._map.expect(False)
            raise interrupts.named(lost, self._map)

    async def _next_outcomes(self) -> Optional[list[Indexed]]:
        if self._deadline is None:
            self._deadline = time.monotonic() + (self._timeout if self._timeout is not None else float("inf"))
            await self._begin()
        self._begin_anew_after_fork()
        self._line_to = self._session.line
        try:
            while True:
                taken = self._taken()
                if taken:
                    if self._map.state == "queued":
                        # What has values is not waiting any more.
                        await self._ask()
                    return await self._outcomes(taken)
                if not self._open:
                    await self.close()
                    await self._map.settled()
                    return None
                await self._more()
        finally:
            self._map.expect(bool(self._open))
            if not self._at_once:
                self._line.rest()

    # What has come.

    def _taken(self) -> list[Child]:
        """The next children to hand out: several, if their values are here or small."""
        taken: list[Child] = []
        size_bytes = artifacts = 0
        while True:
            place = self._next if self._ordered else (self._order[0] if self._order else -1)
            if place not in self._ended:
                return taken
            job = self._ended[place][1]
            result = job.record.result if job is not None else None
            if isinstance(result, Mapping) and "artifact" in result:
                size_bytes += int(result.get("size_bytes", 0))
                artifacts += 1
                if taken and (artifacts > _AT_ONCE or size_bytes > _AT_ONCE_BYTES):
                    return taken
            taken.append(self._ended.pop(place))
            self._next += 1
            if self._order:
                self._order.popleft()

    async def _outcomes(self, children: list[Child]) -> list[Indexed]:
        each = await asyncio.gather(*(self._of_child(*child) for child in children))
        return [pair for pairs in each for pair in pairs]

    async def _of_child(self, index: int, child: Optional[FunctionJob[Any]]) -> list[Indexed]:
        each = calls_of(self._map.record.labels, len(self._indices))[1]
        first, calls = index * each, self._calls(index)
        try:
            if child is None:
                raise self._removed(index)
            if each == 1:
                return [(first, await child.outcome(progress=False) if child.has_result else child.without_outcome)]
            found = await child.each_outcome(calls)
        except (NotFoundError, DamagedError) as lost:
            # The others have theirs.
            found = [partial(_raise, lost)] * calls
        return [(first + at, one) for at, one in enumerate(found)]

    def _calls(self, index: int) -> int:
        """How many calls a child makes."""
        return calls_at(index, *calls_of(self._map.record.labels, len(self._indices)))

    def _removed(self, index: int) -> RefusedError:
        detail = f"job {index} of map {self._map} was removed, and what came of it with it"
        return refusal({"code": "not_found", "status": 404, "detail": detail})

    # What is to come.

    async def _begin(self) -> None:
        after = await self._position(self._map.id)
        children = await self._map.client.listed(parent=self._map.id)
        if len(children) < self._map.jobs:
            # Some were removed meanwhile, or the map itself.
            await self._map.refreshed()
        self._indices = self._map.indices
        place_of = {index: place for place, index in enumerate(self._indices)}
        self._place = {job.id: place_of.get(job.record.array_index or 0, -1) for job in children}
        if len(set(self._place.values()) - {-1}) < len(children):
            told = f"{len(children)} jobs were told of that are not those"
            raise UnexpectedAnswerError(f"map {self._map} has {self._map.jobs} jobs, and {told}")
        self._ids = {place: job_id for job_id, place in self._place.items()}
        self._open = set(range(len(self._indices)))
        self._arrived(children, 0, len(self._indices) - 1)
        if not self._open:
            return
        await self._refuse_impossible()
        # Of a map that has run for long: from the newest end on that was seen, and not from the beginning.
        newest = max((job for job in children if job.ended), key=lambda job: str(job.record.ended_at), default=None)
        if newest is not None:
            after = max(after, await self._position(newest.id))
        self._events = Follower(self._session, routes.FEED, {}, {}, after, "event", lambda event: event)

    async def _refuse_impossible(self) -> None:
        """Somebody sits and waits: for what no worker could ever take that is in vain."""
        map = self._map
        if not (map.refuses_impossible and map.record.warnings) or (await map.refreshed()).state != "queued":
            return
        told = await map.explain.aio()
        if not isinstance(told, Explanation) or told.verdict != "never":
            return
        change = f" · this would do: {told.suggestions[0].change}" if told.suggestions else ""
        detail = f"no worker could ever take this map · {told.summary}{'' if change in told.summary else change}"
        if self._is_the_call:
            await interrupts.Ends(map).cancelled()
        else:
            detail += f"\n  map {map} stays queued for one that can: wait() waits for it, cancel() ends it"
        raise NoWorkerFitsError({"code": "no_worker_fits", "status": 422, "detail": detail})

    async def _position(self, job_id: str) -> int:
        """Where in the server's feed the newest event of a job is."""
        answer = await self._session.call(routes.EVENTS, {"job_id": job_id}, {"limit": _PAGE})
        return max((int(event["position"]) for event in answer["items"]), default=0)

    def _arrived(self, jobs: list[Any], low: int, high: int) -> None:
        """Takes those that have ended: all that are there from one place to another, both included."""
        there = {self._place.get(job.id, -1): job for job in jobs}
        for place in range(low, high + 1):
            job = there.get(place)
            if place in self._open and (job is None or (job.ended and isinstance(job, FunctionJob))):
                self._open.discard(place)
                self._calls_done += self._calls(self._indices[place])
                self._ended[place] = (self._indices[place], job)
                if not self._ordered:
                    self._order.append(place)

    async def _more(self) -> None:
        """Waits until further children have ended, and has their records."""
        assert self._deadline is not None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise await self._too_late()
        await self._show()
        look_in_s = max(self._heard + _LOOK_AGAIN_S - time.monotonic(), 0)
        batch = await self._told(min(left, look_in_s, self._line.again_s if self._line.on else look_in_s))
        if batch is None:
            if time.monotonic() >= self._heard + _LOOK_AGAIN_S:
                # What ended is told, unless the server has removed it from its feed meanwhile.
                self._heard = time.monotonic()
                await self._look(sorted(self._open))
            return
        self._heard = time.monotonic()
        batch = list(batch)
        if len(self._open) > _MANY:
            # Others end at the same time, and are asked for with the same call.
            until = time.monotonic() + _GATHER_S
            while True:
                others = await self._told(max(until - time.monotonic(), 0))
                if not others:
                    break
                batch += others
        ended = {
            self._place[event["job_id"]]
            for event in batch
            if event["type"] == "job_ended" and event["job_id"] in self._place
        }
        await self._look(sorted(ended & self._open))

    async def _show(self) -> None:
        """The line, if there is one: how many calls are done, for how long it has been waited, and what for."""
        now = time.monotonic()
        if not self._line.is_due:
            return
        if now - self._asked >= _ASK_AGAIN_S:
            await self._ask()
        done, total = self._calls_done, len(self._map)
        stand = self._map.record.progress or {}
        running, failed = (stand.get(name) or 0 for name in ("running", "failed"))
        words = [f"{self._map} {done} of {total} done", shown_span(now - self._began)]
        words += [f"{failed} failed"] if failed else []
        words.append(f"{running} running" if running else self._map._standing())
        # As long as nothing happens the reason needs the room of the bar.
        self._line.show("  ".join(words), done / total if done or running else None)

    async def _ask(self) -> None:
        self._asked = time.monotonic()
        with contextlib.suppress(GPUlayerError):
            await self._map.refreshed()

    async def _too_late(self) -> WaitTimeoutError:
        await self._ask()
        map = self._map
        why = f": {map.why}" if map.why != map.state else ""
        return WaitTimeoutError(
            f"map {map} has not ended within {self._timeout:g} s: {len(map) - self._calls_done} of {len(map)} calls have "
            f"not ended{why}"
        )

    async def _told(self, within_s: float) -> Optional[Sequence[Mapping[str, Any]]]:
        """What the feed says next; `None` when it says nothing for so long. The reading goes on then."""
        assert self._events is not None
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._events.next())
        done, _ = await asyncio.wait({self._reading}, timeout=within_s)
        if not done:
            return None
        reading, self._reading = self._reading, None
        return await reading or ()

    async def _look(self, places: list[int]) -> None:
        """Has the records of these children, and takes those that have ended."""
        for low, high in _runs(places):
            self._arrived(await self._listed(low, high), low, high)

    async def _listed(self, low: int, high: int) -> list[Any]:
        """The children from one place to another, both included."""
        cursor = next((self._ids[place] for place in range(high + 1, len(self._indices)) if place in self._ids), None)
        query = {"parent": self._map.id, "limit": high - low + 1, "cursor": cursor}
        patience = self._session.patience(following=True)
        answer = await self._session.call(routes.JOBS, query=query, patience=patience)
        return [self._map.client.job_of(each) for each in answer["items"]]

    def _begin_anew_after_fork(self) -> None:
        if self._background is not background.current():
            self._background = background.current()
            _left_behind.append(self._reading)
            self._reading = None
            # What it was being told in that moment nobody tells it again.
            self._heard = -_LOOK_AGAIN_S

    async def close(self) -> None:
        """Lets go of the connection."""
        self._begin_anew_after_fork()
        self._line.clear()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
        if self._events is not None:
            await self._events.close()

    def close_soon(self) -> None:
        """The same from any thread, without waiting."""
        if self._line_to is not None:
            self._line_to.soon(self.close)


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Ranges that hold all places, each asked for with one call."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and place - runs[-1][1] <= _NEAR and place - runs[-1][0] < _PAGE:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs


def _raise(failure: Exception) -> Any:
    __tracebackhide__ = True
    raise failure
