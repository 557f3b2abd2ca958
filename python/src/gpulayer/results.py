"""What came of a function: its value, or its exception as itself. Large values stream to a file, and are read from it;
reading is done by whoever asked, as it may run the user's code."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import linecache
import os
import re
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Mapping, Optional

from . import artifacts, folders, pickles, routes, source
from .errors import NotFoundError, RemoteError, RemoteTraceback, UnexpectedAnswerError, refusal
from .session import Session

if TYPE_CHECKING:
    from .job_handle import Job
    from .records import End

Outcome = Callable[[], Any]
#: Raised by the iterator protocols themselves: one that came from a job would end a loop as if it were over.
_ENDS_LOOPS = (StopIteration, StopAsyncIteration)
#: The code of a pickle may do so as well; Ctrl-C in the middle of it is not of these.
_WHAT_READING_RAISES = (Exception, SystemExit)
_LOST = re.compile(r"No module named '([\w.]+)'")
_LOST_OF_PACKAGE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
#: How the result of several calls begins, and kinds of outcomes in it.
_MARK, _VALUE, _RAISED = b"gpulayer outcomes 1\n", b"v", b"r"
#: Why an exception stayed there.
_UNSENT = "it could not be sent:"
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in .*)?')


@dataclass(frozen=True)
class Fetched:
    """A job's result, here: `inline`, or bytes in a file without a name, which is gone with this."""

    serializer: str
    raised: bool
    inline: Any = None
    file: Optional[BinaryIO] = None

    def __post_init__(self) -> None:
        if self.file is not None:
            weakref.finalize(self, self.file.close)

    def open(self) -> BinaryIO:
        """Its bytes."""
        if self.file is not None:
            if sys.platform != "linux":
                return self.file
            # Anew: after a fork both processes read it, each from its beginning.
            return open(f"/proc/self/fd/{self.file.fileno()}", "rb")
        if self.serializer == "cloudpickle" and not self.raised:
            return io.BytesIO(base64.b64decode(self.inline))
        return io.BytesIO(json.dumps(self.inline).encode("utf-8"))

    def read(self) -> Any:
        """The value; of what was raised, the fields of `raised`."""
        with self.open() as file:
            if self.raised:
                return _fields(file.read())
            if self.serializer == "json":
                return json.load(file)
            return _unpickled(file)


async def fetched(session: Session, job: Job) -> Fetched:
    """Brings the result of a job that has one. `NotFoundError` and `DamagedError`: it is lost at the server, which says
    nothing of others."""
    result = job.record.result
    if not isinstance(result, Mapping) or "serializer" not in result:
        raise UnexpectedAnswerError(f"job {job} {job.state} and has no result of a function")
    serializer, raised = str(result["serializer"]), bool(result.get("raised", False))
    if "artifact" not in result:
        return Fetched(serializer, raised, result.get("inline"))
    try:
        return Fetched(serializer, raised, file=await brought(session, str(result["artifact"])))
    except NotFoundError as refused:
        detail = f"the result of job {job} is not there any more: {refused.detail}"
        raise refusal({**refused.problem, "detail": detail}) from None
    except artifacts.DamagedError as fault:
        raise artifacts.DamagedError(f"the result of job {job} is damaged at the server: {fault}") from None


async def brought(session: Session, address: str) -> BinaryIO:
    """Brings an artifact into a temporary file, which has no name any more."""
    digest = artifacts.hex_of(address)
    descriptor, name = tempfile.mkstemp(prefix="gpulayer-result-")
    os.close(descriptor)
    place = Path(name)
    try:
        await artifacts.receive(session, routes.ARTIFACT, {"hex": digest}, place, 0o600, digest, lambda _: None)
        return open(place, "rb")
    finally:
        place.unlink(missing_ok=True)


def outcome(found: Fetched, job: Job) -> Outcome:
    """Gives the value or raises what the function raised. To be called once, by the user's thread."""

    def take() -> Any:
        __tracebackhide__ = True
        if found.raised:
            return _raise(error_of(found.read(), str(job), job.end, job.record.spec, job.untried()))
        return found.read()

    return take


