"""HTTP over the Unix socket of a daemon on this machine, as a transport of httpx: the protocol by h11, which httpx brings,
the bytes by asyncio itself. Through the transport that httpx has for it, which is there for all of its kinds of loops and
proxies, a short call takes several times the CPU."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, AsyncIterator, Optional, cast

import h11
import httpx

#: So many connections are kept for the next call, for so long.
_MOST_IDLE, _IDLE_S = 16, 60.0
#: Nothing more is taken from the socket while so much waits to be read.
_MOST_UNREAD_BYTES = 256 << 10


class UnixTransport(httpx.AsyncBaseTransport):
    """Connections to one socket. Belongs to the loop of its first request."""

    def __init__(self, path: str) -> None:
        self._path = path
        #: All that are open; the ones that wait for a request, the newest last.
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends, and returns with the head of the answer; the body is read by whoever iterates over it."""
        timeouts: dict[str, Optional[float]] = request.extensions.get("timeout", {})
        connection = self._kept() or await self._connected(timeouts.get("connect"))
        try:
            await connection.send(request, timeouts.get("write"))
            head = await connection.head(timeouts.get("read"))
        except BaseException:
            self._drop(connection)
            raise
        body = _Body(self, connection, timeouts.get("read"))
        return httpx.Response(head.status_code, headers=list(head.headers), stream=body)

    async def aclose(self) -> None:
        """Closes all connections."""
        for connection in list(self._open):
            self._drop(connection)

    def done(self, connection: _Connection) -> None:
        """Takes a connection back after an answer, whole or not."""
        if len(self._idle) < _MOST_IDLE and connection.begin_anew():
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _kept(self) -> Optional[_Connection]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            self._drop(connection)
        return None

    async def _connected(self, within_s: Optional[float]) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            connecting = loop.create_unix_connection(_Connection, self._path)
            _, connection = await asyncio.wait_for(connecting, within_s)
        except asyncio.TimeoutError:
            raise httpx.ConnectTimeout(f"not connected within {within_s:g} s") from None
        except OSError as failed:
            raise httpx.ConnectError(str(failed)) from failed
        self._open.add(connection)
        return connection

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._socket: Optional[asyncio.Transport] = None
        self._unread_bytes = 0
        self._is_lost = False
        self._fault: Optional[BaseException] = None
        self._waiter: Optional[asyncio.Future[None]] = None
        self._can_write: Optional[asyncio.Future[None]] = None
        self._used_at = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether it can carry one more request."""
        quiet = not self._is_lost and self._http.trailing_data == (b"", False)
        return quiet and time.monotonic() - self._used_at < _IDLE_S

    def begin_anew(self) -> bool:
        """Makes it ready for the next request; `False` when it has to be closed."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.SEND_BODY:
            # Of a body that nobody asked for, such as the one a `HEAD` has not, the end may be there.
            with contextlib.suppress(h11.RemoteProtocolError):
                self._http.next_event()
        if self._is_lost or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._unread_bytes = 0
        self._used_at = time.monotonic()
        return True

    def close(self) -> None:
        """At once; whoever waits for it hears of a cut."""
        if self._socket is not None:
            self._socket.abort()

    async def send(self, request: httpx.Request, within_s: Optional[float]) -> None:
        """Sends the request. A server that says no in the middle of a body is heard, and the rest not sent."""
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        ready = self._http.send(head) or b""
        async for piece in cast("AsyncIterator[bytes]", request.stream):
            ready += self._http.send(h11.Data(data=piece)) or b""
            if not await self._written(ready, within_s):
                return
            ready = b""
        ready += self._http.send(h11.EndOfMessage()) or b""
        if ready:
            await self._written(ready, within_s)

    async def head(self, within_s: Optional[float]) -> h11.Response:
        """The head of the answer."""
        while True:
            event = await self._event(within_s)
            if isinstance(event, h11.Response):
                return event

    async def piece(self, within_s: Optional[float]) -> Optional[bytes]:
        """What comes next of the answer's body; `None` at its end."""
        event = await self._event(within_s)
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self, within_s: Optional[float]) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as fault:
                raise httpx.RemoteProtocolError(str(fault)) from fault
            if event is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise self._cut()
                return event
            self._unread_bytes = 0
            assert self._socket is not None
            if self._is_lost:
                raise self._cut()
            self._socket.resume_reading()
            await self._told(within_s)

    def _cut(self) -> httpx.TransportError:
        if self._fault is not None:
            return httpx.ReadError(str(self._fault))
        return httpx.RemoteProtocolError("Server disconnected without sending a response.")

    async def _told(self, within_s: Optional[float]) -> None:
        """Waits until there is something new."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        late = None if within_s is None else loop.call_later(within_s, _expire, waiter, httpx.ReadTimeout)
        try:
            await waiter
        finally:
            self._waiter = None
            if late is not None:
                late.cancel()

    async def _written(self, data: bytes, within_s: Optional[float]) -> bool:
        """Hands bytes to the socket, and waits while it is full; `False` when it is closed."""
        if self._is_lost or self._socket is None:
            return False
        self._socket.write(data)
        if self._can_write is not None:
            loop = asyncio.get_running_loop()
            late = None if within_s is None else loop.call_later(within_s, _expire, self._can_write, httpx.WriteTimeout)
            try:
                await self._can_write
            finally:
                if late is not None:
                    late.cancel()
        return not self._is_lost

    # As asyncio tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _MOST_UNREAD_BYTES and self._socket is not None:
            self._socket.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self._lose(None)

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        self._lose(exc)

    def pause_writing(self) -> None:
        self._can_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        waiting, self._can_write = self._can_write, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _lose(self, fault: Optional[BaseException]) -> None:
        if not self._is_lost:
            self._is_lost, self._fault = True, fault
            if fault is None:
                self._http.receive_data(b"")
        self.resume_writing()
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Body(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, transport: UnixTransport, connection: _Connection, within_s: Optional[float]) -> None:
        self._transport = transport
        self._connection: Optional[_Connection] = connection
        self._within_s = within_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None:
            piece = await self._connection.piece(self._within_s)
            if piece is None:
                return
            yield piece

    async def aclose(self) -> None:
        """Gives the connection back, or closes it in the middle of an answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.done(connection)


def _expire(waiting: asyncio.Future[None], error: type[httpx.TimeoutException]) -> None:
    if not waiting.done():
        waiting.set_exception(error("nothing came in time"))
