"""`gpulayer down` in the middle of what had begun before: the daemon stays stopped, and what it keeps is named."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import gpulayer as gl
import pytest
from conftest import until
from gpulayer import interrupts
from gpulayer.map_feed import MapFeed


class Daemon:
    """The own daemon of a client that starts it by a program which writes its runs down."""

    def __init__(self, client: gl.Client, binary: str, runs: Path) -> None:
        self.client = client
        self._binary = binary
        self._runs = runs

    def down(self, *words: str) -> None:
        """Stops it. From here on its starts are counted."""
        subprocess.run([self._binary, "down", *words, "--server", "local"], check=True, capture_output=True)
        self._runs.unlink()

    @property
    def was_started(self) -> bool:
        """Whether the client has started it since it was stopped."""
        return self._runs.exists()


@pytest.fixture
def daemon(home: Path, binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """One that runs, and is the default."""
    program, runs = tmp_path / "gpulayer", tmp_path / "runs"
    program.write_text(f'#!/bin/sh\necho "$@" >> {runs}\nexec {binary} "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with gl.local(binary=str(program)) as client:
        client.whoami()
        monkeypatch.setattr("gpulayer.default._client", client)
        yield Daemon(client, binary, runs)


@gl.remote(cpus=0.1, memory="64MiB")
def endless() -> Iterator[int]:
    import time

    yield from range(3)
    while True:
        time.sleep(0.01)


@gl.remote(cpus=0.1, memory="64MiB")
def waits_for(place: str) -> str:
    import os
    import time

    while not os.path.exists(place):
        time.sleep(0.01)
    return place


def names(failed: gl.DaemonError, job: gl.Job) -> None:
    assert failed.job == job
    assert str(failed).endswith(f"\n  it keeps {job.noun} {job} · {interrupts.next_steps(job)}")


@pytest.mark.parametrize("begun", [lambda: endless.submit().stream(), endless.run], ids=["stream", "run"])
def test_an_iteration_does_not_start_it_again(daemon: Daemon, begun: Callable[[], Any]) -> None:
    values = begun()
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    daemon.down()
    with pytest.raises(gl.DaemonError, match="gpulayer down"):
        next(values)
    assert list(values) == [] and not daemon.was_started
    assert values.job.wait().state == "cancelled", "the next call starts it again"
    assert daemon.was_started


def test_an_iteration_on_a_loop_does_not_start_it_again(daemon: Daemon) -> None:
    async def work() -> None:
        values = endless.run()
        assert [await values.__anext__() for _ in range(3)] == [0, 1, 2]
        await asyncio.get_running_loop().run_in_executor(None, daemon.down)
        with pytest.raises(gl.DaemonError, match="gpulayer down"):
            await values.__anext__()
        assert not daemon.was_started

    asyncio.run(work())


def test_a_map_does_not_start_it_again_between_what_it_hears_and_what_it_asks(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = MapFeed._look

    async def stopped_before(self: Any, places: list[int]) -> None:
        if not places:
            return
        await asyncio.get_running_loop().run_in_executor(None, functools.partial(daemon.down, "--keep"))
        await look(self, places)

    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    values = waits_for.map([str(first), str(second)])
    until(lambda: daemon.client.jobs(parent=values.id, state="succeeded"))
    through = iter(values)
    assert next(through) == str(first)
    second.touch()
    with monkeypatch.context() as patched, pytest.raises(gl.DaemonError, match="gpulayer down") as failed:
        patched.setattr(MapFeed, "_look", stopped_before)
        next(through)
    assert not daemon.was_started
    names(failed.value, values)
    assert values.result() == [str(first), str(second)]


def test_a_call_that_waits_names_the_job_that_it_keeps(daemon: Daemon, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(waits_for.run, str(place))
        until(lambda: daemon.client.jobs(state="running"))
        [job] = daemon.client.jobs()
        daemon.down("--keep")
        with pytest.raises(gl.DaemonError, match="gpulayer down") as failed:
            waiting.result()
    assert not daemon.was_started
    names(failed.value, job)
    place.touch()
    assert job.result() == str(place)  # type: ignore[comparison-overlap]


def test_a_run_that_waits_names_the_job_that_it_keeps(daemon: Daemon) -> None:
    run = endless.run()
    assert [next(run) for _ in range(3)] == [0, 1, 2]
    daemon.down("--keep")
    with pytest.raises(gl.DaemonError, match="gpulayer down") as failed:
        next(run)
    job = run.job
    del run
    assert job is not None and not daemon.was_started
    names(failed.value, job)
    assert not job.refresh().ended
    job.cancel(now=True).wait()
