"""Runs the Python function of a job: reads the call from the folder that `GPULAYER_FUNCTION` names, calls, and leaves
there either `returned` or `raised`, whole; neither when it was stopped. What the files hold: docs/CONTRACT.md, "Functions".

The standard library alone, for Python 3.9 and newer: no package is needed where it runs. A call that succeeds imports almost
nothing (no `json`, `pickle`, `cloudpickle`), and what only a failure needs is imported by the failure.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

from .stops import STOPPED_STATUS, asks, call_ends, ends_task, heed_stops, other_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Optional

FORMAT = 1
#: The folder of the program that this package is for, which is no place for modules of others.
PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: The workspace: of a process that serves several tasks a path that leads to the one it has.
WORKSPACE = os.getcwd()
#: What the client sent for interpreters that lack it.
LIBRARY = os.path.join(".gpulayer", "lib")
#: Where a process that may serve several tasks hears of the next.
CALLS = 3
#: Pickles of exceptions above it stay here; the client tells of them by type, message and traceback.
LARGEST_EXCEPTION_BYTES = 1 << 20
#: Of longer texts only the beginning and the end are told, in characters.
LARGEST_TEXT = 1 << 20
#: Longer values of a generator have a file each. The worker knows this number too.
LARGEST_IN_LINE_BYTES = 8 << 10


class CallError(Exception):
    """Something about the call that is no exception of the function, with what to do about it."""

    def __init__(self, message: str, advice: "Optional[str]" = None) -> None:
        super().__init__(message)
        self.advice = advice


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
    return isinstance(path, str) and f"{path}{os.sep}".startswith(f"{WORKSPACE}{os.sep}") and not path.startswith(_PYTHON)


_PYTHON = os.path.dirname(os.__file__)


class Work:
    """One task: a function and its calls."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.process = os.getpid()
        self.stage = "load"
        self.sender: "tuple[int, ...]" = sys.version_info[:2]
        self.light: "dict[str, Any]" = {}
        self.function: "Any" = None
        self.calls: "list[Any]" = []
        self.many = False
        #: What becomes of what a generator yields: `values` as they come, or the `list` of them as its value. None: of
        #: generators nothing is known.
        self.yields: "Optional[str]" = None
        self.is_json = False
        #: Whether code of another minor version of Python was met.
        self.is_foreign = False
        #: Whether a pickle is being read.
        self.is_reading = False

    def load(self) -> None:
        """Reads everything but the arguments."""
        with open(os.path.join(self.folder, "call.json"), encoding="utf-8") as file:
            call = read_json(file.read())
        self.is_json = call["serializer"] == "json"
        item = call.get("item")
        own = item if isinstance(item, dict) and "payload" in item else None
        if self.is_json:
            self._load_json(call, item, own)
            return
        given = _builtins(self._bytes(call["payload"], "payload"))
        mine = given if own is None else _builtins(self._bytes(own["payload"], "item"))
        if given["format"] != FORMAT or mine["format"] != FORMAT:
            raise CallError(f"the call has format {mine['format']}, this worker reads {FORMAT}", "update the worker")
        self.sender = tuple(given["python"][:2])
        self.light = _LIGHT if str(given["cloudpickle"]).startswith("3.") else {}
        self.calls, self.many, self.yields = mine["calls"], mine["many"], given.get("yields")
        # As they were searched there; the workspace itself comes after them.
        _search([os.path.normpath(os.path.join(WORKSPACE, path)) for path in given.get("paths", ())])
        function = mine["function"] or given["function"]
        self.function = self.read_once(function) if function else _entry(call["entrypoint"])

    def _load_json(self, call: "dict[str, Any]", item: "Any", own: "Optional[dict[str, Any]]") -> None:
        text, name = (call["payload"], "payload") if own is None else (own["payload"], "item")
        if text is None and os.path.exists(os.path.join(self.folder, name)):
            text = self._file(name).decode("utf-8")
        given = read_json(text) if text else {}
        args, kwargs = list(given.get("args", ())), dict(given.get("kwargs", {}))
        if own is None and item is not None:
            if isinstance(item, dict) and item and item.keys() <= {"args", "kwargs"}:
                args += item.get("args", ())
                kwargs.update(item.get("kwargs", {}))
            else:
                args.append(item)
        self.calls = [{"args": args, "kwargs": kwargs}]
        self.yields = "values"
        _search([])
        self.function = _entry(call["entrypoint"])

    def value(self, given: "Any") -> "Any":
        """A value of a call: its pickle, or the name of the file with it."""
        from io import BytesIO

        self.is_reading = True
        if isinstance(given, dict):
            with open(os.path.join(self.folder, "values", given["value"]), "rb") as file:
                value = _unpickler()(self, file).load()
        else:
            value = _unpickler()(self, BytesIO(given)).load()
        self.is_reading = False
        return value

    def read_once(self, given: "Any") -> "Any":
        """The function: in a process that serves several tasks the same object as long as it is the same, so that what
        it keeps in its globals is there for the next call."""
        name = given["value"] if isinstance(given, dict) else given
        if name not in _functions:
            _functions.clear()
            _functions[name] = self.value(given)
            _set_program(_functions[name])
        return _functions[name]

    def arguments(self, call: "dict[str, Any]") -> "tuple[list[Any], dict[str, Any]]":
        """Those of one call."""
        if self.is_json:
            return call["args"], call["kwargs"]
        args = [self.value(each) for each in call["args"]]
        return args, {name: self.value(each) for name, each in call["kwargs"].items()}

    def call(self, call: "dict[str, Any]") -> "Any":
        """Calls once; a coroutine is run to its end, and so is a generator."""
        self.stage = "load"
        args, kwargs = self.arguments(call)
        self.stage = "call"
        try:
            value = self.function(*args, **kwargs)
            if type(value).__name__ == "coroutine":
                with PythonsOwn():
                    import asyncio

                value = asyncio.run(value)
            elif self.yields and type(value).__name__ in ("generator", "async_generator"):
                from .yielding import generated

                value = generated(self, value)
        except BaseException as fault:
            if os.getpid() != self.process:
                self.leave_child(self._status_of(fault))
            raise
        if os.getpid() != self.process:
            self.leave_child()
        self.stage = "return"
        return value

    def leave_child(self, status: int = 0) -> None:
        """The end of a child that the function forked: what it returns is nobody's, and the files are its parent's."""
        flush()
        os._exit(status)

    def _status_of(self, fault: BaseException) -> int:
        """That of a child that ended with this, as of any Python."""
        if not isinstance(fault, SystemExit):
            tell(self, fault)
            return 1
        if fault.code is None or isinstance(fault.code, int):
            return (fault.code or 0) & 0xFF
        try:
            print(fault.code, file=sys.stderr)
        except Exception:
            pass
        return 1

    def _bytes(self, inline: "Optional[str]", name: str) -> bytes:
        if inline is None:
            return self._file(name)
        with PythonsOwn():
            from binascii import a2b_base64

        return a2b_base64(inline)

    def _file(self, name: str) -> bytes:
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()


