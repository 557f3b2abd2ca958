"""What programs that are checked see: mypy and pyright read this file with the tests, and it runs as well."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from pathlib import Path
from typing import Any, AsyncIterator, Generator, Iterator, Union

import gpulayer as gl
import pytest
from typing_extensions import assert_type


def halving() -> gl.RemoteFunction[[int], float]:
    """One that travels as code: it is within another."""

    @gl.remote(cpus=0.1, memory="64MiB")
    def half(x: int) -> float:
        return x / 2

    return half


@pytest.fixture(autouse=True)
def away(client: gl.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test go to its daemon, from a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpulayer.default._client", client)


def test_what_comes_of_a_function_has_its_type() -> None:
    half = halving()
    assert_type(half(1), float)
    assert_type(half.run(1), float)
    job = half.submit(1)
    assert_type(job, gl.FunctionJob[float])
    assert_type(job.result(), float)
    values = half.map([1, 2])
    assert_type(values, gl.Map[float])
    assert_type(values.result(), list[float])
    for value in values:
        assert_type(value, float)
    assert_type(values.result(return_exceptions=True), list[Union[float, Exception]])
    assert_type(values.results(), gl.Values[float])
    assert_type(values.as_completed(), gl.Completed[float])
    assert_type(list(values.results(return_exceptions=True)), list[Union[float, Exception]])
    for place, outcome in values.as_completed(return_exceptions=True):
        assert_type(place, int)
        assert_type(outcome, Union[float, Exception])
    kept = half.map([1, 2], return_exceptions=True)
    assert_type(kept, gl.Map[Union[float, Exception]])
    assert_type(kept.result(), list[Union[float, Exception]])
    assert_type(half.starmap([(1,)], return_exceptions=True), gl.Map[Union[float, Exception]])
    assert_type(half.starmap([(1,)], return_exceptions=False), gl.Map[float])

    async def awaited() -> None:
        assert_type(await half.map.aio([1, 2]), gl.Map[float])
        assert_type(await half.map.aio([1, 2], return_exceptions=True), gl.Map[Union[float, Exception]])
        assert_type(await values.result.aio(return_exceptions=True), list[Union[float, Exception]])

    asyncio.run(awaited())
    assert_type(job.wait().state, str)


def test_what_is_asked_of_the_default_server_has_both_forms(client: gl.Client) -> None:
    spec = gl.command(["true"])

    async def awaited() -> None:
        job = await gl.submit.aio(spec, key="once")
        assert_type(job, gl.Job)
        assert_type(await spec.submit.aio(key="once"), gl.Job)
        assert await gl.attach.aio(job.id) == await spec.submit.aio(key="once") == job
        [other] = await gl.submit_all.aio([spec])
        assert_type(await gl.jobs.aio(limit=2), list[gl.Job])
        assert await gl.jobs.aio(limit=2) == [other, job]
        assert_type(await gl.explain.aio(spec), gl.Explanation)
        assert (await gl.explain.aio(spec)).summary == (await spec.explain.aio()).summary
        with pytest.warns(gl.GPUlayerWarning) as told:
            vast = await gl.command(["true"], gpus=999).submit.aio()
        # Said where the call stands.
        assert {each.filename for each in told} == {__file__}
        await vast.cancel.aio()

    asyncio.run(awaited())
    assert_type(spec.submit(), gl.Job)
    assert_type(gl.explain(spec), gl.Explanation)
    for each in (gl.submit, gl.submit_all, gl.jobs, gl.explain):
        assert pickle.loads(pickle.dumps(each)) is each
        assert inspect.signature(each) == inspect.signature(getattr(client, each.__name__))
    assert repr(gl.submit) == "<submit at the default server>" and repr(gl.attach) == "<attach of the default server>"


def test_a_coroutine_is_run_to_its_end_and_gives_what_it_returns() -> None:
    @gl.remote
    async def third(x: int) -> float:
        return x / 3

    class Model:
        @gl.remote(cpus=0.1)
        async def third(self, x: int) -> float:
            return x / 3

    async def here() -> None:
        assert_type(await third(3), float)
        assert_type(await third.run.aio(6), float)

    asyncio.run(here())
    assert_type(third.run(3), float)
    assert_type(Model().third.run(3), float)
    assert_type(third.submit(3), gl.FunctionJob[float])
    assert_type(third.options(name="other").map([3]), gl.Map[float])
    assert_type(third.starmap([(3,)], return_exceptions=True).result(), list[Union[float, Exception]])


def test_a_generator_gives_what_it_yields() -> None:
    @gl.remote
    def count(n: int) -> Generator[int, None, str]:
        yield from range(n)
        return "done"

    @gl.remote(cpus=0.1)
    async def later(n: int) -> AsyncIterator[int]:
        yield n

    class Model:
        @gl.remote
        def count(self, n: int) -> Iterator[int]:
            yield n

    assert_type(count(1), Generator[int, None, str])
    with count.run(2) as values:
        assert_type(values, gl.RunYields[int])
        for value in values:
            assert_type(value, int)
    with Model().count.run(1) as others:
        assert_type(others, gl.RunYields[int])
        assert next(others) == 1
    assert_type(count.map([2]).result(), list[list[int]])
    assert_type(count.submit(1).stream(), gl.Yields[int])

    async def awaited() -> None:
        async with await count.run.aio(1) as begun:
            assert_type(begun, gl.RunYields[int])
        async for value in later.run(1):
            assert_type(value, int)

    asyncio.run(awaited())


def test_what_is_attached_to_needs_no_cast() -> None:
    half = halving()
    values, job = half.map([1, 2]), half.submit(3)
    command = gl.command(["true"]).submit()
    found = gl.attach(command.id)
    assert_type(found, Union[gl.Job, gl.FunctionJob[Any], gl.Map[Any]])
    assert found.wait().succeeded and isinstance(found.result(), gl.End)
    assert_type(gl.attach(values.id, gl.Map[float]).result(), list[float])
    assert sum(gl.attach(values.id, gl.Map[float])) == 1.5
    assert gl.attach(job.id, gl.FunctionJob[float]).result() + 1 == 2.5
    if isinstance(found, gl.Map):
        raise AssertionError("a command is no map")

    async def work() -> None:
        attach = gl.default_client().attach
        attached = await attach.aio(values.id, gl.Map[float])
        assert_type(attached, gl.Map[float])
        assert [value async for value in attached] == await attached == [0.5, 1.0]
        assert await (await attach.aio(job.id, gl.FunctionJob[float])) == 1.5

    asyncio.run(work())
