"""What a function's interpreter may lack: cloudpickle, and this package for modules that import it. Sent as a bundle
into the workspace's `.gpulayer/lib`, which comes last in the module path: what the interpreter has goes first."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import importlib.util
import marshal
import os
import sysconfig
import tarfile
from typing import Iterator

import cloudpickle

from .version import VERSION

#: Where in the workspace it lies.
PLACE = ".gpulayer/lib"
#: The version of marshal's format in which the same code has the same bytes.
_WITHOUT_REFERENCES = 2


@functools.lru_cache(maxsize=None)
def is_installed(with_gpulayer: bool) -> bool:
    """Whether this interpreter finds by itself, wherever it is started, what would be sent."""
    files = [cloudpickle.__file__, __file__] if with_gpulayer else [cloudpickle.__file__]
    site = [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib")]
    return all(os.path.realpath(file).startswith(tuple(site)) for file in files)


@functools.lru_cache(maxsize=None)
def bundle(with_gpulayer: bool) -> tuple[str, bytes]:
    """The bundle and its digest in hex. The same versions give the same bytes."""
    files = dict(_sources("cloudpickle"))
    # Compiled, as each job would have to do it anew; an interpreter of another version compiles its own.
    for name in list(files):
        code = compile(files[name], name, "exec", dont_inherit=True, optimize=0)
        header = importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + importlib.util.source_hash(files[name])
        compiled = importlib.util.cache_from_source(name, optimization="")
        files[compiled] = header + marshal.dumps(code, _WITHOUT_REFERENCES)
    if with_gpulayer:
        files.update(_sources("gpulayer"))
        # By it the package there knows its version.
        metadata = f"Metadata-Version: 2.1\nName: gpulayer\nVersion: {VERSION}\n"
        files[f"gpulayer-{VERSION}.dist-info/METADATA"] = metadata.encode()
    whole = b"".join(_entry(name, files[name]) for name in sorted(files)) + bytes(2 * tarfile.BLOCKSIZE)
    return hashlib.sha256(whole).hexdigest(), whole


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    # Not by its path: it may lie in an archive.
    for file in importlib.resources.files(package).iterdir():
        if file.name.endswith(".py"):
            yield f"{package}/{file.name}", file.read_bytes()


def _entry(name: str, data: bytes) -> bytes:
    """One file of the tar, without time and owner (docs/CONTRACT.md, "Artifacts")."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict") + data + padding
