"""A call with a key is found again by the next run of its program: what travels has the same bytes in each."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest
from conftest import SOURCES
from gpulayer.calls import Packing

PROGRAM = """
import abc, dataclasses, enum, functools, sys, typing
import gpulayer as gl

T = typing.TypeVar("T")

class Color(enum.Enum):
    RED = "r"
    BLUE = "b"

@dataclasses.dataclass
class Point(typing.Generic[T]):
    x: int
    y: "float" = 2.0

    def is_named(self, name):
        return name in {"alpha", "beta", "gamma", ("x", frozenset("abc"))} and isinstance(self, Point)

class Shape(abc.ABC):
    def __init__(self):
        self.first = self.second = self.third = Point

    @abc.abstractmethod
    def area(self): ...

class Row(typing.NamedTuple):
    name: str

@functools.lru_cache
def known(name):
    return name in {"one", "two", "three"}

@gl.remote(cpus=0.1, memory="64MiB", key="nightly")
def work(point, color=Color.RED):
    return point, Shape, Row("a"), color, known("two"), point.is_named("beta")

if __name__ == "__main__":
    job = work.submit(Point(1))
    value = job.result()
    assert value == (Point(1), Shape, Row("a"), Color.RED, True, True), value
    print(job.id)
    try:
        work.run(set(sys.argv[1:]))
    except gl.RefusedError as error:
        print(error)
"""


def test_the_next_run_of_a_program_finds_the_job_of_a_key(client: gl.Client, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    seen = set()
    for seed in "1", "2":
        env = dict(os.environ, PYTHONPATH=SOURCES, PYTHONHASHSEED=seed)
        done = subprocess.run(
            [sys.executable, "main.py", "a", "b"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        job, refusal = done.stdout.splitlines()[:2]
        seen.add(job)
        assert "key='nightly' was used for another call" in refusal and "sorted list" in refusal
    assert len(seen) == 1
    assert len(client.jobs()) == 1


def made(step: int) -> Any:
    class Kind:
        def next(self, x: int) -> int:
            return x + step

    return Kind


def test_classes_that_are_the_same_in_all_are_still_two() -> None:
    packing = Packing()
    one, two, other = made(1), made(1), made(2)
    packed: Any = packing.value([one(), two(), other()], lambda: "x")
    assert [type(each) for each in pickle.loads(packed)] == [one, two, other]
    assert pickle.loads(packed)[2].next(1) == 3


def test_a_class_that_cannot_be_sent_is_told_as_before() -> None:
    class Locked:
        lock = threading.Lock()

    packing = Packing()
    for _ in range(2):
        with pytest.raises(gl.ConfigurationError, match="x cannot be sent"):
            packing.value(Locked(), lambda: "x")


def test_a_key_whose_job_was_removed_says_so(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @gl.remote(cpus=0.1, memory="64MiB", client=client, key="of a call")
    def same(x: int) -> int:
        return x

    job = same.submit(1)
    job.wait()
    again = same.submit(1)
    assert again == job and again.state == "succeeded" and same.run(1) == 1, "as it stands now"
    job.purge()
    said = r"key='of a call' was used at \d{4}-\S+Z for job %s, which was removed since, .* 7 days .*; use another key"
    for call in (same.submit, same.run):
        with pytest.raises(gl.NotFoundError, match=said % job.id):
            call(1)
    assert same.options(key="another").run(1) == 1

    spec = gl.command(["true"], cpus=0.1, memory="64MiB")
    first = client.submit(spec, key="of a command")
    first.wait()
    [second] = client.submit_all([spec], key="of a batch")
    for each in (first, second):
        each.wait().purge()
    with pytest.raises(gl.NotFoundError, match="'of a command' was used at"):
        client.submit(spec, key="of a command")
    with pytest.raises(gl.NotFoundError, match=f"'of a batch' was used for job {second.id}, which was removed"):
        client.submit_all([spec], key="of a batch")


def test_the_key_of_a_retry_whose_job_was_removed_says_so(client: gl.Client) -> None:
    job = client.submit(gl.command(["true"], cpus=0.1, memory="64MiB"))
    job.wait()
    again = job.retry(key="once more")
    assert job.retry(key="once more") == again
    again.wait().purge()
    with pytest.raises(gl.NotFoundError, match=f"'once more' was used.* for job {again.id}, which was removed"):
        job.retry(key="once more")
