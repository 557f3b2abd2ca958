"""Threads for what blocks and asyncio has no form for: files, names of hosts, programs. They are daemons. Those of the
standard library's executor are waited for at the end of the process, whatever they hang in, and take nothing more from
the end of the main thread on, when others may still have work."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Callable, Optional, TypeVar

T = TypeVar("T")
_MOST = 16
_END_WITHIN_S = 1.0


class DaemonThreads(ThreadPoolExecutor):
    """The default executor of one loop, on whose thread alone it is asked. Of its parent, which asyncio insists on, it has
    the name only."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Optional[Callable[[], None]]] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._running: list[threading.Thread] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Carries out in one of the threads."""
        future: Future[T] = Future()
        self._work.put(lambda: _carry_out(future, fn, args, kwargs))
        if not self._free.acquire(blocking=False) and len(self._running) < _MOST:
            self._begin_one()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends them, each after what it is at."""
        for _ in self._running:
            self._work.put(None)
        for each in self._running if wait else ():
            each.join(_END_WITHIN_S)
        self._running = []

    def _begin_one(self) -> None:
        thread = threading.Thread(target=self._serve, name="gpulayer at work", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There is no room for it, or the process ends. What there is to do cannot wait for a thread that never comes.
            if not self._running:
                self._take_all()
        else:
            self._running.append(thread)

    def _take_all(self) -> None:
        while not self._work.empty():
            work = self._work.get_nowait()
            if work is not None:
                work()

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                self._free.release()
                work = self._work.get()
            if work is None:
                return
            work()
            # It has what was worked with.
            del work


def _carry_out(future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        found = fn(*args, **kwargs)
    except BaseException as failed:
        future.set_exception(failed)
    else:
        future.set_result(found)
