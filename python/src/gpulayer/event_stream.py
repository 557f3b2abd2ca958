"""Reads server-sent events: `id`, `event`, `data`. One stream is one answer; resuming after a cut is asking again with
the last id."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, AsyncIterator, Mapping, Optional

from .errors import CutError, GPUlayerError, UnreachableError
from .routes import Route
from .session import SILENT_S, Session

#: One event takes no more; whoever sends more is no server of ours.
_LONGEST_EVENT_BYTES = 16 << 20


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
        if len(whole) > _LONGEST_EVENT_BYTES:
            raise CutError(f"an event of the stream is longer than {_LONGEST_EVENT_BYTES} bytes")
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
            if name:
                self._fields[name] = value
        return found


async def follow(
    session: Session, route: Route, names: Mapping[str, str], query: Mapping[str, object], after: int
) -> AsyncIterator[list[StreamEvent]]:
    """Events in batches until `end`, over cuts and restarts of the server, none lost and none twice."""
    patience = session.patience(following=True)
    asked = dict(query, after=after or None)
    while True:
        try:
            async for batch in _one_stream(session, route, names, asked, after):
                patience.renew()
                numbers = [event.id for event in batch if event.id is not None]
                if numbers:
                    after = max(numbers)
                    # What was asked for at first is behind us: it goes on from here.
                    asked = dict(query, after=after, tail=None) if "tail" in query else dict(query, after=after)
                fresh = [event for event in batch if event.kind != "end"]
                if fresh:
                    yield fresh
                if len(fresh) < len(batch):
                    return
            raise CutError(f"the stream {route.path.format_map(dict(names))} was cut")
        except GPUlayerError as failed:
            if isinstance(failed, UnreachableError):
                await session.revive(patience)
            if not await patience.pause_after(failed):
                raise


async def _one_stream(
    session: Session, route: Route, names: Mapping[str, str], query: Mapping[str, object], after: int
) -> AsyncIterator[list[StreamEvent]]:
    """The events of one answer."""
    headers = {"Accept": "text/event-stream"}
    if after:
        headers["Last-Event-ID"] = str(after)
    reader = Reader()
    async with session.open(route, names, query, headers=headers, answer_s=SILENT_S) as answer:
        async for piece in answer.aiter_bytes():
            batch = reader.feed(piece)
            if batch:
                yield batch
