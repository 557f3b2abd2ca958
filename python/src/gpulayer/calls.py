"""Calls of functions as they travel: docs/CONTRACT.md, "Functions". What is small goes in the job's spec, what is large as
artifacts by digest, each sent once."""

from __future__ import annotations

import base64
import contextlib
import dis
import functools
import hashlib
import inspect
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

import cloudpickle

from .disk import cannot_write
from .errors import ConfigurationError, DiskError
from .pickler import Pickler
from .remote_function import PROGRAM

#: The version of the payload's shape.
FORMAT = 1
#: Pickled arguments above it go as artifacts of their own.
VALUE_BYTES = 64 << 10
#: Payloads above it go as artifacts: they stand in each record of the job.
INLINE_BYTES = 8 << 10
#: Pickles are written in frames of about 64 KiB; what is longer is data.
_FRAME_BYTES = 256 << 10
#: Whose pickles need nothing but pickle.
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})

Value = Union[bytes, dict[str, str]]


@dataclass(frozen=True)
class Call:
    """One call of a function."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: {})


@dataclass(frozen=True)
class Parcel:
    """Bytes to be stored on the server, in a file."""

    hex: str
    path: str
    size_bytes: int

    @property
    def address(self) -> str:
        """As specs name it."""
        return f"artifact://sha256/{self.hex}"


class Packing:
    """Pickles what one submission sends. What is large lies in temporary files until `close`."""

    def __init__(self) -> None:
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._opened: list[BinaryIO] = []
        #: Whether something in it comes from this package, which has to be there when it is read.
        self.names_gpulayer = False
        #: Folders of the source in which modules are searched, beside its top.
        self.paths: list[str] = []
        #: What has to be at the server before the job is submitted, by digest.
        self.parcels: dict[str, Parcel] = {}
        # The objects are kept, so that no other gets the same id.
        self._large: dict[int, tuple[Any, Value]] = {}
        # `__main__` is the only name under which cloudpickle knows that a module is not to be found elsewhere.
        for program in filter(None, map(sys.modules.get, PROGRAM)):
            cloudpickle.register_pickle_by_value(program)

    def close(self) -> None:
        """Removes the files, also those that somebody was interrupted in writing."""
        for file in self._opened:
            # What there was no room for is not written now either.
            with contextlib.suppress(OSError):
                file.close()
        if self._folder is not None:
            self._folder.cleanup()

    def value(self, given: Any, what: Callable[[], str]) -> Value:
        """A value's pickle, or of a large one the name of its artifact; one object is pickled once. `what` says in an
        error which value it is."""
        if type(given) in _PLAIN and not (isinstance(given, (str, bytes)) and len(given) > VALUE_BYTES):
            return pickle.dumps(given, 5)
        known = self._large.get(id(given))
        if known is not None:
            return known[1]
        spool = _Spool(self)
        try:
            Pickler(spool, protocol=5).dump(given)
        except DiskError:
            # That is not the value's fault.
            raise
        except Exception as fault:
            raise ConfigurationError(
                f"{what()} cannot be sent{_because_of(given)}: {type(fault).__name__}: {fault}. Send what it is made "
                "from, such as a path or a number, and make it there"
            ) from None
        parcel = spool.finished()
        if parcel is None:
            return bytes(spool.held)
        self.parcels[parcel.hex] = parcel
        self._large[id(given)] = (given, {"value": parcel.hex})
        return {"value": parcel.hex}

    def payload(self, fields: Mapping[str, Any], inline_bytes: int = INLINE_BYTES) -> str:
        """A payload's text as a spec has it: base64, or the address of the artifact that it goes as."""
        data = pickle.dumps(
            {"format": FORMAT, "python": list(sys.version_info[:3]), "cloudpickle": cloudpickle.__version__, **fields},
            4,
        )
        if len(data) <= inline_bytes:
            return base64.b64encode(data).decode("ascii")
        spool = _Spool(self, 0)
        spool.write(data)
        parcel = spool.finished()
        assert parcel is not None
        self.parcels[parcel.hex] = parcel
        return parcel.address

    def parcel(self, data: bytes, digest: str) -> Parcel:
        """Bytes in a file of their own."""
        with _in_temporary_files():
            with self.open_file() as file:
                file.write(data)
        return Parcel(digest, file.name, len(data))

    def open_file(self) -> BinaryIO:
        """A fresh file, gone with `close`. Its `name` is its path."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gpulayer-call-")
        # As one step of Python's: a Ctrl-C comes before it or after it.
        self._opened += map(_created, [os.path.join(self._folder.name, str(len(self._opened) + 1))])
        return self._opened[-1]


_created: Callable[[str], BinaryIO] = functools.partial(open, mode="xb")  # type: ignore[assignment]


@contextlib.contextmanager
def _in_temporary_files() -> Iterator[None]:
    """Says of what the system refuses where that is, and how it is put elsewhere."""
    try:
        yield
    except OSError as fault:
        folder = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"
        raise cannot_write("what is sent is put into temporary files there", folder, fault) from None


class _Spool:
    """What a pickler writes to: held in memory, from `most_bytes` on in a file. Knows the digest."""

    def __init__(self, packing: Packing, most_bytes: int = VALUE_BYTES) -> None:
        self._packing = packing
        self._most_bytes = most_bytes
        self._hash = hashlib.sha256()
        self._size_bytes = 0
        self.held = bytearray()
        self._file: Optional[BinaryIO] = None

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        self._hash.update(piece)
        self._size_bytes += piece.nbytes
        if piece.nbytes <= _FRAME_BYTES and b"gpulayer" in piece.tobytes():
            self._packing.names_gpulayer = True
        if self._file is None and self._size_bytes <= self._most_bytes:
            self.held += piece
            return piece.nbytes
        with _in_temporary_files():
            if self._file is None:
                self._file = self._packing.open_file()
                self._file.write(self.held)
                self.held = bytearray()
            self._file.write(piece)
        return piece.nbytes

    def finished(self) -> Optional[Parcel]:
        """The file that it became; `None` = what was written is held."""
        if self._file is None:
            return None
        with _in_temporary_files():
            self._file.close()
        return Parcel(self._hash.hexdigest(), self._file.name, self._size_bytes)


class _Nowhere:
    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _because_of(given: Any) -> str:
    """Of a function that cannot be pickled: what is in the way, of all that it and the functions it calls use."""
    seen: set[int] = set()
    told = of = ""
    while id(given) not in seen:
        seen.add(id(given))
        function = inspect.unwrap(given) if callable(given) else None
        if not inspect.isfunction(function):
            break
        for kind, name, value in _used_by(function):
            try:
                Pickler(_Nowhere(), protocol=5).dump(value)
            except Exception:
                told = f" because of the {kind} `{name}` ({type(value).__name__}){of}"
                given, of = value, f" of `{name}`"
                break
    return told


def _used_by(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """What travels with a function: kind, name and value."""
    for name in _globals_of(function.__code__):
        if name in function.__globals__:
            yield "global", name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield "variable", name, cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield "default of", name, parameter.default


def _globals_of(code: CodeType) -> Iterator[str]:
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            yield str(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def packed_calls(
    packing: Packing, calls: Iterable[Call], name: str, first: Optional[int] = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Calls as a payload has them, and the addresses of what they name. `first`: the place of the first one in a map."""
    packed: list[dict[str, Any]] = []
    named: dict[str, None] = {}
    for place, call in enumerate(calls, first or 0):
        of = name if first is None else f"{name} (call {place + 1} of the map)"
        args = [
            packing.value(each, lambda at=at: f"argument {at} of {of}")  # type: ignore[misc]
            for at, each in enumerate(call.args, 1)
        ]
        kwargs = {
            key: packing.value(each, lambda key=key: f"the argument `{key}` of {of}")  # type: ignore[misc]
            for key, each in call.kwargs.items()
        }
        packed.append({"args": args, "kwargs": kwargs})
        named.update((each["value"], None) for each in (*args, *kwargs.values()) if isinstance(each, dict))
    return packed, [packing.parcels[each].address for each in named]
