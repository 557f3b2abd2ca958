"""How things stand, in a notebook: an output of the cell that is written over, and empty at the end. Nothing is
imported that the kernel has not imported itself."""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from typing import Any, Optional


class Cell:
    """An output of the cell that runs."""

    is_apart = True

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def write(self, text: str, share: Optional[float]) -> None:
        """Shows a text, with a bar of what is done if there is a share, in place of the last one."""
        bar = "" if share is None else f'<progress max="1" value="{share:.3f}"></progress> {share:.0%} '
        self._show({"text/plain": text, "text/html": f"<div>{bar}{escape(text)}</div>"})

    def wipe(self) -> None:
        """Leaves nothing."""
        self._show({"text/plain": "", "text/html": ""})

    def _show(self, forms: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = self._display(forms, raw=True, display_id=True)
        else:
            self._handle.update(forms, raw=True)


def cell() -> Optional[Cell]:
    """Where this runs in a notebook's kernel, an output of its cell."""
    return Cell(import_module("IPython.display").display) if in_kernel() else None


def in_kernel() -> bool:
    """Whether this runs in a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
