"""How things stand, in one line: on a terminal, or in a notebook's cell; nothing anywhere else."""

from __future__ import annotations

import os
import sys
import time
from typing import Optional, Protocol

from . import notebook

#: What is over sooner says nothing, unless it was told to.
_FIRST_AFTER_S = 0.2
_AGAIN_AFTER_S = 0.25


class Surface(Protocol):
    """Where a line can be written over."""

    #: Whether what others write meanwhile stands elsewhere.
    is_apart: bool

    def write(self, text: str, share: Optional[float]) -> None:
        """Shows a text, with a bar of what is done if there is a share, in place of the last one."""

    def wipe(self) -> None:
        """Leaves nothing."""


class Line:
    """A line that is written over, and gone at the end. `wanted`: `None` = on a terminal and in a notebook only."""

    def __init__(self, wanted: Optional[bool] = None) -> None:
        self._surface = None if wanted is False else _surface(wanted is True)
        self._next_at = time.monotonic() + (0.0 if wanted else _FIRST_AFTER_S)
        self._is_shown = False

    @property
    def on(self) -> bool:
        """Whether anything is shown."""
        return self._surface is not None

    @property
    def is_due(self) -> bool:
        """Whether `show` shows something."""
        return self._surface is not None and time.monotonic() >= self._next_at

    @property
    def again_s(self) -> float:
        """When it is worth while to come with something new."""
        return 1.0 if self._is_shown else _FIRST_AFTER_S

    def show(self, text: str, share: Optional[float] = None) -> None:
        """Shows a text in place of the last one, as often as somebody can read it. `share` of what is to do, 0 to 1."""
        if self._surface is None or not self.is_due:
            return
        self._next_at = time.monotonic() + _AGAIN_AFTER_S
        self._is_shown = True
        self._surface.write("".join(letter if letter.isprintable() else "?" for letter in text), share)

    def rest(self) -> None:
        """Makes room for what the caller may write now. The next `show` is told as the first was: not if it is soon."""
        if self._surface is not None and not self._surface.is_apart:
            self.clear()
            self._next_at = max(self._next_at, time.monotonic() + _FIRST_AFTER_S)

    def clear(self) -> None:
        """Takes the line away."""
        if self._is_shown and self._surface is not None:
            self._is_shown = False
            self._surface.wipe()


class Bar:
    """A line with how much of something is done."""

    def __init__(self, what: str, total: int, wanted: Optional[bool] = None) -> None:
        self._line = Line(wanted)
        self._what = what
        self._total = total
        self._done = 0

    def add(self, done: int) -> None:
        """So much more is done."""
        self._done += done
        self._line.show(self._what, min(1.0, self._done / self._total) if self._total else 1.0)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()


class _StandardError:
    is_apart = False

    def write(self, text: str, share: Optional[float]) -> None:
        bar = ""
        if share is not None:
            filled = int(share * 20)
            bar = f"  {'█' * filled}{'░' * (20 - filled)} {share:4.0%}"
        # Whatever room the bar leaves.
        sys.stderr.write("\r\x1b[2K" + text[: max(_width() - 1 - len(bar), 0)] + bar)
        sys.stderr.flush()

    def wipe(self) -> None:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def _surface(wanted: bool) -> Optional[Surface]:
    cell = notebook.cell()
    if cell is not None:
        return cell
    if sys.stderr is None or not (wanted or sys.stderr.isatty()):
        return None
    return _StandardError()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
