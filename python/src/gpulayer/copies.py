"""Clients, and what belongs to one, in pickles and copies. A pickle carries where the server is and the key it must
have, and never a token: in another process it is found as `connect` finds it, by the variables and the saved servers
there. In the same process, and after a fork, it is the same client."""

from __future__ import annotations

import secrets
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable

from .endpoint import Target
from .server_choice import LOCAL, Choice, choose

if TYPE_CHECKING:
    from .client import Client

_lock = threading.Lock()
_known: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()


def known(client: Client) -> str:
    """Remembers a client as long as somebody refers to it; the mark that it is found by."""
    mark = secrets.token_hex(8)
    with _lock:
        _known[mark] = client
    return mark


def reduced(mark: str, make: Callable[..., Client], target: Target, **words: Any) -> tuple[Any, ...]:
    """What a pickle holds of a client. `make(choice, **words)` makes it anew."""
    return _again, (mark, make, replace(target, token=None), words)


def _again(mark: str, make: Callable[..., Client], target: Target, words: dict[str, Any]) -> Client:
    with _lock:
        there = _known.get(mark)
    if there is not None:
        return there
    made = make(_chosen(target), **words)
    with _lock:
        # What else comes out of the same pickle shares it.
        return _known.setdefault(mark, made)


def _chosen(target: Target) -> Choice:
    own = choose(LOCAL)
    if own.target.endpoint == target.endpoint:
        return own
    choice = choose(str(target.endpoint))
    if choice.target.pins or choice.target.ca_file is not None:
        return choice
    return replace(choice, target=replace(choice.target, pins=target.pins, ca_file=target.ca_file))
