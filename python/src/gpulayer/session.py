"""The line to one server: calls that are repeated after a cut, refusals as exceptions, and a daemon that is started
when it does not answer. Everything here runs on the background loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import secrets
import ssl
import time
from typing import Any, AsyncGenerator, Awaitable, Callable, Generator, Mapping, Optional, TypeVar

import httpx

from .endpoint import Target
from .errors import (
    ConfigurationError,
    ConnectionFailedError,
    CutError,
    DaemonError,
    GPUlayerError,
    RefusedError,
    SilentError,
    UnexpectedAnswerError,
    UnreachableError,
    UntrustedError,
    refusal,
)
from .line import Line
from .own_daemon import OwnDaemon
from .pin import WrongKey
from .routes import Route
from .whole_answer import WHOLE_S, Whole
from .word_types import usable_key

T = TypeVar("T")

#: For how long a call that was cut tries to reach the server again.
RECONNECT_S = 20.0
#: For how long a server that went away is waited for while a job is followed.
FOLLOW_S = 300.0
#: For how long a server may say nothing to a call, beyond its `wait_s`.
ANSWER_S = 15.0
#: A server says something on a stream every 15 s; after three times that it is taken for dead.
SILENT_S = 45.0
#: What is held in memory of an answer at most. The largest are pages of 500 jobs, which may have some MiB each;
#: a refusal lists some faults, and not all.
_MOST_ANSWERED_BYTES, _MOST_REFUSED_BYTES = 1 << 30, 16 << 20
_CONNECT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
#: Every answer of a server carries it: something else may answer in its place, also with 200.
_VERSION_HEADER = "x-gpulayer-version"


#: What a proxy says while it cannot reach the server behind it, which is a short outage like any other.
_OUTAGES = (502, 503, 504)
#: What the system says when there is no room for one more open file, of the process or of the machine.
_NO_ROOM = (errno.EMFILE, errno.ENFILE)
#: What the HTTP library says of an answer that begins with a control character, as TLS does.
_NO_HTTP = "illegal request line"


class Patience:
    """Decides whether a failed call is sent again: at once after the first cut, then with growing pauses, and only
    while there is reason to believe that the server comes back."""

    def __init__(self, span_s: float, daemon: Optional[OwnDaemon], following: bool = False) -> None:
        self._span_s = span_s
        self._deadline = time.monotonic() + span_s
        self._pause_s = 0.0
        # A server that was never reached is not waited for, unless it is known to be there.
        self._was_cut = following
        self.down_mark = daemon.mark() if daemon else None

    def renew(self) -> None:
        """It answered: the next loss is a new one."""
        self._deadline = time.monotonic() + self._span_s
        self._pause_s = 0.0

    def is_there(self) -> None:
        """The server is known to be there: when it does not answer any more, it is waited for."""
        self._was_cut = True

    async def pause_after(self, failed: BaseException) -> bool:
        """Waits before the next try; `False` when there is none."""
        if isinstance(failed, CutError):
            self._was_cut = True
        elif isinstance(failed, RefusedError) and failed.code == "not_ready":
            # It is leaving, or not there yet: what comes after it answers.
            self._was_cut = True
        elif isinstance(failed, RefusedError) and failed.code in ("overloaded", "upload_gap"):
            pass
        elif isinstance(failed, DaemonError) and failed.was_killed:
            pass
        elif not (isinstance(failed, ConnectionFailedError) and self._was_cut):
            return False
        if time.monotonic() + self._pause_s > self._deadline:
            return False
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return True


class Session:
    """One server. Safe to use from every thread and, after a fork, from every process."""

    def __init__(
        self,
        target: Target,
        daemon: Optional[OwnDaemon] = None,
        reconnect_s: float = RECONNECT_S,
        follow_s: float = FOLLOW_S,
    ) -> None:
        self.target = target
        self.daemon = daemon
        self._reconnect_s = reconnect_s
        self._follow_s = follow_s
        #: The connections, once there are any.
        self.line: Optional[Line] = None
        self.closed = False

    def patience(self, following: bool = False) -> Patience:
        """For one call, or for following something that is known to be there."""
        return Patience(self._follow_s if following else self._reconnect_s, self.daemon, following)

    async def call(
        self,
        route: Route,
        names: Mapping[str, str] = {},
        query: Mapping[str, object] = {},
        body: Optional[object] = None,
        key: Optional[str] = None,
        headers: Mapping[str, str] = {},
        patience: Optional[Patience] = None,
        told: Optional[Callable[[Mapping[str, str]], None]] = None,
    ) -> Any:
        """The object that is answered (`None` of a route that answers with nothing), or the refusal as an exception. A call that changes something
        carries an idempotency key, the same one at each try. `told`: is given the headers of the answer."""
        sent = dict(headers)
        content: Optional[bytes] = None
        if body is not None:
            content = _json(f"{route.method} {route.path}", body)
            sent["Content-Type"] = "application/json"
        if route.keyed:
            sent["Idempotency-Key"] = secrets.token_hex(16) if key is None else usable_key(key)
        wait_s = float(str(query.get("wait_s") or 0))
        operation = _operation(route, names)

        async def once() -> Any:
            async with self._connected().turn(wait_s) as turn_s:
                asked = {**query, "wait_s": turn_s} if wait_s else query
                with self.whole(operation, ANSWER_S + turn_s) as whole:
                    async with self.open(route, names, asked, content, sent, ANSWER_S + turn_s) as answer:
                        whole.answer = answer
                        if told is not None:
                            told(answer.headers)
                        read = await _read(answer, _MOST_ANSWERED_BYTES)
                        if len(read) > _MOST_ANSWERED_BYTES:
                            raise UnexpectedAnswerError(
                                f"the answer to {operation} of {self.target.endpoint} has more than {_MOST_ANSWERED_BYTES} "
                                f"bytes, and a GPUlayer server's has less: {_shown(read)}"
                            )
            return self._object(operation, read) if route.answers else None

        return await self.persist(once, patience or self.patience(), route.repeatable)

    async def persist(self, attempt: Callable[[], Awaitable[T]], patience: Patience, repeatable: bool = True) -> T:
        """Carries out attempts until one is answered, or patience is over."""
        while True:
            try:
                return await self._revived(attempt, patience)
            except GPUlayerError as failed:
                if not repeatable or not await patience.pause_after(failed):
                    raise

    async def _revived(self, attempt: Callable[[], Awaitable[T]], patience: Patience) -> T:
        try:
            return await attempt()
        except UnreachableError:
            if not await self.revive(patience):
                raise
        return await attempt()

    async def revive(self, patience: Patience) -> bool:
        """Starts the own daemon, once more when it is killed meanwhile; `False` when it is another server, which nobody
        can start from here."""
        if self.daemon is None:
            return False
        while True:
            try:
                await self.daemon.start(patience.down_mark)
                break
            except DaemonError as failed:
                if not await patience.pause_after(failed):
                    raise
        patience.is_there()
        return True

    def whole(self, operation: str, answer_s: float) -> Whole:
        """In it an answer that is no stream and no file has to come whole. `answer_s`: for its beginning."""

        def late(waited_s: float) -> SilentError:
            return SilentError(
                f"{self.target.endpoint} took {operation}, and its answer is not whole after {waited_s:.0f} s"
            )

        return Whole(answer_s + WHOLE_S, late)

    def _object(self, operation: str, answer: bytes) -> Any:
        begin = f"the answer to {operation} of {self.target.endpoint}"
        if not answer:
            raise UnexpectedAnswerError(f"{begin} is empty, and an object is expected")
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as fault:
            raise UnexpectedAnswerError(f"{begin} cannot be read: {fault}: {_shown(answer)}") from None
        if not isinstance(found, dict):
            raise UnexpectedAnswerError(f"{begin} is no JSON object: {_shown(answer)}")
        return found

    @contextlib.asynccontextmanager
    async def open(
        self,
        route: Route,
        names: Mapping[str, str] = {},
        query: Mapping[str, object] = {},
        content: Any = None,
        headers: Mapping[str, str] = {},
        answer_s: float = ANSWER_S,
        expect: tuple[int, ...] = (),
    ) -> AsyncGenerator[httpx.Response, None]:
        """Sends once, and hands the answer out unread. `expect`: statuses above 400 that are no refusal."""
        operation = _operation(route, names)
        http = self._connected().http
        try:
            request = http.build_request(
                route.method,
                route.url(names, query),
                content=content,
                headers=dict(headers),
                timeout=httpx.Timeout(answer_s, connect=_CONNECT_S, pool=None),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as fault:
            raise ConfigurationError(
                f"what is asked for by {route.method} {route.path} cannot be written into an address: {fault}"
            ) from None
        with self.told(operation, answer_s):
            answer = await http.send(request, stream=True)
            try:
                if answer.is_redirect:
                    place = answer.headers.get("location", "")
                    raise UnexpectedAnswerError(
                        f"{operation} was answered by {self.target.endpoint} with status {answer.status_code}, which leads "
                        f"to {place[:300]!r}: a GPUlayer server leads nowhere else. Give its own address"
                    )
                ours = _VERSION_HEADER in answer.headers
                if not ours or (answer.status_code >= 400 and answer.status_code not in expect):
                    raise _refused(operation, str(self.target.endpoint), answer, await _read(answer, _MOST_REFUSED_BYTES))
                yield answer
            finally:
                await answer.aclose()

    @contextlib.contextmanager
    def told(self, operation: str, answer_s: float) -> Generator[None, None, None]:
        """The HTTP library's errors, told as ours. The message has what they know, so their tracebacks are not shown
        (`__context__` keeps them)."""
        where = self.target.endpoint
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol) as failed:
            distrust = _tls_fault(failed)
            if distrust is not None:
                raise _untrusted(str(where), distrust) from None
            if any(isinstance(each, OSError) and each.errno in _NO_ROOM for each in _causes(failed)):
                raise GPUlayerError(
                    f"this process has too many open files for another connection to {where}. Close what is not read any "
                    "more, such as streams, or let it have more: `ulimit -n`"
                ) from None
            raise UnreachableError(f"no answer from {where}: {_root(failed)}. {self._what_now()}") from None
        except httpx.ReadTimeout:
            raise SilentError(f"{where} took {operation}, and has not answered for {answer_s:.0f} s") from None
        except httpx.RemoteProtocolError as failed:
            if _NO_HTTP in str(failed):
                raise UntrustedError(
                    f"no safe connection to {where}: the server does not speak plain HTTP on this port, most likely "
                    "HTTPS"
                ) from None
            raise CutError(f"the connection to {where} was cut during {operation}: {failed}") from None
        except (httpx.TransportError, httpx.StreamError) as failed:
            raise CutError(f"the connection to {where} was cut during {operation}: {_root(failed)}") from None
        except (ValueError, RecursionError, httpx.DecodingError) as failed:
            # What is wrong with what is sent is told before.
            raise UnexpectedAnswerError(f"the answer to {operation} of {where} cannot be read: {failed}") from None

    def _what_now(self) -> str:
        if self.target.endpoint.scheme == "unix":
            return "Is the daemon running, as this user?"
        return "Is it running (`gpulayer up` there), and can this machine reach it? `gpulayer doctor` finds out."

    def _connected(self) -> Line:
        if self.closed:
            raise RuntimeError("this client is closed; gl.connect() makes another one")
        loop = asyncio.get_running_loop()
        if self.line is None or self.line.loop is not loop:
            # The first call, or the first one after a fork: connections of the parent are left alone.
            self.line = Line(loop, self.target)
        return self.line

    @property
    def connected(self) -> bool:
        """Whether there is anything to close."""
        return self.line is not None and self.line.is_open

    def close_soon(self) -> None:
        """Closes from any thread, without waiting. Used when nobody refers to the client any more."""
        self.closed = True
        line, self.line = self.line, None
        if line is not None:
            line.soon(line.close)

    async def close(self) -> None:
        """Closes the connections. On the background loop."""
        line, self.line = self.line, None
        if line is not None:
            await line.close()


def _operation(route: Route, names: Mapping[str, str]) -> str:
    return f"{route.method} {route.path.format_map(dict(names))}"


async def _read(answer: httpx.Response, most_bytes: int) -> bytes:
    """All that it says, or of what has no end its begin, which is longer than that."""
    pieces, size_bytes = [], 0
    async for piece in answer.aiter_bytes():
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > most_bytes:
            break
    return b"".join(pieces)


def _json(operation: str, body: object) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"what {operation} is to send cannot be written as JSON: {fault}") from fault


def _shown(answer: bytes) -> str:
    return answer[:100].decode("utf-8", "replace")


def _refused(operation: str, where: str, answer: httpx.Response, body: bytes) -> GPUlayerError:
    try:
        problem = json.loads(body)
        if isinstance(problem, dict) and "code" in problem:
            return refusal(problem)
    except (ValueError, TypeError, RecursionError, UnexpectedAnswerError):
        pass
    begin = " ".join(body[:300].decode("utf-8", "replace").split())
    status = answer.status_code
    if status in _OUTAGES:
        # It may have been carried out, as after a cut.
        proxy = answer.headers.get("server") or answer.headers.get("via")
        return CutError(
            f"{operation} was answered with status {status} by a proxy before the server at {where}"
            f"{f' ({proxy})' if proxy else ''}, which has no answer of the server itself: {begin}"
        )
    return UnexpectedAnswerError(
        f"{operation} was answered with status {status}, but not by a GPUlayer server: {begin}"
    )


def _causes(failed: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: Optional[BaseException] = failed
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


def _root(failed: BaseException) -> str:
    """What the system said: the deepest cause that says anything."""
    said = [str(each) for each in _causes(failed) if isinstance(each, OSError) and str(each)]
    return said[-1] if said else str(failed) or type(failed).__name__


#: A server that went away in the middle of a handshake, which says nothing against it.
_CUT_OFF = (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


def _tls_fault(failed: BaseException) -> Optional[ssl.SSLError]:
    faults = (each for each in _causes(failed) if isinstance(each, ssl.SSLError) and not isinstance(each, _CUT_OFF))
    return next(faults, None)


def _untrusted(where: str, fault: ssl.SSLError) -> UntrustedError:
    begin = f"no safe connection to {where}"
    if isinstance(fault, WrongKey):
        return UntrustedError(
            f"{begin}: {fault.args[0]}. Nothing was sent. If the server was set up anew, take its new pin from "
            "`gpulayer up` there",
            fault.seen,
        )
    if isinstance(fault, ssl.SSLCertVerificationError):
        said = getattr(fault, "verify_message", None) or str(fault)
        return UntrustedError(
            f'{begin}: its certificate is not trusted here ({said}). Give its key, pin="sha256:…" as `gpulayer up` '
            "prints it there, or ca_file="
        )
    if fault.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return UntrustedError(f"{begin}: the server speaks plain HTTP on this port, and https was asked for")
    return UntrustedError(f"{begin}: the TLS handshake failed ({fault})")