async def outcomes(found: Fetched, job: Job, calls: int) -> list[Outcome]:
    """The same for a job that made several calls: one for each that was through, of a partial result not all."""
    if found.raised:
        told = found.read()
        return [lambda: _raise(error_of(told, str(job), spec=job.record.spec))] * calls
    loop = asyncio.get_running_loop()
    with found.open() as file:
        each = await loop.run_in_executor(None, several, file)
    return [_outcome_of(kind, data, job) for kind, data in each[:calls]]


def several(file: BinaryIO) -> list[tuple[bytes, bytes]]:
    """Kinds and bytes of the outcomes in a file of several calls, as far as they are whole."""
    found: list[tuple[bytes, bytes]] = []
    if file.read(len(_MARK)) != _MARK:
        return found
    while True:
        kind, length = file.read(1), file.read(8)
        if kind not in (_VALUE, _RAISED) or len(length) < 8:
            return found
        data = file.read(min(int.from_bytes(length, "little"), sys.maxsize))
        if len(data) < int.from_bytes(length, "little"):
            return found
        found.append((kind, data))


def _outcome_of(kind: bytes, data: bytes, job: Job) -> Outcome:
    if kind == _VALUE:
        return lambda: _unpickled(io.BytesIO(data))
    return lambda: _raise(error_of(_fields(data), str(job), spec=job.record.spec))


def _raise(failure: Exception) -> Any:
    __tracebackhide__ = True
    try:
        raise failure from failure.__cause__
    finally:
        # Else it and this frame, which is in its traceback, keep each other, and all that its caller has.
        del failure


def _unpickled(file: BinaryIO) -> Any:
    try:
        return pickles.load(file)
    except pickles.OtherPython as fault:
        text = f"the value was computed, and cannot be read here: {fault}"
        raise RemoteError(text, type="OtherPython", message=str(fault), stage="here", advice=fault.advice) from None
    except _WHAT_READING_RAISES as fault:
        advice = None
        if isinstance(fault, ModuleNotFoundError) and fault.name:
            top = fault.name.partition(".")[0]
            version = _version_here(top) if top != fault.name else None
            advice = f"install {top} here too, or return something that does not need it"
            if version is not None:
                advice = f"{top} {version} is here, which has no {fault.name}: the job had another version, use the same"
        elif "CUDA" in str(fault):
            advice = "return tensors as `tensor.cpu()`"
        raise RemoteError(
            f"the value was computed, and cannot be read here: {type(fault).__name__}: {fault}",
            type=type(fault).__qualname__,
            message=str(fault),
            stage="here",
            advice=advice,
        ) from fault


def _fields(text: bytes) -> dict[str, Any]:
    """Those of `raised`. Its file is the program's to write, so it may hold anything."""
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if isinstance(told, dict) and isinstance(told.get("type"), str) and isinstance(told.get("message"), str):
        return told
    message = "what its process wrote of it cannot be understood; the log may say more"
    return {"type": "an exception", "message": message}


