"""The project that a function is from: which folder goes along as the job's source, and when. Modules that were
imported from below it are meant; what stands in `__main__` or a notebook travels with the call itself."""

from __future__ import annotations

import filecmp
import functools
import os
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Iterator, Optional

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
    #: Modules that are not what they are here where it travels to: name, file here, the file that it has for it.
    others: tuple[tuple[str, str, str], ...] = ()


def found(given: str = "auto", called: Optional[str] = None, is_named: bool = False) -> Optional[Source]:
    """`auto`: the project of the current folder, else of the program, if a module besides `__main__` was imported
    from it, or files of it are named (`is_named`); the one that has the module `called`, whose function it is for, and if
    neither has it the project that this module lies in. A folder: that one. `none`: nothing."""
    if given == "none":
        return None
    own = _own()
    if given != "auto":
        root = _folder(given)
        if root is None:
            raise ConfigurationError(f"source={given!r} is no folder; give one, `auto`, `none` or a bundle's address")
        return _with_others(_source(root, _modules(root, own)), own, called)
    file = dict(own).get(called or "")
    first: Optional[Source] = None
    # Most calls are of programs in one file, and need no look at any folder.
    for start in _starts() if own or is_named else ():
        if start.is_file():
            inside = _modules(start, own)
            if inside and (file is None or (called, file) in inside):
                root = _unpacked(start)
                there = [(name, str(root / Path(real).relative_to(start))) for name, real in inside]
                return Source(root, _paths(root, there), tuple(_seen(there)))
            continue
        marked = root_above(start, _home())
        if marked is None and not _allowed(start, _home()):
            continue
        modules = _modules(marked or start, own)
        project = _source(marked or start, modules)
        # An unmarked folder is meant only when modules lie in it, and not somewhere below.
        if "." not in project.paths if marked is None else not (modules or is_named):
            continue
        # Another copy of a project may lie in it, such as a worktree: the module is of that one.
        if called is None or file is None or ((called, file) in modules and {*_files(project, called)} <= {file}):
            return _with_others(project, own, called)
        first = first or project
    nearest = root_above(Path(file).parent, _home()) if file is not None else None
    chosen = first if nearest is None else _source(nearest, _modules(nearest, own))
    return None if chosen is None else _with_others(chosen, own, called)


def _folder(given: str) -> Optional[Path]:
    try:
        root = Path(given).resolve()
        return root if root.is_dir() else None
    except (OSError, ValueError):
        # A name that is too long, has a NUL in it, or half a character.
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
    file = _place(name)
    if file is None or is_installed(str(file)) or name.partition(".")[0] == "gpulayer":
        return None
    found_as = file.parent if file.stem == "__init__" else file.with_name(file.name.partition(".")[0])
    names = name.split(".")
    if found_as.parts[-len(names) :] != tuple(names):
        load_it = f"load it as {found_as.name}, or " if found_as.name.isidentifier() else ""
        return (
            f"{name} is {file} here, which was loaded under another name than the file's, and elsewhere modules are "
            f"found by the names of their files: {load_it}name the file {'/'.join(names)}.py"
        )
    root = None if sent is None else Path(sent).resolve()
    if root is not None and root in file.resolve().parents:
        place = file.resolve().relative_to(root).as_posix()
        top = above(name, file.resolve())
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
    top = above(name, file)
    source = f"source='{(root_above(top, _home()) if is_auto else None) or top}'"
    if not is_auto or found() is not None:
        return f"{name} is {file} here, and no project travelled with this job: name the folder that holds it, {source}"
    if any(root_above(start, _home()) for start in _starts()):
        why = "no module was imported from that of the current folder or of the program"
    else:
        why = (
            "neither the current folder nor the program's, nor one above them, has .git, pyproject.toml or "
            ".gpulayerignore (your home folder does not count)"
        )
    return f"{name} is {file} here, and no project travels: {why}. Name the folder, {source}"


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
    if place is not None and str(place) == _runner():
        place = None
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


def _source(root: Path, modules: list[tuple[str, str]]) -> Source:
    return Source(root, _paths(root, modules), tuple(_seen(modules)))


def _with_others(project: Source, own: list[tuple[str, str]], called: Optional[str]) -> Source:
    inside = os.path.join(project.root, "")
    apart = [
        (name, file, name.partition(".")[0]) for name, file in own if name == called or not file.startswith(inside)
    ]
    installed = getattr(sys.modules.get(called or ""), "__file__", None)
    if called is not None and isinstance(installed, str) and called not in dict(own):
        apart.append((called, os.path.realpath(installed), called.partition(".")[0]))
    folders = [project.root / path for path in _searched(project)]
    # Of all modules that come from elsewhere next to none has its namesake there.
    known = {
        top
        for top in {top for *_, top in apart}
        if any(os.path.exists(folder / name) for folder in folders for name in (top, f"{top}.py"))
    }
    found = ((name, file, next(_files(project, name), file)) for name, file, top in apart if top in known)
    return replace(project, others=tuple(each for each in found if not _is_copy(*each[1:])))


