"""Of the runner: how what was sent is read, with as few imports as can be."""

import sys

from . import CallError
from .modules import PythonsOwn, cloudpickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from .work import Work


def read_json(text: str) -> "Any":
    try:
        # The decoder alone; `json` brings `re`, which takes longer than a short call.
        from _json import make_scanner

        return make_scanner(_Scan)(text.strip(), 0)[0]  # type: ignore[arg-type]
    except (ImportError, StopIteration):
        with PythonsOwn():
            import json

        return json.loads(text)


class _Scan:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo: "dict[str, str]" = {}


def c_pickle() -> "Any":
    """The module `_pickle`. Of `functools` it wants `partial` alone, which `_functools` has as well: the rest of it, and
    `collections` with it, would take three times as long as all else here."""
    with PythonsOwn():
        import _functools  # type: ignore[import-not-found]
        from _thread import _count

        # No thread may meet what stands in for it.
        is_short = "functools" not in sys.modules and hasattr(_functools, "partial") and _count() == 0
        if is_short:
            sys.modules["functools"] = _functools
        try:
            import _pickle
        finally:
            if is_short:
                del sys.modules["functools"]
    return _pickle


def builtins(data: bytes) -> "Any":
    return c_pickle().loads(data)


# What a plain function needs of cloudpickle 3 to be read. Importing all of it takes longer than most calls.


def _make_function(code: "Any", globals: "dict[str, Any]", name: "Any", defaults: "Any", closure: "Any") -> "Any":
    globals["__builtins__"] = __builtins__
    function_type: "Any" = type(_make_function)
    return function_type(code, globals, name, defaults, closure)


def _make_cell(*value: "Any") -> "Any":
    cell = (lambda: value).__closure__[0]  # type: ignore[index]
    empty = type(cell)()
    if value:
        empty.cell_contents = value[0]
    return empty


def _function_setstate(function: "Any", state: "Any") -> None:
    attributes, slots = state
    function.__dict__.update(attributes)
    slots.pop("_cloudpickle_submodules")
    function.__globals__.update(slots.pop("__globals__"))
    function.__globals__["__builtins__"] = __builtins__
    for mine, theirs in zip(function.__closure__ or (), slots.pop("__closure__") or ()):
        try:
            mine.cell_contents = theirs.cell_contents
        except ValueError:
            continue
    for name, value in slots.items():
        setattr(function, name, value)


def _subimport(name: str) -> "Any":
    __import__(name)
    return sys.modules[name]


LIGHT: "dict[str, Any]" = {
    "_make_function": _make_function,
    "_make_empty_cell": _make_cell,
    "_make_cell": _make_cell,
    "_function_setstate": _function_setstate,
    "subimport": _subimport,
}


def unpickler() -> "Any":
    global _Unpickler
    if _Unpickler is None:
        from _pickle import Unpickler

        class Reader(Unpickler):
            def __init__(self, work: "Work", file: "BinaryIO") -> None:
                super().__init__(file)
                self._work = work

            def find_class(self, module: str, name: str) -> "Any":
                if module == "cloudpickle.cloudpickle":
                    if name == "_builtin_type":
                        return self._builtin_type
                    if name in self._work.light:
                        return self._work.light[name]
                    cloudpickle()
                # What 3.13 alone calls so.
                if module == "pathlib._local":
                    module = "pathlib"
                elif module == "re" and name == "PatternError":
                    name = "error"
                return super().find_class(module, name)

            def _builtin_type(self, name: str) -> "Any":
                if name == "CodeType":
                    if self._work.sender != sys.version_info[:2]:
                        self._work.is_foreign = True
                        raise CallError("code made by another version of Python")
                    return type(unpickler.__code__)
                with PythonsOwn():
                    import types

                return getattr(types, name)

        _Unpickler = Reader
    return _Unpickler


_Unpickler: "Any" = None
