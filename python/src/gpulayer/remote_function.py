"""`@gl.remote`: a function that runs here when it is called, and elsewhere by `run`, `submit` and `map`.

A job imports this module with the modules of its functions: it brings in nothing that only a client needs."""

from __future__ import annotations

import copyreg
import functools
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, Iterator, Mapping, Optional, TypeVar, Union, overload

from .both import both, finished, signature_of

if TYPE_CHECKING:
    import inspect
    from typing import AsyncIterator, Coroutine, Literal, TypedDict

    from typing_extensions import Concatenate, ParamSpec, Self, Unpack

    from .both import Bound
    from .function_job import FunctionJob
    from .maps import Map
    from .yields import RunYields

    P = ParamSpec("P")
    Q = ParamSpec("Q")
else:
    P = TypeVar("P")
    Q = TypeVar("Q")
R = TypeVar("R", covariant=True)
#: What a generator yields.
Y = TypeVar("Y")
#: An argument of a map.
A = TypeVar("A")
if TYPE_CHECKING:

    class MapWords(TypedDict, total=False):
        """Of `map` and `starmap`."""

        concurrency: Optional[int]
        ordered: bool
        chunksize: Optional[int]
        kwargs: Optional[Mapping[str, Any]]

    # What a job makes of a function, by what calling that gives: a coroutine is run to its end, a generator's values come.

    class _ran:
        def __init__(self, body: Callable[..., Any]) -> None: ...
        @overload
        def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
        @overload
        def __get__(
            self, instance: RemoteFunction[P, Coroutine[Any, Any, Y]], owner: Optional[type] = None
        ) -> Bound[P, Y]: ...
        @overload
        def __get__(
            self, instance: RemoteFunction[P, Union[Iterator[Y], AsyncIterator[Y]]], owner: Optional[type] = None
        ) -> RunOf[P, Y]: ...
        @overload
        def __get__(self, instance: RemoteFunction[P, Y], owner: Optional[type] = None) -> Bound[P, Y]: ...
        def __get__(self, instance: Any, owner: Optional[type] = None) -> Any: ...

    class _submitted:
        def __init__(self, body: Callable[..., Any]) -> None: ...
        @overload
        def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
        @overload
        def __get__(
            self, instance: RemoteFunction[P, Coroutine[Any, Any, Y]], owner: Optional[type] = None
        ) -> Bound[P, FunctionJob[Y]]: ...
        @overload
        def __get__(self, instance: RemoteFunction[P, Y], owner: Optional[type] = None) -> Bound[P, FunctionJob[Y]]: ...
        def __get__(self, instance: Any, owner: Optional[type] = None) -> Any: ...

    class _mapped(Generic[A]):
        def __init__(self, body: Callable[[Any], MapOf[A, Any]]) -> None: ...
        @overload
        def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
        @overload
        def __get__(
            self, instance: RemoteFunction[..., Coroutine[Any, Any, Y]], owner: Optional[type] = None
        ) -> MapOf[A, Y]: ...
        @overload
        def __get__(
            self, instance: RemoteFunction[..., Union[Iterator[Y], AsyncIterator[Y]]], owner: Optional[type] = None
        ) -> MapOf[A, list[Y]]: ...
        @overload
        def __get__(self, instance: RemoteFunction[..., Y], owner: Optional[type] = None) -> MapOf[A, Y]: ...
        def __get__(self, instance: Any, owner: Optional[type] = None) -> Any: ...

else:
    _ran, _submitted, _mapped = finished, both, property

#: The module of the program itself: there is another one elsewhere. The second is its name in a child that
#: `multiprocessing` spawned.
PROGRAM = ("__main__", "__mp_main__")

_RUN, _SUBMIT = "did you mean run(…), which waits and gives the value?", "did you mean submit(…), which gives a job?"
_GET = "did you mean submit(…).result()?"
#: What it is called in other libraries.
_ELSEWHERE = {
    **dict.fromkeys(("remote", "call", "run_remote", "apply"), f"{_RUN} Or submit(…), which gives a job?"),
    **dict.fromkeys(("delay", "spawn", "apply_async", "send", "enqueue", "schedule", "start"), _SUBMIT),
    **dict.fromkeys(("get", "result", "wait", "gather"), _GET),
    **dict.fromkeys(("remote_gen", "stream"), "did you mean run(…), which gives what it yields?"),
    **dict.fromkeys(("for_each", "imap", "map_async", "imap_unordered", "apply_map"), "did you mean map(…)?"),
    **dict.fromkeys(("bind", "with_options", "configure"), "did you mean options(…)?"),
    **dict.fromkeys(("local",), "it runs here when it is called"),
}


