"""Words of `command` of a type that no spec can be made of: which, and how they are written. What they say is the
server's to judge."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Mapping

from .errors import ConfigurationError


def _is_text(given: Any) -> bool:
    return isinstance(given, str)


def _is_mapping(given: Any) -> bool:
    return isinstance(given, Mapping)


def _is_listed(given: Any, *kinds: type) -> bool:
    """Whether it is several of these kinds."""
    return isinstance(given, (list, tuple, set, frozenset)) and all(isinstance(each, kinds) for each in given)


def _is_named(given: Any) -> bool:
    places = (str, os.PathLike, Mapping, tuple)
    return isinstance(given, Mapping) and all(isinstance(each, places) for each in given.values())


def _is_iterable(given: Any) -> bool:
    return hasattr(given, "__iter__")


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


_KEY = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
#: How much of something wrong an error shows, in characters.
_SHOWN = 60
#: Whether it can be made something of, and how it is written.
_WORDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "argv": (_is_iterable, 'a list of words: argv=["python", "train.py"]'),
    "labels": (_is_mapping, 'a mapping: labels={"team": "vision"}'),
    "env": (_is_mapping, 'a mapping: env={"NAME": "value"}'),
    "secrets": (_is_mapping, 'a mapping of variables to secrets: secrets={"HF_TOKEN": "name:HF_TOKEN"}'),
    "frameworks": (_is_mapping, 'a mapping of packages to versions: frameworks={"torch": ">=2.3"}'),
    "on": (lambda on: _is_text(on) or _is_mapping(on), 'the name of a worker, or labels it must have: on={"zone": "attic"}'),
    "inputs": (
        lambda inputs: _is_named(inputs) or _is_listed(inputs, Mapping),
        'a mapping of paths in the workspace to what comes there: inputs={"data": "local/file"}',
    ),
    "outputs": (
        lambda outputs: _is_text(outputs) or _is_listed(outputs, str, Mapping),
        'a path, or a list of them: outputs=["model.pt"]',
    ),
    "python": (
        lambda python: _is_text(python) or _is_mapping(python),
        'a text, since as a number 3.10 would be 3.1: python="3.12"',
    ),
    "requirements": (
        lambda lines: isinstance(lines, os.PathLike) or _is_text(lines) or _is_listed(lines, str),
        'a list of lines, or a file with some: requirements=["torch==2.4"]',
    ),
    "after": (
        lambda after: _is_iterable(after) or hasattr(after, "id"),
        'a job, or a list of them: after=job, after=[job, (other, "ended")]',
    ),
    "array": (lambda array: _is_count(array) or _is_iterable(array), "a count, a range, or the items: array=100"),
    "retries": (_is_count, "a count: retries=2"),
    "retry_on": (_is_iterable, 'a list of reasons: retry_on=["worker_lost"]'),
}


def usable_key(key: Any) -> str:
    """An idempotency key, which travels in a header; `ConfigurationError` says what one may be."""
    if isinstance(key, str) and _KEY.fullmatch(key):
        return key
    shown = repr(key) if len(repr(key)) <= _SHOWN else f"{repr(key)[:_SHOWN]}…"
    raise ConfigurationError(
        f"key={shown} cannot be used: key is a text of 1 to 255 ASCII characters without control characters, and without "
        'spaces at its ends: key="nightly-2026-11-30"'
    )


def check(words: Mapping[str, Any]) -> None:
    """Complains of the first word that nothing can be made of."""
    for word, (is_right, written) in _WORDS.items():
        given = words.get(word)
        if given is not None and not is_right(given):
            raise ConfigurationError(f"{word}={given!r} cannot be used: {word} is {written}")
