"""What can go wrong, one class each. A message says what failed, on what, and what to do next.

GPUlayerError
  ConfigurationError      what was given, or stands in a file or a variable, cannot be used
  UnreachableError        nothing answers there            (a ConnectionError too)
  CutError                the connection broke              (a ConnectionError too)
  SilentError             the server took the call and says nothing   (a ConnectionError too)
  UntrustedError          it answers and is not who it should be; nothing was sent to it
  DaemonError             the own daemon did not start
  UnexpectedAnswerError   something else than a GPUlayer server answered
  RefusedError            the server said no: `code`, `errors`, `request_id`
    AuthenticationError ForbiddenError NotFoundError ConflictError InvalidSpecError
    NotSupportedError NoWorkerFitsError BusyError ServerError
  JobFailedError          a job ended and did not succeed: `job`, `end`
    JobCancelledError JobTimedOutError
  RemoteError             what a function raised, where it cannot be raised as itself: `type`, `remote_traceback`
  WaitTimeoutError        the job goes on, the waiting is over        (a TimeoutError too)
  FileInTheWayError       a download would overwrite something        (a FileExistsError too)
  DiskError               a file cannot be written here               (an OSError too)

GPUlayerWarning           something was accepted and may not be meant (a UserWarning)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional

from .advice import in_words

if TYPE_CHECKING:
    from .job_handle import Job
    from .records import End, Fault

#: Characters of a line of evidence that an error shows.
MOST_OF_EVIDENCE = 100


class GPUlayerError(Exception):
    """Everything that this package raises on purpose."""


class GPUlayerWarning(UserWarning):
    """Something was accepted and may not be meant, such as a job that no worker there is could take."""


class ConfigurationError(GPUlayerError):
    """An address, a token, a file or an argument that cannot be used. Nothing was sent."""


class ConnectionFailedError(GPUlayerError, ConnectionError):
    """The server was not there, went away, or fell silent."""

    #: The job that goes on, where the call that lost its server is all that knew of it.
    job: Optional[Job] = None


class UnreachableError(ConnectionFailedError):
    """Nothing listens there, or it cannot be reached. The call was not carried out."""


class CutError(ConnectionFailedError):
    """The connection broke after the call was sent: it may have been carried out."""


class SilentError(ConnectionFailedError):
    """The server took the call and has not answered: it may have been carried out."""


class UntrustedError(GPUlayerError):
    """The server is not the one that was asked for, or the line is not encrypted as it should be.

    `seen` is the pin of the key it showed, where there was one. No token has been sent to it.
    """

    def __init__(self, message: str, seen: Optional[str] = None) -> None:
        super().__init__(message)
        self.seen = seen


class DaemonError(GPUlayerError):
    """The daemon of this user could not be started."""

    #: The job that it keeps, where the call that needs it is all that knew of that.
    job: Optional[Job] = None
    #: Whether it ended without a word, as who is killed does: the next one may start.
    was_killed = False


class UnexpectedAnswerError(GPUlayerError):
    """An answer that is not a GPUlayer server's: a proxy, a captive portal, something else on that port."""


class RefusedError(GPUlayerError):
    """The server's refusal (`application/problem+json`); programs go by `code` (docs/ERRORS.md)."""

    #: What helps, in Python's words.
    advice: Optional[str] = None
    code: str
    status: int
    title: str
    detail: str
    retryable: bool
    request_id: str
    errors: tuple[Fault, ...]
    problem: Mapping[str, Any]

    def __init__(self, problem: Mapping[str, Any]) -> None:
        from .records import Fault
        from .wire import read_all

        self.problem = problem
        self.code = str(problem.get("code", "unknown"))
        self.status = int(problem.get("status", 0))
        self.title = str(problem.get("title", ""))
        self.detail = in_words(str(problem.get("detail", "") or self.title))
        self.retryable = bool(problem.get("retryable", False))
        self.request_id = str(problem.get("request_id", ""))
        self.errors = read_all(Fault, problem.get("errors") or ())
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [self.detail]
        told = [f"{fault.pointer or '/'}: {fault.detail}" for fault in self.errors]
        # Of a single fault the detail says it all.
        lines += [f"  {text}" for text in told if text != self.detail]
        lines += [f"  try: {self.advice}"] if self.advice else []
        lines.append(f"  ({self.code}, request {self.request_id})" if self.request_id else f"  ({self.code})")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem,)


