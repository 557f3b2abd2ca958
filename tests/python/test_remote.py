"""A server over TCP and TLS: tokens, pins, authorities, restarts; and what is no server at all."""

from __future__ import annotations

import http.server
import os
import socket
import ssl
import threading
from pathlib import Path

import gpulayer as gl
import httpx
import pytest
from conftest import CuttingProxy, Server, lines
from gpulayer.pin import of_certificate


def test_a_pinned_server_is_spoken_with(server: Server) -> None:
    with gl.connect(server.url, token=server.token, pin=server.pin) as client:
        assert client.whoami().role == "admin"
        job = client.submit(gl.command(["echo", "hello"]))
        job.result()
        assert lines(job) == ["hello"]
    for other in [
        gl.connect(f"gpulayer://{server.token}@127.0.0.1:{server.port}?pin={server.pin}"),
        gl.connect(server.url, token=server.home / "client-token", pin=["sha256:" + "0" * 64, server.pin]),
        gl.connect(f"https://localhost:{server.port}", token=server.token, ca_file=server.ca_file),
    ]:
        with other:
            assert other.whoami().role == "admin"


def test_variables_and_saved_servers_count(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = f'[connections.box]\nurl = "{server.url}"\ntoken = "{server.token}"\npins = ["{server.pin}"]\n'
    (server.home / "connections.toml").write_text(saved)
    with gl.connect("box") as client:
        assert client.whoami().via != "unix_socket"
    monkeypatch.setenv("GPULAYER_URL", server.url)
    monkeypatch.setenv("GPULAYER_TOKEN", server.token)
    monkeypatch.setenv("GPULAYER_PIN", server.pin)
    with gl.connect() as client:
        assert str(client.endpoint) == server.url and client.whoami().role == "admin"


def test_another_key_is_nobody_to_speak_with(server: Server) -> None:
    wrong = "sha256:" + "0" * 64
    with gl.connect(server.url, token=server.token, pin=wrong) as client:
        with pytest.raises(gl.UntrustedError, match="Nothing was sent") as fault:
            client.whoami()
    assert fault.value.seen == server.pin and server.pin in str(fault.value)
    assert server.token not in str(fault.value)


def test_a_key_that_nobody_vouches_for_is_not_believed(server: Server) -> None:
    with gl.connect(server.url, token=server.token) as client:
        with pytest.raises(gl.UntrustedError, match="pin="):
            client.whoami()


def test_no_token_reaches_a_server_with_another_key(server: Server, tmp_path: Path) -> None:
    """Somebody in between with a key of his own sees the handshake, and not one byte after it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.home / "tls" / "cert.pem", server.home / "tls" / "key.pem")
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            taken, _ = listener.accept()
            try:
                with context.wrap_socket(taken, server_side=True) as encrypted:
                    received.append(encrypted.recv(1000))
            except (ssl.SSLError, OSError):
                received.append(b"")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with gl.connect(f"https://127.0.0.1:{port}", token=server.token, pin="sha256:" + "0" * 64) as client:
            with pytest.raises(gl.UntrustedError):
                client.whoami()
        thread.join()
    assert received == [b""]


def test_the_pin_of_a_certificate_is_the_servers(server: Server) -> None:
    der = ssl.PEM_cert_to_DER_cert(server.ca_file.read_text())
    assert of_certificate(der) == server.pin
    for cut in range(0, len(der), 7):
        with pytest.raises(ValueError):
            of_certificate(der[:cut])


def test_a_wrong_token_and_none_are_refused(server: Server) -> None:
    for token in ["glc_" + "0" * 52, None]:
        with gl.connect(server.url, token=token, pin=server.pin) as client:
            with pytest.raises(gl.AuthenticationError) as fault:
                client.whoami()
        assert fault.value.code == "unauthenticated"


def test_who_has_no_token_hears_where_it_goes(server: Server) -> None:
    with gl.connect(server.url, token="glc_wrong", pin=server.pin) as client:
        with pytest.raises(gl.AuthenticationError, match=r"token=.*GPULAYER_TOKEN"):
            client.whoami()


def test_a_viewer_may_look_and_not_touch(server: Server, binary: str) -> None:
    import subprocess

    made = [binary, "token", "create", "--name", "eve", "--role", "viewer", "--to", str(server.home / "eve")]
    subprocess.run([*made, "--server", f"unix:{server.home}/state/gpulayer.sock"], check=True, capture_output=True)
    with gl.connect(server.url, token=server.home / "eve", pin=server.pin) as client:
        assert client.jobs() == []
        with pytest.raises(gl.ForbiddenError):
            client.submit(gl.command(["true"]))


def test_following_goes_on_when_the_server_is_back(server: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with gl.connect(server.url, token=server.token, pin=server.pin) as client:
        job = client.submit(gl.command(shell=f"echo a; while [ ! -e {go} ]; do sleep 0.02; done; echo b"))
        seen = []
        restarted: list[threading.Thread] = []

        def back() -> None:
            server.start()
            go.touch()

        for line in job.logs(follow=True):
            seen.append(line.text)
            if line.text == "a":
                server.kill()
                restarted.append(threading.Thread(target=back))
                restarted[0].start()
        restarted[0].join()
        assert seen == ["a", "b"] and job.result().reason == "completed"


def test_a_server_that_stays_away_is_given_up(server: Server) -> None:
    with gl.connect(server.url, token=server.token, pin=server.pin, follow_s=0.5) as client:
        job = client.submit(gl.command(["sleep", "60"]))
        stream = job.events(follow=True)
        next(stream)
        server.kill()
        with pytest.raises(ConnectionError):
            list(stream)
        with pytest.raises(gl.UnreachableError, match="no answer from https://"):
            job.refresh()


def test_a_configured_server_that_is_not_there_is_an_error_and_no_other_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("GPULAYER_URL", f"http://127.0.0.1:{port}")
    with gl.connect() as client, pytest.raises(gl.UnreachableError, match=f"no answer from http://127.0.0.1:{port}"):
        client.whoami()
    assert not (home / "state").exists()


def test_what_is_no_server_of_ours_is_told_as_such(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                taken, _ = listener.accept()
                with taken:
                    taken.recv(10_000)
                    taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with gl.connect(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(gl.UnexpectedAnswerError, match="not by a GPUlayer server: hello"):
                client.whoami()
        with gl.connect(f"https://127.0.0.1:{port}") as client:
            with pytest.raises(gl.UntrustedError, match="plain HTTP"):
                client.whoami()
        thread.join()


class OutageProxy(http.server.ThreadingHTTPServer):
    """Stands on loopback before a daemon's Unix socket; the next answers are its own, of these statuses."""

    def __init__(self, near: str, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarding)
        self.near, self.statuses = near, statuses
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> OutageProxy:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Forwarding(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, OutageProxy)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.server.statuses:
            self.send_response(self.server.statuses.pop(0))
            self.end_headers()
            self.wfile.write(b"<html>\n<h1>Bad Gateway</h1>")
            return
        sent = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        transport = httpx.HTTPTransport(uds=self.server.near)
        with httpx.Client(transport=transport, timeout=60) as near:
            with near.stream(self.command, f"http://near{self.path}", content=body, headers=sent) as answer:
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                for piece in answer.iter_raw():
                    self.wfile.write(piece)

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_proxy_that_cannot_reach_the_server_is_a_short_outage(client: gl.Client) -> None:
    client.whoami()
    with OutageProxy(client.endpoint.path, [502, 503, 504]) as proxy, gl.connect(proxy.url) as far:
        job = far.submit(gl.command(["echo", "hello"]))
        assert not proxy.statuses
        proxy.statuses += [503, 502]
        assert job.wait().state == "succeeded" and not proxy.statuses
        proxy.statuses += [503, 502]
        assert lines(job, follow=True) == ["hello"] and not proxy.statuses
    assert [each.id for each in client.jobs()] == [job.id]
    with OutageProxy(client.endpoint.path, [502] * 1000) as proxy, gl.connect(proxy.url, reconnect_s=0.2) as far:
        with pytest.raises(ConnectionError, match=f"status 502 by a proxy before the server at {proxy.url} .BaseHTTP.*Bad"):
            far.whoami()


def test_plain_http_to_a_port_with_tls_is_told_as_such(server: Server) -> None:
    with gl.connect(f"http://127.0.0.1:{server.port}", token=server.token) as client:
        with pytest.raises(gl.UntrustedError, match="most likely HTTPS"):
            client.whoami()


def test_a_server_that_takes_a_call_and_says_nothing_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.session.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with gl.connect(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            with pytest.raises(gl.SilentError, match="GET /v1/whoami"):
                client.whoami()


def test_the_answer_that_was_lost_is_asked_for_again_and_the_job_is_there_once(client: gl.Client) -> None:
    client.whoami()
    with CuttingProxy(client.endpoint.path, [("up", 1)]) as proxy, gl.connect(proxy.url) as far:
        # The request is through, and its answer is not.
        job = far.submit(gl.command(["true"]))
        assert proxy.has_cut_all and proxy.connections == 2
        assert job.result().reason == "completed"
    assert [each.id for each in client.jobs()] == [job.id]


def test_transfers_go_on_where_they_were_cut(client: gl.Client, tmp_path: Path) -> None:
    client.whoami()
    (tmp_path / "data").write_bytes(os.urandom(24 << 20))
    spec = gl.command(["cp", "in", "out"], inputs={"in": tmp_path / "data"}, outputs="out")
    up = [("up", 8 << 20), ("up", 16 << 20)]
    with CuttingProxy(client.endpoint.path, up) as proxy, gl.connect(proxy.url) as far:
        job = far.submit(spec)
        assert proxy.has_cut_all
        job.result()
    down = [("down", 8 << 20), ("down", 16 << 20)]
    with CuttingProxy(client.endpoint.path, down) as proxy, gl.connect(proxy.url) as far:
        far.attach(job.id).outputs.download(tmp_path)
        assert proxy.has_cut_all
    assert (tmp_path / "out").read_bytes() == (tmp_path / "data").read_bytes()


def test_a_stream_that_is_cut_again_and_again_comes_whole(client: gl.Client) -> None:
    job = client.submit(gl.command(["seq", "2000"]))
    job.result()
    cuts = [("down", size << 10) for size in (20, 60, 61, 120, 200)]
    with CuttingProxy(client.endpoint.path, cuts) as proxy, gl.connect(proxy.url) as far:
        assert lines(far.attach(job.id), follow=True) == [str(number) for number in range(1, 2001)]
        assert proxy.has_cut_all
