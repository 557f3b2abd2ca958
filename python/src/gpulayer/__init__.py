"""GPUlayer for Python: runs a command on any machine its owner can reach, and brings back its log, its files and the
truth about how it ended.

    import gpulayer as gl

    job = gl.command(["python", "train.py"], gpus=1, outputs="model.pt").submit()
    for line in job.logs(follow=True):
        print(line)
    job.result()
    job.outputs.download("out")

`docs/SDK.md` is the tour. Every call has a form for asyncio: `await job`, `await job.cancel.aio()`,
`async for line in job.logs(follow=True)`.
"""

from .client import Client, connect, local
from .default import attach, default_client, explain, jobs, submit, submit_all, use
from .endpoint import Endpoint
from .errors import (
    AuthenticationError,
    BusyError,
    ConfigurationError,
    ConflictError,
    ConnectionFailedError,
    CutError,
    DaemonError,
    FileInTheWayError,
    ForbiddenError,
    GPUlayerError,
    InvalidSpecError,
    JobCancelledError,
    JobFailedError,
    JobTimedOutError,
    NotFoundError,
    NotSupportedError,
    NoWorkerFitsError,
    RefusedError,
    ServerError,
    SilentError,
    UnexpectedAnswerError,
    UnreachableError,
    UntrustedError,
    WaitTimeoutError,
)
from .job_handle import Job
from .outputs import Outputs
from .records import (
    End,
    Event,
    Explanation,
    Fault,
    JobRecord,
    JobWarning,
    LogLine,
    OutputFile,
    PastExplanation,
    ServerStatus,
    Task,
    UndeclaredFile,
    WhoAmI,
)
from .spec import Spec, command, distributed
from .stream import Stream
from .version import VERSION as __version__

__all__ = [
    "AuthenticationError",
    "BusyError",
    "Client",
    "ConfigurationError",
    "ConflictError",
    "ConnectionFailedError",
    "CutError",
    "DaemonError",
    "End",
    "Endpoint",
    "Event",
    "Explanation",
    "Fault",
    "FileInTheWayError",
    "ForbiddenError",
    "GPUlayerError",
    "InvalidSpecError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobRecord",
    "JobTimedOutError",
    "JobWarning",
    "LogLine",
    "NoWorkerFitsError",
    "NotFoundError",
    "NotSupportedError",
    "OutputFile",
    "Outputs",
    "PastExplanation",
    "RefusedError",
    "ServerError",
    "ServerStatus",
    "SilentError",
    "Spec",
    "Stream",
    "Task",
    "UndeclaredFile",
    "UnexpectedAnswerError",
    "UnreachableError",
    "UntrustedError",
    "WaitTimeoutError",
    "WhoAmI",
    "__version__",
    "attach",
    "command",
    "connect",
    "default_client",
    "distributed",
    "explain",
    "jobs",
    "local",
    "submit",
    "submit_all",
    "use",
]
