"""Of the runner: what is told of a failure."""

import os
import sys

from . import CallError
from .leaving import dump, is_python
from .modules import PythonsOwn
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

#: Pickles of exceptions above it stay here; the client tells of them by type, message and traceback.
LARGEST_EXCEPTION_BYTES = 1 << 20
#: Of longer texts only the beginning and the end are told, in characters.
LARGEST_TEXT = 1 << 20
_HERE = os.path.dirname(__file__)


def told(work: Work, fault: BaseException) -> "dict[str, Any]":
    """What the client is told of an exception; on standard error as Python would say it."""
    with PythonsOwn():
        import traceback
        from binascii import b2a_base64

    place = fault.__traceback__
    while place is not None and (
        os.path.dirname(place.tb_frame.f_code.co_filename) == _HERE
        # Through it is called what a module has as a remote function.
        or place.tb_frame.f_globals.get("__name__") == "gpulayer.remote_function"
    ):
        place = place.tb_next
    fault.__traceback__ = place
    stage, advice = work.stage, _advice(work, fault)
    if stage == "load" and work.is_foreign:
        there, here = _version(work.sender), _version(sys.version_info[:2])
        fault = CallError(f"the function was sent as code of Python {there}, and this worker runs Python {here}")
    try:
        # It imports more when it needs it.
        with PythonsOwn():
            text = "".join(traceback.format_exception(type(fault), fault, fault.__traceback__))
    except BaseException:
        text = f"{type(fault).__name__} (which cannot be shown)\n"
    if isinstance(fault, CallError):
        text = f"{fault}\n"
    try:
        message = str(fault)
    except BaseException:
        message = "(its message cannot be shown)"
    try:
        print(text + (f"[{advice}]\n" if advice else ""), end="", file=sys.stderr, flush=True)
    except Exception:
        pass
    data, unsent = (None, None) if isinstance(fault, CallError) else _pickled(fault)
    return {
        "type": _clean(type(fault).__qualname__),
        "module": "gpulayer" if isinstance(fault, CallError) else _clean(str(type(fault).__module__)),
        "message": _clean(message),
        "traceback": _clean(text),
        "pickle": None if data is None else b2a_base64(data, newline=False).decode("ascii"),
        "unsent": unsent and _clean(unsent),
        "python": list(sys.version_info[:3]),
        "stage": stage,
        "advice": advice and _clean(advice),
    }


def _version(version: "tuple[int, ...]") -> str:
    return ".".join(map(str, version))


def _clean(text: str) -> str:
    """Without halves of characters, which no JSON may have. The log has it whole."""
    if len(text) > LARGEST_TEXT:
        text = f"{text[: LARGEST_TEXT // 2]} [… {len(text) - LARGEST_TEXT:,} characters …] {text[-LARGEST_TEXT // 2 :]}"
    return text.encode("utf-8", "replace").decode("utf-8")


_REMOTE_USED = {
    f"'function' object has no attribute '{name}'": name for name in ("run", "submit", "map", "starmap", "options")
}


def _advice(work: Work, fault: BaseException) -> "Optional[str]":
    if isinstance(fault, CallError) and fault.advice:
        return fault.advice
    if isinstance(fault, ModuleNotFoundError) and fault.name:
        top = fault.name.partition(".")[0]
        if top == "cloudpickle":
            return f"install cloudpickle for {sys.executable} on this worker, or submit by the Python package"
        if fault.name == "gpulayer":
            return (
                f"install gpulayer for {sys.executable} on this worker, or write the files behind it (CONTRACT, Progress and "
                "checkpoints): only functions of gpulayer.remote that name it bring it along"
            )
        version = getattr(sys.modules.get(top), "__version__", None)
        if top != fault.name and version is not None:
            return (
                f"{sys.executable} on this worker has {top} {version}, which has no {fault.name}: use the same version "
                "at both ends"
            )
        if top != fault.name and top in sys.modules:
            return f"{top} is there, without {fault.name}: add it to the project's source if it is a module of yours"
        return (
            f"{top} is not there for {sys.executable} on this worker: add it to the job's requirements if it is a "
            "package, to the project's source if it is a module of yours"
        )
    if type(fault) is AttributeError:
        used = _REMOTE_USED.get(str(fault))
        if used:
            return (
                f"a remote function that travels as code is within the job the plain function: call it, f(…), or put it "
                f"into a module of the project, where f.{used}(…) submits a job of its own"
            )
    # What the system says of its file is no fault of the value.
    if work.stage == "return" and not isinstance(fault, OSError):
        return (
            "return what can be sent: numbers, texts, arrays, lists and dicts of them; write anything else to a file "
            "and declare it as an output"
        )
    if work.is_reading and work.sender != sys.version_info[:2]:
        there, here = _version(work.sender), _version(sys.version_info[:2])
        if not work.is_foreign:
            return (
                f"it was sent by Python {there}, and Python {here} on this worker lacks what it is made of: run it where "
                f'`python3` is {there} (`python="{there}"`), use {here} on both ends, or send what both have'
            )
        return (
            f"code cannot go from Python {there} to {here}: run it where `python3` is {there} "
            f'(`python="{there}"`), or use {here} on both ends, or put the function into a module of the project: '
            "source works with both"
        )
    return None


def _pickled(fault: BaseException) -> "tuple[Optional[bytes], Optional[str]]":
    """The exception itself, or why it stays here."""
    data, why = _dumped(fault)
    if data is None:
        return None, f"{_in_the_way(fault)}{why}"
    if len(data) > LARGEST_EXCEPTION_BYTES:
        return None, f"it has {len(data):,} bytes, and {LARGEST_EXCEPTION_BYTES:,} are the most"
    return data, None


def _dumped(given: "Any") -> "tuple[Optional[bytes], str]":
    from io import BytesIO

    found = BytesIO()
    try:
        dump(given, found, _reduce_raised)
    except BaseException as fault:
        try:
            return None, f"{type(fault).__name__}: {fault}"
        except BaseException:
            return None, type(fault).__name__
    return found.getvalue(), ""


def _in_the_way(fault: BaseException) -> str:
    """What of it cannot be pickled, if it is one of the things that it carries."""
    try:
        carried = [(f"args[{at}]", each) for at, each in enumerate(fault.args)] + list(vars(fault).items())
        for name, value in carried:
            if _dumped(value)[0] is None:
                return f"its `{name}` ({type(value).__name__}): "
    except BaseException:
        # Whatever its class makes of these.
        pass
    return ""


def _reduce_raised(given: "Any") -> "Any":
    """Of an exception whose class has an `__init__` in Python: made without it. Pickle would call it with `args`, which
    are what it gave to that of its base, and not what it takes."""
    if not isinstance(given, BaseException):
        return NotImplemented
    kind: "Any" = type(given)
    base: "Any" = kind
    while base.__flags__ & 1 << 9:
        base = base.__base__
    if (
        kind.__reduce__ is not BaseException.__reduce__
        or kind.__reduce_ex__ is not object.__reduce_ex__
        or not is_python(kind.__init__)
        or is_python(kind.__new__)
        # It has fields that only its `__init__` sets.
        or base.__basicsize__ != BaseException.__basicsize__
    ):
        return NotImplemented
    with PythonsOwn():
        import copyreg

    new: "Any" = copyreg.__newobj__  # type: ignore[attr-defined]
    return new, (kind, *given.args), given.__dict__ or None
