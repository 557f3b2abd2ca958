"""How what travels with a call is pickled: by cloudpickle, so that the same program has the same bytes in each of its runs. A
`key` of its own finds the job again by that."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import ChainMap
from types import CodeType
from typing import Any, TypeVar

import cloudpickle

from .remote_function import PROGRAM, RemoteFunction, named

# Names of cloudpickle 3 that begin with `_`; its tests and ours would tell of a change.
_cloudpickle: Any = cloudpickle.cloudpickle


def _code_with_its_file(code: CodeType) -> Any:
    # cloudpickle writes `<dynamic-code>` for the file: a traceback could not say where.
    reduced: Any = cloudpickle.Pickler.dispatch_table[CodeType](code)
    make, arguments = reduced
    return make, tuple(
        # By `python -bb` bytes must not be compared with a text.
        code.co_filename if isinstance(each, str) and each == "<dynamic-code>"
        else _in_order(each) if each is code.co_consts
        else each
        for each in arguments
    )  # fmt: skip


def _in_order(constant: Any) -> Any:
    """A constant of code with its sets, as in `x in {"a", "b"}`, in an order that each process has."""
    if type(constant) is tuple:
        return tuple(map(_in_order, constant))
    return _Set(constant) if type(constant) is frozenset else constant


class _Set:
    def __init__(self, members: frozenset[Any]) -> None:
        self._members = members

    def __reduce__(self) -> Any:
        members = sorted(self._members, key=lambda each: (type(each).__name__, repr(each)))
        return frozenset, ([_in_order(each) for each in members],)


_Cached: Any = functools._lru_cache_wrapper


def _cached_with_its_function(cached: Any) -> Any:
    # functools writes the name alone, and elsewhere there is another program. What is cached stays here.
    if cached.__module__ not in PROGRAM and "<locals>" not in cached.__qualname__:
        return cached.__reduce__()
    of = cached.cache_parameters()
    info: Any = functools._CacheInfo
    return _Cached, (cached.__wrapped__, of["maxsize"], of["typed"], info), vars(cached)


def _its_function(remote: RemoteFunction[..., Any]) -> Any:
    name, module = getattr(remote, "__qualname__", ""), getattr(remote, "__module__", None) or ""
    if module not in PROGRAM and named(module, name) is remote:
        return name
    # Within a job it is just its function, and this package need not be there: `max` of one thing is that thing.
    return max, ((remote.function,),)


_naming = threading.RLock()


def _name_by_contents(kind: Any) -> None:
    """By its id cloudpickle knows a class that comes back; its own ids are random."""
    ids, kinds = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS, _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    with _naming:
        if kind in ids:
            return
        digest = _Digest()
        # Also in what it refers to, which may refer to it.
        ids[kind] = f"{kind.__module__}.{getattr(kind, '__qualname__', kind.__name__)}"
        try:
            Pickler(digest, protocol=5).dump(kind)
        except BaseException:
            ids.pop(kind, None)
            raise
        name = digest.hex()
        # Another one that is the same in all: the next of them.
        while kinds.setdefault(name, kind) is not kind:
            digest.write(b"+")
            name = digest.hex()
        ids[kind] = name


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return memoryview(data).nbytes

    def hex(self) -> str:
        return self._hash.hexdigest()[:32]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what a call consists of."""

    _others: Any = cloudpickle.Pickler.dispatch_table
    dispatch_table = ChainMap({CodeType: _code_with_its_file, _Cached: _cached_with_its_function}, _others)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, RemoteFunction):
            return _its_function(obj)
        is_kind = isinstance(obj, type) and obj.__module__ != "builtins"
        if is_kind and not _cloudpickle._should_pickle_by_reference(obj):
            _name_by_contents(obj)
        elif isinstance(obj, TypeVar) and obj.__module__ in PROGRAM:
            _name_by_contents(obj)
        return super().reducer_override(obj)
