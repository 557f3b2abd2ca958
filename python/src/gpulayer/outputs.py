"""The files that a job brought back, and how they come here. Whatever a server says, nothing is written outside the
folder that was named and no link in it is followed; what is there already is overwritten only with `force`."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Iterator, Optional, Sequence, Union, overload

from . import artifacts, routes, tables
from .both import both
from .errors import FileInTheWayError, UnexpectedAnswerError
from .quantities import shown_size
from .records import OutputFile, UndeclaredFile
from .terminal import Bar

if TYPE_CHECKING:
    from .job_handle import Job

#: So many files are shown in a notebook.
_SHOWN = 100

AnyFile = Union[OutputFile, UndeclaredFile]


class Outputs(Sequence[OutputFile]):
    """A job's collected files, as they stood when the job was last asked for; by number, by path, or by name."""

    def __init__(self, job: Job, files: tuple[OutputFile, ...]) -> None:
        self._job = job
        self._files = files

    @overload
    def __getitem__(self, index: int) -> OutputFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OutputFile]: ...
    @overload
    def __getitem__(self, index: str) -> OutputFile: ...
    def __getitem__(self, index: Union[int, slice, str]) -> Union[OutputFile, Sequence[OutputFile]]:
        if not isinstance(index, str):
            return self._files[index]
        found = next((file for file in self._files if index in (file.path, file.name)), None)
        if found is None:
            there = ", ".join(file.path for file in self._files[:_SHOWN]) or "no outputs"
            raise KeyError(f"{index}: {'its jobs have them' if self._are_of_jobs() else f'there are {there}'}")
        return found

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[OutputFile]:
        return iter(self._files)

    @both
    async def download(
        self, to: Union[str, "os.PathLike[str]"] = ".", *, force: bool = False, progress: Optional[bool] = None
    ) -> list[Path]:
        """Brings the declared outputs into the folder `to`, which is made; the paths written.

        A file that is there with the same contents stays. One with others is a `FileInTheWayError`, and nothing is
        written then, unless `force`.
        """
        return await bring(self._job, to, force=force, undeclared=False, progress=progress)

    def _repr_html_(self) -> str:
        if not self._files:
            return tables.said("its jobs have the outputs: download() brings them" if self._are_of_jobs() else "no outputs")
        rows = [(file.path, shown_size(file.size_bytes), file.link_target or "") for file in self._files]
        more = [(f"and {len(rows) - _SHOWN} more", "", "")] if len(rows) > _SHOWN else []
        return tables.listed(("output", "size", "link to"), rows[:_SHOWN] + more)

    def _are_of_jobs(self) -> bool:
        record = self._job.record
        return bool(record.spec.get("array")) and not record.parent and not self._files

    def __repr__(self) -> str:
        if self._are_of_jobs():
            return f"<Outputs of the jobs of {self._job}: download() brings them, children() has each>"
        return f"Outputs({', '.join(file.path for file in self._files)})"


async def bring(
    job: Job, to: Union[str, "os.PathLike[str]"], *, force: bool, undeclared: bool, progress: Optional[bool]
) -> list[Path]:
    """The body of `download` and `fetch`."""
    record = await job.refreshed()
    if record.spec.get("array") and not record.parent:
        found: list[Path] = []
        for child in await job.children.aio():
            if child.record.undeclared if undeclared else child.record.outputs:
                into = os.path.join(to, str(child.record.array_index))
                found += await bring(child, into, force=force, undeclared=undeclared, progress=progress)
        return found
    wanted: Sequence[AnyFile] = record.undeclared if undeclared else record.outputs
    root = Path(os.path.abspath(to))
    root.mkdir(parents=True, exist_ok=True)
    # Two declared outputs may cover one file: it is brought once.
    files = {file.path: file for file in wanted}
    places = {path: _place(root, path) for path in files}
    # Comparing reads what is there already, which may be much: not on the thread that everything waits for.
    missing = [path for path, file in files.items() if force or not await _stands(places[path], file)]
    in_the_way = [places[path] for path in missing if os.path.lexists(places[path]) and not places[path].is_dir()]
    if in_the_way and not force:
        more = f", and {len(in_the_way) - 1} others" if len(in_the_way) > 1 else ""
        raise FileInTheWayError(f"{in_the_way[0]} is there with other contents{more}; force=True overwrites")
    total = sum(files[path].size_bytes for path in missing)
    with Bar(f"{job}: fetching {shown_size(total)}", total, progress) as bar:
        for path in sorted(missing):
            await _bring_one(job, root, files[path], places[path], bar)
    return [places[path] for path in sorted(files)]


def _place(root: Path, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise UnexpectedAnswerError(
            f"the server names a file {path!r}, which lies outside the folder; nothing was written"
        )
    return root.joinpath(*parts)


def _parents(root: Path, place: Path) -> None:
    """Makes the folders above a place, and refuses to go through a link."""
    at = root
    for part in place.relative_to(root).parts[:-1]:
        at = at / part
        if at.is_symlink():
            raise FileInTheWayError(f"{at} is a link, and files are not written through links")
        at.mkdir(exist_ok=True)


async def _stands(place: Path, file: AnyFile) -> bool:
    """Whether the same is there already."""
    if not os.path.lexists(place):
        return False
    if isinstance(file, UndeclaredFile):
        return False
    if file.link_target is not None:
        return place.is_symlink() and os.readlink(place) == file.link_target
    if file.artifact is None:
        return place.is_dir() and not place.is_symlink()
    if place.is_symlink() or not place.is_file() or place.stat().st_size != file.size_bytes:
        return False
    return (await artifacts.digest_of(str(place)))[0] == artifacts.hex_of(file.artifact)


async def _bring_one(job: Job, root: Path, file: AnyFile, place: Path, bar: Bar) -> None:
    _parents(root, place)
    session = job.client.session
    if isinstance(file, UndeclaredFile):
        names = {"job_id": job.id, "path": file.path}
        await artifacts.receive(session, routes.UNDECLARED, names, place, 0o644, None, bar.add)
    elif file.artifact is not None:
        digest = artifacts.hex_of(file.artifact)
        names = {"hex": digest}
        await artifacts.receive(session, routes.ARTIFACT, names, place, file.mode, digest, bar.add)
    elif file.link_target is not None:
        _link(root, place, file.link_target)
    else:
        place.mkdir(exist_ok=True)


def _link(root: Path, place: Path, target: str) -> None:
    inside = os.path.normpath(os.path.join(os.path.relpath(place.parent, root), target))
    if os.path.isabs(target) or inside == ".." or inside.startswith("../"):
        raise UnexpectedAnswerError(f"the link {place.name} leads out of the folder, to {target!r}; it was not made")
    if os.path.lexists(place):
        place.unlink()
    place.symlink_to(target)
