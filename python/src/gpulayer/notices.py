"""What a server accepted and took for a mistake, as Python warnings: where the call stands that was warned of, though it
is carried out in another thread."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Iterable

from .errors import GPUlayerWarning

if TYPE_CHECKING:
    from .job_handle import Job

#: What a folder is sent without. It always is, and whoever misses one of those files is told then.
_LEFT_OUT = "/source"
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Place:
    """Where in the caller's program something was called."""

    def __init__(self, file: str, line: int, module: str, seen: dict[Any, Any]) -> None:
        self._file, self._line, self._module, self._seen = file, line, module, seen

    def say(self, text: str) -> None:
        """Warns, as often as the filters of `warnings` want it: by default once for a line and a text."""
        warnings.warn_explicit(text, GPUlayerWarning, self._file, self._line, self._module, self._seen)

    async def warn(self, jobs: Iterable[Job], keep: bool = False) -> None:
        """Says what was warned of. Where warnings are errors nobody gets to have the jobs: they are cancelled, unless
        they are to be kept."""
        jobs = list(jobs)
        try:
            for job in jobs:
                for warning in job.record.warnings:
                    if warning.pointer != _LEFT_OUT:
                        self.say(f"{job.name or job.noun}: {warning.pointer}: {warning.detail}")
        except GPUlayerWarning:
            for job in [] if keep else jobs:
                await job.cancel.aio()
            raise


def here() -> Place:
    """The innermost place outside of this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    names = frame.f_globals
    seen = names.setdefault("__warningregistry__", {})
    return Place(frame.f_code.co_filename, frame.f_lineno, str(names.get("__name__", "")), seen)
