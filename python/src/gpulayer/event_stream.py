"""Reads server-sent events: `id`, `event`, `data`. One stream is one answer; resuming after a cut is asking again with
the last id."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from typing import Any, AsyncIterator, Awaitable, Callable, Generic, Mapping, Optional, TypeVar

from . import background
from .errors import CutError, GPUlayerError, UnreachableError
from .line import Line
from .routes import Route
from .session import SILENT_S, Patience, Session

T = TypeVar("T")
_LOG = logging.getLogger("gpulayer")

#: Answers of the process that this one was forked from: kept, so that no collection here closes them.
_left_behind: list[object] = []
#: One event takes no more; whoever sends more is no server of ours.
_LONGEST_EVENT_BYTES = 16 << 20


#: What an event has that is read here.
_NAMES = ("id", "event", "data")


def _check_length(length: int) -> None:
    if length > _LONGEST_EVENT_BYTES:
        raise CutError(f"an event of the stream is longer than {_LONGEST_EVENT_BYTES} bytes")


@dataclass(frozen=True)
class StreamEvent:
    """One event: its number if it has one, its kind (`log`, `event`, `gap`, `end`) and its JSON."""

    id: Optional[int]
    kind: str
    data: Any


class Reader:
    """Puts events together from pieces, however the stream was cut into them."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, piece: bytes) -> list[StreamEvent]:
        """The events that are whole now."""
        whole = self._rest + piece
        _check_length(len(whole))
        *lines, self._rest = whole.split(b"\n")
        found: list[StreamEvent] = []
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if not text:
                if "data" in self._fields or "event" in self._fields:
                    number = self._fields.get("id", "")
                    found.append(
                        StreamEvent(
                            int(number) if number.isdigit() else None,
                            self._fields.get("event", "message"),
                            json.loads(self._fields.get("data") or "null"),
                        )
                    )
                self._fields = {}
                continue
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data" and "data" in self._fields:
                value = self._fields["data"] + "\n" + value
                _check_length(len(value))
            if name in _NAMES:
                self._fields[name] = value
        return found


class Follower(Generic[T]):
    """What a route's stream says from `after` on, until its `end`: over cuts and restarts of the server, nothing lost
    and nothing twice. Events of another kind than `kind` are left out. `if_left`: what comes after it if its reader leaves."""

    def __init__(
        self,
        session: Session,
        route: Route,
        names: Mapping[str, str],
        query: Mapping[str, object],
        after: int,
        kind: str,
        convert: Callable[[Any], T],
        if_left: Optional[background.Aftermath] = None,
    ) -> None:
        self._if_left = if_left
        self._session = session
        self._route, self._names, self._query = route, names, dict(query)
        self._operation = f"{route.method} {route.path.format_map(dict(names))}"
        self._after = after
        self._kind, self._convert = kind, convert
        self._patience: Optional[Patience] = None
        self._held: Optional[contextlib.AsyncExitStack] = None
        self._line: Optional[Line] = None
        self._pieces: Optional[AsyncIterator[bytes]] = None
        self._reader = Reader()
        self._over = False

    async def next(self) -> Optional[list[T]]:
        """What has come meanwhile; `None` after `end`."""
        if self._if_left is not None:
            background.if_left(self._if_left)
        if self._patience is None:
            self._patience = self._session.patience(following=True)
        # Whoever asks may have been busy with what came before: only the waiting counts.
        self._patience.renew()
        while not self._over:
            self._begin_anew_after_fork()
            try:
                # Which reader it belongs to is known only then: a new answer has a new one.
                piece = await self._piece()
                with self._session.told(self._operation, SILENT_S):
                    batch = self._reader.feed(piece)
                if batch:
                    self._patience.renew()
                    return self._taken(batch)
            except GPUlayerError as failed:
                await self.close()
                if isinstance(failed, UnreachableError):
                    await self._session.revive(self._patience)
                if not await self._patience.pause_after(failed):
                    raise
        await self.close()
        return None

    def _taken(self, batch: list[StreamEvent]) -> list[T]:
        numbers = [event.id for event in batch if event.id is not None]
        if numbers:
            self._after = max(numbers)
            # What was asked for at first is behind us: after a cut it goes on from here.
            self._query.pop("tail", None)
        self._over = any(event.kind == "end" for event in batch)
        for gap in batch:
            if gap.kind == "gap":
                _LOG.warning("%s: the server has no longer what was between: %s", self._operation, gap.data)
        return [self._convert(event.data) for event in batch if event.kind == self._kind]

    async def _piece(self) -> bytes:
        if self._pieces is None:
            await self._connect()
        assert self._pieces is not None
        with self._session.told(self._operation, SILENT_S):
            async for piece in self._pieces:
                return piece
        raise CutError(f"the stream {self._operation} was cut")

    async def _connect(self) -> None:
        headers = {"Accept": "text/event-stream"}
        query = dict(self._query)
        if self._after:
            headers["Last-Event-ID"] = str(self._after)
            query["after"] = self._after
        held = contextlib.AsyncExitStack()
        opening = self._session.open(self._route, self._names, query, headers=headers, answer_s=SILENT_S)
        answer = await held.enter_async_context(opening)
        self._held, self._pieces, self._reader = held, answer.aiter_bytes(), Reader()
        self._line = self._session.line
        if self._line is not None:
            self._line.streams.add(self)

    def _begin_anew_after_fork(self) -> None:
        if self._line is not None and not self._line.is_ours:
            _left_behind.append((self._held, self._pieces))
            self._held = self._pieces = self._line = None

    async def close(self) -> None:
        """Lets go of the connection."""
        self._begin_anew_after_fork()
        held, self._held, self._pieces = self._held, None, None
        if self._line is not None:
            self._line.streams.discard(self)
        if held is not None:
            await held.aclose()

    def close_soon(self) -> None:
        """The same from any thread, without waiting."""
        if self._line is not None and self._held is not None:
            self._line.soon(self.close)


class Pages(Generic[T]):
    """The same sequence as far as it has come, page by page."""

    def __init__(
        self,
        ask: Callable[[int], Awaitable[Mapping[str, Any]]],
        after: int,
        convert: Callable[[Any], T],
        once: bool = False,
    ) -> None:
        self._ask = ask
        self._after: Optional[int] = after
        self._convert = convert
        self._once = once

    async def next(self) -> Optional[list[T]]:
        """The next page; `None` after the last."""
        if self._after is None:
            return None
        answer = await self._ask(self._after)
        items, after = answer["items"], answer["next_after"]
        more = items and not self._once and after > self._after
        self._after = after if more else None
        return [self._convert(item) for item in items]

    async def close(self) -> None:
        """There is nothing to let go of."""

    def close_soon(self) -> None:
        """There is nothing to let go of."""
