"""Of the runner: where modules are found, those of the task and Python's own."""

import os
import sys

from .process import begin_anew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

#: The folder of the program that this package is for, which is no place for modules of others.
PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PYTHON = os.path.dirname(os.__file__)
_workspace = os.getcwd()
_searched: "Optional[list[str]]" = None
_program: "Any" = None


def workspace() -> str:
    """That of the task: in a process that serves several a path that leads to the one it has."""
    return _workspace


def work_in(path: str) -> None:
    global _workspace
    _workspace = path


def library() -> str:
    """What the client sent for interpreters that lack it."""
    return os.path.join(_workspace, ".gpulayer", "lib")


class PythonsOwn:
    """While it lasts, what is imported is Python's own, whatever modules the project has by such names."""

    def __enter__(self) -> None:
        self._path = sys.path[:]
        sys.path[:] = [each for each in self._path if not _is_projects(each)]
        names = getattr(sys, "stdlib_module_names", sys.modules)
        loaded = [each for each in sys.modules.items() if each[0].partition(".")[0] in names]
        self._kept = {name: module for name, module in loaded if _is_projects(getattr(module, "__file__", None))}
        for name in self._kept:
            del sys.modules[name]

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self._path
        sys.modules.update(self._kept)


def _is_projects(path: "Any") -> bool:
    # Python itself may have been sent along.
    return isinstance(path, str) and f"{path}{os.sep}".startswith(f"{_workspace}{os.sep}") and not path.startswith(_PYTHON)


def search(paths: "list[str]") -> None:
    """Lets modules be found there first. A process that has searched elsewhere begins anew: two programs of one source may
    each have a module of that name."""
    global _searched
    if _searched is None:
        _searched = paths
        sys.path[:0] = paths
    elif paths != _searched:
        begin_anew()


def cloudpickle() -> "Any":
    """The one that was sent along, if it was: what wrote the call reads it, and the one installed here may be older."""
    if "cloudpickle" not in sys.modules:
        with PythonsOwn():
            sys.path.insert(0, library())
            try:
                import cloudpickle
            except ImportError:
                # The project may have it.
                pass
    import cloudpickle

    return cloudpickle


def set_program(function: "Any") -> None:
    """Makes `__main__` one that has what came along with a function of a program: pickle looks there, for a child of
    `multiprocessing` or for a file."""
    global _program
    inner = function
    for _ in range(16):
        if isinstance(getattr(inner, "__globals__", None), dict):
            break
        wrapped = (getattr(inner, name, None) for name in ("func", "__wrapped__", "__func__"))
        inner = next(filter(callable, wrapped), None) or getattr(type(inner), "__call__", None)
    names: "dict[str, Any]" = getattr(inner, "__globals__", {})
    if names.get("__name__") not in ("__main__", "__mp_main__"):
        return
    if _program is None:
        # Kept: it may be this module.
        sys.modules["_gpulayer_main"] = sys.modules["__main__"]
    _program = type(sys)("__main__")
    # What a child that `multiprocessing` spawns begins with.
    _program.__file__ = os.path.join(PROGRAMS, "run.py")
    for name, value in ((getattr(inner, "__name__", ""), inner), *names.items()):
        if not name.startswith("__"):
            setattr(_program, name, value)
    sys.modules["__main__"] = _program


def program() -> "Any":
    """The `__main__` that came along, if one did."""
    return _program
