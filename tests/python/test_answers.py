"""Answers that are not what a server of ours gives, and words that no request can carry."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Callable, Iterator

import gpulayer as gl
import pytest
from gpulayer.event_stream import Reader
from gpulayer.session import ANSWER_S
from gpulayer.word_types import usable_key

OURS = b"x-gpulayer-version: 1\r\n"
Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(serve: Serve) -> Iterator[gl.Client]:
    """A client of something on loopback that reads each request and then does as it likes. Ends when it is left alone."""

    def accept() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with taken, contextlib.suppress(OSError):
                taken.recv(1 << 16)
                serve(taken)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with gl.connect(f"http://127.0.0.1:{listener.getsockname()[1]}", token="glc_1") as client:
                yield client
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(body: bytes, status: str = "200 OK", more: bytes = OURS) -> Serve:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode() + more + b"\r\n"
    return lambda taken: taken.sendall(head + body)


@pytest.mark.parametrize(
    "serve, said",
    [
        (answer(b'{"name": "\xff"}'), "cannot be read: .*can't decode byte 0xff"),
        (answer(b"[" * 100_000 + b"]" * 100_000), r"cannot be read: .*(recursion|overflow).*: \[\[\["),
        (answer(b'{"name"'), r"cannot be read: Expecting ':' delimiter.*: \{\"name\""),
        (answer(b"null"), "is no JSON object: null"),
        (answer(b"[]"), r"is no JSON object: \[\]"),
        (answer(b"{}"), "WhoAmI has another shape: .*name"),
        (answer(b'{"name": "a", "role": "admin", "via": "x", "expires_at": 5}'), "WhoAmI has another shape"),
        (answer(b"", "204 No Content"), "is empty, and an object is expected"),
        (answer(b"", "302 Found", OURS + b"Location: https://login.example/\r\n"), "302, which leads to 'https://login"),
        (answer(b"in the clear", more=OURS + b"Content-Encoding: gzip\r\n"), "GET /v1/whoami .*cannot be read"),
        (answer(b'{"code": "bad_json", "status": "x"}', "400 Bad"), 'with status 400, but not by.*"code"'),
        (answer(b'{"code": "bad_json", "status": 400, "errors": [1]}', "400 Bad"), "with status 400, but not by"),
        (answer(b"\xff" * 10, "500 Oh"), "with status 500, but not by"),
    ],
)
def test_an_answer_that_cannot_be_understood_says_what_came(home: object, serve: Serve, said: str) -> None:
    with serving(serve) as client, pytest.raises(gl.UnexpectedAnswerError, match=f"(?s){said}"):
        client.whoami()


@pytest.mark.parametrize(
    "begin, said",
    [
        (b"HTTP/1.1 200 OK\r\n" + OURS, "GET /v1/whoami .* has more than 100000 bytes, and .* has less: 1111"),
        (b"HTTP/1.1 200 OK\r\n", "with status 200, but not by a GPUlayer server: 1111"),
        (b"HTTP/1.1 400 Bad\r\n" + OURS, "with status 400, but not by a GPUlayer server: 1111"),
    ],
)
def test_an_answer_without_end_is_not_kept(
    home: object, begin: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in ("_MOST_ANSWERED_BYTES", "_MOST_REFUSED_BYTES"):
        monkeypatch.setattr(f"gpulayer.session.{most}", 100_000, raising=False)
    was_all_taken = []

    def serve(taken: socket.socket) -> None:
        was_all_taken.append(False)
        taken.sendall(begin + b"\r\n")
        # More than what is on its way between the two.
        for _ in range(256):
            taken.sendall(b"1" * (1 << 18))
        was_all_taken.append(True)

    with serving(serve) as client, pytest.raises(gl.UnexpectedAnswerError, match=said):
        client.whoami()
    assert was_all_taken == [False]


def test_a_number_that_is_too_long_is_no_error_of_python(home: object) -> None:
    body = b'{"name": "a", "role": "admin", "via": "x", "max_priority": ' + b"1" * 5000 + b"}"
    with serving(answer(body)) as client:
        try:
            assert client.whoami().name == "a", "of a Python that has no limit"
        except gl.UnexpectedAnswerError as fault:
            assert "cannot be read: Exceeds the limit" in str(fault)


def test_a_stream_that_cannot_be_understood_says_so(home: object) -> None:
    record = b'{"id": "job_1", "project": "", "submitted_by": "", "state": "running", "attempt": 1, "spec": {}, '
    job = record + b'"submitted_at": "2026-11-30T00:00:00Z"}'
    for event in (b"{", b"5", b"[" * 100_000):
        answers = [answer(job), answer(b"id: 1\nevent: log\ndata: " + event + b"\n\n")]
        with serving(lambda taken: answers.pop(0)(taken)) as client:
            found = client.attach("job_" + "1" * 26)
            with pytest.raises(gl.UnexpectedAnswerError, match="cannot be read|has another shape"):
                next(found.logs(follow=True))


def dripping(begin: bytes, piece: bytes, gone: threading.Event) -> Serve:
    """Sends a piece now and then until it is left alone."""

    def serve(taken: socket.socket) -> None:
        taken.sendall(begin)
        taken.settimeout(0.02)
        while True:
            try:
                taken.sendall(piece)
                if taken.recv(1) == b"":
                    gone.set()
                    return
            except socket.timeout:
                continue
            except OSError:
                gone.set()
                raise

    return serve


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\n" + OURS + b"X-More: ",
        b"HTTP/1.1 200 OK\r\n" + OURS + b"Content-Length: 9999\r\n\r\n",
        b"HTTP/1.1 400 Bad\r\n" + OURS + b"Content-Length: 9999\r\n\r\n",
    ],
)
def test_an_answer_that_never_becomes_whole_is_not_waited_for(
    home: object, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the silence between two pieces nobody complains.
    monkeypatch.setattr("gpulayer.session.WHOLE_S", 0.5 - ANSWER_S)
    gone = threading.Event()
    with serving(dripping(begin, b"1", gone)) as client:
        with pytest.raises(gl.SilentError, match=r"took GET /v1/whoami, and its answer is not whole after \d+ s"):
            client.whoami()
        assert gone.wait(60), "nor is its connection kept"


def test_a_large_answer_may_take_longer(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.session.WHOLE_S", 0.2 - ANSWER_S)
    body = b'{"name": "a", "role": "admin", "via": "x", "user": "' + b"u" * 50_000 + b'"}'

    def serve(taken: socket.socket) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n" + OURS + f"Content-Length: {len(body)}\r\n\r\n".encode())
        pause = threading.Event()
        for at in range(0, len(body), 2_000):
            taken.sendall(body[at : at + 2_000])
            pause.wait(0.02)

    with serving(serve) as client:
        assert client.whoami().user == "u" * 50_000


def test_who_is_cancelled_while_an_answer_comes_is_cancelled(home: object) -> None:
    begun, gone = threading.Event(), threading.Event()
    drip = dripping(b"HTTP/1.1 200 OK\r\n" + OURS + b"Content-Length: 9999\r\n\r\n", b"1", gone)

    def serve(taken: socket.socket) -> None:
        begun.set()
        drip(taken)

    async def work(client: gl.Client) -> None:
        asked = asyncio.ensure_future(client.whoami.aio())
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    with serving(serve) as client:
        asyncio.run(work(client))
        assert gone.wait(60)


class Nothing:
    """Where nothing may be sent."""

    def __call__(self, taken: socket.socket) -> None:
        self.was_asked = True

    was_asked = False


@pytest.mark.parametrize("key", ["a\nb", " lead", "trail ", "kéy", "key\x00", "", "k" * 256, 5, b"key", "\ud800"])
def test_a_key_that_cannot_be_sent_is_told_before_anything_is(home: object, key: object) -> None:
    nothing = Nothing()
    with serving(nothing) as client:
        function = gl.remote(abs, client=client).options(key=key)
        calls: list[Callable[[], object]] = [
            lambda: function.submit(1),
            lambda: function.run(1),
            lambda: function.map([1]),
            lambda: client.submit(gl.command(["true"], inputs={"a": __file__}), key=key),  # type: ignore[arg-type]
            lambda: client.submit_all([gl.command(["true"])], key=key),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(gl.ConfigurationError, match="key=.* cannot be used: key is a text of 1 to 255 ASCII"):
                call()
    assert not nothing.was_asked
    assert [usable_key(key) for key in ("k", "nightly 2026/11:30", "~" * 255)]


@pytest.mark.parametrize("word", ["\ud800", "x" * 100_000, "", "…", 5, None, b"job_1"])
def test_what_can_be_no_job_is_told_before_it_is_looked_for(home: object, word: object) -> None:
    nothing = Nothing()
    with serving(nothing) as client, pytest.raises(gl.ConfigurationError, match="a job is found by its id") as failed:
        client.attach(word)  # type: ignore[call-overload]
    assert not nothing.was_asked and len(str(failed.value)) < 300


def test_what_fits_into_no_address_is_told_before_it_is_asked(home: object) -> None:
    nothing = Nothing()
    with serving(nothing) as client:
        for name in ("\ud800", "x" * 100_000):
            with pytest.raises(gl.ConfigurationError, match="GET /v1/jobs cannot be written into an address"):
                client.jobs(name=name)
    assert not nothing.was_asked


@pytest.mark.parametrize("token", ["glc_tökén", "glc_a b", "glc_a\n", "glc_\ud800"])
def test_a_token_that_no_header_can_carry_is_told_and_not_shown(
    home: object, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected() -> Iterator[Callable[[], object]]:
        yield lambda: gl.connect("http://127.0.0.1:9", token=token)
        if "\ud800" not in token:
            monkeypatch.setenv("GPULAYER_TOKEN", token)
            yield lambda: gl.connect("http://127.0.0.1:9")

    for connect in connected():
        with pytest.raises(gl.ConfigurationError, match="the token .* cannot be used") as failed:
            connect()
        assert "glc_a" not in str(failed.value) and "glc_t" not in str(failed.value)


def test_a_name_of_dots_is_no_folder_above(client: gl.Client) -> None:
    for name in (".", "..", "../jobs", "a/b"):
        with pytest.raises(gl.NotFoundError):
            client.attach(name)


def test_an_event_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.event_stream._LONGEST_EVENT_BYTES", 1000)
    for piece in (b"data: 1", b"data: 1\n"):
        reader = Reader()
        with pytest.raises(gl.CutError, match="longer than 1000 bytes"):
            for _ in range(1000):
                reader.feed(piece)
    assert len(Reader().feed(b"data: 1\n\n" * 100)) == 100
