"""The file in which the programs of one task say how far it is (docs/CONTRACT.md, "Progress and checkpoints"). Several
processes write it, each its own part: what another said stays, and counts only grow. The standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Iterator, Mapping, Optional

#: Whoever holds it writes some bytes. One that was stopped in the middle must not stop the others.
_PATIENCE_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.01
#: What the worker reads: of more it would read nothing.
_MOST_BYTES = 16 << 10
#: So that all else has room beside them.
MOST_METRICS_BYTES = 15 << 10
_FIELDS = ("done", "total", "step", "checkpoint")


def add(path: str, news: Mapping[str, Any], counts: Mapping[str, int], before: Mapping[str, Any]) -> dict[str, Any]:
    """Puts news into the file, and adds to counts; what it says now. `before`: what this process read there last,
    which counts when the file cannot be read. `OSError` when it cannot be written."""
    with _alone(path):
        found = _read(path)
        said = {**(before if found is None else found), **news}
        for name, more in counts.items():
            said[name] = max(_count(before.get(name)), _count((found or {}).get(name))) + more
        _write(path, said)
    return said


def fitting(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that the file has room for, the first ones first."""
    if len(json.dumps(metrics)) <= MOST_METRICS_BYTES:
        return dict(metrics)
    kept: dict[str, Any] = {}
    left = MOST_METRICS_BYTES - len("{}")
    for name, value in metrics.items():
        left -= len(json.dumps({name: value}))
        if left < 0:
            break
        kept[name] = value
    return kept


def _count(found: Any) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _read(path: str) -> Optional[dict[str, Any]]:
    """What it says; `None` when it is not there, or when that cannot be told."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(4 * _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: str, said: Mapping[str, Any]) -> None:
    text = json.dumps(said, allow_nan=False)
    if len(text) > _MOST_BYTES:
        # By what a program wrote there that is not ours.
        text = json.dumps({name: said[name] for name in _FIELDS if name in said}, allow_nan=False)
    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Holds the file, and whoever replaces it does so while holding it. Where there are no locks, and when another keeps
    it for too long, nobody is waited for: a word may be lost, and the program goes on."""
    deadline, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S
    held: Optional[int] = None
    try:
        while time.monotonic() < deadline:
            try:
                held = _held(path)
                break
            except BlockingIOError:
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            except OSError:
                break
        yield
    finally:
        if held is not None:
            _let_go(held)


def _held(path: str) -> int:
    import fcntl

    there = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(there), os.stat(path)):
            return there
        raise BlockingIOError("it was replaced meanwhile: the lock of the one before it is worth nothing")
    except BaseException:
        os.close(there)
        raise


def _let_go(held: int) -> None:
    import fcntl

    # By itself: a child that another thread forked meanwhile has the file open as well.
    with contextlib.suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_UN)
    os.close(held)
