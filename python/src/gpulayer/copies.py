"""Clients, and what belongs to one, in pickles and copies. A pickle carries where the server is and the key it must
have, and never a token: in another process it is found as `connect` finds it, by the variables and the saved servers
there. In the same process, and after a fork, it is the same client."""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .endpoint import Target
from .server_choice import LOCAL, Choice, choose

if TYPE_CHECKING:
    from .client import Client

_lock = threading.Lock()
_by_mark: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()
_mark_of: weakref.WeakKeyDictionary[Client, str] = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    global _lock
    # Another thread of the parent may have held it, and there is none here that would let it go.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def reduced(client: Client, target: Target, **words: Any) -> tuple[Any, ...]:
    """What a pickle holds of a client: where it leads, how it is made anew with `words`, and a mark by which the same
    one is found while somebody refers to it."""
    with _lock:
        mark = _mark_of.setdefault(client, secrets.token_hex(8))
        _by_mark[mark] = client
    return _again, (mark, type(client), replace(target, token=None), words)


def _again(mark: str, kind: type[Client], target: Target, words: dict[str, Any]) -> Client:
    with _lock:
        there = _by_mark.get(mark)
    if there is not None:
        return there
    made = kind(_chosen(target), **words)
    with _lock:
        # What else comes out of the same pickle, or goes back, is the same.
        client = _by_mark.setdefault(mark, made)
        _mark_of[client] = mark
        return client


def _chosen(target: Target) -> Choice:
    own = choose(LOCAL)
    if own.target.endpoint == target.endpoint:
        return own
    choice = choose(str(target.endpoint))
    if choice.target.pins or choice.target.ca_file is not None:
        return choice
    return replace(choice, target=replace(choice.target, pins=target.pins, ca_file=target.ca_file))
