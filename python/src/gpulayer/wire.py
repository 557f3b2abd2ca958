"""Reads JSON into dataclasses by their type hints. A field that a newer server sends and this version does not know
is left out; one that it has no value for takes the dataclass's default."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from datetime import datetime, timezone
from typing import Annotated, Any, Callable, Iterable, Mapping, TypeVar, Union

from .errors import UnexpectedAnswerError

T = TypeVar("T")
_Convert = Callable[[Any], Any]
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|\+00:00)")


def time(text: str) -> datetime:
    """An RFC 3339 time in UTC, as every answer has them; to the microsecond."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time in UTC")
    whole, fraction = found.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return datetime.fromisoformat(whole).replace(microsecond=micros, tzinfo=timezone.utc)


def read(kind: type[T], wire: Mapping[str, Any]) -> T:
    """One object; `UnexpectedAnswerError` when it does not have the expected shape."""
    plan = _plan(kind)  # type: ignore[arg-type]
    try:
        return kind(**{name: convert(wire[name]) for name, convert in plan if name in wire})
    except (TypeError, ValueError, LookupError, AttributeError) as fault:
        raise UnexpectedAnswerError(f"what was answered as {kind.__name__} has another shape: {fault}") from None


def read_all(kind: type[T], wire: Iterable[Mapping[str, Any]]) -> tuple[T, ...]:
    """A list of objects."""
    return tuple(read(kind, item) for item in wire)


@functools.lru_cache(maxsize=256)
def _plan(kind: type[Any]) -> tuple[tuple[str, _Convert], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, _converter(hints[field.name])) for field in dataclasses.fields(kind))


def _converter(hint: Any) -> _Convert:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        convert: _Convert = hint.__metadata__[0]
        return convert
    if hint is datetime:
        return time
    if origin is Union:
        inner = _converter(next(each for each in arguments if each is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        inner = _converter(arguments[0])
        return lambda value: tuple(inner(item) for item in value or ())
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(read, hint)
    return lambda value: value
