"""The installed `gpulayer` program, asked by the background."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from typing import Mapping, Optional


async def asked(
    command: list[str], env: Mapping[str, str], *, stdout: int = subprocess.PIPE, within_s: Optional[float] = None
) -> tuple[int, bytes, bytes]:
    """Status, output and what it said; `subprocess.TimeoutExpired`. Who stops waiting ends it."""
    call = _Call(command, env, stdout, within_s)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, call.run)
    finally:
        call.end()


class _Call:
    """A program in a thread, and its end from another: it is waited for by whom it was started, whatever comes."""

    def __init__(self, command: list[str], env: Mapping[str, str], stdout: int, within_s: Optional[float]) -> None:
        self._command, self._env, self._stdout, self._within_s = command, env, stdout, within_s
        self._lock = threading.Lock()
        self._running: Optional[subprocess.Popen[bytes]] = None
        self._over = False

    def run(self) -> tuple[int, bytes, bytes]:
        with self._lock:
            if self._over:
                return -signal.SIGKILL, b"", b""
            self._running = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=subprocess.PIPE
            )
        with self._running as running:
            try:
                out, err = running.communicate(timeout=self._within_s)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
        return running.returncode, out or b"", err

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._running is not None:
                self._running.kill()
