"""The project that a function is from: which folder goes along as the job's source, and when. Modules that were
imported from below it are meant; what stands in `__main__` or a notebook travels with the call itself."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from .errors import ConfigurationError

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_MARKERS = (".git", "pyproject.toml", ".gpulayerignore")


@dataclass(frozen=True)
class Source:
    """A folder to be sent, and the folders in it that modules are searched in, relative to it."""

    root: Path
    paths: tuple[str, ...] = ()
    #: What it looked like, for the modules that are loaded: path, time in nanoseconds, size in bytes.
    seen: tuple[tuple[str, int, int], ...] = ()


def found(given: str = "auto") -> Optional[Source]:
    """`auto`: the project of the current folder, else of the program, if a module besides `__main__` was imported
    from it. A folder: that one. `none`: nothing."""
    if given == "none":
        return None
    if given != "auto":
        root = Path(given).resolve()
        if not root.is_dir():
            raise ConfigurationError(f"source={given!r} is no folder; give one, `auto`, `none` or a bundle's address")
        modules = _modules(root, _own())
        return Source(root, _paths(root, modules), tuple(_seen(modules)))
    own = _own()
    # Most calls are of programs in one file, and need no look at any folder.
    for start in _starts() if own else ():
        if start.is_file():
            inside = _modules(start, own)
            if inside:
                root = _unpacked(start)
                there = [(name, str(root / Path(real).relative_to(start))) for name, real in inside]
                return Source(root, _paths(root, there), tuple(_seen(there)))
            continue
        marked = root_above(start, _home())
        if marked is None and not _allowed(start, _home()):
            continue
        root = marked or start
        modules = _modules(root, own)
        paths = _paths(root, modules)
        # An unmarked folder is meant only when modules lie in it, and not somewhere below.
        if modules and (marked is not None or "." in paths):
            return Source(root, paths, tuple(_seen(modules)))
    return None


def root_above(folder: Path, home: Optional[Path]) -> Optional[Path]:
    """The nearest folder upwards with `.git`, `pyproject.toml` or `.gpulayerignore`; never `/`, the home or what
    holds it. As the command line's `--source auto`."""
    for each in (folder, *folder.parents):
        if not _allowed(each, home):
            return None
        if any(os.path.lexists(each / marker) for marker in _MARKERS):
            return each
    return None


def why_not_there(name: str, sent: Optional[str], is_auto: bool) -> Optional[str]:
    """Of a module that a job lacked and this process has from a file of the user's: why it did not travel. `sent`: the
    folder that did. `is_auto`: whether one is looked for when none is named."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or is_installed(file) or name.partition(".")[0] == "gpulayer":
        return None
    root = None if sent is None else Path(sent).resolve()
    if root is not None and root in Path(file).resolve().parents:
        place = Path(file).resolve().relative_to(root).as_posix()
        top = _above(name, Path(file).resolve())
        if not is_auto and top != root:
            return (
                f"{name} is {file} here, and what is called by name is looked for at the top of its source, {root}: "
                f"source={str(top)!r}"
            )
        return (
            f"{name} is {file} here, in the project that travels, {root}, but was left out of it, most likely by "
            f".gitignore or .gpulayerignore: a line !/{place} in {root}/.gpulayerignore brings it along"
        )
    if root is not None:
        return (
            f"{name} is {file} here, which is not below the project that travels, {root}: move it there, or name a "
            "folder that holds both, source=…"
        )
    if not is_auto or found() is not None:
        return f"{name} is {file} here, and no project travelled with this job: name the folder that holds it, source=…"
    return (
        f"{name} is {file} here, and no project travels: neither the current folder nor the program's, nor one above "
        "them, has .git, pyproject.toml or .gpulayerignore (your home folder does not count). Put one beside your "
        "modules, or name the folder, source=…"
    )


def is_installed(file: str) -> bool:
    """Whether a module's file is a package's or Python's own, and not the user's."""
    real = _real(file)
    return real is None or real.startswith(_installed())


def _allowed(folder: Path, home: Optional[Path]) -> bool:
    return folder.parent != folder and not (home is not None and (home == folder or folder in home.parents))


def _home() -> Optional[Path]:
    home = os.environ.get("HOME")
    return Path(home).resolve() if home else None


def _starts() -> Iterator[Path]:
    """Where projects are looked for; first in the program itself, if it is an archive."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    place = Path(program).resolve().parent if program else None
    if place is not None and place.is_file():
        yield place
    try:
        yield Path.cwd().resolve()
    except OSError:
        pass
    if place is not None and not place.is_file():
        yield place


@functools.lru_cache(maxsize=1)
def _unpacked(archive: Path) -> Path:
    """A folder with what is in it, as long as this process lasts."""
    import atexit
    import tempfile
    import zipfile

    folder = Path(tempfile.mkdtemp(prefix="gpulayer-program-")).resolve()
    atexit.register(_remove, folder, os.getpid())
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return folder


def _remove(folder: Path, of: int) -> None:
    # Not by a child that was forked.
    if os.getpid() == of:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _own() -> list[tuple[str, str]]:
    """Names and files of the loaded modules that may be a project's."""
    own: list[tuple[str, str]] = []
    program = sys.modules.get("__main__")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        real = _real(file) if isinstance(file, str) else None
        # `multiprocessing` gives the program a second name.
        if real is not None and module is not program and name.partition(".")[0] != "gpulayer":
            own.append((name, real))
    return own


def _modules(root: Path, own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of them that are this project's: below it, and not installed there."""
    inside = os.path.join(root, "")
    apart = tuple(path for path in _installed() if path.startswith(inside))
    return [(name, real) for name, real in own if real.startswith(inside) and not real.startswith(apart)]


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """Where this Python and its packages are."""
    return tuple(os.path.join(os.path.realpath(path), "") for path in {*sysconfig.get_paths().values(), sys.prefix})


@functools.lru_cache(maxsize=1)
def _library() -> tuple[str, ...]:
    """Where Python's own modules are."""
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)


@functools.lru_cache(maxsize=1 << 16)
def _real(file: str) -> Optional[str]:
    """A module's file without links; `None` = it is in a folder of packages, or Python's own. Kept: modules are some
    thousand, and each call looks at all of them."""
    real = os.path.realpath(file)
    return None if real.startswith(_library()) or _PACKAGES.intersection(Path(real).parts) else real


def _seen(modules: list[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
    for _, file in sorted(modules):
        try:
            stat = os.stat(file)
        except OSError:
            continue
        yield file, stat.st_mtime_ns, stat.st_size


def _paths(root: Path, modules: list[tuple[str, str]]) -> tuple[str, ...]:
    """Where these modules were found: the folders above their top packages, in the order of the module path."""
    above: set[Path] = set()
    for name, file in modules:
        above.add(_above(name, Path(file)))
    searched = [os.path.realpath(path or ".") for path in sys.path]
    places = {str(each): each.relative_to(root).as_posix() for each in above if each == root or root in each.parents}
    known = [places[path] for path in dict.fromkeys(searched) if path in places]
    return tuple(known + sorted(set(places.values()) - set(known)))


def _above(name: str, file: Path) -> Path:
    """The folder above a module's top package."""
    return file.parents[name.count(".") + (1 if file.stem == "__init__" else 0)]
