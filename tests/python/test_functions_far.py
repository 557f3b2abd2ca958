"""Functions on a server over TCP and TLS, whose Python has nothing of this one's packages."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Iterator

import gpulayer as gl
import pytest
from conftest import Server, lines


@pytest.fixture
def far(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gl.Client]:
    monkeypatch.chdir(tmp_path)
    with gl.connect(server.url, token=server.token, pin=server.pin) as client:
        yield client


def bare() -> dict[str, Any]:
    """The words for the interpreter that this environment was made from."""
    folder = os.path.dirname(os.path.realpath(sys.executable))
    assert os.path.exists(os.path.join(folder, "python3"))
    return {"env": {"PATH": f"{folder}:/usr/bin:/bin"}}


def test_what_an_interpreter_lacks_goes_along_once(far: gl.Client) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    @gl.remote(client=far, **bare())
    def move(point: Point) -> Any:
        return Point(point.x + 1), lambda: point.x

    job = move.submit(Point(1))
    moved, before = job.result()
    assert type(moved) is Point and moved.x == 2 and before() == 1
    again = move.submit(Point(2))
    assert again.result()[0].x == 3 and again.record.spec["inputs"] == job.record.spec["inputs"]


def test_what_the_server_has_removed_is_sent_again(far: gl.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it had been sent, and removed since.
    monkeypatch.setattr("gpulayer.function_call.Submission._is_believed", forgetful())

    @gl.remote(client=far, **bare())
    def one() -> int:
        return 1

    assert one.run() == 1


def forgetful() -> Any:
    answers = iter([True])
    return lambda *_: next(answers, False)


def test_a_module_that_is_not_there_is_named(far: gl.Client) -> None:
    @gl.remote(client=far, **bare())
    def use() -> str:
        import httpx

        return httpx.__name__

    with pytest.raises(ModuleNotFoundError) as failed:
        use.run()
    assert failed.value.name == "httpx" and "httpx is not there for" in str(failed.value.__cause__)
    assert "requirements" in str(failed.value.__cause__)


def test_a_folder_goes_as_the_source_of_any_job(far: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "project" / ".venv").mkdir(parents=True)
    (tmp_path / "project" / "a.txt").write_text("from the project\n")
    (tmp_path / "project" / ".gitignore").write_text("b.txt\n")
    (tmp_path / "project" / "b.txt").touch()
    job = far.submit(gl.command(shell="cat a.txt; ls", source=tmp_path / "project"))
    job.result()
    assert lines(job) == ["from the project", "a.txt"]
    with pytest.raises(gl.ConfigurationError, match="absent"):
        far.submit(gl.command(["true"], source=tmp_path / "absent"))


def test_a_function_that_names_this_package_finds_it_there(far: gl.Client) -> None:
    @gl.remote(client=far, **bare())
    def version() -> str:
        return str(gl.__version__)

    assert version.run() == gl.__version__


def test_a_function_of_an_installed_package_finds_this_one_too(
    far: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "installed_far.py").write_text(
        "import gpulayer as gl\n\n@gl.remote\ndef version():\n    return gl.__version__\n"
    )
    monkeypatch.syspath_prepend(str(site))
    version = importlib.import_module("installed_far").version
    env = {**bare()["env"], "PYTHONPATH": str(site)}
    job = version.options(client=far, env=env).submit()
    assert job.result() == gl.__version__ and "source" not in job.record.spec