_functions: "dict[Any, Any]" = {}
_searched: "Optional[list[str]]" = None
#: How this process was started.
_started_as: "list[str]" = []


def _search(paths: "list[str]") -> None:
    """Lets modules be found there first. A process that has searched elsewhere begins anew: two programs of one source may
    each have a module of that name."""
    global _searched
    if _searched is None:
        _searched = paths
        sys.path[:0] = paths
    elif paths != _searched:
        flush()
        os.set_inheritable(CALLS, True)
        os.execv(sys.executable, [sys.executable, *_started_as])


def _stopped() -> int:
    """The end of a task that was stopped."""
    threading = sys.modules.get("threading")
    if threading is not None and not all(thread.daemon for thread in other_threads(threading)):
        import atexit

        # Nothing tells these threads to end.
        atexit._run_exitfuncs()
        flush()
        os._exit(STOPPED_STATUS)
    flush()
    return STOPPED_STATUS


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


def _builtins(data: bytes) -> "Any":
    # It brings `copyreg` and others along.
    with PythonsOwn():
        from _pickle import loads

    return loads(data)


def _entry(name: str) -> "Any":
    """`module:function`, with further dots after the colon."""
    module, _, path = name.partition(":")
    __import__(module)
    found = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise CallError(f"{name} is a {type(found).__name__}, which cannot be called")
    return found


# Only for a function that travelled with the program that it is from.

_program: "Any" = None


def _set_program(function: "Any") -> None:
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


def _refuse_program(given: "Any") -> "Any":
    """What a program defines goes back as code: whoever asks for it may be another program."""
    if (isinstance(given, type) or is_python(given)) and given.__module__ == "__main__":
        raise TypeError(f"{given.__qualname__} is of the program")
    return NotImplemented


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


_LIGHT: "dict[str, Any]" = {
    "_make_function": _make_function,
    "_make_empty_cell": _make_cell,
    "_make_cell": _make_cell,
    "_function_setstate": _function_setstate,
    "subimport": _subimport,
}


def _unpickler() -> "Any":
    global _Unpickler
    if _Unpickler is None:
        from _pickle import Unpickler

        class Reader(Unpickler):
            def __init__(self, work: Work, file: "BinaryIO") -> None:
                super().__init__(file)
                self._work = work

            def find_class(self, module: str, name: str) -> "Any":
                if module == "cloudpickle.cloudpickle":
                    if name == "_builtin_type":
                        return self._builtin_type
                    if name in self._work.light:
                        return self._work.light[name]
                    _cloudpickle()
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
                    return type(main.__code__)
                with PythonsOwn():
                    import types

                return getattr(types, name)

        _Unpickler = Reader
    return _Unpickler


_Unpickler: "Any" = None


