"""What becomes of a job when Ctrl-C ends the waiting for it: one that only the call itself knows of is cancelled, as
`gpulayer run` does; any other goes on. Either way standard error names it, and what can be typed next. So it does when a
map is left in another way while its calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Coroutine, TypeVar, Union

from . import background
from .errors import ConnectionFailedError, DaemonError, GPUlayerError

if TYPE_CHECKING:
    from .job_handle import Job

_LOG = logging.getLogger("gpulayer")
#: How long who leaves waits until the order to cancel is on disk.
PATIENCE_S = 10.0


class GoesOn:
    """The `background.Aftermath` of waiting for a job that was there before."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def interrupted(self) -> None:
        """Says how to come back to it."""
        say(f"{_called(self._job)} goes on · {next_steps(self._job)}")

    def left(self) -> None:
        """As a task that is cancelled."""

    async def cancelled(self) -> None:
        """A task that is cancelled is its program's matter, which has the job."""


class _Alone:
    """The `background.Aftermath` of waiting that whoever waits says everything about."""

    def interrupted(self) -> None:
        """Nothing."""

    def left(self) -> None:
        """Nothing."""

    async def cancelled(self) -> None:
        """Nothing."""


class Ends:
    """The `background.Aftermath` of a job that is nobody's but the call's."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def interrupted(self) -> None:
        """Cancels it, and returns when it has ended, within its grace. Ctrl-C meanwhile ends it at once; once more, and
        it is not waited for any longer."""
        job = self._job
        say(f"cancelling {_called(job)}; Ctrl-C again ends it at once")
        for now in (False, True):
            try:
                background.run(_ended(job, now))
            except KeyboardInterrupt:
                continue
            except GPUlayerError as failed:
                say(f"{_called(job)} could not be cancelled: {failed}\n  {next_steps(job)}")
                return
            say(f"{_called(job)} {job.state.replace('_', ' ')} · {next_steps(job)}")
            return
        say(f"{_called(job)} was told to end at once, and is not waited for · {next_steps(job)}")

    def left(self) -> None:
        """Cancels it, and says so; returns when the order is on disk. Its end is not waited for: a signal's handler that
        raises wants the program to go on with something else, or to end."""
        say(f"cancelling {_called(self._job)} · {next_steps(self._job)}")
        background.run(self.cancelled())

    async def cancelled(self) -> None:
        """Cancels it; returns when the order is on disk."""
        may = "%s may go on: its server has not answered within %g s; the order to cancel it is tried on · %s"
        await for_a_while(self.ordered(), may, _called(self._job), PATIENCE_S, next_steps(self._job))

    async def ordered(self) -> None:
        """The same, however long it takes. Raises nothing."""
        try:
            await _order(self._job, False)
        except GPUlayerError as failed:
            called, steps = _called(self._job), next_steps(self._job)
            _LOG.warning("%s goes on, it could not be cancelled: %s · %s", called, failed, steps)


class Quiet:
    """Of another `background.Aftermath` what is not said and done by whoever waits."""

    def __init__(self, after: background.Aftermath) -> None:
        self.left = after.left

    def interrupted(self) -> None:
        """Nothing."""

    async def cancelled(self) -> None:
        """Nothing."""


#: What goes on when nobody waits for it any more.
_going_on: set[asyncio.Future[None]] = set()


async def for_a_while(order: Coroutine[Any, Any, None], late: str, *words: object) -> None:
    """Carries out what ends a job, whose caller has something else to do. It is waited for `PATIENCE_S`, then warned of,
    and goes on trying."""
    going_on = asyncio.ensure_future(order)
    _going_on.add(going_on)
    going_on.add_done_callback(_going_on.discard)
    done, _ = await asyncio.wait({going_on}, timeout=PATIENCE_S)
    if not done:
        _LOG.warning(late, *words)


async def _order(job: Job, now: bool) -> None:
    if not (await job.refreshed()).ended:
        await job.cancel.aio(now=now)


async def _ended(job: Job, now: bool) -> None:
    # Else the wait would tell of an interrupt as well.
    background.if_left(_Alone())
    await _order(job, now)
    await job.wait.aio(progress=False)


def next_steps(job: Job, command: str = "show") -> str:
    """What to type next about a job, in a shell and here."""
    from . import default

    client = job.client
    is_default = default.is_default(client)
    server = "" if is_default else f"--server {client.endpoint} "
    return f'gpulayer {server}{command} {job.id[-6:]} · {"gl" if is_default else "client"}.attach("{job.id}")'


Lost = TypeVar("Lost", bound="Union[ConnectionFailedError, DaemonError]")


def named(lost: Lost, job: Job) -> Lost:
    """An error of waiting for a job that nobody else knows of: says what becomes of it, and has it."""
    # What runs goes on without a daemon, unless it was stopped with that.
    what = f"it keeps {_called(job)}" if isinstance(lost, DaemonError) else f"{_called(job)} goes on"
    lost.args = (f"{lost}\n  {what} · {next_steps(job)}",)
    lost.job = job
    return lost


def goes_on(job: Job) -> str:
    """What is said of one that is left in the middle, and that its program may not want any more."""
    return f"{_called(job)} goes on · {next_steps(job, 'cancel')}"


def say(text: str, after_ctrl_c: bool = True) -> None:
    """A line on standard error, below the `^C` of a terminal. Where nobody can read it any more, what is to be done is done
    all the same."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        below = "\n" if after_ctrl_c and sys.stderr.isatty() else ""
        sys.stderr.write(f"{below}gpulayer: {text}\n")
        sys.stderr.flush()


def _called(job: Job) -> str:
    return f"{job.noun} {job}"
