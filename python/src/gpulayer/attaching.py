"""`client.attach`: a job that was submitted before, or elsewhere, as what it is: a command's, a function's, a map."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union, cast, get_origin, overload

from . import background, routes
from .errors import ConfigurationError, NotFoundError, refusal
from .function_job import FunctionJob
from .job_handle import Job
from .maps import Map

if TYPE_CHECKING:
    from .client import Client

#: What a job may be. Which one it is, is known from its record.
AnyJob = Union[Job, FunctionJob[Any], Map[Any]]
J = TypeVar("J", bound=Job)

_ID = re.compile(r"job_[0-9a-z]{26}")
#: How many jobs an ambiguous word is shown with.
_SHOWN = 5
_LONGEST_NAME_BYTES = 255
_SHOWN_CHARACTERS = 60
#: Halves of characters, which no UTF-8 has.
_HALVES = re.compile("[\ud800-\udfff]")


def _word(given: object) -> str:
    """As it is shown in messages and tables, if anything can have that name."""
    text = given.lstrip("…") if isinstance(given, str) else ""
    if 0 < len(text.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME_BYTES and not _HALVES.search(text):
        return text
    shown = repr(given) if len(repr(given)) <= _SHOWN_CHARACTERS else f"{repr(given)[:_SHOWN_CHARACTERS]}…"
    raise ConfigurationError(
        f"attach({shown}): a job is found by its id or the end of it, its name (a text of 1 to {_LONGEST_NAME_BYTES} bytes "
        "of UTF-8), or `@last`"
    )


class Attach:
    """Finds a job: `attach(job)`, `await attach.aio(job)`. Without a client it asks the default server."""

    def __init__(self, client: Optional[Client] = None) -> None:
        self._client = client

    @overload
    def __call__(self, job: str) -> AnyJob: ...
    @overload
    def __call__(self, job: str, kind: type[J]) -> J: ...
    def __call__(self, job: str, kind: Optional[type[J]] = None) -> Any:
        """The job with this id, whoever submitted it from where; `wait` and `logs` go on with it. As in a shell it may
        be said shorter: by the end of its id (`7kq2ab` or `…7kq2ab`), its name (the newest one), or `@last`.

        `kind`: what it must be, for who reads the types: with `attach(id, gl.Map)` it is a `Map`, or an error.
        """
        __tracebackhide__ = True
        return background.run(self._found(self._asked(), job, kind))

    @overload
    async def aio(self, job: str) -> AnyJob: ...
    @overload
    async def aio(self, job: str, kind: type[J]) -> J: ...
    async def aio(self, job: str, kind: Optional[type[J]] = None) -> Any:
        """The same, awaited; on any asyncio loop."""
        return await background.join(self._found(self._asked(), job, kind))

    def _asked(self) -> Client:
        from .default import default_client

        return default_client() if self._client is None else self._client

    async def _found(self, client: Client, given: str, kind: Optional[type[J]]) -> Job:
        job = await self._meant(client, given)
        wanted = cast("type[Job]", get_origin(kind) or kind or Job)
        if not isinstance(job, wanted):
            raise ConfigurationError(f"{job.noun} {job} is a {type(job).__name__}, and no {wanted.__name__}")
        return job

    async def _meant(self, client: Client, given: str) -> Job:
        text = _word(given)
        if not _ID.fullmatch(text):
            several = await client.listed(_SHOWN, match=text)
            # A name is that of its newest job, and lists are newest first.
            if several and (len(several) == 1 or all(job.name == text for job in several)):
                return several[0]
            if several:
                known = ", ".join(map(str, several))
                raise ConfigurationError(f"{given!r} may be any of {known}: give more of the id")
        try:
            return client.job_of(await client.session.call(routes.JOB, {"job_id": text}))
        except NotFoundError as refused:
            if _ID.fullmatch(text):
                raise
            detail = "there is no job yet" if text == "@last" else f"no job is named {given!r}, and no id ends like that"
            raise refusal({**refused.problem, "detail": detail}) from None

    def __repr__(self) -> str:
        return f"<attach of {'the default server' if self._client is None else self._client}>"