def _cloudpickle() -> "Any":
    """The one that was sent along, if it was: what wrote the call reads it, and the one installed here may be older."""
    library = os.path.join(WORKSPACE, LIBRARY)
    if "cloudpickle" not in sys.modules:
        with PythonsOwn():
            sys.path.insert(0, library)
            try:
                import cloudpickle
            except ImportError:
                # The project may have it.
                pass
    import cloudpickle

    return cloudpickle


def dump(value: "Any", file: "BinaryIO", reduce: "Any" = None) -> None:
    """Pickles into a file; by cloudpickle only what plain pickle cannot, which may be code: behind that pickle stands whose
    it is. `reduce`: what it does not return `NotImplemented` for is pickled as it says."""
    from _pickle import Pickler

    begin = file.tell()
    try:
        plain = Pickler if reduce is None else _with_reducer(Pickler, reduce)
        (plain if _program is None else _with_reducer(plain, _refuse_program))(file, 5).dump(value)
    except Exception as fault:
        file.seek(begin)
        file.truncate()
        try:
            cloudpickle = _cloudpickle()
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


def _write(work: Work, path: str) -> None:
    """Calls, and writes what came of it."""
    kept = Kept(path)
    try:
        value = work.call(work.calls[0])
        with kept.at_end() as file:
            if work.is_json:
                with PythonsOwn():
                    import json

                file.write(json.dumps(value, allow_nan=False).encode("ascii"))
            else:
                dump(value, file)
        if os.path.getsize(path) == 0:
            raise CallError("what the function returned was not written: its file was closed meanwhile")
    finally:
        kept.close()


def tell(work: Work, fault: BaseException) -> "dict[str, Any]":
    """What the client is told of an exception; on standard error as Python would say it."""
    from .faults import told

    return told(work, fault)


def _say(fault: BaseException, folder: str, why: BaseException) -> None:
    """On standard error alone, as nothing can be told: the function has taken its folder away, or its own way there."""
    reason = f"{type(why).__name__}: {why}"
    try:
        os.stat(os.path.join(folder, "call.json"))
    except FileNotFoundError:
        reason = "that is not there any more"
    except OSError as barred:
        reason = str(barred.strerror)
    try:
        if isinstance(why, ImportError):
            # Else it was said.
            sys.excepthook(type(fault), fault, fault.__traceback__)
        print(f"[what came of the call cannot be left in {folder}: {reason}]", file=sys.stderr, flush=True)
    except Exception:
        pass


def is_python(function: "Any") -> bool:
    return type(function) is type(main)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # Nobody reads it any more; what was computed counts.
            pass


def main(folder: str) -> int:
    """The exit status: 0 with `returned`, 1 with `raised`, and that of a stop with neither, save what came of those of
    several calls that were through."""
    library = os.path.join(WORKSPACE, LIBRARY)
    if library not in sys.path and os.path.isdir(library):
        sys.path.append(library)
    part = os.path.join(folder, "returned.part")
    work = Work(folder)
    try:
        heed_stops()
        work.load()
        if work.many:
            from .several import PART, write

            part = os.path.join(folder, PART)
            write(work, part)
        else:
            _write(work, part)
        flush()
        call_ends()
        os.rename(part, os.path.join(folder, "returned"))
        return 0
    except BaseException as fault:
        call_ends()
        is_stopped = ends_task(fault)
        # Of several calls it has what came of those before.
        if not work.many and os.path.exists(part):
            os.unlink(part)
        if is_stopped:
            return _stopped()
        try:
            told = tell(work, fault)
            with PythonsOwn():
                import json

            part = os.path.join(folder, "raised.part")
            with open(part, "w", encoding="ascii") as out:
                json.dump(told, out)
            flush()
            os.rename(part, os.path.join(folder, "raised"))
        except (ImportError, LookupError, OSError) as why:
            _say(fault, folder, why)
        return 1


def begin() -> int:
    """As a program: the exit status."""
    global WORKSPACE
    _started_as[:] = sys.argv
    # The path of a workspace that other tasks will have as well.
    lasting = sys.argv.pop() if len(sys.argv) > 1 else None
    if lasting is not None:
        WORKSPACE = lasting
    if sys.path and sys.path[0] == PROGRAMS:
        sys.path[0] = WORKSPACE
    else:
        sys.path.insert(0, WORKSPACE)
    if lasting is None:
        status = main(os.environ["GPULAYER_FUNCTION"])
    else:
        from .serving import serve

        status = serve()
    if asks():
        # Python's own end takes the handler away, and the signal of a stop that was asked about may still come.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))
    return status


def names_of_program() -> "dict[str, Any]":
    """In a child that `multiprocessing` spawned, whose `__main__` is to be as its parent's."""
    try:
        Work(os.environ["GPULAYER_FUNCTION"]).load()
    except Exception:
        # It may do without.
        return {}
    return {} if _program is None else vars(_program)
