"""Of the runner: generators, whose values go to the worker as they come."""

import os

from .leaving import Kept, dump
from .modules import PythonsOwn
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

#: Longer values of a generator have a file each. The worker knows this number too.
LARGEST_IN_LINE_BYTES = 8 << 10


def generated(work: Work, generator: "Any") -> "Any":
    """Hands on what a generator yields; gives what it returns, or the list of the values if that was asked for."""
    values: "list[Any]" = []
    if work.yields == "list":
        _run(generator, values.append)
        return values
    yielding = Yielding(work)
    try:
        return _run(generator, yielding.take)
    finally:
        yielding.close()


def _run(generator: "Any", take: "Any") -> "Any":
    if type(generator).__name__ == "generator":
        return _run_through(generator, take)
    with PythonsOwn():
        import asyncio

    return asyncio.run(_run_through_async(generator, take))


def _run_through(generator: "Any", take: "Any") -> "Any":
    try:
        while True:
            try:
                value = next(generator)
            except StopIteration as end:
                return end.value
            take(value)
    finally:
        generator.close()


async def _run_through_async(generator: "Any", take: "Any") -> None:
    try:
        async for value in generator:
            take(value)
    finally:
        await generator.aclose()


class Yielding:
    """Writes values one behind the other into the file `yielded`, each behind eight bytes: its length. A long one goes
    into a file of its own, `yielded.N`, and the highest bit of the eight says so."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._path = os.path.join(work.folder, "yielded")
        self._n = 0
        # At once: whoever looks for values finds that there are some.
        self._file = Kept(self._path, os.O_EXCL)
        self._part: "Optional[Kept]" = None
        self._json: "Any" = None
        if work.is_json:
            with PythonsOwn():
                import json

            self._json = json

    def take(self, value: "Any") -> None:
        """The next one; it is the worker's when this returns."""
        work = self._work
        if os.getpid() != work.process:
            work.leave_child()
        work.stage = "return"
        if self._part is None:
            self._part = Kept(f"{self._path}.part")
        with self._part.at_end() as part:
            part.seek(0)
            part.truncate()
            if self._json is not None:
                part.write(self._json.dumps(value, allow_nan=False).encode("ascii"))
            else:
                dump(value, part)
            length = part.tell()
            short = b""
            if length <= LARGEST_IN_LINE_BYTES:
                part.seek(0)
                short = part.read(length)
        self._n += 1
        if length > LARGEST_IN_LINE_BYTES:
            self._part.close()
            self._part = None
            os.rename(f"{self._path}.part", f"{self._path}.{self._n}")
            self._write((length | 1 << 63).to_bytes(8, "little"))
        else:
            self._write(length.to_bytes(8, "little") + short)
        work.stage = "call"

    def close(self) -> None:
        """Removes what was only for the writing."""
        self._file.close()
        if self._part is not None:
            self._part.close()
            os.unlink(f"{self._path}.part")

    def _write(self, data: bytes) -> None:
        with self._file.at_end() as file:
            file.write(data)
