"""The per-user daemon, started on demand by the installed `gpulayer` binary: any of its commands starts it, under a
lock of its own, so that two at once end with one daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Mapping, Optional

from . import background, programs
from .errors import DaemonError
from .places import Places

#: Starting takes a moment; taking over after a crash on a slow disk takes longer.
_START_WITHIN_S = 120.0
#: What the program says of a daemon that ended before it answered, and lines of the log that are no reason for that.
_ENDED = "it ended before it answered"
_IS_WELL = re.compile(r"\s*(\(nothing was written\)|\d{4}-\d\d-\d\dT\S+ +(INFO|WARN|DEBUG|TRACE) .*)?$")


class OwnDaemon:
    """Starts the daemon under these places. It stays stopped when somebody typed `down` meanwhile, and within a job
    that does not say which server is meant."""

    def __init__(self, places: Places, binary: Optional[str] = None) -> None:
        self._places = places
        self._binary = binary

    @property
    def home(self) -> Path:
        """The home it lives under."""
        return self._places.home

    @property
    def program(self) -> str:
        """The `gpulayer` that starts it."""
        return self._binary or find_binary()

    def mark(self) -> Optional[bytes]:
        """The newest `down` before the running operation began."""
        return background.operation().stood(self._places.stopped, self._newest_down)

    def _newest_down(self) -> Optional[bytes]:
        try:
            return self._places.stopped.read_bytes()
        except OSError:
            return None

    async def start(self, mark: Optional[bytes]) -> None:
        """Returns when the daemon answers; `DaemonError` says why it does not. `mark`: as the operation began. On the
        background loop."""
        if self._newest_down() != mark:
            raise DaemonError(
                "the daemon could not be started: `gpulayer down` stopped it meanwhile; the next call starts it again"
            )
        if _is_in_a_job_that_names_none(os.environ):
            raise DaemonError(
                f"this is within a job, nothing answers at {self._places.socket}, and a daemon that began here would end "
                "with the job, and what was submitted with it. Say in the job which server is meant: "
                "gpulayer.use(gpulayer.connect(URL, token=…)), or for a daemon of this machine with another home "
                'os.environ["GPULAYER_HOME"] = …'
            )
        binary = self.program
        env = dict(os.environ, GPULAYER_HOME=str(self._places.home))
        try:
            status, _, err = await programs.asked(
                [binary, "whoami", "--server", "local"], env, stdout=subprocess.DEVNULL, within_s=_START_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            raise DaemonError(
                f"the daemon did not start within {_START_WITHIN_S:.0f} s; see {self._places.state}/daemon.log"
            ) from None
        except OSError as fault:
            raise DaemonError(f"cannot start {binary}: {fault}") from fault
        if status != 0:
            said = err.decode("utf-8", "replace").strip()
            failed = DaemonError(f"the daemon could not be started: {said or f'status {status}'}")
            failed.was_killed = status < 0 or _ended_without_a_word(said)
            raise failed


def _ended_without_a_word(said: str) -> bool:
    """Whether the end of its log, which the program shows, is what it writes while all is well. Who refuses says why."""
    _, ended, log = said.partition(_ENDED)
    return bool(ended) and all(_IS_WELL.match(line) for line in log.splitlines()[1:])


def _is_in_a_job_that_names_none(env: Mapping[str, str]) -> bool:
    return bool(env.get("GPULAYER_JOB_ID")) and not (env.get("GPULAYER_HOME") or env.get("GPULAYER_URL"))


def find_binary() -> str:
    """The `gpulayer` that was installed with this package, else the one in the path."""
    beside = Path(sysconfig.get_path("scripts")) / "gpulayer"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("gpulayer")
    if found is None:
        raise DaemonError(
            "the program `gpulayer` is neither beside this Python nor in PATH: install it, or name a server "
            "(gpulayer.connect(URL), GPULAYER_URL)"
        )
    return found
