"""Looks at what was built for Python: `python_distributions.py FOLDER`, with one wheel and one sdist in it. The wheel has
the package and both programs; the sdist has what they are built from, and no strays."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: All that may stand at the top of the sdist.
TOP = set("Cargo.lock Cargo.toml PKG-INFO README.md benches deploy migrations pyproject.toml python src".split())
PACKAGE = Path(__file__).parents[1] / "python" / "src" / "gpulayer"


def one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def check_wheel(path: Path) -> None:
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        modes = {each.filename.rsplit("/", 1)[-1]: each.external_attr >> 16 for each in wheel.infolist()}
    files = (each.relative_to(PACKAGE) for each in PACKAGE.rglob("*") if each.suffix in (".py", ".typed"))
    package = {f"gpulayer/{each.as_posix()}" for each in files}
    programs = {name for name in names if ".data/scripts/" in name}
    assert package <= names, f"not in the wheel: {sorted(package - names)}"
    assert {name.rsplit("/", 1)[1] for name in programs} == {"gpulayer", "gpulayer-worker"}, programs
    assert all(modes[name.rsplit("/", 1)[1]] & 0o111 for name in programs)
    strays = {name for name in names - package - programs if ".dist-info/" not in name}
    assert not strays, f"strays in the wheel: {sorted(strays)}"


def check_sdist(path: Path, folder: Path) -> None:
    with tarfile.open(path) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
        # Its own check of members came with the newest Pythons; these were made here a moment ago.
        sdist.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    strays = [name for name in names if name.partition("/")[0] not in TOP or name.endswith((".pyc", ".so", ".orig"))]
    assert not strays, f"strays in the sdist: {strays}"
    manifest = folder / path.name[: -len(".tar.gz")] / "Cargo.toml"
    # All that the manifest names is there, and the lock file fits.
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version=1", "--manifest-path", str(manifest)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    # What is compiled in besides sources.
    for source in (manifest.parent / "src").rglob("*.rs"):
        for piece in source.read_text().split("include_str!(")[1:]:
            named = source.parent / piece.partition(")")[0].strip().strip('"')
            assert named.exists(), f"{source} includes {named}, which the sdist lacks"


if __name__ == "__main__":
    built = Path(sys.argv[1])
    check_wheel(one(built, "*.whl"))
    check_sdist(one(built, "*.tar.gz"), built / "sdist")
