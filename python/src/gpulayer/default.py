"""The server that is meant when none is named: the one that the command line would speak with. Chosen with the first
use and kept, so that a long notebook does not change its server in the middle."""

from __future__ import annotations

import os
import threading
from typing import Any, Iterable, Optional, overload

from .attaching import AnyJob, J
from .client import AnySpec, Client, connect
from .errors import ConfigurationError
from .job_handle import Job
from .records import Explanation
from .server_choice import choose

_lock = threading.Lock()
_client: Optional[Client] = None


def _after_fork() -> None:
    global _lock
    # Another thread of the parent may have held it, and there is none here that would let it go.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def default_client() -> Client:
    """The client that the functions of this module use."""
    global _client
    with _lock:
        if _client is None or _client.session.closed:
            _client = connect()
        return _client


def use(client: Client) -> None:
    """From now on this client is meant when none is named."""
    global _client
    with _lock:
        _client = client


def is_default(client: Client) -> bool:
    """Whether a client is the one that is meant when none is named, or would be."""
    with _lock:
        if _client is not None:
            return client is _client
    try:
        return choose(None).target.endpoint == client.endpoint
    except ConfigurationError:
        # What is configured can be used by nobody.
        return False


def submit(spec: AnySpec, *, key: Optional[str] = None, refuse_impossible: bool = False) -> Job:
    """`Client.submit` at the default server."""
    __tracebackhide__ = True
    return default_client().submit(spec, key=key, refuse_impossible=refuse_impossible)


def submit_all(specs: Iterable[AnySpec], *, key: Optional[str] = None) -> list[Job]:
    """`Client.submit_all` at the default server."""
    __tracebackhide__ = True
    return default_client().submit_all(specs, key=key)


@overload
def attach(job: str) -> AnyJob: ...
@overload
def attach(job: str, kind: type[J]) -> J: ...
def attach(job: str, kind: Optional[type[J]] = None) -> Any:
    """`Client.attach` at the default server."""
    __tracebackhide__ = True
    return default_client().attach(job, Job if kind is None else kind)


def jobs(limit: int = 50, **filters: Any) -> list[Job]:
    """`Client.jobs` at the default server."""
    __tracebackhide__ = True
    return default_client().jobs(limit, **filters)


def explain(spec: AnySpec) -> Explanation:
    """`Client.explain` at the default server."""
    __tracebackhide__ = True
    return default_client().explain(spec)
