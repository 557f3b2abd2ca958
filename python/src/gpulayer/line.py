"""The connections to one server, and the loop they belong to: made with the first call, closed in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any, AsyncGenerator, Callable, Coroutine, Protocol

import httpx

from . import background
from .endpoint import Target
from .pin import authorities_context, pinned_context
from .unix_transport import UnixTransport
from .version import VERSION

#: So many calls are at a server at once, each on a connection of its own: those that wait there for something to happen,
#: and all others, which therefore never wait for them.
_MOST_WAITING, _MOST_OTHERS = 128, 64
#: For how long one waits there while others wait for their turn here.
_CROWDED_WAIT_S = 1.0

_lines: set[Line] = set()


class Open(Protocol):
    """Something that reads from a connection, and has to be closed before it."""

    async def close(self) -> None:
        """Lets go of the connection."""


class Line:
    """Connections, and the loop they belong to. It holds the background alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Target) -> None:
        self.loop = loop
        self.http = _client(target)
        #: What is being read from them.
        self.streams: set[Open] = set()
        self._waiting, self._others = asyncio.Semaphore(_MOST_WAITING), asyncio.Semaphore(_MOST_OTHERS)
        self._background = background.current()
        self._background.hold()
        _lines.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to this process. After a fork the parent's stays as it is: a socket has one owner."""
        return self._background is background.current()

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self in _lines and self.is_ours

    @contextlib.asynccontextmanager
    async def turn(self, wait_s: float) -> AsyncGenerator[float, None]:
        """In it a call may be at the server, which is to wait there for so long; for how long it may. Streams need none:
        who reads several in turn would wait for ever for the one that has none."""
        lanes = self._waiting if wait_s else self._others
        is_crowded = lanes.locked()
        async with lanes:
            yield min(wait_s, _CROWDED_WAIT_S) if is_crowded else wait_s

    async def close(self) -> None:
        """Closes the connections. On their loop."""
        if self.is_open:
            await self.end()
            self._background.let_go(wait=False)

    async def end(self) -> None:
        """The same when the background ends by itself."""
        _lines.discard(self)
        for stream in list(self.streams):
            await stream.close()
        await self.http.aclose()

    def soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Carries out on the loop, from any thread, without waiting; not at all when the loop is over, or is that of
        the process this one was forked from."""
        if self.is_ours:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(lambda: self.loop.create_task(work()))


async def _close_lines(loop: asyncio.AbstractEventLoop) -> None:
    for line in [each for each in _lines if each.loop is loop]:
        await line.end()


background.at_end(_close_lines)


def _is_others(record: logging.LogRecord) -> bool:
    """Whether it is not of a request of this package, of which a short program makes hundreds. Those that the program
    makes by the same library are told as ever: none is made on this thread."""
    return record.levelno != logging.INFO or not background.current().is_current()


def _client(target: Target) -> httpx.AsyncClient:
    logging.getLogger("httpx").addFilter(_is_others)
    endpoint = target.endpoint
    # Not compressed: downloads go on by their offset after a cut.
    headers = {"User-Agent": f"gpulayer-python/{VERSION}", "Accept-Encoding": "identity"}
    if target.token is not None:
        headers["Authorization"] = f"Bearer {target.token}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=60.0)
    if endpoint.scheme == "unix":
        transport = UnixTransport(endpoint.path)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, trust_env=False)
    verify: ssl.SSLContext | bool = False
    if endpoint.scheme == "https":
        verify = pinned_context(target.pins) if target.pins else authorities_context(target.ca_file)
    return httpx.AsyncClient(
        base_url=str(endpoint),
        headers=headers,
        verify=verify,
        limits=limits,
        # The proxy that the environment names, never for what is on this machine.
        trust_env=not endpoint.is_loopback,
    )
