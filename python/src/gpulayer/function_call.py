"""Makes jobs of calls: pickles in the thread of whoever calls, sends and submits on the background loop."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import operator
import secrets
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Iterable, Mapping, Optional, cast

import cloudpickle

from . import artifacts, background, interrupts, library, notices, sent_projects, source
from .calls import INLINE_BYTES, Call, Packing, Parcel, Value, packed_calls
from .client import Client
from .default import default_client
from .errors import ConfigurationError, ConnectionFailedError, DaemonError, GPUlayerError, RefusedError, refusal
from .function_job import CALLS_LABEL, OWN_LABELS, FunctionJob
from .maps import EmptyMap, Map
from .remote_function import PROGRAM, Method, RemoteFunction, RemoteGenerator, length
from .results import ENDS_OF_RAISED, Outcome
from .spec import Spec, command, is_address, own_python
from .word_types import usable_key

if TYPE_CHECKING:
    from .job_handle import Job

_LOG = logging.getLogger("gpulayer")

#: A map becomes so many jobs, unless told otherwise. One process serves many calls anyway with `reuse`: then fewer, as
#: many as keep the workers of a small fleet evenly busy.
_JOBS, _JOBS_WITH_REUSE = 1000, 64
#: What the server takes of an array; and so many arguments are read when nobody said how many calls a job makes.
_MOST_JOBS, _MOST_CALLS = 100_000, 10_000_000
#: What all items of a map take together in its spec; what is above goes as artifacts.
_ITEMS_BYTES, _LEAST_INLINE_BYTES = 8 << 20, 512
#: The body of a submission may have 1 MiB, that of a batch 64 MiB.
_SINGLE_BYTES = 600_000
#: What may stand in `retry_on` for a function that raised.
_RAISED = frozenset({"any", "user", "disk_full", *ENDS_OF_RAISED})
#: Words that are not about the job.
_APART = ("client", "key", "source", "reuse")
#: Of `python`: what names files of the source.
_OF_SOURCE = frozenset({"lockfile", "uv"})
_FORBIDDEN = {
    "argv": "a remote function is what runs",
    "shell": "a remote function is what runs",
    "cwd": "functions run in the workspace",
    "array": "map() makes the array",
}

#: When the library was sent where, by endpoint and digest.
_sent: dict[tuple[str, str], float] = {}


def template(words: Mapping[str, Any]) -> Spec:
    """The spec of a function's jobs without the call."""
    __tracebackhide__ = True
    for name, why in _FORBIDDEN.items():
        if name in words:
            raise ConfigurationError(f"`{name}` is no word of a remote function: {why}")
    if words.get("reuse") and words.get("gpus"):
        raise ConfigurationError(
            "reuse=True with gpus: a process that waits for its next call would keep them; leave one out"
        )
    labels = words.get("labels")
    ours = [name for name in labels if str(name).startswith(OWN_LABELS)] if isinstance(labels, Mapping) else []
    if ours:
        raise ConfigurationError(
            f"labels: {ours[0]!r} cannot be given: names that begin with `{OWN_LABELS}` are written by this package"
        )
    return command(["-"], **{name: word for name, word in words.items() if name not in _APART})


