"""One line on a terminal that says how things stand; nothing anywhere else."""

from __future__ import annotations

import os
import sys
import time
from typing import Optional

_AGAIN_AFTER_S = 0.1


class Line:
    """A line on standard error that is written over, and gone at the end. `wanted`: `None` = on a terminal only."""

    def __init__(self, wanted: Optional[bool] = None) -> None:
        #: Whether anything is shown.
        self.on = sys.stderr is not None and sys.stderr.isatty() if wanted is None else wanted
        self._shown_at = 0.0
        self._is_shown = False

    def show(self, text: str) -> None:
        """Shows a text in place of the last one, as often as somebody can read it."""
        now = time.monotonic()
        if not self.on or now - self._shown_at < _AGAIN_AFTER_S:
            return
        self._shown_at = now
        self._is_shown = True
        width = _width()
        printable = "".join(letter if letter.isprintable() else "?" for letter in text)
        sys.stderr.write("\r\x1b[2K" + printable[: width - 1])
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


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
        share = min(1.0, self._done / self._total) if self._total else 1.0
        filled = int(share * 20)
        self._line.show(f"{self._what}  {'█' * filled}{'░' * (20 - filled)} {share:4.0%}")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
