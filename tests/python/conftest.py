"""Real daemons for the tests: each under a home folder of its own, ended with the test.

The binaries come from the folder that `GPULAYER_BINARIES` names, else from PATH."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import gpulayer as gl
import pytest

# Whoever runs the tests in the background of a shell has it ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

SOURCES = str(Path(gl.__file__).parents[1])
ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    """What a condition across processes gives when it holds; the test fails when it does not in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def binary() -> str:
    folder = os.environ.get("GPULAYER_BINARIES")
    found = shutil.which("gpulayer", path=folder) if folder else shutil.which("gpulayer")
    assert found, "no `gpulayer` in PATH: build it, and name its folder in GPULAYER_BINARIES"
    return os.path.abspath(found)


@pytest.fixture
def home(binary: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home; nothing of the machine's own settings is seen. Whatever daemon was started there is ended."""
    for name in list(os.environ):
        if name.startswith("GPULAYER_") and name != "GPULAYER_BINARIES":
            monkeypatch.delenv(name)
    # Short: a socket's path has little room.
    folder = Path(tempfile.mkdtemp(prefix="gl-", dir="/tmp"))
    monkeypatch.setenv("GPULAYER_HOME", str(folder))
    monkeypatch.setenv("PATH", os.path.dirname(binary) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr("gpulayer.server_choice.MACHINE_SOCKET", str(folder / "no-machine.sock"))
    yield folder
    subprocess.run([binary, "down", "--server", "local"], capture_output=True, timeout=60, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def client(home: Path, binary: str) -> Iterator[gl.Client]:
    """A client of the own daemon, which its first call starts."""
    with gl.local(binary=binary) as client:
        yield client


class Server:
    """A daemon in the foreground with HTTPS under its own certificate, on loopback."""

    def __init__(self, binary: str, home: Path) -> None:
        self._binary = binary
        self.home = home
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.port = 0
        self.start()
        with gl.connect(f"unix:{home}/state/gpulayer.sock") as near:
            listening = near.server().listening
        assert listening is not None and listening.pin is not None
        found = re.search(r":(\d+)$", listening.address)
        assert found is not None
        self.port = int(found.group(1))
        self.url = f"https://127.0.0.1:{self.port}"
        self.pin = listening.pin
        self.token = (home / "client-token").read_text().strip()
        self.ca_file = home / "tls" / "cert.pem"

    def start(self) -> None:
        """Starts it, on the port it had before, and waits until it answers."""
        command = [self._binary, "server", "start", "--self-signed", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        near = f"unix:{self.home}/state/gpulayer.sock"

        def answers() -> bool:
            try:
                with gl.connect(near) as client:
                    return client.server().listening is not None
            except gl.GPUlayerError:
                return False

        until(answers)

    def kill(self) -> None:
        """As a power cut would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)


@pytest.fixture
def server(binary: str, home: Path) -> Iterator[Server]:
    server = Server(binary, home)
    yield server
    server.stop()


class CuttingProxy:
    """Stands on loopback before a daemon's Unix socket, and cuts connections: each entry of `cuts` is the direction
    (`up` to the daemon, `down` from it) and after how many bytes of that direction, over all connections."""

    def __init__(self, near: str, cuts: list[tuple[str, int]]) -> None:
        self._near = near
        self._cuts = cuts
        self._passed = {"up": 0, "down": 0}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()

    @property
    def has_cut_all(self) -> bool:
        return not self._cuts

    def _accept(self) -> None:
        forwarders = []
        while not self._over.is_set():
            try:
                taken, _ = self._listener.accept()
            except (TimeoutError, socket.timeout):  # before Python 3.10 not the same
                continue
            self.connections += 1
            forwarders.append(threading.Thread(target=self._forward, args=(taken,)))
            forwarders[-1].start()
        for forwarder in forwarders:
            forwarder.join()

    def _forward(self, taken: socket.socket) -> None:
        with taken, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._near)
            ends = {taken: ("up", far), far: ("down", taken)}
            while not self._over.is_set():
                readable, _, _ = select.select(list(ends), [], [], 0.1)
                for end in readable:
                    direction, other = ends[end]
                    try:
                        piece = end.recv(64 << 10)
                        if not piece:
                            return
                        other.sendall(piece)
                    except OSError:
                        return
                    self._passed[direction] += len(piece)
                    if self._cuts and self._cuts[0][0] == direction and self._passed[direction] >= self._cuts[0][1]:
                        self._cuts.pop(0)
                        return


def kill_own_daemon(client: gl.Client) -> None:
    """Kills it, and returns when it is gone."""
    pid = client.server().pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def lines(job: gl.Job, **words: Any) -> list[str]:
    return [line.text for line in job.logs(**words)]
