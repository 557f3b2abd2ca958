"""Words of `command` of a type that no spec can be made of: which, and how they are written. What they say is the
server's to judge."""

from __future__ import annotations

import math
import operator
import os
import re
from datetime import timedelta
from typing import Any, Callable, Mapping, Union

from .errors import ConfigurationError
from .quantities import span_s


def _is_text(given: Any) -> bool:
    return isinstance(given, str)


def _is_mapping(given: Any) -> bool:
    return isinstance(given, Mapping)


def _is_listed(given: Any, *kinds: type) -> bool:
    """Whether it is several of these kinds."""
    return isinstance(given, (list, tuple, set, frozenset)) and all(isinstance(each, kinds) for each in given)


def _is_named(given: Any) -> bool:
    if not isinstance(given, Mapping):
        return False
    return all(_is_place(each) or isinstance(each, (Mapping, tuple)) for each in given.values())


def _is_iterable(given: Any) -> bool:
    return hasattr(given, "__iter__")


def _is_count(given: Any) -> bool:
    # As of numpy too.
    return hasattr(type(given), "__index__") and not isinstance(given, bool)


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float)) or hasattr(type(given), "__index__") or hasattr(type(given), "__float__")


def _is_size(given: Any) -> bool:
    return _is_text(given) or (_is_number(given) and not isinstance(given, bool))


def _is_span(given: Any) -> bool:
    return _is_size(given) or isinstance(given, timedelta)


def _is_place(given: Any) -> bool:
    return isinstance(given, (str, os.PathLike)) and is_path(given)


_HALVES = "it has bytes that are not UTF-8, or half a character"
_KEY = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
#: How much of something wrong an error shows, in characters.
_SHOWN = 60
#: Whether it can be made something of, and how it is written.
_WORDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "argv": (_is_iterable, 'a list of words: argv=["python", "train.py"]'),
    **{word: (_is_text, f'a text: {word}="…"') for word in ("name", "project", "profile", "target", "shell")},
    **{word: (_is_span, f'a duration: {word}="90m", seconds, or a timedelta') for word in ("timeout", "queue_timeout", "grace")},
    **{word: (_is_size, f'a size: {word}="16GiB", or bytes') for word in ("memory", "disk", "gpu_memory")},
    "stop_signal": (_is_text, 'the name of a signal: stop_signal="SIGINT"'),
    "cwd": (_is_place, 'a path in the workspace: cwd="src"'),
    "source": (_is_place, 'a folder, or the address of a bundle: source="."'),
    "priority": (_is_count, "a whole number: priority=5"),
    "cpus": (lambda cpus: _is_size(cpus) and not _is_text(cpus), "a number: cpus=2, or cpus=0.5"),
    "gpus": (
        lambda gpus: _is_count(gpus) or _is_text(gpus) or _is_mapping(gpus),
        'a whole number, or which: gpus=1, gpus="all", gpus="H100:2"',
    ),
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
    raise ConfigurationError(
        f"key={shown(key)} cannot be used: key is a text of 1 to 255 ASCII characters without control characters, and without "
        'spaces at its ends: key="nightly-2026-11-30"'
    )


def check(words: Mapping[str, Any]) -> None:
    """Complains of the first word that nothing can be made of."""
    for word, (is_right, written) in _WORDS.items():
        given = words.get(word)
        if given is not None and not is_right(given):
            raise ConfigurationError(f"{word}={shown(given)} cannot be used: {word} is {written}")


def shown(given: Any) -> str:
    """Something wrong, in an error."""
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plain(given: Any, where: str = "") -> Any:
    """As JSON has it: numbers of numpy, paths and durations as numbers and texts. `where` says in an error what it is."""
    if given is None or type(given) in (int, bool):
        return given
    if isinstance(given, float) and math.isfinite(given):
        return float(given)
    if isinstance(given, str):
        if not is_whole(given):
            raise ConfigurationError(f"{where}={shown(given)} cannot be sent: {_HALVES}")
        return str(given)
    if isinstance(given, Mapping):
        return {_key(key, where): plain(each, f"{where}[{key!r}]" if where else str(key)) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [plain(each, f"{where}[{at}]") for at, each in enumerate(given)]
    if isinstance(given, os.PathLike):
        return os.fsdecode(given)
    if isinstance(given, timedelta):
        return span_s(given)
    what = "it is no number that there is"
    if not isinstance(given, float):
        what = f"{type(given).__name__} is neither text nor a number"
        try:
            # A scalar of numpy or torch, or what counts as a whole number.
            return plain(given.item(), where) if getattr(given, "shape", None) == () else operator.index(given)
        except (TypeError, AttributeError):
            pass
    raise ConfigurationError(f"{where}={shown(given)} cannot be sent: {what}")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise ConfigurationError(f"{where} has the key {key!r}, and names are text")
    if not is_whole(key):
        raise ConfigurationError(f"{where or 'a job'} has the key {key!r}: {_HALVES}")
    return key


def is_path(given: Union[str, "os.PathLike[Any]"]) -> bool:
    """Whether a file of this machine may have this name."""
    try:
        return b"\0" not in os.fsencode(given)
    except UnicodeEncodeError:
        return False


def is_whole(text: str) -> bool:
    """Whether it can be written as UTF-8. Python has halves of characters for bytes of a name or a variable that are not."""
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False
