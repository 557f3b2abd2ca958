"""Projects that were sent as bundles, and whether they still are as they were. Nothing is read to know that: names, times,
sizes. What of a folder travels is decided by who makes the bundle (`folders`); what it leaves out may change as it likes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import Optional

from . import folders, places
from .errors import ConfigurationError
from .notices import Place
from .session import Session
from .source import Source

_LOG = logging.getLogger("gpulayer")

#: For how long it is believed that the server still has what it was sent: it keeps it for a day.
BELIEVED_S = 3600.0
#: A tree of so many files and folders is looked at before each call.
_ALWAYS = 2000
#: A larger one when so many times as long has passed as the last look took.
_REST = 20
#: A look that took longer, as on a network file system, is not taken on the loop that all calls share.
_QUICK_S = 0.01
#: As many names are looked at while it is not known which folders stay behind anyway.
_FIRST_LOOK = 20_000
#: A file that changed so often between two calls is named: each time the whole project was sent for it.
_OFTEN = 10

_VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj"})
_CACHES = frozenset(
    {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".venv", ".gpulayer"}
)
_ENVIRONMENT = frozenset({"pyvenv.cfg", "conda-meta"})
#: What decides which files travel is looked at even where it does not travel itself.
_RULES = frozenset({".gitignore", ".gpulayerignore"})

#: Changed, modified (nanoseconds since 1970), size in bytes, inode, mode.
_Stat = tuple[int, int, int, int, int]


@dataclass
class Tree:
    """How a folder looked: what lies in it, by path, without what is `left_out`."""

    root: str
    files: dict[str, _Stat] = field(default_factory=lambda: {})
    #: Above what is in them.
    folders: dict[str, _Stat] = field(default_factory=lambda: {})

    def is_as_it_was(self) -> bool:
        """Whether all of it still stands as it did, and nothing came to it."""
        look = os.lstat
        try:
            for path, known in chain(self.folders.items(), self.files.items()):
                now = look(path)
                if (now.st_ctime_ns, now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode) != known:
                    return False
        except OSError:
            return False
        return True

    def changed_since(self, before: Tree) -> list[str]:
        """The paths that came, went or changed."""
        came = [path for path, stat in self.files.items() if before.files.get(path) != stat]
        went = [path for path in before.files if path not in self.files]
        return came + went + list(self.folders.keys() ^ before.folders.keys())

    def without(self, left_out: frozenset[str]) -> Tree:
        """The same, when it is known what stays behind."""
        kept: dict[str, _Stat] = {}
        for path, stat in self.folders.items():
            if path == self.root or (os.path.dirname(path) in kept and path not in left_out):
                kept[path] = stat
        files = {path: stat for path, stat in self.files.items() if os.path.dirname(path) in kept}
        return Tree(self.root, {path: stat for path, stat in files.items() if path not in left_out}, kept)


def tree(root: str, left_out: frozenset[str] = frozenset(), most: Optional[int] = None) -> Optional[Tree]:
    """Looks at a folder. `None`: there is more in it than `most`."""
    found = Tree(root)
    to_do = [root]
    while to_do:
        folder = to_do.pop()
        try:
            # Before it is listed, so that what comes meanwhile is seen the next time.
            found.folders[folder] = _stat(os.lstat(folder))
            with os.scandir(folder) as listed:
                entries = list(listed)
        except OSError:
            continue
        if folder != root and any(entry.name in _ENVIRONMENT for entry in entries):
            continue
        for entry in entries:
            name, path = entry.name, entry.path
            if name in _VERSION_CONTROL or (path in left_out and name not in _RULES):
                continue
            try:
                if not entry.is_dir(follow_symlinks=False):
                    found.files[path] = _stat(entry.stat(follow_symlinks=False))
                elif name not in _CACHES:
                    to_do.append(path)
            except OSError:
                continue
        if most is not None and len(found.files) + len(found.folders) > most:
            return None
    return found


def _stat(stat: os.stat_result) -> _Stat:
    return stat.st_ctime_ns, stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_mode


@dataclass
class _Sent:
    """A project at a server, and how it looked before it was sent."""

    bundle: folders.Bundle
    #: As `Source.seen`.
    seen: object
    tree: Tree
    #: What is known to stay behind: as the bundle's maker said, and as was found out.
    left_out: frozenset[str]
    #: When the bundle was ready: by the clock that files' times are read against, and by one that only goes on.
    ready_ns: int
    sent_at: float
    looked_at: float
    look_s: float = 0.0
    #: How often a file was the reason to send it again.
    reasons: dict[str, int] = field(default_factory=lambda: {})

    def is_large(self) -> bool:
        return len(self.tree.files) + len(self.tree.folders) > _ALWAYS

    def is_due(self) -> bool:
        return not self.is_large() or time.monotonic() >= self.looked_at + _REST * self.look_s

    def look(self) -> Optional[Tree]:
        """How it looks now, if that differs."""
        begin = time.monotonic()
        try:
            if self.tree.is_as_it_was():
                return None
            now = tree(self.tree.root, self.left_out)
            assert now is not None
            if now.changed_since(self.tree):
                return now
            # What came or went in a folder is none of the bundle's.
            self.tree = now
            return None
        finally:
            self.looked_at = time.monotonic()
            self.look_s = self.looked_at - begin


_sent: dict[tuple[str, str], _Sent] = {}


def forget(endpoint: str) -> None:
    """The server may have removed what it was sent."""
    for key in [each for each in _sent if each[0] == endpoint]:
        _sent.pop(key)


async def bundle_of(session: Session, project: Source, place: Place) -> folders.Bundle:
    """The project's bundle at the server. It is sent when it has not been, and again when something in it changed."""
    root, key = str(project.root), (str(session.target.endpoint), str(project.root))
    known = _sent.get(key)
    now: Optional[Tree] = None
    changed: list[str] = []
    stays = _own_folders()
    loop = asyncio.get_running_loop()
    if known is not None and time.monotonic() - known.sent_at < BELIEVED_S:
        if not known.is_due() and known.seen == project.seen:
            return known.bundle
        is_quick = not known.is_large() and known.look_s < _QUICK_S
        now = known.look() if is_quick else await loop.run_in_executor(None, known.look)
        if now is None:
            known.seen = project.seen
            return known.bundle
        changed = now.changed_since(known.tree)
        if any(os.path.basename(path) in _RULES for path in changed):
            # What stayed behind may not any more.
            known = None
        else:
            stays |= known.left_out
    else:
        known = None
    if known is None:
        now = await loop.run_in_executor(None, tree, root, stays, _FIRST_LOOK)
    made = await folders.send(session, root)
    stays |= _named(root, made)
    if now is None:
        # Too much to look at, unless most of it stays behind, which is known by now.
        now = await loop.run_in_executor(None, tree, root, stays)
        assert now is not None
        made = await folders.send(session, root)
    ready_ns, reasons = time.time_ns(), {}
    if known is not None and made.address == known.bundle.address:
        stays |= _does_not_count(changed, now, known)
    elif known is not None:
        reasons = _counted(root, changed, known, place)
    at = time.monotonic()
    _sent[key] = _Sent(made, project.seen, now.without(stays), stays, ready_ns, at, at, 0.0, reasons)
    return made


