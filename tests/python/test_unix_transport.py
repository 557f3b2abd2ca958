"""The way to a daemon's socket, before servers that do what daemons do on bad days."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable

import gpulayer as gl
import httpx
import pytest
from gpulayer import line
from gpulayer.unix_transport import UnixTransport

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def with_server(folder: Path, serve: Serve, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Carries out work with a client of a server that does `serve` with each connection."""

    async def whole() -> None:
        path = str(folder / "socket")
        handlers: set[asyncio.Task[Any]] = set()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            try:
                await serve(reader, writer)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_unix_server(handler, path)
        async with httpx.AsyncClient(transport=UnixTransport(path), base_url="http://localhost", timeout=30) as client:
            await work(client)
        server.close()
        for each in handlers:
            each.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    asyncio.run(whole())


async def request(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def test_a_connection_is_used_again_until_it_is_closed(tmp_path: Path) -> None:
    made: list[int] = []
    asked: list[bytes] = []

    def kept(client: httpx.AsyncClient) -> Any:
        transport = client._transport
        assert isinstance(transport, UnixTransport)
        return transport._idle[-1]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        for _ in range(3):
            asked.append(await request(reader))
            writer.write(OK)

    async def work(client: httpx.AsyncClient) -> None:
        for count in (1, 1, 1, 2):
            assert (await client.get("/")).text == "ok" and len(made) == count
            if len(asked) == 3 * len(made):
                # Closed by the server, which the loop is told in one of its next turns.
                while kept(client).is_fresh:
                    await asyncio.sleep(0)
        assert all(each.text == "ok" for each in await asyncio.gather(*(client.get("/") for _ in range(20))))

    with_server(tmp_path, serve, work)


def test_an_answer_that_is_cut_is_an_error_and_never_a_shorter_one(tmp_path: Path) -> None:
    answers = [b"", OK[:20], OK[:-1], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", b"\x15\x03\x01"]
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(left.pop(0))

    async def work(client: httpx.AsyncClient) -> None:
        for _ in answers:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/")

    with_server(tmp_path, serve, work)


def test_silence_and_absence_are_told_apart(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await asyncio.Event().wait()

    async def work(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=0.1)
        (tmp_path / "socket").unlink()
        with pytest.raises(httpx.ConnectError, match="No such file"):
            await client.get("/")

    with_server(tmp_path, serve, work)


def test_a_refusal_in_the_middle_of_a_body_is_heard(tmp_path: Path) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 507 Full\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull")
        await writer.drain()

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield bytes(1 << 20)

    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.put("/", content=body())
        assert (answer.status_code, answer.text) == (507, "full") and sent < 1000

    with_server(tmp_path, serve, work)


def test_a_large_answer_waits_for_who_reads_it(tmp_path: Path) -> None:
    whole, piece = 64 << 20, bytes(1 << 20)
    # Made within the loop, as Python 3.9 wants it.
    events: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % whole)
        for _ in range(whole // len(piece)):
            writer.write(piece)
            # Two at once are more than Python 3.9 takes.
            drained = asyncio.ensure_future(writer.drain())
            try:
                await asyncio.wait_for(asyncio.shield(drained), 0.3)
            except asyncio.TimeoutError:
                events[0].set()
                await drained

    async def work(client: httpx.AsyncClient) -> None:
        events.append(asyncio.Event())
        async with client.stream("GET", "/") as answer:
            pieces = answer.aiter_bytes()
            size = len(await pieces.__anext__())
            await asyncio.wait_for(events[0].wait(), 30)
            async for each in pieces:
                size += len(each)
        assert size == whole

    with_server(tmp_path, serve, work)


def test_calls_that_wait_have_a_bound_and_keep_no_other_out(tmp_path: Path) -> None:
    record = '{"id": "%s", "project": "", "submitted_by": "", "state": "%s", "attempt": 1, "submitted_at": "%s", "spec": {}}'
    head = "HTTP/1.1 200 OK\r\nX-GPUlayer-Version: 1\r\nContent-Length: %d\r\n\r\n"
    waits: list[float] = []
    released: list[asyncio.Event] = []
    full: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await request(reader)).split()[1].decode()
            state = "running"
            if "wait_s=" in path:
                waits.append(float(path.partition("wait_s=")[2]))
                if len(waits) == line._MOST_WAITING:
                    full[0].set()
                await released[0].wait()
                state = "succeeded"
            body = record % (path.split("/")[3].partition("?")[0], state, "2026-01-01T00:00:00Z")
            writer.write((head % len(body) + body).encode())

    async def work(_: httpx.AsyncClient) -> None:
        released.append(asyncio.Event())
        full.append(asyncio.Event())
        raw = {"project": "", "submitted_by": "", "state": "running", "attempt": 1, "submitted_at": "2026-01-01T00:00:00Z"}
        async with gl.connect(f"unix:{tmp_path}/socket") as client:
            jobs = [gl.Job(client, {**raw, "id": f"job_{n:026}", "spec": {}}) for n in range(300)]
            waiting = [asyncio.ensure_future(job.wait.aio(progress=False)) for job in jobs]
            await full[0].wait()
            assert (await jobs[-1].refresh.aio()).state == "running"
            assert len(waits) == line._MOST_WAITING
            released[0].set()
            assert {job.state for job in await asyncio.gather(*waiting)} == {"succeeded"}
        assert waits[0] == 30 and waits[-1] == 1, "none is held up for long by those before it"

    with_server(tmp_path, serve, work)
