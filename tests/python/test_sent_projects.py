"""Projects that travel with functions: what was edited, whatever it is, is there for the next call; else nothing is sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from gpulayer import folders, sent_projects


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "runs").mkdir()
    (root / ".gitignore").write_text("*.log\n/big\n")
    (root / "conf.yaml").write_text("lr: 0.1")
    (root / "data" / "points.csv").write_text("1,2")
    return root


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of what was sent."""
    addresses: list[str] = []
    plain = folders.send

    async def counted(*given: Any) -> folders.Bundle:
        made = await plain(*given)
        addresses.append(made.address)
        return made

    monkeypatch.setattr(folders, "send", counted)
    return addresses


def reader(project: Path) -> gl.RemoteFunction[[], dict[str, str]]:
    def read() -> dict[str, str]:
        from pathlib import Path

        paths = (each for each in Path().rglob("*") if each.is_file() and ".gpulayer" not in each.parts)
        return {path.as_posix(): path.read_text() for path in paths if path.name != ".gitignore"}

    return gl.remote(cpus=0.1, memory="64MiB", source=str(project))(read)


def test_what_a_call_reads_is_as_it_stands_here(project: Path, sent: list[str]) -> None:
    read = reader(project)
    there = {"conf.yaml": "lr: 0.1", "data/points.csv": "1,2"}
    assert read.run() == there and read.run() == there and len(sent) == 1, "what is as it was is not sent again"
    (project / "conf.yaml").write_text("lr: 0.5")
    (project / "data" / "more.csv").write_text("3,4")
    there = {"conf.yaml": "lr: 0.5", "data/points.csv": "1,2", "data/more.csv": "3,4"}
    assert read.run() == there and read.run() == there and len(sent) == 2
    shutil.rmtree(project / "data")
    assert read.run() == {"conf.yaml": "lr: 0.5"} and len(sent) == 3
    os.replace(project / "conf.yaml", project / "renamed.yaml")
    assert read.run() == {"renamed.yaml": "lr: 0.5"}
    (project / "renamed.yaml").chmod(0o755)
    assert read.options(name="mode").run() and len(set(sent)) == 5, "a program that became one counts as well"


def test_what_stays_behind_may_change_as_it_likes(project: Path, sent: list[str]) -> None:
    read = reader(project)
    for name in ("runs/train.log", "top.log"):
        (project / name).touch()
    (project / "big").mkdir()
    there = read.run()
    assert there == {"conf.yaml": "lr: 0.1", "data/points.csv": "1,2"}
    changing = ("runs/train.log", "runs/fresh.log", "top.log", "big/weights.bin", "data/__pycache__/x.pyc")
    for step in range(3):
        # The last: of a function that ran here.
        for name in (*changing, ".gpulayer/checkpoint/model.pt"):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            with (project / name).open("a") as file:
                file.write(f"step {step}\n")
        assert read.run() == there
    # Of the deeper ones it shows with the first change that the bundle has none of them.
    assert len(sent) == 2 and len(set(sent)) == 1
    (project / ".gitignore").write_text("/big\n")
    assert set(read.run()) == {*there, "runs/train.log", "runs/fresh.log", "top.log"}, "until it does not stay behind"
    with (project / "runs/train.log").open("a") as file:
        file.write("the end\n")
    assert read.run()["runs/train.log"].endswith("the end\n")


def test_a_tree_with_much_that_stays_behind_is_looked_at_too(
    project: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_projects, "_FIRST_LOOK", 20)
    (project / "big").mkdir()
    for number in range(50):
        (project / "big" / str(number)).touch()
    read = reader(project)
    read.run()
    (project / "big" / "another").touch()
    read.run()
    assert len(set(sent)) == 1 and len(sent) == 2, "the second time it was known what there is to look at"
    (project / "conf.yaml").write_text("lr: 1")
    assert read.run()["conf.yaml"] == "lr: 1"


def test_a_large_tree_is_not_looked_at_all_the_time(
    project: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_projects, "_ALWAYS", 2)
    monkeypatch.setattr(sent_projects, "_REST", float("inf"))
    read = reader(project)
    read.run()
    read.run()
    (project / "conf.yaml").write_text("lr: 1")
    assert read.run()["conf.yaml"] == "lr: 0.1"
    monkeypatch.setattr(sent_projects, "_REST", 0)
    assert read.run()["conf.yaml"] == "lr: 1" and len(sent) == 2


def test_a_file_that_changes_before_each_call_is_named_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_projects, "_OFTEN", 2)
    read = reader(project)
    read.run()
    (project / "results.csv").write_text("1")
    read.run()
    (project / "results.csv").write_text("12")
    with pytest.warns(gl.GPUlayerWarning, match=r"because results.csv changed .* /results.csv in .*/.gpulayerignore") as told:
        read.run()
    assert told[0].filename == __file__
    (project / "results.csv").write_text("123")
    read.run()


def test_a_file_that_stayed_behind_is_told_of_with_the_exception(project: Path) -> None:
    (project / "big").mkdir()
    (project / "big" / "weights").write_text("w")

    def read(path: str) -> str:
        with open(path) as file:
            return file.read()

    with pytest.raises(FileNotFoundError) as told:
        gl.remote(cpus=0.1, memory="64MiB", source=str(project))(read).run("big/weights")
    assert ".gitignore" in str(told.value.__cause__) and "[job:" not in str(told.value.__cause__)


@pytest.mark.parametrize("python, travels", [({"uv": "."}, True), ({"lockfile": "lock.txt"}, True), ("3.11", False)])
def test_the_project_travels_when_the_environment_is_told_of_by_its_files(
    project: Path, monkeypatch: pytest.MonkeyPatch, python: Any, travels: bool
) -> None:
    monkeypatch.chdir(project)
    (project / "pyproject.toml").touch()
    job = gl.remote(cpus=0.1, memory="64MiB", python=python)(lambda: None).submit()
    job.cancel()
    assert (job.record.spec.get("source") is not None) == travels
