"""The jobs of a map one by one: what each gives, and what is left of a map when one of them is not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import gpulayer as gl
import pytest


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def blob(home: Path, child: Any) -> Path:
    """Where the server keeps the result of a job."""
    digest: str = child.record.result["artifact"].rsplit("/", 1)[1]
    return home / "state" / "artifacts" / "sha256" / digest[:2] / digest


def results(values: gl.Map[Any]) -> list[Any]:
    """What its jobs give, each asked by itself."""
    children: Any = values.wait().children()
    return [child.result() for child in children]


def test_a_job_of_several_calls_gives_all_their_values() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def same(x: int) -> int:
        return x

    values = same.map(range(10), chunksize=3)
    several = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert results(values) == several
    children: Any = values.children()
    assert [gl.attach(child.id, gl.FunctionJob).result(even_if_failed=True) for child in children] == several

    async def awaited() -> list[Any]:
        return [await child for child in children]

    assert asyncio.run(awaited()) == several
    assert children[1].retry().result() == several[1], "a map of these calls"
    assert results(same.options(reuse=True).map(range(66)))[:3] == [[0, 1], [2, 3], [4, 5]]
    assert results(same.map(range(2), chunksize=1)) == [0, 1]


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


def test_a_result_that_is_lost_or_damaged_takes_no_other_with_it(home: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB", reuse=True)
    def large(x: int) -> bytes:
        return bytes([x]) * 10_000

    for chunksize in (1, 2):
        first = chunksize * 10
        values = large.map(range(first, first + chunksize * 6), chunksize=chunksize)
        children = values.wait().children()
        blob(home, children[1]).unlink()
        damaged = blob(home, children[3])
        damaged.chmod(0o600)
        damaged.write_bytes(b"something else")

        def kinds(found: list[Any]) -> list[Any]:
            return [each[0] - first if isinstance(each, bytes) else type(each).__name__ for each in found]

        expected: list[Any] = [
            {1: "NotFoundError", 3: "DamagedError"}.get(place // chunksize, place) for place in range(6 * chunksize)
        ]
        kept: list[Any] = values.result(return_exceptions=True)
        assert kinds(kept) == expected
        assert str(children[1]) in str(kept[chunksize]) and str(children[3]) in str(kept[3 * chunksize])
        pairs = sorted(values.as_completed(return_exceptions=True), key=lambda pair: pair[0])
        assert kinds([value for _, value in pairs]) == expected

        stream, in_turn = iter(values), list[Any]()
        for _ in range(6 * chunksize):
            try:
                in_turn.append(next(stream))
            except gl.GPUlayerError as failure:
                in_turn.append(failure)
        assert kinds(in_turn) == expected and next(stream, None) is None
        for child in (children[1], children[3]):
            with pytest.raises(gl.GPUlayerError, match="the result of job"):
                child.result()


def test_a_job_that_was_removed_takes_no_other_value_with_it() -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def same(x: int) -> int:
        return x

    def shown(found: list[Any]) -> list[Any]:
        return [each if isinstance(each, int) else type(each) for each in found]

    values = same.map(range(5), chunksize=1)
    children = values.wait().children()
    children[4].purge()
    children[2].purge()
    stream = iter(values)
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(gl.NotFoundError, match=f"job 2 of map {re.escape(str(values))} was removed"):
        next(stream)
    assert next(stream) == 3, "the one after it is there"
    with pytest.raises(gl.NotFoundError, match="job 4 of map"):
        next(stream)
    assert list(stream) == []
    again = gl.attach(values.id, gl.Map)
    expected = [0, 1, gl.NotFoundError, 3, gl.NotFoundError]
    assert shown(again.result(return_exceptions=True)) == expected
    pairs = sorted(again.as_completed(return_exceptions=True), key=lambda pair: pair[0])
    assert [place for place, _ in pairs] == list(range(5)) and shown([value for _, value in pairs]) == expected

    several = same.map(range(5), chunksize=2)
    several.wait().children()[1].purge()
    found: list[Any] = several.result(return_exceptions=True)
    assert shown(found) == [0, 1, gl.NotFoundError, gl.NotFoundError, 4]
    several.purge()
    with pytest.raises(gl.NotFoundError, match="there is no job"):
        several.result()


def test_a_job_that_is_removed_while_the_map_is_read_is_not_waited_for(tmp_path: Path) -> None:
    @gl.remote(cpus=0.1, memory="64MiB")
    def waits(x: int) -> int:
        import time

        while not (tmp_path / str(x)).exists():
            time.sleep(0.01)
        return x

    values = waits.map(range(3), chunksize=1)
    stream = values.results(return_exceptions=True)
    (tmp_path / "0").touch()
    assert next(stream) == 0
    (tmp_path / "1").touch()
    (tmp_path / "2").touch()
    # Nobody has asked for its record before it is gone.
    values.wait().children()[1].purge()
    found: list[Any] = list(stream)
    assert isinstance(found[0], gl.NotFoundError) and found[1:] == [2]
