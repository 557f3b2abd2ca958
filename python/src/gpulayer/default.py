"""The server that is meant when none is named: the one that the command line would speak with. Chosen with the first
use and kept, so that a long notebook does not change its server in the middle."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, Optional

from .attaching import Attach
from .both import P, R, both
from .client import Client, connect
from .errors import ConfigurationError
from .server_choice import choose

if TYPE_CHECKING:
    import inspect

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


class AtDefault(Generic[P, R]):
    """A method of the client that is meant when none is named, in both forms."""

    def __init__(self, method: both[Client, P, R]) -> None:
        self._method = method
        self.__name__ = self.__qualname__ = method.name
        self.__module__ = __name__
        self.__doc__ = method.__doc__

    @property
    def __signature__(self) -> Optional[inspect.Signature]:
        """That of the method, without its client."""
        return self._method.signature

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        return self._method.__get__(default_client())(*args, **kwargs)

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, awaited; on any asyncio loop."""
        __tracebackhide__ = True
        return await self._method.__get__(default_client()).aio(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<{self.__name__} at the default server>"


submit = AtDefault(Client.submit)
submit_all = AtDefault(Client.submit_all)
attach = Attach()
jobs = AtDefault(Client.jobs)
explain = AtDefault(Client.explain)