class AuthenticationError(RefusedError):
    """No valid token: unknown, expired, revoked, or none."""

    advice = "gl.connect(…, token=\"…\"), or GPULAYER_TOKEN; `gpulayer up` there says where its client token lies"


class ForbiddenError(RefusedError):
    """This credential may not do that."""


class NotFoundError(RefusedError):
    """There is no such thing, or it is not yours to see."""


class ConflictError(RefusedError):
    """It cannot be done as things stand, such as a retry of a job that has not ended."""


class InvalidSpecError(RefusedError):
    """The spec or the request has faults: `errors` has all of them, each with its pointer."""


class NotSupportedError(RefusedError):
    """The server's build does not have that yet; `errors` names the field."""


class NoWorkerFitsError(RefusedError):
    """No worker that is known could ever take the job; `errors` has the smallest change."""


class BusyError(RefusedError):
    """Too much at the moment, or the disk is nearly full: the same call may succeed later."""


class ServerError(RefusedError):
    """A fault in GPUlayer; please report it with the request's id."""


_BY_CODE: dict[str, type[RefusedError]] = {
    "invalid_spec": InvalidSpecError,
    "invalid_request": InvalidSpecError,
    "bad_request": InvalidSpecError,
    "bad_json": InvalidSpecError,
    "not_supported": NotSupportedError,
    "no_worker_fits": NoWorkerFitsError,
    "storage_full": BusyError,
}
_BY_STATUS: dict[int, type[RefusedError]] = {
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: BusyError,
    500: ServerError,
    503: BusyError,
}


def refusal(problem: Mapping[str, Any]) -> RefusedError:
    """The error for a problem, by its code and else by its status."""
    by_status = _BY_STATUS.get(int(problem.get("status", 0)), RefusedError)
    return _BY_CODE.get(str(problem.get("code")), by_status)(problem)


class JobFailedError(GPUlayerError):
    """A job ended and did not succeed. `end` says why, `job` has its log and its files."""

    def __init__(self, job: Job, end: End, tail: tuple[str, ...] = ()) -> None:
        self.job = job
        self.end = end
        self.tail = tail
        reason = "" if end.reason == job.state else f": {end.reason}"
        lines = [f"{job.noun} {job} {job.state.replace('_', ' ')}{reason}"]
        lines += [f"  {end.detail}"] if end.detail else []
        if end.advice:
            lines.append(f"  try: {end.advice}")
            if "folder that is sent" in end.advice and not job.record.spec.get("source"):
                lines.append('  no folder was sent with it: source="." sends the current one')
        if job.had_returned:
            lines.append("  its function had returned: job.result(even_if_failed=True) gives the value")
        untried = job.untried()
        lines += [f"  {untried}"] if untried else []
        # What the log quotes is not said twice, and a line of the kernel's log not whole: `end` has it.
        seen = [_shortened(text) for text in end.evidence if text and text not in tail]
        if seen:
            lines += ["  evidence:", *(f"    {text}" for text in seen)]
        if tail:
            lines.append("  the end of its log:")
            lines += [f"    {line}" for line in tail]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.end, self.tail)


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_OF_EVIDENCE else text[: MOST_OF_EVIDENCE - 1] + "…"


class JobCancelledError(JobFailedError):
    """It was cancelled."""


class JobTimedOutError(JobFailedError):
    """It ran, or waited, longer than it may."""


class RemoteTraceback(Exception):
    """The cause of an exception that came from a job: where it was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(GPUlayerError):
    """A function's failure that cannot be raised here as the exception it was: its type is not to be had here, or
    would end more than a call (`SystemExit`), or it could not be sent; or the call could not be read, or its value not be
    sent.

    `type` is its dotted name, `message` what it said, `stage` where: `load`, `call`, `return`, or `here` when the value
    cannot be read on this side; `advice` what to do about it, `remote_traceback` as Python printed it there.
    """

    def __init__(
        self,
        text: str,
        *,
        type: str = "",
        message: str = "",
        stage: str = "call",
        advice: Optional[str] = None,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(f"{text}\n  try: {advice}" if advice else text)
        self.type = type
        self.message = message
        self.stage = stage
        self.advice = advice
        self.remote_traceback = remote_traceback


class WaitTimeoutError(GPUlayerError, TimeoutError):
    """The time given for the waiting is over. The job goes on."""


class DiskError(GPUlayerError, OSError):
    """A file cannot be written on this machine: the disk is full, or a quota is used up. `filename` is where."""


class FileInTheWayError(GPUlayerError, FileExistsError):
    """Something else is where a file should be written; nothing was overwritten."""