def error_of(
    told: Mapping[str, Any],
    job: str,
    end: Optional[End] = None,
    spec: Mapping[str, Any] = {},
    untried: Optional[str] = None,
) -> Exception:
    """The exception that a function's job tells of: itself, or a `RemoteError` where it cannot be that. Its cause has
    the traceback, and what is known of the job's `end` beyond it. `spec`: the job's. `untried`: why it was not called
    again."""
    traceback = _with_lines(str(told.get("traceback") or ""))
    name, message, advice = str(told["type"]), str(told["message"]), told.get("advice")
    dotted = name if told.get("module") in (None, "builtins", "__main__") else f"{told['module']}.{name}"
    advice = _why_lost(name, message, spec) or advice or (end.advice if end is not None else None)
    lost = _LOST.search(message) if name == "ModuleNotFoundError" else None
    if lost is not None and advice and "." in lost.group(1):
        top = lost.group(1).partition(".")[0]
        version = _version_here(top)
        advice += f"; yours is {top} {version}" if version is not None else ""
    stage = str(told.get("stage", "call"))
    words: dict[str, Any] = {
        "type": dotted, "message": message, "stage": stage, "advice": advice, "remote_traceback": traceback
    }  # fmt: skip
    said = f"{dotted}: {message}" if message else dotted
    beyond = [*_beyond(end), *(f"[{text}]" for text in (advice, untried) if text)]
    whole = "\n".join([traceback.rstrip(), f"[in job {job}]", *beyond])
    if stage == "load":
        text = message if dotted == "gpulayer.CallError" else said
        failure: Exception = RemoteError(f"job {job} could not read its call: {text}", **words)
    elif stage == "return":
        failure = RemoteError(f"job {job} could not send what its function returned: {said}", **words)
    else:
        try:
            raised = _raised(told) if told.get("pickle") else None
            why = _why_unsent(told) if raised is None else "it would end more than the call"
        except pickles.OtherPython as fault:
            raised, why, advice = None, str(fault), advice or fault.advice
        except _WHAT_READING_RAISES as fault:
            raised, why = None, f"it cannot be read here: {type(fault).__name__}: {fault}"
        if isinstance(raised, Exception) and not isinstance(raised, _ENDS_LOOPS):
            failure = raised
        else:
            words["advice"] = advice or _how_to_have(dotted, why)
            failure = RemoteError(f"job {job} raised {said} (not raised as itself: {why})", **words)
    failure.__cause__ = RemoteTraceback(whole)
    return failure


def _raised(told: Mapping[str, Any]) -> Any:
    return pickles.load(io.BytesIO(base64.b64decode(told["pickle"])), told.get("python"))


#: How a job ends whose function raised: as what was raised says itself.
ENDS_OF_RAISED = ("exit_nonzero", "import_error", "cuda_out_of_memory")


def _beyond(end: Optional[End]) -> list[str]:
    if end is None or end.reason in ENDS_OF_RAISED:
        return []
    detail = end.detail or next(iter(end.evidence), None)
    return [f"[job: {end.reason}{f': {detail}' if detail else ''}]"]


def _why_lost(name: str, message: str, spec: Mapping[str, Any]) -> Optional[str]:
    """Why a module of the user's did not travel, if it is about one."""
    pattern = {"ModuleNotFoundError": _LOST, "ImportError": _LOST_OF_PACKAGE}.get(name)
    lost = pattern.search(message) if pattern is not None else None
    if lost is None:
        return None
    address = spec.get("source")
    sent = folders.sent_as(str(address)) if address else None
    if address and sent is None:
        # Another process sent it, from who knows where.
        return None
    function = (spec.get("workload") or {}).get("function") or {}
    # What is called by name, with JSON, has a source only where one is named.
    is_auto = function.get("serializer") != "json"
    return source.why_not_there(".".join(reversed(lost.groups())), sent, is_auto)


def _version_here(package: str) -> Optional[str]:
    version = getattr(sys.modules.get(package), "__version__", None)
    return version if isinstance(version, str) else None


def _why_unsent(told: Mapping[str, Any]) -> str:
    if told.get("unsent"):
        return f"{_UNSENT} {told['unsent']}"
    # The worker takes it away where a secret stands in it.
    return "a secret of the job stood in it" if "unsent" in told else "it could not be sent"


def _how_to_have(dotted: str, why: str) -> Optional[str]:
    if why.startswith(_UNSENT):
        return (
            "raise it with what can be sent: texts, numbers, small arrays; write anything else to a file and declare it as "
            "an output"
        )
    if "No module named" in why:
        return f"install {dotted.partition('.')[0]} here too, or raise one of Python's own exceptions"
    return None


def _with_lines(text: str) -> str:
    """A traceback with the lines of code that only this machine has: those of the program or the notebook."""
    shown: list[str] = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        shown.append(line)
        frame = _FRAME.fullmatch(line)
        # A relative name may be that of another file here.
        if frame is not None and frame.group(1)[0] in "/<" and not following.startswith("    "):
            code = linecache.getline(frame.group(1), int(frame.group(2))).strip()
            shown += [f"    {code}"] if code else []
    return "\n".join(shown)
