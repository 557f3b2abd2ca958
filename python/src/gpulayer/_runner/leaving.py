"""Of the runner: how what comes of a call is left for the worker."""

import os
import sys

from . import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


def dump(value: "Any", file: "BinaryIO", reduce: "Any" = None) -> None:
    """Pickles into a file; by cloudpickle only what plain pickle cannot, which may be code: behind that pickle stands whose
    it is. `reduce`: what it does not return `NotImplemented` for is pickled as it says."""
    from _pickle import Pickler

    begin = file.tell()
    try:
        plain = Pickler if reduce is None else _with_reducer(Pickler, reduce)
        (plain if modules.program() is None else _with_reducer(plain, _refuse_program))(file, 5).dump(value)
    except Exception as fault:
        file.seek(begin)
        file.truncate()
        try:
            cloudpickle = modules.cloudpickle()
        except ImportError:
            raise fault from None
        pickler = cloudpickle.Pickler
        (pickler if reduce is None else _with_reducer(pickler, reduce))(file, protocol=5).dump(value)
        # A reader that does not look for it ends before it.
        file.write(b"python %d.%d\n" % sys.version_info[:2])


def _with_reducer(kind: "Any", reduce: "Any") -> "Any":
    others = getattr(kind, "reducer_override", None)

    class Reducing(kind):  # type: ignore[misc]
        def reducer_override(self, given: "Any") -> "Any":
            found = reduce(given)
            return others(self, given) if found is NotImplemented and others is not None else found

    return Reducing


def _refuse_program(given: "Any") -> "Any":
    """What a program defines goes back as code: whoever asks for it may be another program."""
    if (isinstance(given, type) or is_python(given)) and given.__module__ == "__main__":
        raise TypeError(f"{given.__qualname__} is of the program")
    return NotImplemented


def is_python(function: "Any") -> bool:
    return type(function) is type(is_python)


class Kept:
    """A file for what comes of the function, open while that runs: afterwards there may be no descriptor left. The function
    may as well have closed this one, and have something of its own there."""

    def __init__(self, path: str, flags: int = os.O_TRUNC) -> None:
        self._path = path
        self._open(os.O_CREAT | flags)

    def _open(self, flags: int) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | flags, 0o666)
        self._there = os.fstat(self._descriptor)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._there, os.fstat(self._descriptor))
        except OSError:
            return False

    def at_end(self) -> "BinaryIO":
        """The file, to be written to behind what it has."""
        if not self._is_there():
            self._open(0)
        os.lseek(self._descriptor, 0, os.SEEK_END)
        return open(self._descriptor, "r+b", closefd=False)

    def close(self) -> None:
        """Unless it is somebody else's."""
        if self._is_there():
            os.close(self._descriptor)