def one(function: RemoteFunction[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
    """One call."""
    __tracebackhide__ = True
    fits(function, [Call(args, kwargs)])
    return Submission(function, functools.partial(_spec_of_one, function, call=Call(args, kwargs)))


def many(
    function: RemoteFunction[..., Any],
    arguments: Iterable[Iterable[Any]],
    kwargs: Mapping[str, Any],
    concurrency: Optional[int],
    chunksize: Optional[int],
) -> Submission:
    """Many calls as one array."""
    __tracebackhide__ = True
    concurrency, chunksize = _count("concurrency", concurrency), _count("chunksize", chunksize)
    # Calls of one job share its folder, and what one leaves there the next would replace. And such a job succeeds
    # whatever its calls raise, so that none of them would be tried again.
    retries_calls = _retries_calls(function)
    is_alone = bool(function.words.get("outputs")) or retries_calls
    rows = _read(arguments, chunksize or (1 if is_alone else None))
    fits(function, (Call(row, kwargs) for row in rows))
    if not rows:
        return Submission(function, None)
    jobs = len(rows) if is_alone else _JOBS_WITH_REUSE if function.words.get("reuse") else _JOBS
    if retries_calls and chunksize is not None and chunksize > 1:
        notices.here().say(
            f"{_name(function)}: retries are for whole jobs: one of chunksize={chunksize} calls succeeds whatever they raise, "
            "and none of them is tried again; chunksize=1 retries each"
        )
    # Two of a single one: that it is several calls is told by a size above one.
    size = min(chunksize or math.ceil(len(rows) / jobs), max(len(rows), 2))
    make = functools.partial(_spec_of_many, function, rows=rows, kwargs=kwargs, size=size, concurrency=concurrency)
    return Submission(function, make)


def _count(name: str, given: Any) -> Optional[int]:
    __tracebackhide__ = True
    try:
        count = None if given is None else operator.index(given)
    except TypeError:
        raise TypeError(f"{name}={given!r} is no whole number") from None
    if count is not None and count < 1:
        raise ConfigurationError(f"{name}={given} is too small: at least 1")
    return count


def _retries_calls(function: RemoteFunction[..., Any]) -> bool:
    """Whether a job whose function raised is tried again."""
    retry = template(function.words).fields.get("retry", {})
    attempts = retry.get("max_attempts")
    return isinstance(attempts, int) and attempts > 1 and not _RAISED.isdisjoint(retry.get("retry_on", ()))


def _read(arguments: Iterable[Iterable[Any]], chunksize: Optional[int]) -> list[tuple[Any, ...]]:
    """The arguments of each call of a map, to their end; some iterables have none."""
    __tracebackhide__ = True
    most = _MOST_JOBS * chunksize if chunksize else _MOST_CALLS
    if _tells_more_than(most, arguments):
        raise _too_many(f"there are more than {most:,} arguments", chunksize)
    rows: list[tuple[Any, ...]] = []
    for each in arguments:
        if len(rows) == most:
            raise _too_many(f"there are more than {most:,} arguments, or no end of them", chunksize)
        if isinstance(each, Mapping):
            raise TypeError(
                f"starmap takes tuples of arguments, and call {len(rows) + 1} has a value of type {type(each).__name__}, "
                "whose names would be lost: give (1, 2), and what all calls get by name as kwargs={…}; map gives each call the whole of it"
            )
        if not isinstance(each, Iterable):
            raise TypeError(
                f"starmap takes tuples of arguments, and call {len(rows) + 1} has a value of type {type(each).__name__}; "
                "map takes single ones"
            )
        rows.append(tuple(each))
    return rows


def _tells_more_than(most: int, arguments: Any) -> bool:
    """Whether it is longer, as far as it tells before it is read."""
    try:
        return length(arguments) > most
    except Exception:
        return False


def _too_many(said: str, chunksize: Optional[int]) -> ConfigurationError:
    how = f", here of chunksize={chunksize} calls each; a larger one" if chunksize else "; a chunksize= of your own"
    return ConfigurationError(f"{said}: a map is at most {_MOST_JOBS:,} jobs{how} takes more")


def fits(function: RemoteFunction[..., Any], calls: Iterable[Call]) -> None:
    """Complains, as a call here would, of arguments that the function does not take. Not of one that does not tell."""
    __tracebackhide__ = True
    plain: Any = function.function
    if isinstance(plain, Method):
        plain = types.MethodType(plain.__func__, plain.__self__)
    try:
        # What a wrapper says of the wrapped is not what it takes itself.
        signature = inspect.signature(plain, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    # Only how many and which names they have counts.
    seen: set[object] = set()
    for place, call in enumerate(calls):
        shape = (len(call.args), tuple(call.kwargs))
        if shape in seen:
            continue
        seen.add(shape)
        try:
            signature.bind(*call.args, **call.kwargs)
        except TypeError as fault:
            which = f" (call {place + 1} of the map)" if place else ""
            raise TypeError(f"{_name(function)}{signature}: {fault}{which}") from None


def _spec_of_one(function: RemoteFunction[..., Any], packing: Packing, call: Call) -> Mapping[str, Any]:
    __tracebackhide__ = True
    name = _name(function)
    packed, named = packed_calls(packing, [call], name)
    entrypoint, value = _function(function.function, packing, name)
    fields: dict[str, Any] = {"function": value, "calls": packed, "many": False, "paths": packing.paths}
    if isinstance(function, RemoteGenerator):
        fields["yields"] = "values"
    return {"workload": _workload(packing, entrypoint, value, fields, named)}


def _spec_of_many(
    function: RemoteFunction[..., Any],
    packing: Packing,
    rows: list[tuple[Any, ...]],
    kwargs: Mapping[str, Any],
    size: int,
    concurrency: Optional[int],
) -> Mapping[str, Any]:
    __tracebackhide__ = True
    name = _name(function)
    entrypoint, value = _function(function.function, packing, name)
    begins = range(0, len(rows), size)
    inline_bytes = max(min(INLINE_BYTES, _ITEMS_BYTES // len(begins)), _LEAST_INLINE_BYTES)
    items = []
    for begin in begins:
        chunk = (Call(row, kwargs) for row in rows[begin : begin + size])
        packed, named = packed_calls(packing, chunk, name, begin)
        payload = packing.payload({"function": None, "calls": packed, "many": size > 1}, inline_bytes)
        items.append({"payload": payload, **({"values": named} if named else {})})
    array: dict[str, Any] = {"items": items}
    if concurrency is not None:
        array["max_running"] = concurrency
    fields: dict[str, Any] = {"function": value, "calls": [], "many": size > 1, "paths": packing.paths}
    if isinstance(function, RemoteGenerator):
        fields["yields"] = "list"
    spec = {"workload": _workload(packing, entrypoint, value, fields, []), "array": array}
    labels = {CALLS_LABEL: f"{len(rows)}/{size}"} if size > 1 else {}
    return {**spec, "labels": labels} if labels else spec


def _workload(
    packing: Packing, entrypoint: Optional[str], value: Optional[Value], fields: Mapping[str, Any], named: list[str]
) -> dict[str, Any]:
    call: dict[str, Any] = {"serializer": "cloudpickle", "payload": packing.payload(fields)}
    if entrypoint is not None:
        call["entrypoint"] = entrypoint
    values = list(named)
    if isinstance(value, dict):
        values.append(packing.parcels[value["value"]].address)
    if values:
        call["values"] = list(dict.fromkeys(values))
    return {"function": call}


def _name(function: RemoteFunction[..., Any]) -> str:
    return str(getattr(function.function, "__name__", None) or type(function.function).__name__)


def _function(function: Callable[..., Any], packing: Packing, name: str) -> tuple[Optional[str], Optional[Value]]:
    """Where a module has it, or else its pickle."""
    __tracebackhide__ = True
    entrypoint = _entrypoint(function)
    if entrypoint is not None:
        return entrypoint, None
    return None, packing.value(function, lambda: f"the function {name}")


def _entrypoint(function: Callable[..., Any]) -> Optional[str]:
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module in PROGRAM:
        return None
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any(module == each or module.startswith(f"{each}.") for each in by_value):
        return None
    place: Any = sys.modules.get(module)
    named = all(part.isidentifier() for part in [*module.split("."), *path.split(".")])
    if not named or getattr(place, "__spec__", None) is None:
        return None
    for part in path.split("."):
        place = getattr(place, part, None)
    found = place.function if isinstance(place, RemoteFunction) else place
    return f"{module}:{path}" if found is function else None


def _module_of(function: Callable[..., Any]) -> Optional[str]:
    """The module that has the function, or the class of the object whose method it is; `None` = neither goes by name."""
    found = _entrypoint(function)
    if found is None and isinstance(function, (Method, types.MethodType)):
        found = _entrypoint(type(function.__self__))
    return found.partition(":")[0] if found is not None else None


class Submission:
    """What is to be sent, ready: one of `run`, `submit` and `map` once, on the background loop. It is also its own
    `background.Aftermath`."""

    def __init__(
        self, function: RemoteFunction[..., Any], make: Optional[Callable[[Packing], Mapping[str, Any]]]
    ) -> None:
        __tracebackhide__ = True
        words = function.words
        #: What is called.
        self.name = _name(function)
        self._client = cast(Client, words.get("client") or default_client())
        self._key: Optional[str] = None if words.get("key") is None else usable_key(words["key"])
        self._packing = Packing()
        #: Where it is called.
        self.place = notices.here()
        self._source: Optional[source.Source] = None
        self._spec: Optional[Spec] = None
        #: Submits, and gives the same job each time; there from the moment in which something is submitted.
        self._posting: Optional[Callable[[], Awaitable[Job]]] = None
        self._job: Optional[Job] = None
        self._refuse_impossible = False
        if make is None:
            return
        spec = template({"name": self.name[:255], **words})
        given = words.get("source", "auto")
        if is_address(given):
            spec = spec | {"source": given}
        else:
            module = _module_of(function.function)
            python = spec.fields.get("python") or {}
            self._source = source.found(str(given), module, is_named=not python.keys().isdisjoint(_OF_SOURCE))
            self._look_at_others(module if given == "auto" else None)
        self._packing.paths = [] if self._source is None else list(self._source.paths)
        try:
            made = make(self._packing)
        except BaseException:
            self._packing.close()
            raise
        if words.get("reuse"):
            made["workload"]["function"]["reuse"] = True
        labels = {**spec.fields.get("labels", {}), **made.get("labels", {})}
        self._spec = spec | {**made, **({"labels": labels} if labels else {})}

    def _look_at_others(self, called: Optional[str]) -> None:
        """Refuses what would call another function than the one here, and tells of modules that it may meet there."""
        __tracebackhide__ = True
        for name, file, other in self._source.others if self._source is not None else ():
            text = f"{self.name}: {name} is {file} here, and the project that travels has another one, {other}"
            if name == called:
                meant = "none" if source.is_installed(file) else str(source.above(name, Path(file)))
                raise ConfigurationError(f"{text}, which would run in its place: with source={meant!r} the first one does")
            self.place.say(f"{text}, which is imported there: source=… names the folder that is meant")

    async def run(self) -> Outcome:
        """Submits, waits, and has the outcome. Somebody sits and waits: what no worker could ever take is refused."""
        job = await self.submit(refuse_impossible=True)
        try:
            return await job.outcome()
        except (ConnectionFailedError, DaemonError) as lost:
            # The caller has nothing else of it.
            raise interrupts.named(lost, job)

    async def submit(self, refuse_impossible: bool = False) -> FunctionJob[Any]:
        """Submits one call. `refuse_impossible`: unless no worker could ever take it."""
        self._refuse_impossible = refuse_impossible
        return cast("FunctionJob[Any]", await self._submitted())

    @property
    def is_keyed(self) -> bool:
        """Whether the caller has a key for it, with which it can be come back to."""
        return self._key is not None

    def drop(self) -> None:
        """Nothing is submitted after all."""
        self._packing.close()

    async def map(self, ordered: bool, return_exceptions: bool) -> Map[Any]:
        """Submits many."""
        if self._spec is None:
            return EmptyMap.of(self._client)
        found = cast("Map[Any]", await self._submitted())
        found.ordered, found.return_exceptions = ordered, return_exceptions
        found.refuses_impossible = True
        found.is_ours = self._key is None
        return found

    def interrupted(self) -> None:
        """Its caller has nothing of the job yet, which therefore ends. With a key of the caller's own it goes on: whoever
        comes with the key has it."""
        if self._posting is not None:
            job = background.run(self._found())
            (interrupts.Ends(job) if self._key is None else interrupts.GoesOn(job)).interrupted()

    def left(self) -> None:
        """The same after another exception of the caller's."""
        if self._posting is None or self._key is not None:
            return
        if self._job is not None:
            interrupts.Ends(self._job).left()
        else:
            interrupts.say(f"cancelling the call of {self.name}")
            background.run(self.cancelled())

    async def cancelled(self) -> None:
        """The same for a task that was cancelled."""
        if self._posting is None or self._key is not None:
            return
        if self._job is not None:
            await interrupts.Ends(self._job).cancelled()
        else:
            may = "a call of %s was cut off, and may go on: its server has not answered within %g s"
            await interrupts.for_a_while(self._ended(), may, self.name, interrupts.PATIENCE_S)

    async def _ended(self) -> None:
        try:
            job = await self._found()
        except GPUlayerError as failed:
            _LOG.warning("a call of %s was cut off, and may go on: %s", self.name, failed)
        else:
            await interrupts.Ends(job).ordered()

    async def _found(self) -> Job:
        """The job, also when its submission was cut off before the answer: the same again is the same job."""
        assert self._posting is not None
        return self._job or await self._posting()

    async def _submitted(self) -> Job:
        background.if_left(self)
        try:
            job = await self._tried_again()
        finally:
            self._packing.close()
        await self.place.warn([job], self._key is not None)
        return job

    async def _tried_again(self) -> Job:
        try:
            return await self._tried()
        except RefusedError as refused:
            if refused.code == "idempotency_key_reused":
                detail = (
                    f"key={self._key!r} was used for another call: its function, its arguments or its words were others; "
                    "use a new key for a new one. (A set of texts has another order in each run of a program, a sorted list "
                    "has not.)"
                )
                raise refusal({**refused.problem, "detail": detail}) from None
            if not any(fault.code == "missing_artifact" for fault in refused.errors):
                raise
        # It was sent long ago, and the server has removed it meanwhile.
        endpoint = str(self._client.endpoint)
        sent_projects.forget(endpoint)
        for key in [each for each in _sent if each[0] == endpoint]:
            _sent.pop(key)
        return await self._tried()

    async def _tried(self) -> Job:
        assert self._spec is not None
        spec = self._spec
        bundle = None
        if self._source is not None:
            bundle = await sent_projects.bundle_of(self._client.session, self._source, self.place)
        if bundle is not None:
            spec = spec | {"source": bundle.address}
        parcels = dict(self._packing.parcels)
        # A module that has a remote function imports this package, also where a job's Python has the module installed.
        by_name = "entrypoint" in spec.fields["workload"]["function"]
        with_gpulayer = by_name or self._source is not None or self._packing.names_gpulayer
        # Whether the job's interpreter is this one.
        chosen = "python" in spec.fields or "PATH" in spec.fields.get("env", ())
        same = self._client.is_own and not chosen and own_python({})
        if not (same and library.is_installed(with_gpulayer)):
            place = self._library(with_gpulayer, parcels)
            spec = spec | {"inputs": [*spec.fields.get("inputs", ()), place]}
        await self._send(parcels)
        items = spec.fields.get("array", {}).get("items", ())
        is_small = sum(len(item["payload"]) + 100 for item in items) < _SINGLE_BYTES
        body, headers = await self._client.wire(spec, self.place)
        headers = headers if bundle is None else {**bundle.headers, **headers}
        key = self._key or secrets.token_hex(16)
        client, refuse_impossible = self._client, self._refuse_impossible

        # Without this object, which has it: else the job would be kept after who called for it has let it go.
        async def posting() -> Job:
            if is_small:
                return await client.posted(body, key, headers, refuse_impossible)
            return (await client.all_posted([body], key))[0]

        self._posting = posting
        self._job = await posting()
        return self._job

    def _library(self, with_gpulayer: bool, parcels: dict[str, Parcel]) -> dict[str, Any]:
        digest, data = library.bundle(with_gpulayer)
        if not self._is_believed(digest):
            parcels[digest] = self._packing.parcel(data, digest)
        return {"artifact": f"artifact://sha256/{digest}", "path": library.PLACE, "unpack": True}

    def _is_believed(self, digest: str) -> bool:
        sent = _sent.get((str(self._client.endpoint), digest))
        return sent is not None and time.monotonic() - sent < sent_projects.BELIEVED_S

    async def _send(self, parcels: Mapping[str, Parcel]) -> None:
        if not parcels:
            return
        files = {digest: (parcel.path, parcel.size_bytes) for digest, parcel in parcels.items()}
        await artifacts.send_all(self._client.session, files)
        now = time.monotonic()
        # Of what is the call's own nobody asks, and it would be ever more.
        _sent.update({(str(self._client.endpoint), digest): now for digest in files if digest not in self._packing.parcels})
