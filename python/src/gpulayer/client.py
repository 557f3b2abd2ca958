"""A server, and what one asks of it. Sync by name, `.aio` for asyncio: `client.submit(spec)`,
`await client.submit.aio(spec)`."""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Any, Coroutine, Iterable, Mapping, Optional, Sequence, Union

from . import background, baggage, copies, notices, routes
from .attaching import Attach
from .both import both
from .endpoint import Endpoint
from .errors import ConfigurationError, NotFoundError, RefusedError, refusal
from .function_job import job_of
from .job_handle import Job, Jobs
from .own_daemon import OwnDaemon
from .records import Explanation, ServerStatus, WhoAmI
from .routes import Route
from .server_choice import Choice, choose
from .session import FOLLOW_S, RECONNECT_S, Session
from .spec import Spec, with_recorded
from .wire import read
from .word_types import shown, usable_key

AnySpec = Union[Spec, Mapping[str, Any]]
_PAGE = 500
#: Unknown fields are faults here, and not warnings: a typo must not run for a week.
_STRICT = {"Prefer": "handling=strict"}
_REFUSE = {"Prefer": "handling=strict, impossible=refuse"}
#: An answer that was given before, to the same key.
_REPLAYED = "idempotency-replayed"


class Client:
    """Speaks with one server. Connects with the first call; safe to share between threads, tasks and, after a fork,
    processes. `close` it, use it in a `with`, or leave it to the end of the process. A copy of it is itself; a pickle
    of it carries no token."""

    def __init__(self, choice: Choice, *, binary: Optional[str] = None, reconnect_s: float, follow_s: float) -> None:
        daemon = OwnDaemon(choice.places, binary) if choice.on_demand else None
        #: The line to the server, for this package.
        self.session = Session(choice.target, daemon, reconnect_s, follow_s)
        self._own = choice.own
        self._words = {"binary": binary, "reconnect_s": reconnect_s, "follow_s": follow_s}
        self._finalizer = weakref.finalize(self, Session.close_soon, self.session)
        self._finalizer.atexit = False

    @property
    def is_own(self) -> bool:
        """Whether it is this user's daemon on this machine: paths mean the same there."""
        return self._own

    @property
    def endpoint(self) -> Endpoint:
        """Where it connects to."""
        return self.session.target.endpoint

    @both
    async def whoami(self) -> WhoAmI:
        """Whose token it is, and what it may do."""
        return read(WhoAmI, await self.session.call(routes.WHOAMI))

    @both
    async def server(self) -> ServerStatus:
        """Versions, limits and counts."""
        return read(ServerStatus, await self.session.call(routes.SERVER))

    @both
    def submit(
        self, spec: AnySpec, *, key: Optional[str] = None, refuse_impossible: bool = False
    ) -> Coroutine[Any, Any, Job]:
        """Submits a job; when it returns, the job is on disk there.

        Unknown fields are faults. `key`: the idempotency key; the same key with the same spec is the same job, and
        without one a fresh key makes only the retries of this call harmless. `refuse_impossible`: a
        `NoWorkerFitsError` instead of a warning when no worker that is known could ever take it. What the server warns of
        is a `GPUlayerWarning`.
        """
        return self.submitted(spec, key, refuse_impossible, notices.here())

    async def submitted(
        self, spec: AnySpec, key: Optional[str], refuse_impossible: bool, place: notices.Place
    ) -> Job:
        """The body of `submit`, on the background loop."""
        if key is not None:
            usable_key(key)
        body, headers = await self.wire(spec, place)
        job = await self.posted(body, key, headers, refuse_impossible)
        await place.warn([job], key is not None)
        return job

    async def posted(
        self,
        body: Mapping[str, Any],
        key: Optional[str] = None,
        headers: Mapping[str, str] = {},
        refuse_impossible: bool = False,
    ) -> Job:
        """Submits a spec as `wire` made it."""
        headers = {**headers, **(_REFUSE if refuse_impossible else _STRICT)}
        try:
            return await self.made(routes.SUBMIT, body, key, headers)
        except RefusedError as refused:
            if refused.code != "idempotency_key_reused":
                raise
            detail = f"key={key!r} was used for another job; use a new key for a new one"
            raise refusal({**refused.problem, "detail": detail}) from None

    async def made(
        self,
        route: Route,
        body: Mapping[str, Any],
        key: Optional[str],
        headers: Mapping[str, str] = {},
        names: Mapping[str, str] = {},
    ) -> Job:
        """The job that a call makes, or had made with this key."""
        was_there: list[bool] = []

        def told(answered: Mapping[str, str]) -> None:
            was_there.append(_REPLAYED in answered)

        raw = await self.session.call(route, names, body=body, key=key, headers=headers, told=told)
        if key is None or not was_there[-1]:
            return self.job_of(raw)
        # The first answer again, whatever has become of its job.
        return await self._of_key(key, str(raw["id"]), raw.get("submitted_at"))

    async def _of_key(self, key: str, job_id: str, since: Optional[str] = None) -> Job:
        """The job that a key stands for."""
        try:
            return await self._found(job_id)
        except NotFoundError as refused:
            when = f" at {since}" if since else ""
            detail = (
                f"key={key!r} was used{when} for job {job_id}, which was removed since, and stands for it until 7 days after "
                "that use; use another key for a new one"
            )
            raise refusal({**refused.problem, "detail": detail}) from None

    @both
    def submit_all(self, specs: Iterable[AnySpec], *, key: Optional[str] = None) -> Coroutine[Any, Any, list[Job]]:
        """Submits up to 10,000 jobs at once, all or none; a dependency may be `#0`, the first of them. Faults have
        pointers such as `/jobs/17/…`."""
        return self._all_submitted(specs, key, notices.here())

    async def _all_submitted(self, specs: Iterable[AnySpec], key: Optional[str], place: notices.Place) -> list[Job]:
        if key is not None:
            usable_key(key)
        if isinstance(specs, (Spec, Mapping, str)) or not isinstance(specs, Iterable):
            raise ConfigurationError(f"submit_all takes a list of specs, and {shown(specs)} is none; submit takes one")
        wire = [(await self.wire(spec, place))[0] for spec in specs]
        jobs = await self.all_posted(wire, key) if wire else []
        await place.warn(jobs, key is not None)
        return jobs

    async def all_posted(self, bodies: Sequence[Mapping[str, Any]], key: Optional[str] = None) -> list[Job]:
        """Submits specs as `wire` made them, all or none."""
        answer = await self.session.call(routes.BATCH, body={"jobs": list(bodies)}, key=key, headers=_STRICT)
        ids: list[str] = answer["ids"]
        # They are among the newest; what others have submitted meanwhile may push some out.
        newest = {job.id: job for job in await self.listed(len(ids))}
        lost = self._found if key is None else partial(self._of_key, key)
        return [newest.get(job_id) or await lost(job_id) for job_id in ids]

    @property
    def attach(self) -> Attach:
        """`attach(job)`: the job with this id, the end of an id, or a name, whoever submitted it from where."""
        return Attach(self)

    @both
    async def jobs(self, /, limit: int = 50, **filters: Any) -> list[Job]:
        """The newest jobs, newest first. Filters: `state project label name submitted_by worker parent
        submitted_after match`. `label`: a mapping that all its labels are in, or one as `"team=vision"` or `"team"`."""
        if filters.get("label") is not None:
            filters["label"] = _labels(filters["label"])
        return Jobs(await self.listed(limit, **filters))

    @both
    async def explain(self, spec: AnySpec) -> Explanation:
        """Where this spec would run, and the smallest change that lets it. Submits nothing."""
        body, _ = await self.wire(spec)
        return read(Explanation, await self.session.call(routes.EXPLAIN, body={"spec": body}, headers=_STRICT))

    @both
    def put(self, path: Union[str, "os.PathLike[str]"]) -> Coroutine[Any, Any, str]:
        """Stores a file, or a folder as a bundle; its `artifact://…` address. Sends nothing that is there already.
        What of a folder cannot travel is a `GPUlayerWarning`."""
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ConfigurationError(f'put({shown(path)}): the path of a file or a folder is expected; "." is the current one')
        return self._put(os.path.abspath(path), notices.here())

    async def _put(self, path: str, place: notices.Place) -> str:
        address: str = (await baggage.stored(self.session, path, place))["artifact"]
        return address

    async def listed(self, limit: Optional[int] = None, **filters: Any) -> list[Job]:
        """The body of `jobs`; `limit` `None` = all."""
        found: list[Job] = []
        cursor: Optional[str] = None
        while limit is None or len(found) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(found))
            query = {**filters, "limit": page, "cursor": cursor}
            answer = await self.session.call(routes.JOBS, query=query)
            found += [self.job_of(each) for each in answer["items"]]
            cursor = answer.get("next_cursor")
            if cursor is None:
                break
        return found

    async def _found(self, job_id: str) -> Job:
        return self.job_of(await self.session.call(routes.JOB, {"job_id": job_id}))

    def job_of(self, raw: Mapping[str, Any]) -> Job:
        """The handle for a record: a `Job`, a `FunctionJob` or a `Map`."""
        return job_of(self, raw)

    async def wire(
        self, spec: AnySpec, place: Optional[notices.Place] = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """A spec as it is sent, with what goes along at the server, and headers that say more about it."""
        fields, headers = await baggage.brought(self.session, _spec(spec), place)
        return (with_recorded(fields, os.environ) if self._own else fields), headers

    def close(self) -> None:
        """Closes its connections. Jobs go on."""
        # First: what is cut by it must not connect anew.
        self.session.closed = True
        if self.session.connected:
            background.run(self.session.close())

    async def aclose(self) -> None:
        """The same, awaited."""
        self.session.closed = True
        if self.session.connected:
            await background.join(self.session.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return copies.reduced(self, self.session.target, **self._words)

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}>"


def _spec(given: Any) -> Spec:
    if isinstance(given, Spec):
        return given
    if isinstance(given, Mapping):
        return Spec(given)
    told = "what can be submitted is a spec, as gl.command([…]) and gl.function(…) make it, or a mapping with its fields"
    if isinstance(given, Job):
        told = f"it is a {given.noun} already, which {given.noun}.retry() submits once more"
    elif callable(given):
        told = "a function is called elsewhere by what gl.remote makes of it: f.submit(…)"
    elif isinstance(given, str):
        told = f"{told}: of a line of shell gl.command(shell=…)"
    raise ConfigurationError(f"{shown(given)} cannot be submitted: {told}")


def _labels(given: Any) -> tuple[str, ...]:
    """Those that a job must have, each as a query has it."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping) and all(isinstance(each, str) for pair in given.items() for each in pair):
        return tuple(f"{name}={value}" for name, value in given.items())
    raise ConfigurationError(
        f'label={shown(given)} cannot be used: label is a mapping of texts, label={{"team": "vision"}}, or one such as '
        '"team=vision"'
    )


def connect(
    server: Optional[str] = None,
    *,
    token: Union[str, "os.PathLike[str]", None] = None,
    pin: Union[str, Sequence[str], None] = None,
    ca_file: Union[str, "os.PathLike[str]", None] = None,
    reconnect_s: float = RECONNECT_S,
    follow_s: float = FOLLOW_S,
) -> Client:
    """A client for a server: `https://HOST[:PORT]`, `unix:/PATH`, the name of a saved one, or a connection string
    `gpulayer://TOKEN@HOST:PORT?pin=…`. Without one, the server that the command line would speak with: `GPULAYER_URL`,
    `url` in `config.toml`, the saved connection in use, the machine's daemon if it is mine, else the own daemon.

    `token`: a client token, or a path to a file with it (`GPULAYER_TOKEN`). `pin`: the key that server must have, or
    one of several (`GPULAYER_PIN`). `ca_file`: certificate authorities instead of the system's (`GPULAYER_CA_FILE`).
    `reconnect_s`: for how long a call that was cut tries to reach the server again; `follow_s`: the same for waiting
    and following.

    Nothing is asked yet: a server that is not there is an `UnreachableError` of the first call.
    """
    return Client(choose(server, token, pin, ca_file), reconnect_s=reconnect_s, follow_s=follow_s)


def local(*, binary: Optional[str] = None) -> Client:
    """A client for the own daemon, whatever else is configured. It is started when it does not answer, by the
    `gpulayer` program that came with this package, the one in PATH, or `binary`."""
    return Client(choose("local"), binary=binary, reconnect_s=RECONNECT_S, follow_s=FOLLOW_S)
