"""Reads the pickles that jobs make. Code in them is run by nothing but the minor version of Python that made it: another one
would crash, or do something else."""

from __future__ import annotations

import os
import pickle
import re
import sys
import types
from typing import Any, BinaryIO, Optional

#: Behind a pickle's end, where it may hold code.
_MADE_BY = re.compile(rb"\.python ([0-9]{1,3})\.([0-9]{1,3})\n\Z")
_LONGEST = 32

Version = tuple[int, int]


class OtherPython(Exception):
    """There is code of another minor version of Python in it. `advice` says what to do."""

    def __init__(self, made_by: Version) -> None:
        there, here = _shown(made_by), _shown(sys.version_info[:2])
        super().__init__(f"it holds code of Python {there}, and this is Python {here}")
        self.advice = (
            f'code cannot go from Python {there} to {here}: run it where `python3` is {here} (`python="{here}"`), or use '
            f"{there} on both ends, or give back no lambda, closure or class that the function itself makes: what stands at "
            "the top of a module of the project goes by its name"
        )


def load(file: BinaryIO, made_by: Any = None) -> Any:
    """What is in a file. `made_by`: the version of Python that made it, if it is known without the file."""
    return _Reader(file, _version(made_by) or _made_by(file)).load()


class _Reader(pickle.Unpickler):
    def __init__(self, file: BinaryIO, made_by: Optional[Version]) -> None:
        super().__init__(file)
        self._made_by = made_by

    def find_class(self, module: str, name: str) -> Any:
        if module == "cloudpickle.cloudpickle" and name == "_builtin_type":
            return self._builtin_type
        # What 3.13 alone calls so.
        if module == "pathlib._local":
            module = "pathlib"
        elif module == "re" and name == "PatternError":
            name = "error"
        return super().find_class(module, name)

    def _builtin_type(self, name: str) -> Any:
        # A worker that is older than this tells nothing. Nearly always it has the same: a function that travels as code got
        # there only so.
        if name == "CodeType" and self._made_by not in (None, sys.version_info[:2]):
            raise OtherPython(self._made_by)
        return getattr(types, name)


def _made_by(file: BinaryIO) -> Optional[Version]:
    begin, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(max(begin, end - _LONGEST))
    found = _MADE_BY.search(file.read())
    file.seek(begin)
    return (int(found[1]), int(found[2])) if found is not None else None


def _version(told: Any) -> Optional[Version]:
    """The first two numbers of one. Anyone may have written it."""
    if isinstance(told, list) and len(told) >= 2 and all(type(each) is int for each in told[:2]):
        return told[0], told[1]
    return None


def _shown(version: Version) -> str:
    return ".".join(map(str, version))
