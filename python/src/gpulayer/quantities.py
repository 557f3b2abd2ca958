"""Sizes and durations as people write them. The wire takes only numbers.

Sizes: `KB MB GB TB PB` and the bare `K M G T P` are powers of 1000, `KiB MiB …` and `Ki Mi …` powers of 1024, in any
case; without a unit, or with `B`, bytes. Durations: `ms s m h d w` (and `min`), joined from large to small as in
`1h30m`; without a unit, seconds; or a `timedelta`. Both take decimals.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Optional, Union

from .errors import ConfigurationError

Size = Union[int, str]
Span = Union[int, float, str, timedelta]

_MAX_BYTES = 1 << 53
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE | re.ASCII)
_PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_MILLIS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "min": 60_000, "m": 60_000, "s": 1_000, "ms": 1}


#: Decimals are counted in whole parts of this, so that nothing is rounded.
_ATTO = 10**18


def size_bytes(given: Size, what: str = "size") -> int:
    """`16GiB`, `80GB` or a number, in bytes; a fraction of a byte is dropped."""
    if not isinstance(given, str):
        return given
    found = _SIZE.fullmatch(given)
    if found is None or (found.group(3) and not found.group(2)):
        raise ConfigurationError(
            f"{what}={given!r} is not a size; write bytes as a number, or such as 80GB, 16GiB, 512M"
        )
    power = " kmgtp".index(found.group(2).lower() or " ")
    unit: int = (1024 if found.group(3) else 1000) ** power
    size = _atto(found.group(1)) * unit // _ATTO
    if size > _MAX_BYTES:
        raise ConfigurationError(f"{what}={given!r} is too large; sizes go up to 8 PiB")
    return size


def span_s(given: Span, what: str = "duration") -> float:
    """`90m`, `1h30m`, `250ms`, a `timedelta` or a number, in seconds; a fraction of a millisecond is dropped."""
    if isinstance(given, timedelta):
        return _seconds(given // timedelta(milliseconds=1))
    if not isinstance(given, str):
        return given
    fault = ConfigurationError(
        f"{what}={given!r} is not a duration; write seconds as a number, or such as 90m, 1h30m, 250ms, 2d"
    )
    rest, above, millis = given.strip(), None, 0
    while rest or above is None:
        found = _PART.match(rest)
        if found is None:
            raise fault
        word = found.group(2).lower()
        if not word and above is None and found.end() == len(rest):
            word = "s"
        unit = _MILLIS.get(word)
        if unit is None or (above is not None and unit >= above):
            raise fault
        millis += _atto(found.group(1)) * unit
        rest, above = rest[found.end() :], unit
    return _seconds(millis // _ATTO)


def patience_s(given: Optional[Span]) -> Optional[float]:
    """The `timeout` of waiting, in seconds; `None` = without end."""
    if given is None:
        return None
    if not isinstance(given, (str, timedelta)) and (isinstance(given, bool) or not hasattr(given, "__float__")):
        raise ConfigurationError(
            f"timeout={given!r} is not a duration; write seconds as a number, or such as 90m, 1h30m, 250ms, or a timedelta"
        )
    return float(span_s(given, "timeout"))


def _seconds(millis: int) -> float:
    return millis // 1000 if millis % 1000 == 0 else millis / 1000


def _atto(number: str) -> int:
    """A decimal number of up to 18 places, exactly."""
    whole, _, places = number.partition(".")
    return int((whole or "0") + places.ljust(18, "0"))


def shown_size(size: int) -> str:
    """`1.2 MB`, for people."""
    if size < 1000:
        return f"{size} B"
    value, units = size / 1000, ["kB", "MB", "GB", "TB", "PB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f} {units[0]}"


def shown_span(seconds: float) -> str:
    """`1h05m`, `2m10s`, `3.2s`, `23ms`, for people."""
    if 0 < seconds < 0.9995:
        return f"{max(round(seconds * 1000), 1)}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
