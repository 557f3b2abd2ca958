"""Of the runner: one task, a function and its calls."""

import os
import sys

from . import CallError
from .modules import PythonsOwn, search, set_program, workspace
from .process import flush
from .reading import LIGHT, builtins, read_json, unpickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

FORMAT = 1
_functions: "dict[Any, Any]" = {}


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
        given = builtins(self._bytes(call["payload"], "payload"))
        mine = given if own is None else builtins(self._bytes(own["payload"], "item"))
        if given["format"] != FORMAT or mine["format"] != FORMAT:
            raise CallError(f"the call has format {mine['format']}, this worker reads {FORMAT}", "update the worker")
        self.sender = tuple(given["python"][:2])
        self.light = LIGHT if str(given["cloudpickle"]).startswith("3.") else {}
        self.calls, self.many, self.yields = mine["calls"], mine["many"], given.get("yields")
        # As they were searched there; the workspace itself comes after them.
        search([os.path.normpath(os.path.join(workspace(), path)) for path in given.get("paths", ())])
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
        search([])
        self.function = _entry(call["entrypoint"])

    def value(self, given: "Any") -> "Any":
        """A value of a call: its pickle, or the name of the file with it."""
        from io import BytesIO

        self.is_reading = True
        if isinstance(given, dict):
            with open(os.path.join(self.folder, "values", given["value"]), "rb") as file:
                value = unpickler()(self, file).load()
        else:
            value = unpickler()(self, BytesIO(given)).load()
        self.is_reading = False
        return value

    def read_once(self, given: "Any") -> "Any":
        """The function: in a process that serves several tasks the same object as long as it is the same, so that what
        it keeps in its globals is there for the next call."""
        name = given["value"] if isinstance(given, dict) else given
        if name not in _functions:
            _functions.clear()
            _functions[name] = self.value(given)
            set_program(_functions[name])
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
            from .faults import told

            told(self, fault)
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
