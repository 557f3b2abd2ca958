"""The one thread on which everything of this package waits: an asyncio loop that starts with the first call and ends
when the last client is closed. Sync calls wait for it, async calls of any other loop wait for it too, so that every
socket has one owner and nothing is written twice.

A process that forks leaves the thread behind: in the child it starts anew with the first call, over connections of
its own. At the end of the process connections are closed in order; threads that still wait then are daemons, which
Python stops without a word, and so they hear nothing of it.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future, wait
from contextvars import ContextVar
from typing import Any, Callable, Coroutine, Generic, Optional, Protocol, TypeVar

from . import notebook
from .daemon_threads import DaemonThreads
from .errors import GPUlayerError

R = TypeVar("R")

#: How long the end of the process waits for connections to be closed.
_END_WITHIN_S = 2.0
#: How long generators may take to be closed; they have nothing to wait for.
_GENERATORS_WITHIN_S = 0.5
#: How long work that was cancelled is waited for.
_UNWOUND_WITHIN_S = 1.0
#: How often the loop of a notebook's cell looks up while it waits.
_AWAKE_S = 0.5


class Background:
    """A loop in a daemon thread, alive while somebody holds it."""

    def __init__(self) -> None:
        # Reentrant: a client may be collected, and let go, at any allocation of the thread that holds the lock.
        self._lock = threading.RLock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._holders = 0
        #: Whether the process ends.
        self.is_over = False

    def hold(self) -> asyncio.AbstractEventLoop:
        """Starts it if need be; it lives until as many `let_go` as `hold` were called."""
        with self._lock:
            if self.is_over:
                raise RuntimeError("this process is ending, and its connections are closed")
            self._holders += 1
            if self._loop is None:
                try:
                    self._begin()
                except (RuntimeError, OSError) as fault:
                    self._holders -= 1
                    raise GPUlayerError(
                        f"the thread that speaks with servers cannot be started: {fault}. A process has limits of open files "
                        "and threads (`ulimit -n -u`); one that is ending, or a subinterpreter, may start none"
                    ) from fault
            assert self._loop is not None
            return self._loop

    def _begin(self) -> None:
        loop, threads = asyncio.new_event_loop(), DaemonThreads()
        # Under `-X dev` others' loops are looked at; what takes long here is not theirs to mend.
        loop.slow_callback_duration = math.inf
        loop.set_exception_handler(_unheard)
        loop.set_default_executor(threads)
        self._loop = loop
        try:
            self._thread = threading.Thread(target=self._serve, args=(loop, threads), name="gpulayer", daemon=True)
            self._thread.start()
        except RuntimeError:
            self._loop = self._thread = None
            loop.close()
            raise

    def let_go(self, wait: bool = True) -> None:
        """The last one ends it. `wait`: returns when its thread is gone."""
        with self._lock:
            self._holders -= 1
            if self._holders > 0 or self._loop is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def is_current(self) -> bool:
        """Whether the caller is on the loop's own thread."""
        return self._thread is threading.current_thread()

    def end(self) -> None:
        """For the end of the process."""
        with self._lock:
            self.is_over = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._holders = 0
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_END_WITHIN_S)

    def _serve(self, loop: asyncio.AbstractEventLoop, threads: DaemonThreads) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(_end_tasks(loop))
            for closing in list(_at_end):
                loop.run_until_complete(_quietly(closing(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())
            # A generator that ends leaves those within it to be closed, by tasks of their own.
            loop.run_until_complete(_end_tasks(loop, _GENERATORS_WITHIN_S))
            # The end of the process waits for none of them.
            threads.shutdown(wait=not self.is_over)
            asyncio.set_event_loop(None)
            loop.close()


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # The HTTP library's reading from a Unix socket, cancelled in the moment in which bytes arrive: it tells a waiting
    # that is over that there is something to read. Nothing was read yet, and nobody wants to.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


async def _end_tasks(loop: asyncio.AbstractEventLoop, within_s: float = 0.0) -> None:
    """Ends all other tasks, and those that come of it; they may end by themselves meanwhile."""
    while True:
        # What was told to the loop becomes a task in the first turn, and begins in the second.
        for _ in range(2):
            await asyncio.sleep(0)
        left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        if not left:
            return
        if within_s:
            _, left = await asyncio.wait(left, timeout=within_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _quietly(closing: Coroutine[Any, Any, None]) -> None:
    try:
        await closing
    except Exception:
        # A connection that cannot be closed in good order is closed all the same.
        pass


#: Asked as a loop ends to close what still belongs to it.
_at_end: list[Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]] = []
_left_behind: list[Background] = []
_current = Background()


def at_end(closing: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    """Registers what closes connections when their loop ends before them."""
    _at_end.append(closing)


def current() -> Background:
    """The background of this process."""
    return _current


class Aftermath(Protocol):
    """What comes after work whose waiter left in the middle."""

    def interrupted(self) -> None:
        """After a Ctrl-C, in the thread that waited, when the work has ended."""

    def left(self) -> None:
        """The same after any other exception that came over the waiter, such as one of a signal's handler."""

    async def cancelled(self) -> None:
        """After the awaiting task was cancelled, on the background loop. Raises nothing."""


def if_left(aftermath: Aftermath) -> None:
    """To be called by work: what comes after it if its waiter leaves before it is over. The outermost one counts."""
    running = _running.get()
    call = running() if running is not None else None
    if call is not None and call.aftermath is None:
        call.aftermath = aftermath


class Operation:
    """What somebody began here and is not through with: a call, or an iteration with all of its steps. It remembers how
    things stood when it first looked at them."""

    def __init__(self) -> None:
        self._stood: dict[object, Any] = {}

    def stood(self, thing: object, look: Callable[[], R]) -> R:
        """How a thing stood."""
        if thing not in self._stood:
            self._stood[thing] = look()
        found: R = self._stood[thing]
        return found


def operation() -> Operation:
    """The one that the running task belongs to."""
    return _operation.get() or Operation()


def run(work: Coroutine[Any, Any, R], operation: Optional[Operation] = None) -> R:
    """Carries out, and waits. `operation`: what the work is a step of, else it is one of its own. What comes over the
    waiting (Ctrl-C, `sys.exit()` in a signal's handler) cancels the work and goes on as it is.

    Errors of this package come without the frames of this thread: they say what happened, and where the call was made
    is what counts.
    """
    __tracebackhide__ = True
    if _current.is_current():
        work.close()
        raise RuntimeError("a sync call from within gpulayer's own thread would wait for itself: use `.aio`")
    call = _Call(work, operation)
    try:
        call.begin_soon()
        return call.future.result()
    except BaseException as failed:
        call.leave(failed)
        if call.has_raised(failed):
            if isinstance(failed, GPUlayerError):
                raise failed.with_traceback(None) from failed.__cause__
            raise
        # What it shows of its progress is gone then, and what comes after it is known.
        wait({call.future}, _UNWOUND_WITHIN_S)
        is_interrupt = isinstance(failed, KeyboardInterrupt)
        if call.aftermath is not None:
            (call.aftermath.interrupted if is_interrupt else call.aftermath.left)()
        if is_interrupt:
            # Where it waited says nothing.
            raise failed.with_traceback(None)
        raise
    finally:
        call.let_go(wait=True)
        # It has the error, whose frames have it.
        del call


async def join(work: Coroutine[Any, Any, R], operation: Optional[Operation] = None) -> R:
    """The same for a caller on any asyncio loop. Cancelling the caller cancels the work."""
    if _current.is_current():
        return await work
    call = _Call(work, operation)
    try:
        call.begin_soon()
        waited_for = asyncio.wrap_future(call.future)
        # A kernel that is interrupted cancels the cell's task, and lets its loop sleep on until something else comes.
        while notebook.in_kernel() and not waited_for.done():
            await asyncio.wait({waited_for}, timeout=_AWAKE_S)
        return await waited_for
    except BaseException as failed:
        call.leave(failed)
        if isinstance(failed, GPUlayerError):
            raise failed.with_traceback(None) from failed.__cause__
        if isinstance(failed, asyncio.CancelledError):
            # Carried out to its end, also when the caller is cancelled once more.
            after = asyncio.run_coroutine_threadsafe(call.unwound(), call.loop)
            await asyncio.shield(asyncio.wrap_future(after))
        raise
    finally:
        call.let_go(wait=False)
        del call


class _Call(Generic[R]):
    """Work that is carried out on the loop, and waited for elsewhere; it holds the background until `let_go`. It can be
    left at every moment, also by a Ctrl-C in the middle of `begin_soon`: whatever had come of it, `leave` comes after
    it."""

    def __init__(self, work: Coroutine[Any, Any, R], operation: Optional[Operation] = None) -> None:
        self.future: Future[R] = Future()
        self.aftermath: Optional[Aftermath] = None
        self._work = work
        self._operation = operation or Operation()
        self._task: Optional[asyncio.Task[R]] = None
        self._is_over = False
        self._background = _current
        try:
            self.loop = self._background.hold()
        except BaseException:
            work.close()
            _stop_if_over(self._background)
            raise

    def begin_soon(self) -> None:
        self.loop.call_soon_threadsafe(self._begin)

    def has_raised(self, failed: BaseException) -> bool:
        """Whether it is the work that failed so, and not its waiter."""
        if self.future.cancelled():
            return isinstance(failed, CancelledError)
        return self.future.done() and self.future.exception() is failed

    def leave(self, failed: BaseException) -> None:
        """Ends the work, unless it has ended with this error. Of a daemon thread at the end of the process this is the
        end."""
        if not self.has_raised(failed):
            try:
                self.loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                # The loop ended a moment ago, and did not carry it out or has ended it.
                if self._task is None:
                    self._work.close()
                    self.future.cancel()
        _stop_if_over(self._background)

    async def unwound(self) -> None:
        """After a task that was cancelled, on the loop: what comes after the work is known when that has ended, whose
        first step may be still to come."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_UNWOUND_WITHIN_S)
        if self.aftermath is not None:
            await self.aftermath.cancelled()

    def let_go(self, wait: bool) -> None:
        self._background.let_go(wait)

    def _begin(self) -> None:
        if not self._is_over:
            # This turn of the loop has a context of its own, which the task takes over.
            _running.set(weakref.ref(self))
            _operation.set(self._operation)
            self._task = self.loop.create_task(self._work)
            self._task.add_done_callback(self._done)

    def _end(self) -> None:
        self._is_over = True
        if self._task is None:
            self._work.close()
            self.future.cancel()
        else:
            # After its first step, which says what comes after it.
            self.loop.call_soon(self._task.cancel)

    def _done(self, task: asyncio.Task[R]) -> None:
        # Asked for in any case: one that nobody hears of is no fault of the loop's.
        failed = None if task.cancelled() else task.exception()
        if task.cancelled():
            self.future.cancel()
        if not self.future.set_running_or_notify_cancel():
            return
        if failed is not None:
            self.future.set_exception(failed)
        else:
            self.future.set_result(task.result())


#: The call that the running task carries out. Weak: a context stays with each connection that was made in it.
_running: ContextVar[Optional[weakref.ref[_Call[Any]]]] = ContextVar("gpulayer_running", default=None)
_operation: ContextVar[Optional[Operation]] = ContextVar("gpulayer_operation", default=None)


def soon(work: Coroutine[Any, Any, R]) -> Future[R]:
    """Carries out, and waits for nothing: for finalizers, which come in the middle of anything."""
    call = _Call(work)
    call.future.add_done_callback(lambda _: call.let_go(wait=False))
    call.begin_soon()
    return call.future


def _stop_if_over(background: Background) -> None:
    """Stops a daemon thread at the end of the process, where Python stops it a moment later: what it waits for will
    not come, and that is no error of its own."""
    while background.is_over and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


def _after_fork() -> None:
    global _current
    # Kept, so that nothing of the parent's connections is touched, or complained about, by a collection here.
    _left_behind.append(_current)
    _current = Background()


os.register_at_fork(after_in_child=_after_fork)

#: Asked at the end of the process, while there are connections.
_before_end: list[Callable[[], None]] = []


def before_end(leaving: Callable[[], None]) -> None:
    """Registers what needs connections at the end of the process."""
    _before_end.append(leaving)


def end() -> None:
    """For the end of the process."""
    try:
        for leaving in _before_end:
            leaving()
    finally:
        _current.end()