def _does_not_count(changed: list[str], now: Tree, known: _Sent) -> frozenset[str]:
    """Files that are new, or of another size, after which the bundle is what it was: they are not in it."""

    def stays_behind(path: str) -> bool:
        stat, before = now.files.get(path), known.tree.files.get(path)
        # What changed while the bundle was being made may be in it.
        return stat is not None and stat[0] > known.ready_ns and (before is None or before[2] != stat[2])

    return frozenset(filter(stays_behind, changed))


def _counted(root: str, changed: list[str], known: _Sent, place: Place) -> dict[str, int]:
    """Says which file makes the project travel again and again, once."""
    reasons = {path: known.reasons.get(path, 0) + 1 for path in changed}
    _LOG.info("%s is sent again: %s changed", root, ", ".join(sorted(changed)[:5]))
    often = [os.path.relpath(path, root) for path in sorted(reasons) if reasons[path] == _OFTEN]
    if often:
        place.say(
            f"the project {root} was sent again for each of {_OFTEN} calls, because {often[0]} changed before each: a line "
            f"/{often[0]} in {root}/.gpulayerignore leaves it out"
        )
    return reasons


def _named(root: str, made: folders.Bundle) -> frozenset[str]:
    """What the bundle's maker left out and will leave out: files that could not be read may be readable the next time."""
    paths = (str(each["path"]) for each in made.left_out if each["path"][-1:] == "/" or each["by"] != "the bundle")
    return frozenset(os.path.join(root, path.rstrip("/")) for path in paths)


def _own_folders() -> frozenset[str]:
    """GPUlayer's home and state, which never travel."""
    try:
        own = places.resolve(os.environ)
    except ConfigurationError:
        return frozenset()
    return frozenset(os.path.realpath(each) for each in (own.home, own.state))
