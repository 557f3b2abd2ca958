"""The jobs of a map one by one: what each gives, and what is left of a map when one of them is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def test_a_job_of_several_calls_gives_all_their_values() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def same(x: int) -> int:
        return x

    values = same.map(range(10), chunksize=3)
    values.wait()
    several = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    children: list[Any] = values.children()
    assert [child.result() for child in children] == several
    assert [gl.attach(child.id, gl.FunctionJob).result(even_if_failed=True) for child in children] == several

    async def awaited() -> list[Any]:
        return [await child for child in children]

    assert asyncio.run(awaited()) == several
    assert children[1].retry().result() == several[1], "a map of these calls"
    reused = same.options(reuse=True).map(range(66))
    reused.wait()
    children = reused.children()
    assert [child.result() for child in children[:3]] == [[0, 1], [2, 3], [4, 5]]
    single = same.map(range(2), chunksize=1)
    single.wait()
    children = single.children()
    assert [child.result() for child in children] == [0, 1]


def test_a_job_of_several_calls_raises_what_the_first_of_them_raised() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def odd(x: int) -> int:
        if x == 5:
            import atexit
            import os

            atexit.register(os.abort)
        if x % 2 == 0:
            raise ValueError(x)
        return x

    values = odd.map([1, 2, 4, 3, 5], chunksize=3)
    values.wait()
    child, crashed = values.children()
    with pytest.raises(ValueError, match="2") as raised:
        child.result()
    assert isinstance(raised.value.__cause__, gl.RemoteTraceback)
    kept: list[Any] = values.result(return_exceptions=True)
    assert [each if isinstance(each, int) else each.args for each in kept] == [1, (2,), (4,), 3, 5]
    with pytest.raises(gl.JobFailedError):
        crashed.result()
    assert isinstance(crashed, gl.FunctionJob) and crashed.result(even_if_failed=True) == [3, 5]