def _searched(project: Source) -> dict[str, None]:
    """Where modules are searched when it has travelled, in this order."""
    return dict.fromkeys((*project.paths, "."))


def _files(project: Source, name: str) -> Iterator[str]:
    """The files that a module may be imported from where the project has travelled to; the first one counts."""
    place = os.path.join(*name.split("."))
    for folder in _searched(project):
        for end in (f"{place}{os.sep}__init__.py", f"{place}.py"):
            file = os.path.realpath(project.root / folder / end)
            if os.path.isfile(file):
                yield file


def _is_copy(file: str, other: str) -> bool:
    try:
        return file == other or filecmp.cmp(file, other, shallow=False)
    except OSError:
        return False


def _place(name: str) -> Optional[Path]:
    """The file of a loaded module, the folder of one that has none (a namespace)."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return Path(file)
    folder = next(iter(getattr(module, "__path__", ())), None)
    if folder is None and module is not None:
        # One that pytest has made up for the name of a module in it.
        below = next((each for each in _own() if each[0].startswith(f"{name}.")), None)
        return above(below[0], Path(below[1])).joinpath(*name.split(".")) if below is not None else None
    return Path(folder) if folder is not None else None


def above(name: str, file: Path) -> Path:
    """The folder that a module was found in by its first name."""
    return file.parents[name.count(".") + (1 if file.stem == "__init__" else 0)]


def _own() -> list[tuple[str, str]]:
    """Names and files of the loaded modules that may be a project's."""
    own: list[tuple[str, str]] = []
    program, runner = sys.modules.get("__main__"), os.path.join(_runner() or "", "")
    # Many of them lie in one folder.
    is_one = functools.lru_cache(maxsize=None)(_is_one)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        real = _real(file, is_one) if isinstance(file, str) else None
        # `multiprocessing` gives the program a second name.
        if real is None or module is program or name.partition(".")[0] == "gpulayer":
            continue
        if not (runner and real.startswith(runner)):
            own.append((name, real))
    return own


def _runner() -> Optional[str]:
    """Of a job that is a function's: the folder of the worker's programs that call it, which are nobody's project."""
    file = getattr(sys.modules.get("_gpulayer_runner"), "__file__", None)
    return os.path.dirname(os.path.dirname(os.path.realpath(file))) if isinstance(file, str) else None


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


def _is_one(path: str, other: str) -> bool:
    """Whether they lead to the same place; so it is believed of a path that leads nowhere any more."""
    if path == other:
        return True
    try:
        now = os.stat(path)
    except OSError:
        return True
    try:
        return os.path.samestat(now, os.stat(other))
    except OSError:
        return False


#: Modules' files without links; before it, two paths that lead to one place as long as that is right.
_reals: dict[str, tuple[str, str, Optional[str]]] = {}


def _real(file: str, is_one: Callable[[str, str], bool] = _is_one) -> Optional[str]:
    """A module's file without links; `None` = it is in a folder of packages, or Python's own. Kept: modules are some
    thousand, and each call looks at all of them."""
    known = _reals.get(file)
    if known is not None and is_one(*known[:2]):
        return known[2]
    real: Optional[str] = os.path.realpath(file)
    assert real is not None
    folder, name = os.path.split(file)
    there, real_name = os.path.split(real)
    # A folder has no second name but by a link, which may lead elsewhere later. Where the file is a link itself, it is
    # what that leads to which may be another.
    links = (folder, there) if name == real_name and os.path.realpath(folder) == there else (file, real)
    if real.startswith(_library()) or _PACKAGES.intersection(Path(real).parts):
        real, links = None, ("", "")
    _reals[file] = (*links, real)
    return real


def _seen(modules: list[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
    for _, file in sorted(modules):
        try:
            stat = os.stat(file)
        except OSError:
            continue
        yield file, stat.st_mtime_ns, stat.st_size


def _paths(root: Path, modules: list[tuple[str, str]]) -> tuple[str, ...]:
    """Where these modules were found: the folders above their top packages, in the order of the module path."""
    folders = {above(name, Path(file)) for name, file in modules}
    searched = [os.path.realpath(path or ".") for path in sys.path]
    places = {str(each): each.relative_to(root).as_posix() for each in folders if each == root or root in each.parents}
    known = [places[path] for path in dict.fromkeys(searched) if path in places]
    return tuple(known + sorted(set(places.values()) - set(known)))