class RemoteFunction(Generic[P, R]):
    """A function with the words of its jobs. `f(x)` runs it here, in this process."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, R], words: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        if isinstance(function, staticmethod):
            raise TypeError("@staticmethod belongs above @gpulayer.remote, which takes the function itself")
        given: Any = function
        itself: Any = given.__func__ if isinstance(given, classmethod) else given
        if itself is given and _wants_its_class(itself):
            raise TypeError(
                f"{itself.__qualname__} takes `cls`: @gpulayer.remote belongs above @classmethod, which from Python 3.13 on does "
                "not tell what it wraps of the class"
            )
        if isinstance(function, type):
            raise TypeError(
                f"gpulayer.remote takes a function, and {function.__name__} is a class: decorate its methods, or a function "
                "that makes one; with reuse=True what a function keeps in a global is there for the next call"
            )
        if not callable(itself):
            raise TypeError(f"gpulayer.remote takes a function, and not {type(function).__name__}")
        #: The function itself.
        self.function: Callable[P, R] = function.function if isinstance(function, RemoteFunction) else function
        #: What its jobs ask for.
        self.words = dict(words)
        wrapped = itself.function if isinstance(itself, RemoteFunction) else itself
        functools.update_wrapper(self, wrapped, updated=())
        for name, value in getattr(wrapped, "__dict__", {}).items():
            # What this has itself is not the function's to replace.
            if name not in vars(self) and not hasattr(type(self), name):
                setattr(self, name, value)
        if "GPULAYER_FUNCTION" not in os.environ:
            # A fault in the words is told where they stand. A job has no use for them.
            from .function_call import template

            template(self.words)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
    @overload
    def __get__(
        self: RemoteFunction[Concatenate[Any, Q], R], instance: object, owner: Optional[type] = None
    ) -> RemoteFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: Optional[type] = None) -> Any:
        # In a class it is a method: `self`, or the class, travels with each call.
        function: Any = self.function
        holder: Any = type(instance) if owner is None else owner
        if isinstance(function, classmethod):
            function, instance = function.__func__, holder
        elif instance is None or not isinstance(function, types.FunctionType):
            return self
        name = function.__name__
        by_name = next((vars(each)[name] for each in holder.__mro__ if name in vars(each)), None) is self
        method = Method(function, instance) if by_name else types.MethodType(function, instance)
        return type(self)(method, self.words)

    @_ran
    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Callable[[], R]]:
        """Runs it as a job and gives what it returns; what it raises is raised here, as itself."""
        __tracebackhide__ = True
        from .function_call import one

        return one(self, args, kwargs).run()

    @_submitted
    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, FunctionJob[R]]:
        """Submits a call: a job whose `result()` is what the function returns."""
        __tracebackhide__ = True
        from .function_call import one

        return one(self, args, kwargs).submit()

    @_mapped
    def map(self) -> MapOf[Any, Any]:
        """Calls it for each argument, as one array job; iterating the `Map` gives the values. With several iterables
        it gets one argument of each, as with the built-in `map`; all are read to their end first.

        `concurrency`: at most so many jobs run at once. `return_exceptions`: exceptions come as values. `ordered`:
        `False` = values come as they are done. `chunksize`: so many calls in one job, by default as many as make a
        thousand jobs of all, with `reuse` 64. `kwargs`: arguments that all calls get.
        """
        return MapOf(self, "map", _columns)

    @_mapped
    def starmap(self) -> MapOf[Iterable[Any], Any]:
        """`map` for arguments that are there as tuples, in one iterable, with the same words: `concurrency`,
        `return_exceptions`, `ordered`, `chunksize`, `kwargs`."""
        return MapOf(self, "starmap", _tuples)

    def options(self, /, **words: Any) -> Self:
        """The same function, its jobs with other words."""
        return type(self)(self.function, {**self.words, **words})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            meant = _ELSEWHERE.get(name)
            hint = f"; {meant}" if meant else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __reduce__(self) -> Union[str, tuple[Any, ...]]:
        name, module = getattr(self, "__qualname__", ""), getattr(self, "__module__", None) or ""
        # Where its code is read there is another program.
        there = None if module in PROGRAM and _takes_code_along() else named(module, name)
        if there is self:
            return name
        if isinstance(there, RemoteFunction) and there.function is self.function:
            return _with_words, (there, self.words)
        # It is there before its function, which may refer to it.
        return copyreg.__newobj__, (type(self),), (self.function, self.words)  # type: ignore[attr-defined]

    def __setstate__(self, state: tuple[Callable[P, R], Mapping[str, Any]]) -> None:
        RemoteFunction.__init__(self, *state)

    def __copy__(self) -> RemoteFunction[P, R]:
        return self

    def __deepcopy__(self, _: Any) -> RemoteFunction[P, R]:
        return self

    def __repr__(self) -> str:
        return f"<remote {getattr(self.function, '__qualname__', self.function)!s}>"


class MapOf(Generic[A, R]):
    """`f.map(…)` and `f.starmap(…)`, and their `.aio(…)`. `rows`: the arguments of each call, of what was given."""

    def __init__(
        self, function: RemoteFunction[..., Any], name: str, rows: Callable[..., Iterable[Iterable[Any]]]
    ) -> None:
        self._function, self._name, self._rows = function, name, rows
        self.__doc__ = getattr(type(function), name).__doc__

    @overload
    def __call__(
        self, *iterables: Iterable[A], return_exceptions: Literal[False] = False, **words: Unpack[MapWords]
    ) -> Map[R]: ...
    @overload
    def __call__(
        self, *iterables: Iterable[A], return_exceptions: bool, **words: Unpack[MapWords]
    ) -> Map[Union[R, Exception]]: ...
    def __call__(
        self,
        *iterables: Iterable[Any],
        return_exceptions: bool = False,
        concurrency: Optional[int] = None,
        ordered: bool = True,
        chunksize: Optional[int] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        **others: Any,
    ) -> Map[Any]:
        __tracebackhide__ = True
        _refuse(others)
        from . import background
        from .function_call import many

        rows = self._rows(*iterables)
        made = many(self._function, rows, kwargs or {}, concurrency, chunksize)
        return background.run(made.map(ordered, return_exceptions))

    @overload
    async def aio(
        self, *iterables: Iterable[A], return_exceptions: Literal[False] = False, **words: Unpack[MapWords]
    ) -> Map[R]: ...
    @overload
    async def aio(
        self, *iterables: Iterable[A], return_exceptions: bool, **words: Unpack[MapWords]
    ) -> Map[Union[R, Exception]]: ...
    async def aio(
        self,
        *iterables: Iterable[Any],
        return_exceptions: bool = False,
        concurrency: Optional[int] = None,
        ordered: bool = True,
        chunksize: Optional[int] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
        **others: Any,
    ) -> Map[Any]:
        """The same, awaited; on any asyncio loop."""
        __tracebackhide__ = True
        _refuse(others)
        from . import background
        from .function_call import many

        rows = self._rows(*iterables)
        made = many(self._function, rows, kwargs or {}, concurrency, chunksize)
        return await background.join(made.map(ordered, return_exceptions))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._function, self._name)

    def __repr__(self) -> str:
        return f"<{self._name} of {self._function!r}>"


class _Columns:
    """Arguments that are there as one iterable for each, call by call. It has a length if all of them have."""

    def __init__(self, iterables: tuple[Any, ...]) -> None:
        self._iterables = iterables

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self._iterables)

    def __len__(self) -> int:
        return min(map(length, self._iterables), default=0)


def length(iterable: Any) -> int:
    """Its length. What is longer than Python can tell, as a range may be, is as long as that."""
    try:
        return len(iterable)
    except OverflowError:
        return sys.maxsize


def _refuse(others: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    for name, value in others.items():
        raise TypeError(
            f"map and starmap have no argument `{name}`: one that all calls get is given as kwargs={{{name!r}: {value!r}}}"
        )


def _columns(*iterables: Iterable[Any]) -> Iterable[Iterable[Any]]:
    __tracebackhide__ = True
    if not iterables:
        raise TypeError("map takes at least one iterable: the arguments")
    return _Columns(iterables)


def _tuples(*iterables: Iterable[Iterable[Any]]) -> Iterable[Iterable[Any]]:
    __tracebackhide__ = True
    if len(iterables) != 1:
        raise TypeError(f"starmap takes one iterable, of tuples of arguments, and not {len(iterables)}")
    return iterables[0]


class Method:
    """A remote function of an object. It travels as the object and the name."""

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        self.__func__, self.__self__ = function, instance
        self.__name__, self.__qualname__, self.__doc__ = function.__name__, function.__qualname__, function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.__name__)


class RemoteGenerator(RemoteFunction[P, R]):
    """A function that yields. `f.run(x)` gives its values one after another; the job of `f.submit(x)` has them as
    `stream()`, and as its result what the function returns. Of a map each call gives the list of its values."""

    @property
    def run(self) -> RunOf[P, Any]:  # type: ignore[override]
        """Runs it as a job, and gives what it yields as it comes, for `for` and `async for`. As any generator it begins
        with the first value that is asked for, and is over when it is left: the job is cancelled."""
        return RunOf(self)


class RunOf(Generic[P, Y]):
    """`f.run(x)` and `f.run.aio(x)` of a generator."""

    def __init__(self, function: RemoteGenerator[P, Any]) -> None:
        self._function = function

    @property
    def __signature__(self) -> Optional[inspect.Signature]:
        return signature_of(self._function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> RunYields[Y]:
        __tracebackhide__ = True
        from .function_call import one
        from .yields import RunYields

        return RunYields(one(self._function, args, kwargs))

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> RunYields[Y]:
        """The same, begun: its job is submitted."""
        run = self(*args, **kwargs)
        await run.begin()
        return run

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._function, "run")


def _wants_its_class(function: Any) -> bool:
    """Whether it is written as a class method: in a class, its first argument `cls`."""
    if not isinstance(function, types.FunctionType) or function.__qualname__.rpartition(".")[0][-1:] in ("", ">"):
        return False
    code = function.__code__
    return code.co_argcount > 0 and code.co_varnames[0] == "cls"


#: `co_flags` of generators, and of those that are `async`.
_GENERATES = 0x20 | 0x200


def yields(function: Callable[..., Any]) -> bool:
    """Whether it is a generator function."""
    while isinstance(function, functools.partial):
        function = function.func
    for each in (function, getattr(function, "__func__", None), getattr(type(function), "__call__", None)):
        code = getattr(each, "__code__", None)
        if code is not None:
            return bool(code.co_flags & _GENERATES)
    return False


def _made(function: Callable[..., Any], words: Mapping[str, Any]) -> RemoteFunction[..., Any]:
    plain = function.function if isinstance(function, RemoteFunction) else function
    return (RemoteGenerator if yields(plain) else RemoteFunction)(function, words)


def _with_words(function: RemoteFunction[P, R], words: Mapping[str, Any]) -> RemoteFunction[P, R]:
    return type(function)(function.function, words)


def named(module: str, path: str) -> Any:
    """What a loaded module has under this name, which may have dots; `None`: nothing."""
    place: Any = sys.modules.get(module)
    for part in path.split("."):
        place = getattr(place, part, None)
    return place


def _takes_code_along() -> bool:
    """Whether it is a cloudpickle that pickles, anyone's, which sends the code of what only this program has. Plain pickle
    names it, for another process of the same program."""
    frame: Optional[types.FrameType] = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "pickle":
        frame = frame.f_back
    return frame is not None and "cloudpickle" in str(frame.f_globals.get("__name__"))


@overload
def remote(function: Callable[P, R], /, **words: Any) -> RemoteFunction[P, R]: ...
@overload
def remote(**words: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(function: Optional[Callable[..., Any]] = None, /, **words: Any) -> Any:
    """Makes a function one that can run elsewhere: `@gl.remote`, or `@gl.remote(gpus=1, memory="8GiB")`.

    The words are those of `gl.command` about the job (`gpus memory cpus timeout retries env on …`), and `client` (the
    default one), `key` (the idempotency key of `run` and `submit`), `source`: `"auto"` (the project that its modules were
    imported from), a folder, the address of a bundle, or `"none"`, and `reuse`: `True` = the process that served a call
    waits for the next of the same project, source, environment and secrets, with all that it has loaded.
    """
    if function is not None:
        return _made(function, words)
    return lambda given: _made(given, words)
