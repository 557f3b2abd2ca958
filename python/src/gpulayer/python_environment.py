"""The words about a job's Python environment. What they may say is the server's to judge."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from .errors import ConfigurationError

Requirements = Union[str, "os.PathLike[str]", Sequence[str]]

_NAMED = re.compile(r"(?:-r|--requirement)[=\s]*(.+)")
# A file that names itself has no end; the worker's uv says so of what is deeper.
_DEEPEST = 8


def python_field(
    python: Union[str, Mapping[str, Any], None], requirements: Optional[Requirements]
) -> Optional[dict[str, Any]]:
    """The field `python` of a spec: `python` is an interpreter (a version, or a path on the worker) or the field itself,
    `requirements` are lines, or the path of a file with some."""
    field = {"interpreter": python} if isinstance(python, str) else dict(python or {})
    if requirements is None:
        return field or None
    if isinstance(requirements, (str, os.PathLike)):
        lines = _lines(Path(requirements), 0)
    else:
        lines = [str(line) for line in requirements]
    return {**field, "requirements": lines}


def _lines(path: Path, depth: int) -> list[str]:
    """As the command line reads them: with those of the files that are named by `-r`, beside the one that names them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        is_a_path = os.sep in str(path) or path.suffix in (".txt", ".in", ".lock")
        hint = "" if depth or is_a_path else f"; lines are given as a list: requirements=[{str(path)!r}]"
        raise ConfigurationError(f"requirements: {path} cannot be read: {fault}{hint}") from fault
    lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        named = _NAMED.fullmatch(line)
        if named and "://" not in line and depth < _DEEPEST:
            lines += _lines(path.parent / named[1].split(" #")[0].rstrip(), depth + 1)
        else:
            lines.append(line)
    return lines
