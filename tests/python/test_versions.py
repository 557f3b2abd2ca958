"""Calls and values between two minor versions of Python: code stays where it was made, all else goes both ways."""

from __future__ import annotations

import base64
import importlib
import io
import pathlib
import pickle
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Iterator, Optional

import cloudpickle
import gpulayer as gl
import pytest
from gpulayer import pickles
from gpulayer.results import Fetched, error_of
from laid_out import called, mapped, others, payload, run

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def read(data: Optional[bytes]) -> Any:
    assert data is not None
    return Fetched("cloudpickle", False, base64.b64encode(data).decode("ascii")).read()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that both ends have, and cloudpickle, which the client sends along."""
    workspace = tmp_path / "workspace"
    shutil.copytree(Path(cloudpickle.__file__).parent, workspace / ".gpulayer" / "lib" / "cloudpickle")
    (workspace / "of_both.py").write_text(
        "def closure(x):\n    return lambda: x + 1\n"
        "def fails(x):\n    class Own(Exception):\n        def __str__(self):\n            return f'own {x}'\n    raise Own()\n"
        "def path(given):\n    return given / 'more'\n"
        "def bad_pattern(text):\n    import re\n    re.compile(text)\n"
    )
    monkeypatch.syspath_prepend(str(workspace))
    yield importlib.import_module("of_both")
    del sys.modules["of_both"]


def test_code_comes_back_to_the_version_that_made_it(project: ModuleType, tmp_path: Path) -> None:
    assert read(called(tmp_path, project.closure, 2).returned)() == 3
    assert read(mapped(tmp_path / "b", lambda x: lambda: x, [5], [6]).outcomes[0])() == 5
    plain = called(tmp_path / "c", project.path, Path("a"), workspace=tmp_path / "workspace").returned
    assert plain is not None and plain.endswith(b"."), "what holds no code says nothing"


def test_code_of_another_version_is_not_run_here() -> None:
    made = cloudpickle.dumps(lambda: 1)
    assert read(made + f"python {HERE}\n".encode())() == 1
    with pytest.raises(gl.RemoteError) as failed:
        read(made + b"python 3.5\n")
    told = failed.value
    assert f"cannot be read here: it holds code of Python 3.5, and this is Python {HERE}" in str(told)
    assert told.stage == "here" and told.advice is not None and f'python="{HERE}"' in told.advice
    assert read(made)() == 1, "of a worker that says nothing"
    with io.BytesIO(b"\x80" * 7 + pickle.dumps(1)) as file:
        file.seek(7)
        assert pickles.load(file) == 1, "from where it stands"


def test_an_exception_with_code_of_another_version_is_told_and_not_raised(tmp_path: Path) -> None:
    class Own(Exception):
        def __str__(self) -> str:
            return "own"

    told = called(tmp_path, lambda: exec("raise given", {"given": Own()})).raised
    assert told is not None
    data = cloudpickle.dumps(Own())
    told = {**told, "pickle": base64.b64encode(data).decode(), "python": [3, 5, 0]}
    failure = error_of(told, "…abc")
    assert isinstance(failure, gl.RemoteError) and failure.type.endswith("Own") and failure.message == "own"
    assert f"not raised as itself: it holds code of Python 3.5, and this is Python {HERE}" in str(failure)
    assert failure.advice is not None and "use 3.5 on both ends" in failure.advice
    assert type(error_of({**told, "python": list(sys.version_info[:3])}, "…abc")).__name__ == "Own"
    for nonsense in (None, [3], ["3", "5"], "3.5"):
        assert type(error_of({**told, "python": nonsense}, "…abc")).__name__ == "Own"


@pytest.mark.parametrize("python", others())
def test_code_of_every_other_python_of_this_machine_is_refused(
    project: ModuleType, tmp_path: Path, python: str
) -> None:
    with pytest.raises(gl.RemoteError, match=f"it holds code of Python 3.*, and this is Python {HERE}"):
        read(called(tmp_path / "a", project.closure, 1, python=python, workspace=tmp_path / "workspace").returned)
    raised = called(tmp_path / "b", project.fails, 1, python=python, workspace=tmp_path / "workspace").raised
    assert raised is not None and raised["message"] == "own 1"
    assert "it holds code of Python 3" in str(error_of(raised, "…abc"))


@pytest.mark.parametrize("python", [sys.executable, *others()])
def test_what_a_version_calls_otherwise_goes_both_ways(project: ModuleType, tmp_path: Path, python: str) -> None:
    workspace = tmp_path / "workspace"
    ran = called(tmp_path / "a", project.path, Path("a"), python=python, workspace=workspace)
    assert read(ran.returned) == Path("a/more")
    raised = called(tmp_path / "b", project.bad_pattern, "(", python=python, workspace=workspace).raised
    assert raised is not None and type(error_of(raised, "…abc")) is re.error


#: As Python 3.13 pickles a path and an exception of `re`.
PATH_OF_3_13 = b"\x80\x05cpathlib._local\nPurePosixPath\n\x8c\x01a\x85R."
ERROR_OF_3_13 = b"\x80\x05cre\nPatternError\n\x8c\x03bad\x85R."


def test_names_of_python_3_13_are_read_here_and_there(tmp_path: Path) -> None:
    assert read(PATH_OF_3_13) == pathlib.PurePosixPath("a") and type(read(ERROR_OF_3_13)) is re.error
    for name, data in (("a", PATH_OF_3_13), ("b", ERROR_OF_3_13)):
        found = run(tmp_path / name, payload([3, 13, 0], pickle.dumps(repr), [data])).value
        assert found in ("PurePosixPath('a')", repr(re.error("bad")))
