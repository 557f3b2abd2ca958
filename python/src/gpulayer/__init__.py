"""GPUlayer for Python: runs a command on any machine its owner can reach, and brings back its log, its files and the
truth about how it ended.

    import gpulayer as gl

    job = gl.command(["python", "train.py"], source=".", gpus=1, outputs="model.pt").submit()
    for line in job.logs(follow=True):
        print(line)
    job.result()
    job.outputs.download("out")

    @gl.remote(gpus=1)
    def train(rate): ...

    losses = list(train.map([0.1, 0.01]))

`docs/SDK.md` is the tour. Every call has a form for asyncio: `await job`, `await job.cancel.aio()`,
`async for line in job.logs(follow=True)`.

Importing costs next to nothing: a name brings its module along when it is first used (PEP 562).
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import connect as connect
    from .client import local as local
    from .default import attach as attach
    from .default import default_client as default_client
    from .default import explain as explain
    from .default import jobs as jobs
    from .default import submit as submit
    from .default import submit_all as submit_all
    from .default import use as use
    from .endpoint import Endpoint as Endpoint
    from .errors import AuthenticationError as AuthenticationError
    from .errors import BusyError as BusyError
    from .errors import ConfigurationError as ConfigurationError
    from .errors import ConflictError as ConflictError
    from .errors import ConnectionFailedError as ConnectionFailedError
    from .errors import CutError as CutError
    from .errors import DaemonError as DaemonError
    from .errors import DiskError as DiskError
    from .errors import FileInTheWayError as FileInTheWayError
    from .errors import ForbiddenError as ForbiddenError
    from .errors import GPUlayerError as GPUlayerError
    from .errors import GPUlayerWarning as GPUlayerWarning
    from .errors import InvalidSpecError as InvalidSpecError
    from .errors import JobCancelledError as JobCancelledError
    from .errors import JobFailedError as JobFailedError
    from .errors import JobTimedOutError as JobTimedOutError
    from .errors import NotFoundError as NotFoundError
    from .errors import NotSupportedError as NotSupportedError
    from .errors import NoWorkerFitsError as NoWorkerFitsError
    from .errors import RefusedError as RefusedError
    from .errors import RemoteError as RemoteError
    from .errors import RemoteTraceback as RemoteTraceback
    from .errors import ServerError as ServerError
    from .errors import SilentError as SilentError
    from .errors import UnexpectedAnswerError as UnexpectedAnswerError
    from .errors import UnreachableError as UnreachableError
    from .errors import UntrustedError as UntrustedError
    from .errors import WaitTimeoutError as WaitTimeoutError
    from .function_job import FunctionJob as FunctionJob
    from .function_spec import function as function
    from .inside import JobContext as JobContext
    from .inside import checkpoint_dir as checkpoint_dir
    from .inside import checkpoint_saved as checkpoint_saved
    from .inside import job as job
    from .inside import metrics as metrics
    from .inside import progress as progress
    from .inside import should_stop as should_stop
    from .job_handle import Job as Job
    from .maps import Completed as Completed
    from .maps import Map as Map
    from .maps import Values as Values
    from .outputs import Outputs as Outputs
    from .records import End as End
    from .records import Event as Event
    from .records import Explanation as Explanation
    from .records import Fault as Fault
    from .records import JobRecord as JobRecord
    from .records import JobWarning as JobWarning
    from .records import LogLine as LogLine
    from .records import OutputFile as OutputFile
    from .records import PastExplanation as PastExplanation
    from .records import ServerStatus as ServerStatus
    from .records import Task as Task
    from .records import UndeclaredFile as UndeclaredFile
    from .records import WhoAmI as WhoAmI
    from .remote_function import RemoteFunction as RemoteFunction
    from .remote_function import remote as remote
    from .spec import Spec as Spec
    from .spec import command as command
    from .spec import distributed as distributed
    from .stream import Stream as Stream
    from .version import __version__ as __version__
    from .yields import RunYields as RunYields
    from .yields import Yields as Yields

#: What there is, by its module: the same as above, for those who run it (a test compares). No module has the name of
#: something in it: as a submodule it would stand in its place.
_HOMES = {
    "client": "Client connect local",
    "default": "attach default_client explain jobs submit submit_all use",
    "endpoint": "Endpoint",
    "errors": "AuthenticationError BusyError ConfigurationError ConflictError ConnectionFailedError CutError "
    "DaemonError DiskError FileInTheWayError ForbiddenError GPUlayerError GPUlayerWarning InvalidSpecError JobCancelledError "
    "JobFailedError JobTimedOutError NotFoundError NotSupportedError NoWorkerFitsError RefusedError RemoteError "
    "RemoteTraceback ServerError SilentError UnexpectedAnswerError UnreachableError UntrustedError WaitTimeoutError",
    "function_job": "FunctionJob",
    "function_spec": "function",
    "inside": "JobContext checkpoint_dir checkpoint_saved job metrics progress should_stop",
    "job_handle": "Job",
    "maps": "Completed Map Values",
    "outputs": "Outputs",
    "records": "End Event Explanation Fault JobRecord JobWarning LogLine OutputFile PastExplanation ServerStatus Task "
    "UndeclaredFile WhoAmI",
    "remote_function": "RemoteFunction remote",
    "spec": "Spec command distributed",
    "stream": "Stream",
    "version": "__version__",
    "yields": "RunYields Yields",
}
_home_of = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_home_of)  # pyright: ignore[reportUnsupportedDunderAll]

# Checkers, who know all names from above, must not take just any other for one.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _home_of:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = import_module(f".{_home_of[name]}", __name__)
        value = getattr(home, name)
        if name != "checkpoint_dir":
            # That is another one for each call of a process that serves several.
            globals()[name] = value
        return value


def _end() -> None:
    background = sys.modules.get(f"{__name__}.background")
    if background is not None:
        background.end()


# From here, and not from what ends: handlers that a program registers after its import come before, and may use this
# package, though its first call, which brings the rest along, comes later.
atexit.register(_end)


def __dir__() -> list[str]:
    # Not its modules, which are nobody else's.
    return sorted({*_home_of, *(name for name in globals() if name.startswith("__"))})
